"""A prompt-tuning step against the bare frozen backbone, its memory against PEFT's, and IDPG's and VIP's steps
against those of static prompts; on random weights.

Shapes are those of real models (MiniLM, T5 v1.1 small, a GPT-2 of width 512); the weights do not matter for
speed. The bare step runs the same number of tokens through the same layers and the same logits, forward and
backward, without placing prompts, collating rows or updating anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from softcue.backbones import Backbone
from softcue.benchmarks.contestants import CLASSES, random_backbone, random_cue, random_examples, random_model
from softcue.benchmarks.measuring import Step, figure, interleaved_seconds, peak_bytes, ratio_of, start_seconds
from softcue.configuration import preset
from softcue.errors import MissingExtraError
from softcue.training import Studied, Trainer, TrainingConfig

PROMPT, TEXT, ROWS = 20, 32, 16  # P, T, B
PAPER_PROMPT = 100  # of Lester et al. and of VIP


@dataclass(frozen=True)
class Contest:
    """Our trainer and the same model bare, on the same rows."""

    backbone: Backbone
    trainer: Trainer
    ids: torch.Tensor  # [B T]
    target_ids: torch.Tensor  # [B U]


def training_figures(repeats: int) -> dict[str, dict[str, Any]]:
    """Every figure of `softcue bench train`."""
    figures: dict[str, dict[str, Any]] = {}
    worst = (0.0, 0.0, "")
    heaviest = (0.0, "")
    for kind in ("encoder", "encoder-decoder", "decoder"):
        contest = make_contest(kind)
        seconds = interleaved_seconds({"ours": our_step(contest), "bare": bare_step(contest)}, repeats)
        ratio, spread = ratio_of(seconds, "ours", "bare")
        worst = max(worst, (ratio, spread, kind))
        ours = peak_bytes(our_step(contest))
        memory = ours / peak_bytes(peft_step(kind, contest))
        heaviest = max(heaviest, (memory, kind))
        key = kind.replace("-", "_")
        figures[f"step_vs_bare_{key}"] = figure(
            ratio, 1.05, spread, repeats, f"prompt-tuning step / bare {kind} forward and backward, time"
        )
        figures[f"memory_vs_peft_{key}"] = figure(
            memory, 1.0, 0.0, 1, f"peak memory of a step / PEFT prompt tuning's, {kind}"
        )
    figures["step_vs_bare_backbone"] = figure(
        worst[0], 1.05, worst[1], repeats, f"the worst of the three kinds ({worst[2]})"
    )
    for name, words, limit in (
        ("import_seconds", ["-c", "import softcue"], 1.5),
        ("help_seconds", ["-m", "softcue", "--help"], 1.0),
    ):
        median, spread = start_seconds(words, repeats)
        figures[name] = figure(median, limit, spread, repeats, f"seconds of: python {' '.join(words)}")
    figures["memory_vs_peft"] = figure(heaviest[0], 1.0, 0.0, 1, f"the worst of the three kinds ({heaviest[1]})")
    return figures | shared_prefix_figures(repeats) | deep_prompt_figures(repeats) | vip_figures(repeats)


def shared_prefix_figures(repeats: int) -> dict[str, dict[str, Any]]:
    """A static prompt of the paper's length on a decoder, which we run once per step and PEFT in every row."""
    contest = make_contest("decoder", settings={"prompt_length": PAPER_PROMPT, "init": "uniform"})
    ours, theirs = our_step(contest), peft_step("decoder", contest)
    ratio, spread = ratio_of(interleaved_seconds({"ours": ours, "peft": theirs}, repeats), "peft", "ours")
    meaning = f"prompt tuning on a decoder, {PAPER_PROMPT} vectors, {TEXT} text tokens, {ROWS} rows"
    return {
        "decoder_train_vs_peft": figure(ratio, 5.0, spread, repeats, f"PEFT's step / ours, {meaning}, time", ">="),
        "decoder_train_memory_vs_peft": figure(
            peak_bytes(ours) / peak_bytes(theirs), 0.5, 0.0, 1, f"our step / PEFT's, {meaning}, peak memory"
        ),
    }


