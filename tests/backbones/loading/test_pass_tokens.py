from __future__ import annotations

import math

import pytest
from tiny import tiny

from softcue.backbones.loading import autotune


def measure(monkeypatch: pytest.MonkeyPatch, alone: float, each: float, length: int = 10) -> float:
    """Measure as if a pass took `alone` seconds, and `each` seconds more for every row."""
    one_row, many_rows = alone + each, alone + each * autotune.MANY_ROWS
    monkeypatch.setattr(autotune, "_time_call", lambda call, device: one_row)
    monkeypatch.setattr(
        autotune,
        "time_in_turns",
        lambda calls, device, seconds: {"one": [2 * one_row, one_row], "many": [many_rows, 2 * many_rows]},
    )
    return autotune.measure_pass_tokens(tiny("bert").model, length)


def test_the_fixed_cost_of_a_pass_is_measured_in_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measure(monkeypatch, alone=0.003, each=0.001) == pytest.approx(30)
    assert measure(monkeypatch, alone=0.0, each=0.001) == pytest.approx(0, abs=1e-9)
    assert measure(monkeypatch, alone=-0.0001, each=0.001) == 0  # a noisy moment
    assert measure(monkeypatch, alone=0.003, each=0.0) == 10 * autotune.MOST_ROWS
    assert measure(monkeypatch, alone=0.003, each=-0.0001) == 10 * autotune.MOST_ROWS


def test_large_models_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measure(monkeypatch, alone=0.1, each=0.2) == autotune.PASS_TOKENS


@pytest.mark.parametrize("family", ["bert", "t5", "gpt2"])
def test_every_kind_of_backbone_can_be_measured(family: str) -> None:
    backbone = tiny(family)
    assert 0 <= backbone.pass_tokens < math.inf
    assert vars(backbone)["pass_tokens"] == backbone.pass_tokens  # measured once
