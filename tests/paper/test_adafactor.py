"""Adafactor as Lester et al. (2021) and T5 use it, against a rule written number by number (literal_adafactor.py)."""

from __future__ import annotations

import random

import pytest
import torch
from paper.literal_adafactor import adafactor, constant_rate, relative_step
from tolerance import LITERAL_FLOAT64, ONE_SUM_FLOAT32, Tolerance
from torch import Tensor, nn

from softcue.training.config import TrainingConfig
from softcue.training.optimizers import Adafactor, rate_factor


def compare(
    shape: tuple[int, int], num_steps: int, size: float, schedule: str, decay: float, tolerance: Tolerance
) -> None:
    """Take the steps of both rules from the same parameter, with gradients of very different sizes."""
    start = size * torch.randn(shape)
    gradients = [torch.randn(shape) * 10.0 ** (step % 4 - 2) for step in range(num_steps)]
    scales_by_parameter, is_relative = schedule != "prompt tuning", schedule == "relative step"
    rate = {"prompt tuning": 0.3, "fine-tuning": 0.001, "relative step": 0.01}[schedule]
    config = TrainingConfig(schedule="relative-step" if is_relative else "constant")
    parameter = nn.Parameter(start.clone())
    optimizer = Adafactor([{"params": [parameter], "lr": rate}], decay, scales_by_parameter)
    first_step = 9_998 if is_relative else 0  # where the relative step begins to fall
    for number, gradient in enumerate(gradients):
        optimizer.param_groups[0]["lr"] = rate * rate_factor(config, first_step + number, 10**6)
        parameter.grad = gradient.clone()
        optimizer.step()
    expected = adafactor(
        numbers(start),
        [numbers(gradient) for gradient in gradients],
        (lambda step: relative_step(first_step + step)) if is_relative else constant_rate(rate),
        decay,
        is_factored=min(shape) >= 128,
        scales_by_parameter=scales_by_parameter,
    )
    tolerance.assert_close(parameter.detach().double(), torch.tensor(expected, dtype=torch.float64))


def numbers(values: Tensor) -> list[list[float]]:
    return values.double().tolist()  # type: ignore[no-any-return]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("schedule", ["prompt tuning", "fine-tuning", "relative step"])
@pytest.mark.parametrize("seed", range(6))
def test_steps_of_any_prompt_are_the_rule(seed: int, schedule: str) -> None:
    choices = random.Random(seed)
    shape = (choices.randint(1, 9), choices.randint(1, 9))
    size = choices.choice([0.0, 1e-5, 0.1, 13.0])  # the scale of a parameter near zero has a floor
    compare(shape, choices.randint(1, 7), size, schedule, choices.choice([0.0, 1e-5, 1e-2]), LITERAL_FLOAT64)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("schedule", ["prompt tuning", "fine-tuning"])
@pytest.mark.parametrize("shape", [(128, 130), (127, 140)])
def test_steps_of_a_matrix_are_the_rule_by_its_factors_from_128_rows_and_columns_on(
    shape: tuple[int, int], schedule: str
) -> None:
    compare(shape, 3, 0.05, schedule, 1e-5, LITERAL_FLOAT64)


def test_steps_in_float32_are_the_rule_too() -> None:
    compare((3, 5), 6, 1.0, "prompt tuning", 1e-5, ONE_SUM_FLOAT32)
