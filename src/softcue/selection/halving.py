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
    parameters: int


def rung_step(rung: int, num_steps: int, evaluate_every: int) -> int:
    """The step at which a rung (0, 1, 2) ends: that of the first evaluation after its part of all steps.

    Example:
        >>> [rung_step(rung, num_steps=150, evaluate_every=15) for rung in range(NUM_RUNGS)]
        [45, 75, 150]
    """
    num_evaluations = math.ceil(num_steps / PARTS[rung] / max(1, evaluate_every))
    return min(num_steps, num_evaluations * evaluate_every)


def rank(standings: Sequence[Standing]) -> list[Standing]:
    """The best score first; of equal scores, the one with fewer parameters, then the one that was named first.

    Example:
        >>> standings = [Standing("a", 80.0, 900), Standing("b", 81.0, 900), Standing("c", 80.0, 10)]
        >>> [standing.name for standing in rank(standings)]
        ['b', 'c', 'a']
    """
    return sorted(standings, key=lambda standing: (-standing.score, standing.parameters))


def better_half(standings: Sequence[Standing]) -> list[str]:
    """The names of those that go on to the next rung, in the order given: half of them, rounded up, at least two.

    Example:
        >>> scores = {"a": 70.0, "b": 60.0, "c": 80.0, "d": 50.0}
        >>> better_half([Standing(name, score, parameters=9) for name, score in scores.items()])
        ['a', 'c']
    """
    num_going_on = max(MIN_GOING_ON, math.ceil(len(standings) / 2))
    going_on = {standing.name for standing in rank(standings)[:num_going_on]}
    return [standing.name for standing in standings if standing.name in going_on]
