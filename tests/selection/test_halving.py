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
    standings = [Standing(f"method {number}", float(number)) for number in range(num_candidates)]
    names = [standing.name for standing in standings]
    assert better_half(standings) == names[num_candidates - num_going_on :]


def test_of_equal_scores_the_first_goes_on_and_wins() -> None:
    standings = [Standing("first", 80.0), Standing("second", 80.0), Standing("third", 80.0)]
    assert better_half(standings) == ["first", "second"]
    assert [standing.name for standing in rank(standings)] == ["first", "second", "third"]


def test_scores_within_one_standard_error_keep_the_order_given() -> None:
    standings = [Standing("first", 78.0), Standing("second", 80.0), Standing("third", 76.0), Standing("fourth", 77.5)]
    # the error of 80 % of 200 rows is 2.83 points, of 2,000 rows 0.89
    assert [standing.name for standing in rank(standings, 200)] == ["first", "second", "fourth", "third"]
    assert [standing.name for standing in rank(standings, 2000)] == ["second", "first", "fourth", "third"]
    assert better_half(standings, 200) == ["first", "second"]


def test_scores_outside_of_a_share_have_no_negative_error() -> None:
    assert rank([Standing("first", -5.0), Standing("second", 3.0)], 100)[0].name == "second"
    assert rank([Standing("first", 90.0), Standing("second", 100.0)], 100)[0].name == "second"


def test_nothing_goes_on_if_nothing_is_left() -> None:
    assert better_half([]) == []
