"""`softcue bench`: what was measured as one JSON object or as tables; nothing is measured here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command import run

from softcue.benchmarks.parts import Plan

FIGURE = {"ratio": 1.23, "comparison": ">=", "target": 1.5, "met": False, "spread": 0.1, "runs": 3, "meaning": "x / y"}
CONTESTANT = {"seconds": 9.5, "seconds_to_score": [4.2, None], "wanted": [80.0], "validation": 82.0, "test": 79.0}
CURVES = {"prompt": [{"prompt": 20, "seconds": {"ours": 0.5, "peft": 2.0}, "bytes": {"ours": 10, "peft": 20}}]}
FOUND: dict[str, tuple[str, Any, Any]] = {  # verb -> what measures, what it gives, what --json prints
    "train": ("training.training_figures", {"speed": FIGURE}, {"figures": {"speed": FIGURE}}),
    "predict": ("predicting.predicting_figures", {"speed": FIGURE}, {"figures": {"speed": FIGURE}}),
    "few-shot": (
        "few_shot.few_shot_figures",
        {"figures": {"speed": FIGURE}, "contestants": {"SetFit": CONTESTANT}},
        {"figures": {"speed": FIGURE}, "contestants": {"SetFit": CONTESTANT}},
    ),
    "growth": ("growth.growth", CURVES, {"growth": CURVES}),
}


def measures(monkeypatch: pytest.MonkeyPatch, verb: str) -> list[Plan]:
    """The verb gives known numbers; the plans it was called with."""
    plans: list[Plan] = []
    where, found, _ = FOUND[verb]
    monkeypatch.setattr(f"softcue.benchmarks.{where}", lambda plan: plans.append(plan) or dict(found))
    return plans


@pytest.mark.parametrize("verb", FOUND)
def test_bench_prints_one_json_object(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = measures(monkeypatch, verb)
    assert run("bench", verb, "--repeats", 7, "--json").json == FOUND[verb][2]
    assert plans == [Plan(7)]


@pytest.mark.parametrize(
    ("verb", "cells"),
    [
        ("train", ["speed", "1.230", "NO"]),
        ("predict", ["speed", ">= 1.5"]),
        ("few-shot", ["SetFit", "79.0", "speed"]),
        ("growth", ["prompt", "ours, seconds", "0.5", "peft, bytes"]),
    ],
)
def test_bench_prints_tables(verb: str, cells: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    measures(monkeypatch, verb)
    found = run("bench", verb)
    assert found.code == 0
    assert all(cell in found.out for cell in cells)


def test_bench_takes_texts_from_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = measures(monkeypatch, "predict")
    run("bench", "predict", "--data", tmp_path)
    assert plans[0].data == tmp_path


@pytest.mark.parametrize("verb", FOUND)
def test_every_bench_has_help(verb: str) -> None:
    assert "--repeats" in run("bench", verb, "--help").out
