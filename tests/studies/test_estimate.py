"""What a study needs, before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from command import run
from study_grids import small_study

from softcue.studies.estimate import MethodSpeed, RowCounts, _seconds, estimate_study
from softcue.training import TrainingConfig


def test_lines_have_runs_parameters_time_and_memory(tmp_path: Path) -> None:
    estimate = estimate_study(small_study(tmp_path))
    by_method = {line.method: line for line in estimate.lines}
    assert estimate.num_runs == 8 and not estimate.problems
    assert {line.runs for line in estimate.lines} == {4}
    prompt = by_method["prompt-tuning"]
    assert prompt.trainable and prompt.seconds and prompt.megabytes
    assert prompt.trainable > (by_method["linear-probe"].trainable or 0)
    hours = estimate.hours(1)
    assert hours is not None and hours == pytest.approx(2 * (estimate.hours(2) or 0))


def test_time_grows_with_steps_rows_and_length() -> None:
    speed = MethodSpeed(trainable=1, step=2.0, row=0.5, preparation=0.1, megabytes=9.0, tokens=30.0, prompt_length=20)
    rows = RowCounts(train=100, validation=10, test=20, tokens=30.0)
    training = TrainingConfig(epochs=3, batch_size=16)
    # 3 epochs of 7 steps; 3 evaluations and the last one for the record; test rows with their baselines
    assert _seconds(speed, training, rows) == pytest.approx(100 * 0.1 + 21 * 2.0 + (10 * 4 + 40) * 0.5)
    longer = RowCounts(train=100, validation=10, test=20, tokens=80.0)
    assert _seconds(speed, training, longer) == pytest.approx(2 * _seconds(speed, training, rows))
    short = TrainingConfig(epochs=3, batch_size=16, min_steps=90)  # 90 steps and five evaluations
    assert _seconds(speed, short, rows) == pytest.approx(100 * 0.1 + 90 * 2.0 + (10 * 6 + 40) * 0.5)


def test_tasks_without_rows_are_named_and_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = small_study(tmp_path)
    (tmp_path / "tasks" / "shop-train.csv").unlink()
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(study.model_dump(mode="json")))
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    ended = run("study", "plan", path)
    assert ended.code == 0 and "shop: its rows cannot be read" in ended.out
    assert "about a minute with" in ended.out and sorted(tmp_path.rglob("*")) == before
    facts: dict[str, Any] = run("study", "plan", path, "--json").json
    assert facts["runs"] == 8 and set(facts["problems"]) == {"shop"}


def test_runs_that_follow_a_search_count(tmp_path: Path) -> None:
    search = {"space": {"training.learning_rate": [0.01, 0.03]}, "seeds": 2}
    method = {"name": "prompt-tuning", "settings": {"method.prompt_length": 2}, "search": search}
    estimate = estimate_study(small_study(tmp_path, methods=[method], seeds=3, ensembles=["vote"]))
    assert [line.runs for line in estimate.lines] == [2 * (2 * 2 + 3)]  # tasks: trials of two rates, then three seeds
    assert estimate.num_runs == 2 * (2 * 2 + 3 + 1)
