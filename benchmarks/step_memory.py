"""The memory that `softcue plan` foresees against what torch's allocator gives out in a real step on a processor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.measuring import make_figure, peak_bytes
from benchmarks.random_models import random_backbone, random_cue, random_examples
from softcue.inputs.collate import collate
from softcue.training import TrainingConfig
from softcue.training.optimizers import make_optimizer
from softcue.training.step_memory import StepMemory, measure_step

METHODS: dict[str, dict[str, Any]] = {
    "prompt-tuning": {"prompt_length": 20},
    "p-tuning-v2": {"prompt_length": 20, "rule": "kv"},
    "m-idpg-phm": {"prompt_length": 5, "phm_n": 16, "bottleneck": 64},
    "lora": {},
    "fine-tuning": {},
}
CASES = [(kind, method) for kind in ("encoder", "encoder-decoder", "decoder") for method in METHODS]
ROWS, LENGTH = 8, 96
TOLERANCE = 0.1


def foreseen_and_measured(kind: str, method: str, checkpoints_layers: bool = False) -> tuple[StepMemory, int]:
    """What a plan says of a step on a model with random weights, and the bytes that a real one takes beside them."""
    backbone = random_backbone(kind)
    if checkpoints_layers:
        backbone.checkpoint_layers()
    model = random_cue(backbone, method, METHODS[method])
    config = TrainingConfig()
    rows = model.rows(backbone, random_examples([LENGTH] * ROWS), with_target=True)
    batch = collate(rows, backbone.tokenizer.pad_token_id)
    optimizer = make_optimizer(model, config)
    model.train()

    def step() -> None:
        torch.manual_seed(0)
        output = model(backbone, batch)
        (output.losses.sum() + output.aux_loss).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    foreseen = measure_step(
        backbone, model, ROWS, batch.ids.shape[1], batch.target_ids.shape[1], config, has_equal_lengths=True
    )
    return foreseen, peak_bytes(step)


def memory_figures(cases: Sequence[tuple[str, str]] = CASES) -> dict[str, dict[str, Any]]:
    """The ratio of foreseen and measured bytes of activations and gradients."""
    figures = {}
    for kind, method in cases:
        for checkpoints_layers in (False, True):
            foreseen, measured = foreseen_and_measured(kind, method, checkpoints_layers)
            ratio = (foreseen.activations + foreseen.gradients) / measured
            meaning = f"foreseen / measured, {measured / 2**20:.0f} MB"
            name = f"{method}, {kind}" + (", layers run again" if checkpoints_layers else "")
            figure = make_figure(ratio, 1 + TOLERANCE, 0.0, 1, meaning)
            figures[name] = {**figure, "met": abs(ratio - 1) <= TOLERANCE}
    return figures
