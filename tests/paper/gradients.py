"""Two computations of the same numbers, compared with the gradients of everything they were made from."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from tolerance import LITERAL_FLOAT64, Tolerance
from torch import Tensor


def assert_same_with_gradients(
    actual: Tensor, expected: Tensor, sources: Mapping[str, Tensor], tolerance: Tolerance = LITERAL_FLOAT64
) -> None:
    """Compare two tensors, and the gradients that a random weighting of them gives every source."""
    tolerance.assert_close(actual.double(), expected.double(), "values")
    pull = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gradients = [
        torch.autograd.grad(
            (values.double() * pull).sum(), list(sources.values()), allow_unused=True, retain_graph=True
        )
        for values in (actual, expected)
    ]
    for name, actual_gradient, expected_gradient in zip(sources, *gradients, strict=True):
        assert actual_gradient is not None and expected_gradient is not None, f"{name} has no gradient"
        assert expected_gradient.any(), f"the gradient of {name} is zero"
        tolerance.assert_close(actual_gradient.double(), expected_gradient.double(), f"gradient of {name}")
