"""Named tolerances. Each follows the number format and what was computed in another order.

A matrix product sums in an order that depends on the processor, the number of threads and the shapes. Equal shapes in
one process give equal bits: such results are compared with `torch.equal` or `==`. Results of other shapes (a row alone
and in a batch, a cached and a whole pass) differ by rounding and are compared with a tolerance from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch


@dataclass(frozen=True)
class Tolerance:
    """The largest difference: absolute plus relative for tensors, the larger of the two for plain numbers."""

    relative: float
    absolute: float

    def assert_close(self, actual: Any, expected: Any, name: str | None = None) -> None:
        """Compare two tensors, or lists or dictionaries of them; the message begins with `name`."""
        message = None if name is None else lambda text: f"{name}: {text}"
        torch.testing.assert_close(actual, expected, rtol=self.relative, atol=self.absolute, msg=message)

    def approx(self, expected: Any) -> Any:
        """Compare a number, a list or a dictionary of numbers: `actual == tolerance.approx(expected)`. None is None."""
        if expected is None:
            return None
        return pytest.approx(expected, rel=self.relative, abs=self.absolute)


# Sums in another order, through the layers of a tiny float64 model: 1e-13 occurs, real differences are above 1e-6.
REORDERED_FLOAT64 = Tolerance(relative=1e-12, absolute=1e-12)
# The same in float32 (machine epsilon 1.2e-7): states, logits, losses, generated prompts. 7e-5 occurs at size 100.
REORDERED_FLOAT32 = Tolerance(relative=1e-4, absolute=1e-4)
# Loops written from a paper's text, and their gradients, in float64: a few digits more are lost in longer sums.
LITERAL_FLOAT64 = Tolerance(relative=1e-10, absolute=1e-10)
# Probabilities and scores of such logits, which lie between 0 and 1.
REORDERED_PROBABILITIES = Tolerance(relative=0.0, absolute=1e-4)
# One product or sum in float32, without layers behind it.
ONE_SUM_FLOAT32 = Tolerance(relative=1e-5, absolute=1e-5)
# Parameters after a few optimizer steps: differences of gradients add up.
REORDERED_STEPS = Tolerance(relative=2e-3, absolute=2e-4)
# Losses in bfloat16, which keeps eight bits (machine epsilon 7.8e-3), against float32: 6e-2 occurs.
REORDERED_BFLOAT16 = Tolerance(relative=2e-1, absolute=1e-2)
