from __future__ import annotations

import random

import pytest

from softcue.serving.pace import MOST_PASS_TOKENS, PASS_TOKENS, Pace


def learned(a: float, b: float, noise: float = 0.0, sizes: tuple[int, ...] = (30, 60, 120, 250, 500, 1000)) -> float:
    draws, pace = random.Random(0), Pace()
    for number in range(120):
        tokens = sizes[number % len(sizes)]
        pace.ran(tokens, (a + b * tokens) * (1 + noise * draws.uniform(-1, 1)))
    return pace.pass_tokens


def test_cost_of_a_pass_is_learned_in_tokens() -> None:
    assert learned(a=0.006, b=0.0001) == pytest.approx(60)
    assert learned(a=0.006, b=0.0001, noise=0.2) == pytest.approx(60, rel=0.25)


def test_passes_that_only_cost_by_token_or_only_by_themselves_are_told_apart() -> None:
    assert learned(a=0.0, b=0.0001) == pytest.approx(0, abs=1e-6)
    assert learned(a=0.01, b=0.0) == MOST_PASS_TOKENS
    assert learned(a=-0.001, b=0.0001) == 0  # large passes are slower by token


def test_passes_of_one_size_teach_nothing() -> None:
    assert learned(a=0.01, b=0.0001, sizes=(64,)) == PASS_TOKENS


def test_passes_of_nearly_one_size_do_not_mislead() -> None:
    draws = random.Random(0)
    sizes = tuple(draws.randint(900, 1024) for _ in range(40))
    for noise in (0.1, 0.3):
        assert learned(a=0.001, b=0.0001, noise=noise, sizes=sizes) == PASS_TOKENS


def test_slow_first_passes_do_not_count() -> None:
    pace = Pace()
    for number in range(60):
        tokens = (30, 100, 300)[number % 3]
        pace.ran(tokens, 5.0 if number < 3 else 0.001 + 0.0001 * tokens)
    assert pace.pass_tokens == pytest.approx(10)


def test_what_was_learned_long_ago_is_forgotten() -> None:
    pace = Pace()
    for cost in (0.1, 0.001):
        for number in range(400):
            tokens = (30, 100, 300)[number % 3]
            pace.ran(tokens, cost + 0.0001 * tokens)
    assert pace.pass_tokens == pytest.approx(10, rel=0.1)


def test_a_slow_moment_is_no_pace() -> None:
    pace = Pace()
    pace.answered(10, 1.0)
    assert pace.answer_seconds == 0.1
    pace.answered(1, 100.0)
    assert pace.answer_seconds > 0.1
    pace.answered(10, 0.5)
    assert pace.answer_seconds == 0.05
