"""Successive halving: all candidates train a little, the better half goes on, and so on to the end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

PARTS = (4, 2, 1)  # a rung ends after a quarter, a half and all of a method's steps
NUM_RUNGS = len(PARTS)
MIN_GOING_ON = 2  # the last comparison is between trained methods


class Standing(NamedTuple):
    """Where a candidate stands in the comparison."""

    name: str
    score: float


def rung_step(rung: int, num_steps: int, evaluate_every: int) -> int:
    """The step at which a rung (0, 1, 2) ends: that of the first evaluation after its part of all steps.

    Example:
        >>> [rung_step(rung, num_steps=150, evaluate_every=15) for rung in range(NUM_RUNGS)]
        [45, 75, 150]
    """
    num_evaluations = math.ceil(num_steps / PARTS[rung] / max(1, evaluate_every))
    return min(num_steps, num_evaluations * evaluate_every)


def standard_error(score: float, num_rows: int) -> float:
    """The standard error of a share of right rows, in percent; 0 without rows. For other metrics it is an estimate.

    Example:
        >>> round(standard_error(80.0, num_rows=200), 1)
        2.8
    """
    share = min(max(score / 100, 0.0), 1.0)
    return 100 * math.sqrt(share * (1 - share) / num_rows) if num_rows else 0.0


def rank(standings: Sequence[Standing], num_rows: int = 0) -> list[Standing]:
    """First those within one standard error of the best score, in the order given; then the others, best first.

    Scores of few rows cannot tell methods apart that are so near. The order given is what is known before.

    Example:
        >>> standings = [Standing("a", 79.0), Standing("b", 81.0), Standing("c", 70.0), Standing("d", 75.0)]
        >>> [standing.name for standing in rank(standings)]
        ['b', 'a', 'd', 'c']
        >>> [standing.name for standing in rank(standings, num_rows=200)]
        ['a', 'b', 'd', 'c']
    """
    best = max((standing.score for standing in standings), default=0.0)
    margin = standard_error(best, num_rows)
    near = [standing for standing in standings if standing.score >= best - margin]
    others = [standing for standing in standings if standing.score < best - margin]
    return near + sorted(others, key=lambda standing: -standing.score)


def better_half(standings: Sequence[Standing], num_rows: int = 0) -> list[str]:
    """The names of those that go on to the next rung, in the order given: half of them, rounded up, at least two.

    Example:
        >>> scores = {"a": 70.0, "b": 60.0, "c": 80.0, "d": 50.0}
        >>> better_half([Standing(name, score) for name, score in scores.items()])
        ['a', 'c']
    """
    num_going_on = max(MIN_GOING_ON, math.ceil(len(standings) / 2))
    going_on = {standing.name for standing in rank(standings, num_rows)[:num_going_on]}
    return [standing.name for standing in standings if standing.name in going_on]
