from __future__ import annotations

import json
import math
from pathlib import Path

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


def test_a_measured_cost_is_kept_for_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTCUE_HOME", str(tmp_path))
    monkeypatch.setattr(autotune, "MEASURED_WEIGHTS", 0)
    costs = iter([30.04, 99.0])
    monkeypatch.setattr(autotune, "measure_pass_tokens", lambda model, length: next(costs))
    model = tiny("bert").model
    assert autotune.pass_tokens(model, 10) == autotune.pass_tokens(model, 10) == 30.0
    assert autotune.pass_tokens(model, 20) == 99.0  # rows of another length are measured by themselves


@pytest.mark.parametrize("kept", [-1, True, "30", None, [30]])
def test_a_kept_cost_that_is_no_number_of_tokens_is_measured_again(
    kept: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOFTCUE_HOME", str(tmp_path))
    monkeypatch.setattr(autotune, "MEASURED_WEIGHTS", 0)
    monkeypatch.setattr(autotune, "measure_pass_tokens", lambda model, length: 30.0)
    model = tiny("bert").model
    autotune.pass_tokens(model, 10)
    file = tmp_path / "choices.json"
    entries = json.loads(file.read_text())
    file.write_text(json.dumps({key: {"tokens": kept} for key in entries}))
    assert autotune.pass_tokens(model, 10) == 30.0
