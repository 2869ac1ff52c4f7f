"""Adafactor, written number by number from its description. It knows nothing of softcue.

Lester et al. (2021), section 3: a constant rate of 0.3, weight decay 1e-5, beta2 decay 0.8, parameter scaling off. The
rule itself is that of Shazeer and Stern (2018), algorithms 4 and 5, without first moment. Their epsilons are 1e-30 and
1e-3, updates are clipped at 1. T5's library keeps factors only of matrices whose sides are both 128 or longer, and its
weight decay is not multiplied by the rate; neither is in a paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Matrix = list[list[float]]

EPSILON_1 = 1e-30
EPSILON_2 = 1e-3
CLIP = 1.0
BETA2_DECAY = 0.8


def rms(matrix: Sequence[Sequence[float]]) -> float:
    """The root of the mean square of all numbers."""
    squares = [value * value for row in matrix for value in row]
    return math.sqrt(math.fsum(squares) / len(squares))


def constant_rate(rate: float) -> Callable[[int], float]:
    """Lester et al., section 3: the same rate at every step (from 1)."""
    return lambda step: rate


def relative_step(step: int) -> float:
    """Shazeer and Stern, section 9: rho_t = min(10^-2, 1 / sqrt(t))."""
    return min(1e-2, 1.0 / math.sqrt(step))


def adafactor(
    start: Matrix,
    gradients: Sequence[Matrix],
    rate_at: Callable[[int], float],
    weight_decay: float = 0.0,
    is_factored: bool = False,
    scales_by_parameter: bool = False,
) -> Matrix:
    """Algorithm 4 (a matrix by its factors) or 5 (all second moments): the parameter after one step per gradient."""
    num_rows, num_columns = len(start), len(start[0])
    values = [list(row) for row in start]
    row_sums, column_sums = [0.0] * num_rows, [0.0] * num_columns  # R, C
    moment = [[0.0] * num_columns for _ in range(num_rows)]  # V
    for step, gradient in enumerate(gradients, start=1):
        beta2 = 1.0 - step**-BETA2_DECAY
        squares = [[value * value + EPSILON_1 for value in row] for row in gradient]
        for i in range(num_rows):
            row_sums[i] = beta2 * row_sums[i] + (1.0 - beta2) * math.fsum(squares[i])
        for j in range(num_columns):
            column_sums[j] = beta2 * column_sums[j] + (1.0 - beta2) * math.fsum(row[j] for row in squares)
        total = math.fsum(row_sums)
        update = [[0.0] * num_columns for _ in range(num_rows)]
        for i in range(num_rows):
            for j in range(num_columns):
                moment[i][j] = beta2 * moment[i][j] + (1.0 - beta2) * squares[i][j]
                estimate = row_sums[i] * column_sums[j] / total if is_factored else moment[i][j]
                update[i][j] = gradient[i][j] / math.sqrt(estimate)
        clip = max(1.0, rms(update) / CLIP)
        rate = rate_at(step)
        if scales_by_parameter:
            rate *= max(EPSILON_2, rms(values))
        for i in range(num_rows):
            for j in range(num_columns):
                values[i][j] = values[i][j] - weight_decay * values[i][j] - rate * update[i][j] / clip
    return values
