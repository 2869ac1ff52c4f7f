from __future__ import annotations

import math

import pytest
from tiny import tiny

from softcue.backbones.loading import autotune


def found(monkeypatch: pytest.MonkeyPatch, alone: float, each: float, length: int = 10) -> float:
    """As if a pass took `alone` and `each` more for every row."""
    one, many = alone + each, alone + each * autotune.MANY_ROWS
    monkeypatch.setattr(autotune, "_time_call", lambda call, device: one)
    monkeypatch.setattr(
        autotune, "time_in_turns", lambda calls, device, seconds: {"one": [2 * one, one], "many": [many, 2 * many]}
    )
    return autotune.measure_pass_tokens(tiny("bert").model, length)


def test_what_a_pass_costs_by_itself_is_told_in_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, alone=0.003, each=0.001) == pytest.approx(30)
    assert found(monkeypatch, alone=0.0, each=0.001) == pytest.approx(0, abs=1e-9)
    assert found(monkeypatch, alone=-0.0001, each=0.001) == 0  # a noisy moment
    assert found(monkeypatch, alone=0.003, each=0.0) == 10 * autotune.MOST_ROWS
    assert found(monkeypatch, alone=0.003, each=-0.0001) == 10 * autotune.MOST_ROWS


def test_large_models_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, alone=0.1, each=0.2) == autotune.PASS_TOKENS


@pytest.mark.parametrize("family", ["bert", "t5", "gpt2"])
def test_every_kind_of_backbone_can_be_tried(family: str) -> None:
    backbone = tiny(family)
    assert 0 <= backbone.pass_tokens < math.inf
    assert vars(backbone)["pass_tokens"] == backbone.pass_tokens  # measured once
