"""`python -m benchmarks minute`: what is asked of the command line, and how runs become figures."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cue_minute
from benchmarks.cue_minute import minute_figures
from benchmarks.plan import Plan


def patch_contestants(monkeypatch: pytest.MonkeyPatch, seconds: list[float]) -> list[tuple[str, dict[str, int]]]:
    """Let cues take these seconds and score 80, and SetFit score 79; returns the list of what is trained."""
    trained: list[tuple[str, dict[str, int]]] = []
    remaining = iter(seconds)

    def train(task: str, data: Path | None, sample: dict[str, int]) -> dict[str, float]:
        trained.append((task, sample))
        return {"seconds": next(remaining), "test": 80.0}

    monkeypatch.setattr(cue_minute, "train_cue", train)
    monkeypatch.setattr(cue_minute, "score_setfit", lambda task, data, sample: 79.0)
    return trained


def test_the_slowest_run_counts_and_each_sample_has_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = patch_contestants(monkeypatch, [30.0, 40.0, 70.0, 20.0])
    measured = minute_figures(Plan(2), with_setfit=False)
    assert [(task, sample["sample_seed"]) for task, sample in trained] == [
        (task, seed) for task in ("tickets", "urgency") for seed in (0, 1)
    ]
    [figure] = measured["figures"].values()
    assert figure["ratio"] == 70.0 and not figure["met"] and "median 35.0" in figure["meaning"]


def test_setfit_is_compared_only_if_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    patch_contestants(monkeypatch, [30.0] * 3)
    figure = minute_figures(Plan(1, tmp_path), with_setfit=True)["figures"]["cue_points_above_setfit"]
    assert figure["ratio"] == 1.0 and figure["met"]


def test_a_cue_is_trained_by_the_command_of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def start(command: list[str], **options: Any) -> None:
        commands.append(command)
        folder = Path(command[command.index("--output-dir") + 1])
        folder.mkdir()
        (folder / "cue.json").write_text(json.dumps({"scores": {"test": {"accuracy": 81.0}}}))

    monkeypatch.setattr(subprocess, "run", start)
    assert cue_minute.train_cue("tickets", None, {"few_shot": 200})["test"] == 81.0
    assert commands[0][1:4] == ["-m", "softcue", "train"] and "task.few_shot=200" in commands[0]
