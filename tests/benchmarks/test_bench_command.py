"""`python -m benchmarks`: figures as one JSON object or as tables. Nothing is measured here."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from benchmarks.__main__ import main
from benchmarks.load import child_environment
from benchmarks.plan import Plan
from softcue.errors import MissingExtraError

FIGURE = {"ratio": 1.23, "comparison": ">=", "target": 1.5, "met": False, "spread": 0.1, "runs": 3, "meaning": "x / y"}
CONTESTANT = {"seconds": 9.5, "seconds_to_score": [4.2, None], "wanted": [80.0], "validation": 82.0}
CURVES = {"prompt": [{"prompt": 20, "seconds": {"ours": 0.5, "peft": 2.0}, "bytes": {"ours": 10, "peft": 20}}]}
# command -> the function that measures, its result, the output of --json
COMMANDS: dict[str, tuple[str, Any, Any]] = {
    "train": ("training_speed.training_figures", {"speed": FIGURE}, {"figures": {"speed": FIGURE}}),
    "predict": ("prediction_speed.prediction_figures", {"speed": FIGURE}, {"figures": {"speed": FIGURE}}),
    "host": ("host_speed.host_figures", {"speed": FIGURE}, {"figures": {"speed": FIGURE}}),
    "few-shot": (
        "few_shot_speed.few_shot_figures",
        {"figures": {"speed": FIGURE}, "contestants": {"SetFit": CONTESTANT}},
        {"figures": {"speed": FIGURE}, "contestants": {"SetFit": CONTESTANT}},
    ),
    "growth": ("growth.measure_growth", CURVES, {"growth": CURVES}),
}


@dataclass(frozen=True)
class Completed:
    code: int
    out: str
    err: str


def run(*arguments: object) -> Completed:
    """Run the command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    with (
        patch.object(sys, "argv", ["benchmarks", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        main()
    return Completed(int(end.value.code or 0), out.getvalue(), err.getvalue())


def patch_measurement(monkeypatch: pytest.MonkeyPatch, command: str) -> list[Plan]:
    """Let a command return fixed figures; returns the list of the plans it gets."""
    plans: list[Plan] = []
    function, result, _ = COMMANDS[command]
    monkeypatch.setattr(f"benchmarks.{function}", lambda plan, *rest: plans.append(plan) or dict(result))
    return plans


@pytest.mark.parametrize("command", COMMANDS)
def test_a_benchmark_prints_one_json_object(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = patch_measurement(monkeypatch, command)
    completed = run(command, "--repeats", 7, "--json")
    assert completed.code == 0, completed.err
    assert completed.out.count("\n") == 1
    assert json.loads(completed.out) == COMMANDS[command][2]
    assert plans == [Plan(7)]


@pytest.mark.parametrize(
    ("command", "cells"),
    [
        ("train", ["speed", "1.230", "NO"]),
        ("predict", ["speed", ">= 1.5"]),
        ("few-shot", ["SetFit", "82.0", "speed"]),
        ("growth", ["prompt", "ours, seconds", "0.5", "peft, bytes"]),
    ],
)
def test_a_benchmark_prints_tables(command: str, cells: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    patch_measurement(monkeypatch, command)
    completed = run(command)
    assert completed.code == 0
    assert all(cell in completed.out for cell in cells)


def test_few_shot_runs_the_tasks_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Plan, list[str]]] = []

    def measure(plan: Plan, tasks: list[str]) -> dict[str, Any]:
        asked.append((plan, tasks))
        return {"figures": {"speed": FIGURE}, "contestants": {}}

    monkeypatch.setattr("benchmarks.few_shot_speed.few_shot_figures", measure)
    run("few-shot", "--json", "--tasks", "tickets,mr")
    run("few-shot", "--json")
    assert asked == [(Plan(3), ["tickets", "mr"]), (Plan(3), [])]


def test_a_cue_in_a_minute_prints_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Plan, bool]] = []
    runs = [{"task": "tickets", "seed": 0, "seconds": 30.5, "test": 80.0}]

    def measure(plan: Plan, with_setfit: bool) -> dict[str, Any]:
        asked.append((plan, with_setfit))
        return {"figures": {"speed": FIGURE}, "runs": runs}

    monkeypatch.setattr("benchmarks.cue_minute.minute_figures", measure)
    printed = run("minute").out
    assert all(cell in printed for cell in ("tickets", "30.5", "speed"))
    assert json.loads(run("minute", "--setfit", "--json").out)["runs"] == runs
    assert asked == [(Plan(3), False), (Plan(3), True)]


def test_a_benchmark_takes_texts_from_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = patch_measurement(monkeypatch, "predict")
    run("predict", "--data", tmp_path)
    assert plans[0].data == tmp_path


@pytest.mark.parametrize("command", [*COMMANDS, "models", "serve"])
def test_every_benchmark_has_help(command: str) -> None:
    assert "--repeats" in run(command, "--help").out


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise MissingExtraError("setfit", "bench")

    monkeypatch.setattr("benchmarks.few_shot_speed.few_shot_figures", fail)
    completed = run("few-shot", "--json")
    assert completed.code == 2 and completed.out == ""
    assert completed.err.startswith("error: ") and completed.err.count("\n") == 1 and "setfit" in completed.err


def test_child_processes_import_the_benchmarks_from_any_folder(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.load"], cwd=tmp_path, env=child_environment(), input="", text=True
    )
    assert ended.returncode == 0


def test_the_path_of_child_processes_keeps_the_users_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "here")
    root, *rest = child_environment()["PYTHONPATH"].split(os.pathsep)
    assert (Path(root) / "benchmarks").is_dir() and rest == ["here"]
    monkeypatch.delenv("PYTHONPATH")
    assert child_environment()["PYTHONPATH"] == root
