"""A training step and a prediction of a toy task, on the processor or on pretend devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from pretend import SYNCHRONISATIONS, PretendMode, PretendTensor
from tiny import tiny_model, tiny_tokenizer
from tolerance import REORDERED_FLOAT32, REORDERED_PROBABILITIES
from torch import Tensor
from toy import EXAMPLES, make_model

from softcue.backbones import Backbone
from softcue.inference import TaskModel, predict
from softcue.tasks import Label, Task
from softcue.training import TaskData, Trainer, TrainingConfig
from softcue.types import Example, Prediction

# Each label is one token of the tiny tokenizer, as a masked-word head needs it.
LABELS = {"a": ("the", "an account"), "b": ("is", "a bill"), "c": ("my", "an order")}
TASK = Task(
    name="toy",
    labels={name: Label(words=word, description=f"It is about {what}") for name, (word, what) in LABELS.items()},
)
Place = Callable[[Any], None]  # puts a model of transformers where it should be


@dataclass(frozen=True)
class Outcome:
    """What a training step and a prediction gave."""

    loss: float
    gradients: dict[str, Tensor]
    predictions: list[Prediction]
    synchronisations: dict[tuple[str, str], int]  # of the step; none on the processor


@cache
def backbone_on(family: str, place: Place | None = None) -> Backbone:
    """A tiny backbone, put in place before softcue sees it."""
    model = tiny_model(family)
    if place is not None:
        place(model)
    return Backbone(model, tiny_tokenizer(family), f"tiny-{family}")


def move(module: torch.nn.Module, device: str | torch.device) -> torch.nn.Module:
    """Move a module as torch moves one between real devices: a parameter stays the same object."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return module.to(device)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def to_first_device(model: Any) -> None:
    move(model, "pretend:0")


def outcome(
    family: str,
    case: str,
    readout: dict[str, Any] | None = None,
    place: Place | None = None,
    task: Task = TASK,
    examples: Sequence[Example] = EXAMPLES,
    **settings: Any,
) -> Outcome:
    """Predict and train one step on a backbone that `place` put somewhere; without it, on the processor."""
    with nullcontext() if place is None else PretendMode():
        backbone = backbone_on(family, place)
        model = make_model(backbone, case, task=task, readout=readout)
        move(model, backbone.device)
        # Before the step: AdamW makes a whole step of a gradient that is nothing but rounding.
        predictions = _predict(backbone, model, examples)
        if not model.method.needs_training or not any(True for _ in model.parameters()):
            return Outcome(0.0, {}, predictions, {})
        losses: list[float] = []
        config = TrainingConfig.model_validate({"batch_size": len(examples), **settings})
        trainer = Trainer(backbone, [TaskData(model, examples, examples)], config)
        trainer.listener = lambda kind, values: losses.append(values["loss"])
        with SYNCHRONISATIONS.counting() as places:
            trainer._step()
            counted = dict(places)
        gradients = {name: _values(p.grad) for name, p in model.named_parameters() if p.grad is not None}
        return Outcome(losses[0], gradients, predictions, counted)


def _predict(backbone: Backbone, model: TaskModel, examples: Sequence[Example]) -> list[Prediction]:
    return predict(backbone, [(model, example) for example in examples]).predictions


def _values(tensor: Tensor) -> Tensor:
    return tensor.values if isinstance(tensor, PretendTensor) else tensor


def assert_same(actual: Outcome, expected: Outcome) -> None:
    """Both have the same loss, gradients and predictions."""
    assert actual.loss == REORDERED_FLOAT32.approx(expected.loss)
    assert actual.gradients.keys() == expected.gradients.keys()
    # Attention is summed in another order here, and layers add to that: measured against the largest gradient.
    largest = max((float(gradient.abs().max()) for gradient in expected.gradients.values()), default=0.0)
    for name, gradient in expected.gradients.items():
        assert float((actual.gradients[name] - gradient).abs().max()) <= 1e-3 * largest, name
    for prediction, other in zip(actual.predictions, expected.predictions, strict=True):
        assert prediction.label == other.label and prediction.labels == other.labels
        assert prediction.value == REORDERED_FLOAT32.approx(other.value)
        assert prediction.scores == REORDERED_PROBABILITIES.approx(other.scores)
