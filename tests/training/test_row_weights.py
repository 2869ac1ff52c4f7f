"""Weights of training rows: where they enter, and that a weight counts rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny import tiny
from tolerance import REORDERED_FLOAT32
from torch import Tensor, nn
from toy import EXAMPLES, SET_EXAMPLES, SETS, TASK, make_model

from softcue.backbones import Backbone
from softcue.inference import TaskModel
from softcue.readouts.closed_form import solve_linear
from softcue.tasks import Task
from softcue.tasks.splits import TaskConfig, read_splits
from softcue.training import TaskData, Trainer, TrainingConfig
from softcue.types import Example, RowLabel

WEIGHTS = (2.0, 1.0, 3.0, 1.0, 1.0)
SCORES = Task(name="scores", kind="regression")


def weighted(examples: list[Example]) -> list[Example]:
    return [replace(example, weight=weight) for example, weight in zip(examples, WEIGHTS, strict=True)]


def repeated(examples: list[Example]) -> list[Example]:
    return [example for example, weight in zip(examples, WEIGHTS, strict=True) for _ in range(int(weight))]


def gradients(backbone: Backbone, model: TaskModel, examples: list[Example]) -> dict[str, Tensor]:
    """The gradients of one step that takes all rows."""
    trainer = Trainer(backbone, [TaskData(model, examples, examples)], TrainingConfig(batch_size=64, steps=1))
    model.zero_grad()
    model.train()
    trainer._backward(range(len(trainer.rows)))
    return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


@pytest.mark.parametrize(("family", "task"), [("bert", TASK), ("t5", TASK), ("bert", SETS), ("bert", SCORES)])
def test_integer_weights_give_the_gradient_of_repeated_rows(family: str, task: Task) -> None:
    backbone = tiny(family)
    examples = SET_EXAMPLES if task is SETS else EXAMPLES
    if task is SCORES:
        examples = [Example(example.texts, float(number)) for number, example in enumerate(EXAMPLES)]
    model = make_model(backbone, task=task, readout={"dropout": 0.0})
    expected = gradients(backbone, model, repeated(examples))
    for name, gradient in gradients(backbone, model, weighted(examples)).items():
        REORDERED_FLOAT32.assert_close(gradient, expected[name], name)


def test_weights_that_are_all_equal_change_nothing() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, readout={"dropout": 0.0})
    expected = gradients(backbone, model, EXAMPLES)
    heavy = [replace(example, weight=4.0) for example in EXAMPLES]
    for name, gradient in gradients(backbone, model, heavy).items():
        assert torch.equal(gradient, expected[name]), name


def test_light_and_heavy_steps_keep_their_share_of_the_loss() -> None:
    """One row per step: the gradients of two steps are to each other as the weights of their rows."""
    backbone = tiny("bert")
    model = make_model(backbone, readout={"dropout": 0.0})
    rows = [replace(EXAMPLES[0], weight=1.0), replace(EXAMPLES[0], weight=3.0)]
    trainer = Trainer(backbone, [TaskData(model, rows, rows)], TrainingConfig(batch_size=1, steps=1))
    light, heavy = (float(trainer._backward([number])[0]) for number in (0, 1))
    assert heavy == REORDERED_FLOAT32.approx(3 * light)
    assert trainer.row_weights == [0.5, 1.5]


@pytest.mark.parametrize("labels", [[0, 1, 2, 2, 1], [0.1, 0.5, -1.0, 2.0, 0.3], [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0)]])
def test_heads_in_closed_form_count_weights_as_repeated_rows(labels: list[RowLabel]) -> None:
    weights = WEIGHTS[: len(labels)]
    features = torch.randn(len(labels), 4)
    num_outputs = {int: 3, float: 1, tuple: 2}[type(labels[0])]
    layers = [nn.Linear(4, num_outputs) for _ in range(2)]
    numbers = [number for number, weight in enumerate(weights) for _ in range(int(weight))]
    solve_linear(layers[0], features, labels, 1.0, weights)
    solve_linear(layers[1], features[numbers], [labels[number] for number in numbers], 1.0)
    torch.testing.assert_close(layers[0].weight, layers[1].weight, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(layers[0].bias, layers[1].bias, rtol=1e-3, atol=1e-4)


def test_mean_and_scale_of_scores_and_features_count_weights_as_repeated_rows() -> None:
    backbone = tiny("bert")
    scores = [Example(example.texts, float(number)) for number, example in enumerate(EXAMPLES)]
    features = torch.randn(len(scores), 32)
    numbers = [number for number, weight in enumerate(WEIGHTS) for _ in range(int(weight))]
    buffers = []
    for rows, vectors, weights in (
        (weighted(scores), features, torch.tensor(WEIGHTS)),
        (repeated(scores), features[numbers], torch.ones(len(numbers))),
    ):
        readout = make_model(backbone, task=SCORES, readout={"centre": True}).readout
        readout.fit_statistics(rows)
        readout.fit_features(vectors, weights)
        buffers.append(dict(readout.named_buffers()))
    for name, value in buffers[0].items():
        REORDERED_FLOAT32.assert_close(value, buffers[1][name], name)


def test_the_contrastive_term_weighs_its_anchors_also_in_pieces() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, readout={"dropout": 0.0})
    examples = [replace(example, weight=weight) for example, weight in zip(EXAMPLES * 2, WEIGHTS * 2, strict=True)]
    sums = []
    for rows, micro_batch_size in ((examples, 0), (examples, 2), (EXAMPLES * 2, 0)):
        config = TrainingConfig(batch_size=64, steps=1, contrastive=1.0, micro_batch_size=micro_batch_size)
        trainer = Trainer(backbone, [TaskData(model, rows, rows)], config)
        sums.append(float(trainer._backward(range(len(rows)))[0]))
    assert sums[1] == REORDERED_FLOAT32.approx(sums[0])
    assert sums[2] != pytest.approx(sums[0], rel=1e-3)


def test_splits_keep_the_weight_of_each_row() -> None:
    rows = [{"text": f"text {number}", "label": "ab"[number % 2]} for number in range(20)]
    splits = read_splits(TaskConfig(), {"train": rows}, weights=[float(number) for number in range(1, 21)])
    for example in (*splits.train, *splits.validation):
        assert example.weight == 1 + int(example.texts[0].split()[1])
