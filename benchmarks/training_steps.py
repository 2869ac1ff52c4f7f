"""One training step of softcue, of the bare frozen backbone and of PEFT, on the same rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from benchmarks.measuring import Step
from benchmarks.peft_models import freeze_in_evaluation_mode, make_peft_model, make_peft_step
from benchmarks.random_models import random_backbone, random_cue, random_examples, random_model
from softcue.backbones import Backbone
from softcue.configuration import preset
from softcue.training import TaskData, Trainer, TrainingConfig

PROMPT_LENGTH, TEXT_LENGTH, NUM_ROWS = 20, 32, 16  # P, T, B
PAPER_PROMPT_LENGTH = 100  # of Lester et al. and of VIP


@dataclass(frozen=True)
class StepContest:
    """Our trainer and the same model bare, on the same rows."""

    backbone: Backbone
    trainer: Trainer
    ids: torch.Tensor  # [B T]
    target_ids: torch.Tensor  # [B U]

    @property
    def prompt_length(self) -> int:
        """P."""
        return self.trainer.model.method.prompt_length


def prompt_settings(length: int) -> dict[str, Any]:
    """Settings of a prompt that does not start from words."""
    return {"prompt_length": length, "init": "uniform"}


def make_contest(
    kind: str,
    method: str = "prompt-tuning",
    settings: dict[str, Any] | None = None,
    num_rows: int = NUM_ROWS,
    text_length: int = TEXT_LENGTH,
) -> StepContest:
    """Our trainer on random weights of a real shape and random tokens."""
    backbone = random_backbone(kind)
    model = random_cue(backbone, method, settings or prompt_settings(PROMPT_LENGTH))
    examples = random_examples([text_length] * num_rows)
    training = TrainingConfig.model_validate({**preset("prompt-tuning", kind)["training"], "batch_size": num_rows})
    trainer = Trainer(backbone, [TaskData(model, examples, examples)], training)
    ids = torch.tensor([row.ids for row in trainer.rows])
    target_ids = torch.tensor([row.target_ids or (0,) for row in trainer.rows])
    return StepContest(backbone, trainer, ids, target_ids)


def our_step(contest: StepContest) -> Step:
    """A whole optimizer step of the trainer."""
    return contest.trainer._step


def bare_step(contest: StepContest) -> Step:
    """Forward and backward pass of the backbone alone, with the same number of tokens and logits."""
    model, backbone = contest.backbone.model, contest.backbone
    num_targets = contest.target_ids.shape[1]
    num_rows, text_length = contest.ids.shape
    length = contest.prompt_length + text_length + (num_targets if backbone.kind == "decoder" else 0)
    embeds = torch.randn(num_rows, length, backbone.width, requires_grad=True)  # [B S D]
    mask = torch.ones(num_rows, length, dtype=torch.long)  # [B S]

    def step() -> None:
        embeds.grad = None
        if backbone.kind == "encoder":
            backbone.base(inputs_embeds=embeds, attention_mask=mask).last_hidden_state.sum().backward()
            return
        if backbone.kind == "decoder":
            # As an index, which torch runs faster than the slice that a plain number gives.
            targets = torch.arange(length - 1 - num_targets, length - 1)
            logits = model(inputs_embeds=embeds, attention_mask=mask, logits_to_keep=targets, use_cache=False).logits
        else:
            logits = model(
                inputs_embeds=embeds, attention_mask=mask, decoder_input_ids=contest.target_ids, use_cache=False
            ).logits
        functional.cross_entropy(logits.flatten(0, 1), contest.target_ids.flatten()).backward()

    return step


def peft_twin(contest: StepContest, config: str = "PromptTuningConfig", **settings: Any) -> Any:
    """A second copy of the contest's backbone, under one of PEFT's methods with the same prompt length."""
    kind = contest.backbone.kind
    torch.manual_seed(0)
    model = make_peft_model(kind, random_model(kind, with_head=True), contest.prompt_length, config, **settings)
    freeze_in_evaluation_mode(model)
    if config == "PromptTuningConfig":
        model.base_model.config.use_cache = False  # as transformers' Trainer sets it in training
    return model


def peft_step(contest: StepContest, model: Any) -> Callable[[], float]:
    """A step of PEFT on the contest's rows, as in its examples; it returns the loss."""
    ids, labels = contest.ids, contest.target_ids
    if contest.backbone.kind == "decoder":
        ids = torch.cat([ids, labels], dim=1)
        labels = torch.cat([torch.full_like(contest.ids, -100), labels], dim=1)
    elif contest.backbone.kind == "encoder":
        labels = torch.zeros(len(ids), dtype=torch.long)

    def next_batch() -> dict[str, torch.Tensor]:  # a new one each step, because our trainer collates each step
        return {"input_ids": ids.clone(), "attention_mask": torch.ones_like(ids), "labels": labels.clone()}

    return make_peft_step(model, next_batch)
