"""Whether two scores can be told apart, on the same rows or over tasks and seeds: paired bootstrap and exact tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95  # of intervals
MOST_DRAWS, LEAST_DRAWS = 2000, 200
MOST_ROWS_DRAWN = 2_000_000  # over all draws, where a metric is computed anew for each

Indices = NDArray[np.int64]
PairedScores = Callable[[Indices], tuple[float, float]]  # scores of both sides on these rows


@dataclass(frozen=True)
class Difference:
    """The difference of two scores on the same rows: the second minus the first, with a 95 % interval."""

    value: float
    low: float
    high: float
    num_units: int  # rows, or groups of rows that are scored together

    @property
    def is_significant(self) -> bool:
        """Whether the interval leaves out zero.

        Example:
            >>> Difference(2.0, 0.4, 3.6, 126).is_significant, Difference(2.0, -0.1, 4.1, 126).is_significant
            (True, False)
        """
        return self.low > 0 or self.high < 0

    def describe(self, first: str, second: str, is_told_apart: bool) -> str:
        """The difference in plain words. Another test beside the interval may decide whether the sides are told apart.

        Example:
            >>> Difference(2.34, 0.4, 3.6, 126).describe("probe", "prompt", True)
            'prompt beats probe by 2.3 points (95 % interval 0.4 to 3.6)'
            >>> Difference(-0.8, -2.4, 0.9, 126).describe("probe", "prompt", False)
            'probe and prompt cannot be told apart: -0.8 (95 % interval -2.4 to 0.9)'
        """
        if not is_told_apart:
            low, high = (round(bound, 1) + 0.0 for bound in (self.low, self.high))  # never -0.0
            interval = f"95 % interval {low:.1f} to {high:.1f}"
            return f"{first} and {second} cannot be told apart: {self.value:+.1f} ({interval})"
        better, worse = (second, first) if self.value > 0 else (first, second)
        low, high = sorted((abs(self.low), abs(self.high)))
        return f"{better} beats {worse} by {abs(self.value):.1f} points (95 % interval {low:.1f} to {high:.1f})"


def bootstrap_difference(
    scores: Sequence[PairedScores], units: Sequence[Sequence[int]], seed: int = 0, draws: int = 0
) -> Difference:
    """Compute the difference of two scores and its interval by drawing units with replacement, for both sides alike.

    `scores` has a function for each seed of training, which gets row numbers; of several seeds the mean counts, and
    seeds are drawn with replacement too. A unit is a row, or all rows of a group that is scored together. With
    `draws=0` their number follows the number of rows. The interval lies between percentiles of the drawn differences.

    Example:
        >>> first, second = np.array([1, 0, 1, 0] * 25), np.array([1, 1, 1, 0] * 25)
        >>> both = lambda rows: (100 * first[rows].mean(), 100 * second[rows].mean())
        >>> difference = bootstrap_difference([both], [[row] for row in range(100)])
        >>> difference.value, difference.is_significant
        (25.0, True)
    """
    rows_of_units = [np.asarray(unit, dtype=np.int64) for unit in units]
    all_rows = np.concatenate(rows_of_units)
    num_computed = len(all_rows) * len(scores)
    draws = draws or max(LEAST_DRAWS, min(MOST_DRAWS, MOST_ROWS_DRAWN // max(1, num_computed)))
    generator = np.random.default_rng(seed)

    def mean_difference(rows: Indices, runs: Iterable[PairedScores]) -> float:
        pairs = [run(rows) for run in runs]
        return fmean(second - first for first, second in pairs)

    values = []
    for _ in range(draws):
        drawn = generator.integers(len(rows_of_units), size=len(rows_of_units))
        runs = [scores[number] for number in generator.integers(len(scores), size=len(scores))]
        values.append(mean_difference(np.concatenate([rows_of_units[unit] for unit in drawn]), runs))
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Difference(mean_difference(all_rows, scores), float(low), float(high), len(rows_of_units))


def exact_mcnemar(num_only_first: int, num_only_second: int) -> float:
    """Compute the two-sided p-value of McNemar's exact test.

    It is the chance of so uneven a split of the rows that only one of two sides gets right, if both were as likely.

    Example:
        >>> exact_mcnemar(0, 0), round(exact_mcnemar(2, 10), 4)
        (1.0, 0.0386)
    """
    return sign_test(num_only_first, num_only_second)


def sign_test(num_won: int, num_lost: int) -> float:
    """Compute the two-sided p-value of the exact sign test. Ties are left out.

    It is the chance of so uneven a split into won and lost comparisons, if both were as likely.

    Example:
        >>> sign_test(5, 0), sign_test(4, 1), sign_test(0, 0)
        (0.0625, 0.375, 1.0)
    """
    from scipy.stats import binomtest

    num_decided = num_won + num_lost
    return float(binomtest(num_won, num_decided).pvalue) if num_decided else 1.0


def bootstrap_tasks(
    differences: Sequence[Sequence[Sequence[float]]], seed: int = 0, draws: int = MOST_DRAWS
) -> Difference:
    """Compute a mean difference over tasks and its interval by drawing tasks, and runs of each, with replacement.

    `differences` has for each task, and for each setting in which the task was trained (such as a backbone), the
    differences of the runs with the same seed. A task counts as the mean of its settings, a setting as that of its
    runs. A task that is drawn brings all its settings; the runs of each are drawn anew.

    Example:
        >>> difference = bootstrap_tasks([[[2.0, 3.0, 2.5]], [[1.0, 0.5, 1.5]], [[4.0, 4.5, 3.5]]])
        >>> difference.value, difference.is_significant, difference.num_units
        (2.5, True, 3)
    """
    generator = np.random.default_rng(seed)
    num_tasks = len(differences)
    values = np.zeros(draws)
    runs = [[np.asarray(setting, dtype=np.float64) for setting in task] for task in differences]
    for _ in range(num_tasks):  # places to fill, in all draws at once
        drawn = generator.integers(num_tasks, size=draws)
        for number, settings in enumerate(runs):
            places = np.flatnonzero(drawn == number)
            for setting in settings:
                chosen = generator.integers(len(setting), size=(len(places), len(setting)))
                values[places] += setting[chosen].mean(axis=1) / len(settings) / num_tasks
    # Rounded: sums of differences that cancel out are not exactly zero.
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).round(9) + 0.0
    mean = fmean(fmean(fmean(setting) for setting in task) for task in differences)
    return Difference(mean, float(low), float(high), num_tasks)
