"""Adafactor as T5 used it in pre-training: the rate of a parameter is relative to the size of its values."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from softcue.adaptation.config import AdaptationConfig
from softcue.training.optimizers import Adafactor

SMALLEST_SCALE = 1e-3  # parameters that are nearly 0 can still move


def make_adafactor(parameters: Iterable[nn.Parameter], config: AdaptationConfig) -> Adafactor:
    """Adafactor with a group per parameter, so that each has a rate of its own.

    Example:
        >>> weights = nn.Parameter(torch.full((2, 2), 4.0))
        >>> optimizer = make_adafactor([weights], AdaptationConfig())
        >>> weights.grad = torch.ones(2, 2)
        >>> take_step(optimizer, rate=0.01, parameter_scaling=True)
        >>> round(weights[0, 0].item(), 4)  # 1 % of its size
        3.96
    """
    return Adafactor([{"params": [parameter]} for parameter in parameters], config.weight_decay)


@torch.no_grad()
def take_step(optimizer: Adafactor, rate: float, parameter_scaling: bool) -> None:
    """Update all parameters by their gradients."""
    for group in optimizer.param_groups:
        [parameter] = group["params"]
        group["lr"] = rate
        if parameter_scaling:
            group["lr"] *= max(float(parameter.float().square().mean().sqrt()), SMALLEST_SCALE)
    optimizer.step()
