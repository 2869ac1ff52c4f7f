"""Optimizers and schedules. The rule of Adafactor itself is compared in tests/paper/test_adafactor.py."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tiny import tiny
from torch import Tensor, nn
from toy import EXAMPLES, TASK, make_model
from transformers.optimization import Adafactor as TransformersAdafactor

from softcue.configuration import resolve
from softcue.methods import METHODS
from softcue.run import Run
from softcue.training.config import TrainingConfig
from softcue.training.optimizers import (
    SMALLEST_SCALE,
    Adafactor,
    load_optimizer_tensors,
    make_optimizer,
    optimizer_tensors,
    prompt_rate,
    rate_factor,
)


def run(parameter: nn.Parameter, gradients: list[Tensor], rate: float, decay: float) -> Tensor:
    optimizer = Adafactor([{"params": [parameter], "lr": rate}], weight_decay=decay)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


def test_weight_decay_is_not_multiplied_by_the_rate() -> None:
    parameter = nn.Parameter(torch.ones(2, 2))
    parameters = run(parameter, [torch.zeros(2, 2)], rate=0.0, decay=0.25)
    assert torch.equal(parameters, torch.full((2, 2), 0.75))


@pytest.mark.parametrize(
    ("shape", "is_factored"), [((127, 512), False), ((100, 512), False), ((128, 128), True), ((300,), False)]
)
def test_only_matrices_of_128_rows_and_columns_are_factored(shape: tuple[int, ...], is_factored: bool) -> None:
    parameter = nn.Parameter(torch.zeros(shape))
    optimizer = Adafactor([{"params": [parameter], "lr": 0.1}], weight_decay=0.0)
    parameter.grad = torch.randn(shape)
    optimizer.step()
    assert ("rows" in optimizer.state[parameter]) == is_factored


def test_prompts_and_networks_have_their_own_rates() -> None:
    model = make_model(tiny("bert"))
    optimizer = make_optimizer(
        model, TrainingConfig(learning_rate=0.3, network_learning_rate=0.001, optimizer="adafactor")
    )
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert {rates[id(p)] for p in model.method.parameters()} == {0.3}
    assert {rates[id(p)] for p in model.readout.parameters()} == {0.001}


@pytest.mark.parametrize("name", ["adafactor", "adamw"])
def test_optimizer_state_survives_as_plain_tensors(name: str) -> None:
    def stepped(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
        torch.manual_seed(seed)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()

    config = TrainingConfig.model_validate({"optimizer": name})
    first_model, second_model = make_model(tiny("bert")), make_model(tiny("bert"))
    first, second = make_optimizer(first_model, config), make_optimizer(second_model, config)
    stepped(first_model, first, 1)
    second_model.load_state_dict(first_model.state_dict())
    load_optimizer_tensors(
        second_model, second, {k: v.clone() for k, v in optimizer_tensors(first_model, first).items()}
    )
    stepped(first_model, first, 2)
    stepped(second_model, second, 2)
    for a, b in zip(first_model.parameters(), second_model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("start", "given", "expected"), [("solved", 0.0005, 0.0005), ("solved", None, 0.002), ("random", 0.0005, 0.002)]
)
def test_heads_that_start_solved_may_have_a_rate_of_their_own(start: str, given: float, expected: float) -> None:
    model = make_model(tiny("bert"), "m-idpg-phm", readout={"head_start": start})
    config = TrainingConfig(learning_rate=0.01, network_learning_rate=0.002, head_learning_rate=given)
    optimizer = make_optimizer(model, config)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert len(rates) == sum(p.requires_grad for p in model.parameters())  # each parameter once
    assert {rates[id(p)] for p in model.readout.parameters()} == {expected}
    assert set(rates.values()) == {0.01, 0.002, expected}


def test_relative_rates_are_in_units_of_word_vectors() -> None:
    backbone = tiny("bert")
    config = TrainingConfig(learning_rate=0.7, relative_rate=0.5)
    words = backbone.word_table.detach()
    size = float(words.square().mean().sqrt())
    prompt_group = make_optimizer(make_model(backbone, "prompt-tuning"), config).param_groups[0]
    assert prompt_group["lr"] == pytest.approx(0.5 * size, rel=1e-3)
    keys_group = make_optimizer(make_model(backbone, "p-tuning-v2", rule="parallel"), config).param_groups[0]
    assert keys_group["lr"] == 0.7  # they do not stand among words


@pytest.mark.parametrize("name", [name for name in METHODS if "encoder" in METHODS[name].kinds])
def test_every_method_of_a_run_has_its_rate_in_units_of_words(name: str) -> None:
    backbone = tiny("bert")
    config = resolve({"method": {"name": name}}, "encoder").method
    method = METHODS[name].make(config, backbone, TASK, torch.Generator().manual_seed(0))
    of_task = method.make_for_task(config, backbone, TASK)  # as each task of a run has it
    expected = 0.5 * backbone.word_size if of_task.config.stands_among_words else 0.7
    rate = prompt_rate(of_task, TrainingConfig(learning_rate=0.7, relative_rate=0.5))
    assert rate == pytest.approx(expected, rel=1e-3)


def test_schedules_follow_their_formulas() -> None:
    linear = TrainingConfig(schedule="linear", warmup_steps=4)
    assert [rate_factor(linear, step, 14) for step in (0, 1, 3, 4, 9, 13)] == pytest.approx(
        [0.25, 0.5, 1.0, 1.0, 0.5, 0.1]
    )
    root = TrainingConfig(schedule="inverse-sqrt", warmup_steps=4)
    assert [rate_factor(root, step, 99) for step in (0, 3, 15, 35)] == pytest.approx([0.25, 1.0, 0.5, 1 / 3])
    constant = TrainingConfig(schedule="constant", warmup_steps=2)
    assert [rate_factor(constant, step, 9) for step in (0, 1, 8)] == [0.5, 1.0, 1.0]


@pytest.mark.parametrize("shape", [(128, 160), (300,), (8,)])
@pytest.mark.parametrize("size", [1e-5, 0.05, 13.0])
@pytest.mark.parametrize("schedule", ["constant", "relative-step"])
def test_parameter_scaling_takes_the_steps_of_transformers_adafactor(
    shape: tuple[int, ...], size: float, schedule: str
) -> None:
    start = torch.randn(shape) * size
    gradients = [torch.randn(shape) * 10.0 ** (step % 3 - 1) for step in range(6)]
    config = TrainingConfig.model_validate(
        {"optimizer": "adafactor", "parameter_scaling": True, "schedule": schedule, "learning_rate": 0.01}
    )
    scaled, other = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizer = Adafactor([{"params": [scaled], "lr": 0.01}], 0.0, config.parameter_scaling)
    is_relative = schedule == "relative-step"
    rule = TransformersAdafactor(
        [other],
        lr=None if is_relative else 0.01,
        scale_parameter=True,
        relative_step=is_relative,
        warmup_init=False,
    )
    for gradient in gradients:
        for parameter in (scaled, other):
            parameter.grad = gradient.clone()
        optimizer.step()
        rule.step()
    moved, expected = scaled.detach() - start, other.detach() - start
    torch.testing.assert_close(moved, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))
    assert 0 < float(moved.square().mean().sqrt()) < 0.07 * max(size * 1.1, SMALLEST_SCALE)


def test_parameter_scaling_measures_the_parameter_before_each_step() -> None:
    parameter = nn.Parameter(torch.full((4,), 2.0))
    optimizer = Adafactor([{"params": [parameter], "lr": 0.5}], 0.0, scales_by_parameter=True)
    for expected in (1.0, 0.5, 0.25):  # half of its size
        parameter.grad = torch.ones(4)
        optimizer.step()
        torch.testing.assert_close(parameter.detach(), torch.full((4,), expected))


def test_relative_steps_are_those_of_t5() -> None:
    relative = TrainingConfig(schedule="relative-step")
    rates = [0.01 * rate_factor(relative, step, 10**6) for step in (0, 9_998, 9_999, 39_999, 999_999)]
    assert rates == pytest.approx([min(1e-2, 1 / math.sqrt(step)) for step in (1, 9_999, 10_000, 40_000, 1_000_000)])


def test_fine_tuning_a_t5_is_scaled_and_a_prompt_is_not() -> None:
    assert resolve({"method": {"name": "fine-tuning"}}, "encoder-decoder").training.parameter_scaling
    assert not resolve({"method": {"name": "prompt-tuning"}}, "encoder-decoder").training.parameter_scaling
    config = resolve({"method": {"name": "fine-tuning"}}, "encoder-decoder").training
    optimizer = make_optimizer(make_model(tiny("t5"), "fine-tuning"), config)
    assert isinstance(optimizer, Adafactor) and optimizer.scales_by_parameter


def test_parameter_scaling_of_adamw_has_no_effect_and_says_so(tmp_path: Path) -> None:
    rows = [{"text": row.texts[0], "label": row.target} for row in EXAMPLES]
    settings = {"training": {"parameter_scaling": True, "optimizer": "adamw"}, "method": {"prompt_length": 3}}
    settings["task"] = {"text": "text", "label": "label"}
    tables = {"train": rows, "validation": rows}
    run = Run(tmp_path, settings, backbone=tiny("bert"), tables=tables)
    assert run.warnings == ["training.parameter_scaling has no effect on adamw: set training.optimizer=adafactor"]
    # The preset's is silent: a user may take another optimizer.
    settings = {"training": {"optimizer": "adamw"}, "method": {"name": "fine-tuning"}, "task": settings["task"]}
    assert Run(tmp_path, settings, backbone=tiny("t5"), tables=tables).warnings == []
