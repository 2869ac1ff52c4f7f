"""One training step of ours, of the bare frozen backbone, and of PEFT, on the same rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from softcue.backbones import Backbone
from softcue.benchmarks import peers
from softcue.benchmarks.contestants import random_backbone, random_cue, random_examples, random_model
from softcue.benchmarks.measuring import Step
from softcue.benchmarks.peers import peft_model, without_dropout
from softcue.configuration import preset
from softcue.training import TaskData, Trainer, TrainingConfig

PROMPT, TEXT, ROWS = 20, 32, 16  # P, T, B
PAPER_PROMPT = 100  # of Lester et al. and of VIP


@dataclass(frozen=True)
class Contest:
    """Our trainer and the same model bare, on the same rows."""

    backbone: Backbone
    trainer: Trainer
    ids: torch.Tensor  # [B T]
    target_ids: torch.Tensor  # [B U]

    @property
    def prompt_length(self) -> int:
        """P."""
        return self.trainer.model.method.prompt_length


def prompt_of(length: int) -> dict[str, Any]:
    """Settings of a prompt that needs no words to start from."""
    return {"prompt_length": length, "init": "uniform"}


def make_contest(
    kind: str, method: str = "prompt-tuning", settings: dict[str, Any] | None = None, rows: int = ROWS, text: int = TEXT
) -> Contest:
    """Random weights of a real shape, random tokens, our trainer on them."""
    backbone = random_backbone(kind)
    model = random_cue(backbone, method, settings or prompt_of(PROMPT))
    examples = random_examples([text] * rows)
    training = TrainingConfig.model_validate({**preset("prompt-tuning", kind)["training"], "batch_size": rows})
    trainer = Trainer(backbone, [TaskData(model, examples, examples)], training)
    ids = torch.tensor([row.ids for row in trainer.rows])
    target_ids = torch.tensor([row.target_ids or (0,) for row in trainer.rows])
    return Contest(backbone, trainer, ids, target_ids)


def our_step(contest: Contest) -> Step:
    """A whole optimizer step of the trainer."""
    return contest.trainer._step


def bare_step(contest: Contest) -> Step:
    """Forward and backward of the backbone alone, at the same number of tokens and logits."""
    model, backbone = contest.backbone.model, contest.backbone
    num_answers = contest.target_ids.shape[1]
    rows, text = contest.ids.shape
    prompted = contest.prompt_length + text + (num_answers if backbone.kind == "decoder" else 0)
    embeds = torch.randn(rows, prompted, backbone.width, requires_grad=True)
    mask = torch.ones(rows, prompted, dtype=torch.long)

    def step() -> None:
        embeds.grad = None
        if backbone.kind == "encoder":
            backbone.base(inputs_embeds=embeds, attention_mask=mask).last_hidden_state.sum().backward()
            return
        if backbone.kind == "decoder":
            # As an index, which torch runs faster than the slice a plain number gives.
            answers = torch.arange(prompted - 1 - num_answers, prompted - 1)
            logits = model(inputs_embeds=embeds, attention_mask=mask, logits_to_keep=answers, use_cache=False).logits
        else:
            logits = model(
                inputs_embeds=embeds, attention_mask=mask, decoder_input_ids=contest.target_ids, use_cache=False
            ).logits
        functional.cross_entropy(logits.flatten(0, 1), contest.target_ids.flatten()).backward()

    return step


def peft_twin(contest: Contest, config: str = "PromptTuningConfig", **settings: Any) -> Any:
    """The contest's backbone once more, under one of PEFT's methods with as many prompt vectors."""
    kind = contest.backbone.kind
    torch.manual_seed(0)
    model = peft_model(kind, random_model(kind, with_head=True), contest.prompt_length, config, **settings)
    without_dropout(model)
    if config == "PromptTuningConfig":
        model.base_model.config.use_cache = False  # as transformers' Trainer has it in training
    return model


def peft_step(contest: Contest, model: Any) -> Callable[[], float]:
    """A step of PEFT on the contest's rows, as its examples do one; it gives the loss."""
    ids, labels = contest.ids, contest.target_ids
    if contest.backbone.kind == "decoder":
        ids = torch.cat([ids, labels], dim=1)
        labels = torch.cat([torch.full_like(contest.ids, -100), labels], dim=1)
    elif contest.backbone.kind == "encoder":
        labels = torch.zeros(len(ids), dtype=torch.long)

    def batch() -> dict[str, torch.Tensor]:  # a new one each step, as ours collates one
        return {"input_ids": ids.clone(), "attention_mask": torch.ones_like(ids), "labels": labels.clone()}

    return peers.peft_step(model, batch)
