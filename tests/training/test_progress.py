"""ProgressRecorder: metrics.jsonl over interruptions, and the text of the bar."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from softcue.training.progress import ProgressRecorder

STEP = {"epoch": 0.0, "loss": 0.25, "rate_factor": 1.0, "rows": 16}


def record(folder: Path, first: int, steps: list[int]) -> list[dict[str, object]]:
    """Record steps after step number `first`, and an evaluation after each; returns the lines of metrics.jsonl."""
    with ProgressRecorder(folder, num_steps=9, show_bar=False, use_tensorboard=False) as recorder:
        recorder.start(first)
        for step in steps:
            recorder("step", {"step": step, **STEP})
            recorder("evaluation", {"step": step, "score": 50.0, "best_score": 75.0})
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]


def test_steps_and_evaluations_are_lines_in_order(tmp_path: Path) -> None:
    lines = record(tmp_path, 0, [1, 2])
    assert [(line["kind"], line["step"]) for line in lines] == [
        ("step", 1),
        ("evaluation", 1),
        ("step", 2),
        ("evaluation", 2),
    ]
    assert lines[0] == {"kind": "step", "step": 1, **STEP}


def test_a_resumed_run_keeps_lines_up_to_its_checkpoint_and_cuts_later_ones(tmp_path: Path) -> None:
    before = record(tmp_path, 0, [1, 2, 3])
    lines = record(tmp_path, 2, [3, 4])
    assert lines[:4] == before[:4]
    assert [line["step"] for line in lines] == [1, 1, 2, 2, 3, 3, 4, 4]


@pytest.mark.parametrize("torn", ['{"kind": "step", "st', '{"kind": "step"}', "[2]", '{"step": null}'])
def test_an_incomplete_last_line_is_cut(tmp_path: Path, torn: str) -> None:
    before = record(tmp_path, 0, [1, 2])
    with (tmp_path / "metrics.jsonl").open("a") as handle:
        handle.write(torn)
    assert record(tmp_path, 2, [])[: len(before) + 1] == before


def test_a_new_run_starts_an_empty_file(tmp_path: Path) -> None:
    record(tmp_path, 0, [1, 2])
    assert record(tmp_path, 0, []) == []


def test_the_bar_shows_name_loss_score_and_best_score(tmp_path: Path) -> None:
    folder = tmp_path / "my [bold] cue"
    folder.mkdir()
    with ProgressRecorder(folder, num_steps=9, show_bar=True, use_tensorboard=False) as recorder:
        recorder.start(3)
        [task] = recorder.bar.tasks
        assert (task.completed, task.total, task.fields["loss"], task.fields["score"]) == (3, 9, "-", "-")
        recorder("step", {"step": 4, **STEP})
        recorder("evaluation", {"step": 4, "score": 50.0, "best_score": 75.0})
        assert (task.completed, task.fields["loss"], task.fields["score"]) == (4, "0.250", "50.0 best 75.0")
        assert int(task.fields["speed"]) > 0
        with recorder.console.capture() as captured:
            recorder.console.print(recorder.bar.get_renderable())
    assert "my [bold] cue" in captured.get()
    assert "4/9" in captured.get()


def test_warnings_are_printed_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressRecorder(tmp_path, num_steps=1, show_bar=False, use_tensorboard=False) as recorder:
        recorder.warn(["label '[x]' is never predicted"])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "warning: label '[x]' is never predicted\n"