def deep_prompt_figures(repeats: int) -> dict[str, dict[str, Any]]:
    """What generating a prompt for each input costs over having it: IDPG with M(x) known, beside P-tuning v2.

    On decoders the static prompt runs once per step, which one that reads the input cannot: told apart.
    """
    figures: dict[str, dict[str, Any]] = {}
    worst, heaviest = (0.0, 0.0, ""), (0.0, "")
    meaning = "m-idpg-phm step with M(x) cached / p-tuning-v2 step of the same prompt length"
    for kind in ("encoder", "encoder-decoder", "decoder"):
        settings = {"prompt_length": PROMPT, "rule": "add"}
        generated = our_step(make_contest(kind, "m-idpg-phm", settings))
        trained = our_step(make_contest(kind, "p-tuning-v2", settings))
        ratio, spread = ratio_of(interleaved_seconds({"ours": generated, "static": trained}, repeats), "ours", "static")
        memory = peak_bytes(generated) / peak_bytes(trained)
        if kind == "decoder":
            figures["m_idpg_vs_p_tuning_v2_decoder"] = figure(ratio, 1.15, spread, repeats, f"{meaning}, decoder")
            figures["m_idpg_memory_vs_p_tuning_v2_decoder"] = figure(memory, 1.10, 0.0, 1, "its peak memory, decoder")
            continue
        worst = max(worst, (ratio, spread, kind))
        heaviest = max(heaviest, (memory, kind))
    figures["m_idpg_vs_p_tuning_v2"] = figure(worst[0], 1.15, worst[1], repeats, f"{meaning}; worst kind: {worst[2]}")
    figures["m_idpg_memory_vs_p_tuning_v2"] = figure(
        heaviest[0], 1.10, 0.0, 1, f"peak memory of the same steps; worst kind: {heaviest[1]}"
    )
    return figures


def vip_figures(repeats: int) -> dict[str, dict[str, Any]]:
    """What reading the input costs over a static prompt: VIP beside prompt tuning, at the paper's length."""
    settings = {"prompt_length": PAPER_PROMPT, "init": "uniform"}
    reading = our_step(make_contest("encoder-decoder", "vip", settings))
    static = our_step(make_contest("encoder-decoder", "prompt-tuning", settings))
    ratio, spread = ratio_of(interleaved_seconds({"ours": reading, "static": static}, repeats), "ours", "static")
    memory = peak_bytes(reading) / peak_bytes(static)
    meaning = f"vip / prompt-tuning step, T5 v1.1 small shape, {PAPER_PROMPT} vectors, {10 * PAPER_PROMPT} codes"
    return {
        "vip_vs_prompt_tuning": figure(ratio, 1.10, spread, repeats, f"{meaning}, time"),
        "vip_memory_vs_prompt_tuning": figure(memory, 1.15, 0.0, 1, f"{meaning}, peak memory"),
    }


def make_contest(kind: str, method: str = "prompt-tuning", settings: dict[str, Any] | None = None) -> Contest:
    """Random weights of a real shape, random tokens, our trainer on them."""
    settings = settings or {"prompt_length": PROMPT, "init": "uniform"}
    backbone = random_backbone(kind)
    model = random_cue(backbone, method, settings)
    examples = random_examples(ROWS, TEXT)
    training = TrainingConfig.model_validate({**preset("prompt-tuning", kind)["training"], "batch_size": ROWS})
    trainer = Trainer(backbone, [Studied(model, examples, examples)], training)
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
    prompted = PROMPT + contest.ids.shape[1] + (num_answers if backbone.kind == "decoder" else 0)
    embeds = torch.randn(ROWS, prompted, backbone.width, requires_grad=True)
    mask = torch.ones(ROWS, prompted, dtype=torch.long)

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


def peft_step(kind: str, contest: Contest) -> Step:
    """PEFT's prompt tuning on the same rows, at its documented settings."""
    try:
        import peft
    except ImportError as error:
        raise MissingExtraError("peft", "bench") from error
    task_type = {"encoder": "SEQ_CLS", "encoder-decoder": "SEQ_2_SEQ_LM", "decoder": "CAUSAL_LM"}[kind]
    torch.manual_seed(0)
    model = peft.get_peft_model(
        random_model(kind, classes=len(CLASSES)),
        peft.PromptTuningConfig(task_type=task_type, num_virtual_tokens=contest.trainer.model.method.prompt_length),
    )
    model.train()
    model.base_model.eval()  # ours runs the frozen backbone without dropout
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    ids, labels = contest.ids, contest.target_ids
    if kind == "decoder":
        ids = torch.cat([ids, labels], dim=1)
        labels = torch.cat([torch.full_like(contest.ids, -100), labels], dim=1)
    elif kind == "encoder":
        labels = torch.zeros(ROWS, dtype=torch.long)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        batch = {"input_ids": ids.clone(), "attention_mask": torch.ones_like(ids), "labels": labels.clone()}
        model(**batch).loss.backward()  # a new batch each step, as ours collates one
        optimizer.step()

    return step
