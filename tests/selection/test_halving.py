"""Successive halving: when rungs end, who goes on, and who wins."""

from __future__ import annotations

import pytest

from softcue.selection import NUM_RUNGS, Standing, better_half, rank, rung_step


@pytest.mark.parametrize(
    ("num_steps", "evaluate_every", "steps"),
    [
        (100, 10, [30, 50, 100]),
        (8, 2, [2, 4, 8]),
        (7, 3, [3, 6, 7]),
        (5, 50, [5, 5, 5]),  # it is evaluated at its end only
        (1, 1, [1, 1, 1]),
        (0, 0, [0, 0, 0]),  # it trains nothing
    ],
)
def test_a_rung_ends_with_an_evaluation(num_steps: int, evaluate_every: int, steps: list[int]) -> None:
    assert [rung_step(rung, num_steps, evaluate_every) for rung in range(NUM_RUNGS)] == steps


@pytest.mark.parametrize(("num_candidates", "num_going_on"), [(1, 1), (2, 2), (3, 2), (4, 2), (5, 3), (6, 3), (7, 4)])
def test_half_of_the_candidates_goes_on_rounded_up_and_at_least_two(num_candidates: int, num_going_on: int) -> None:
    standings = [Standing(f"method {number}", float(number), 10) for number in range(num_candidates)]
    names = [standing.name for standing in standings]
    assert better_half(standings) == names[num_candidates - num_going_on :]


def test_of_equal_scores_the_one_with_fewer_parameters_goes_on_and_wins() -> None:
    standings = [Standing("large", 80.0, 900), Standing("small", 80.0, 10), Standing("middle", 80.0, 90)]
    assert better_half(standings) == ["small", "middle"]
    assert [standing.name for standing in rank(standings)] == ["small", "middle", "large"]


def test_of_equal_scores_and_parameters_the_first_wins() -> None:
    assert rank([Standing("first", 80.0, 10), Standing("second", 80.0, 10)])[0].name == "first"


def test_nothing_goes_on_if_nothing_is_left() -> None:
    assert better_half([]) == []
