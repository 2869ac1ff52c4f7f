from __future__ import annotations

import itertools
from math import comb

import numpy as np
import pytest

from softcue.studies import Difference, bootstrap_difference, exact_mcnemar
from softcue.studies.statistics import bootstrap_tasks, sign_test


def rows_alone(count: int) -> list[list[int]]:
    return [[row] for row in range(count)]


def test_the_interval_is_that_of_all_equally_likely_draws() -> None:
    """Of three rows all 27 draws can be listed: the percentiles of many random draws are theirs."""
    first, second = np.array([0.0, 1.0, 0.0]), np.array([1.0, 1.0, 0.0])
    listed = [
        float(second[list(draw)].mean() - first[list(draw)].mean()) for draw in itertools.product(range(3), repeat=3)
    ]
    difference = bootstrap_difference(
        [lambda rows: (float(first[rows].mean()), float(second[rows].mean()))], rows_alone(3), draws=20_000
    )
    assert difference.value == pytest.approx(1 / 3)
    assert (difference.low, difference.high) == pytest.approx(tuple(np.quantile(listed * 1000, [0.025, 0.975])))


def test_the_interval_covers_the_true_difference_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(4)
    covered = 0
    for number in range(200):
        first = generator.random(150) < 0.7
        second = generator.random(150) < 0.8
        difference = bootstrap_difference(
            [lambda rows, first=first, second=second: (float(first[rows].mean()), float(second[rows].mean()))],
            rows_alone(150),
            seed=number,
            draws=300,
        )
        covered += difference.low <= 0.1 <= difference.high
    assert 0.90 <= covered / 200 <= 0.99


def test_rows_of_a_group_are_drawn_together() -> None:
    seen: list[list[int]] = []

    def scores(rows: np.ndarray) -> tuple[float, float]:
        seen.append(sorted(rows.tolist()))
        return 0.0, 1.0

    bootstrap_difference([scores], [[0, 1], [2, 3]], draws=50)
    assert {tuple(rows) for rows in seen} == {(0, 0, 1, 1), (0, 1, 2, 3), (2, 2, 3, 3)}


def test_the_same_seed_gives_the_same_interval() -> None:
    values = np.random.default_rng(0).random((2, 40))

    def scores(rows: np.ndarray) -> tuple[float, float]:
        return float(values[0, rows].mean()), float(values[1, rows].mean())

    assert bootstrap_difference([scores], rows_alone(40)) == bootstrap_difference([scores], rows_alone(40))
    assert bootstrap_difference([scores], rows_alone(40)) != bootstrap_difference([scores], rows_alone(40), seed=1)


def test_equal_sides_are_not_told_apart() -> None:
    difference = bootstrap_difference([lambda rows: (50.0, 50.0)], rows_alone(9))
    assert difference == Difference(0.0, 0.0, 0.0, 9)
    assert not difference.is_significant


@pytest.mark.parametrize(("first", "second"), [(0, 0), (3, 3), (0, 5), (2, 10), (7, 1)])
def test_mcnemar_is_the_sum_of_the_chances_of_splits_as_uneven(first: int, second: int) -> None:
    total = first + second
    chances = [comb(total, number) / 2**total for number in range(total + 1)]
    expected = sum(chance for chance in chances if chance <= chances[first] * (1 + 1e-9))
    assert exact_mcnemar(first, second) == pytest.approx(expected)


def test_a_difference_names_the_better_side() -> None:
    sentence = Difference(-3.0, -5.0, -1.0, 50).describe("a", "b", is_told_apart=True)
    assert sentence == "a beats b by 3.0 points (95 % interval 1.0 to 5.0)"


def test_seeds_are_drawn_too_and_their_mean_counts() -> None:
    """Two seeds that differ by 0 and by 2: the four draws of seeds give 0, 1, 1 and 2."""
    runs = [lambda rows: (0.0, 0.0), lambda rows: (0.0, 2.0)]
    difference = bootstrap_difference(runs, rows_alone(4), draws=5000)
    assert (difference.value, difference.low, difference.high) == (1.0, 0.0, 2.0)


@pytest.mark.parametrize(
    ("won", "lost", "chance"), [(5, 0, 2 / 32), (4, 1, 12 / 32), (9, 1, 22 / 1024), (3, 3, 1.0), (0, 0, 1.0)]
)
def test_the_sign_test_has_the_chances_of_a_fair_coin(won: int, lost: int, chance: float) -> None:
    assert sign_test(won, lost) == sign_test(lost, won) == pytest.approx(chance)


def list_all_draws(differences: list[list[list[float]]]) -> list[float]:
    """The mean difference of every draw of tasks, and of runs of each task that is drawn; all are as likely."""
    means_of_tasks = [
        [
            sum(sum(runs) / len(runs) for runs in settings) / len(settings)
            for settings in itertools.product(*(itertools.product(runs, repeat=len(runs)) for runs in task))
        ]
        for task in differences
    ]
    values = []
    for tasks in itertools.product(range(len(differences)), repeat=len(differences)):
        for means in itertools.product(*(means_of_tasks[task] for task in tasks)):
            values.append(sum(means) / len(means))
    return values


@pytest.mark.parametrize(
    "differences",
    [
        [[[1.0, 3.0]], [[-1.0, 2.0]]],
        [[[1.0, 3.0, 5.0]]],  # one task: only its runs are drawn
        [[[1.0, 3.0], [0.0, 8.0]], [[2.0, -4.0], [1.0, 1.0]]],  # two settings of each task
        [[[1.0]], [[2.0]], [[4.0]]],
    ],
)
def test_tasks_and_their_runs_are_drawn_as_all_equally_likely_draws_say(differences: list[list[list[float]]]) -> None:
    listed = np.array(list_all_draws(differences))
    difference = bootstrap_tasks(differences, draws=100_000)
    assert difference.value == pytest.approx(listed.mean())
    # Percentiles of few different values jump, so shares are compared: 2.5 % lie below, 2.5 % above.
    assert (listed < difference.low - 1e-9).mean() <= 0.03 <= (listed <= difference.low + 1e-9).mean() + 0.01
    assert (listed > difference.high + 1e-9).mean() <= 0.03 <= (listed >= difference.high - 1e-9).mean() + 0.01
    assert difference == bootstrap_tasks(differences, draws=100_000)


def test_many_runs_of_one_task_do_not_outweigh_another_task() -> None:
    assert bootstrap_tasks([[[10.0] * 9], [[0.0]]]).value == 5.0
    assert bootstrap_tasks([[[10.0], [20.0, 20.0]], [[0.0]]]).value == 7.5
