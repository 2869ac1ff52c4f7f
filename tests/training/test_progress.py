"""ProgressRecorder: metrics.jsonl over interruptions, and the text of the bar."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from softcue.training.progress import ProgressRecorder

STEP = {"epoch": 0.0, "loss": 0.25, "rate_factor": 1.0, "rows": 16}


def record(folder: Path, first: int, steps: list[int]) -> list[dict[str, object]]:
    """Record steps after step number `first`, and an evaluation after each; returns the lines of metrics.jsonl."""
    with ProgressRecorder(folder, num_steps=9, show_progress=False) as recorder:
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


def test_the_bar_shows_name_loss_score_and_best_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes any output for a terminal
    monkeypatch.setenv("COLUMNS", "120")
    folder = tmp_path / "my [bold] cue"
    folder.mkdir()
    with ProgressRecorder(folder, num_steps=9, show_progress=True) as recorder:
        recorder.start(3)
        [task] = recorder.bar.tasks
        assert (task.completed, task.total, task.fields["loss"], task.fields["score"]) == (3, 9, "-", "-")
        recorder("step", {"step": 4, **STEP})
        recorder("evaluation", {"step": 4, "score": 50.0, "best_score": 75.0})
        assert (task.completed, task.fields["loss"], task.fields["score"]) == (4, "0.250", "50.0 (best 75.0)")
        assert int(task.fields["speed"]) > 0
        with recorder.console.capture() as captured:
            recorder.console.print(recorder.bar.get_renderable())
    assert "my [bold] cue" in captured.get()
    assert "4/9" in captured.get()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
def test_the_bar_is_one_line_in_a_terminal_of_any_width(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    folder = tmp_path / "tickets"
    folder.mkdir()
    recorder = ProgressRecorder(folder, 9999, show_progress=True, num_validation_rows=66)
    recorder.start(0)
    recorder("step", {"step": 1234, **STEP})
    recorder("evaluation", {"step": 1234, "score": 50.0, "best_score": 75.0})
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(recorder.bar.get_renderable())
    shown = console.export_text()
    assert len(shown.strip().splitlines()) == 1
    assert "1234/9999 loss 0.250" in shown
    assert ("score 50.0 on 66 rows (best 75.0)" in shown) == (width >= 60)


def test_a_file_gets_a_line_per_evaluation_with_the_number_of_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tickets"
    folder.mkdir()
    with ProgressRecorder(folder, 9, True, score_name="accuracy", num_validation_rows=66) as recorder:
        recorder.note("prompt-tuning on [minilm]")
        recorder.start(0)
        recorder("step", {"step": 3, **STEP})
        recorder("evaluation", {"step": 3, "score": 50.0, "best_score": 75.0})
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "prompt-tuning on [minilm]"
    assert lines[1].startswith("tickets: step 3/9, loss 0.250, accuracy 50.0 on 66 validation rows (best 75.0), ")
    assert lines[1].endswith(" left")
    assert len(lines) == 2


def test_a_file_gets_a_line_between_evaluations_that_are_far_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("softcue.training.progress.SECONDS_BETWEEN_LINES", 0.0)
    with ProgressRecorder(tmp_path, 9, show_progress=True) as recorder:
        recorder.start(0)
        recorder("step", {"step": 3, **STEP})
    assert "step 3/9, loss 0.250" in capsys.readouterr().err


def test_a_line_has_the_mean_loss_of_the_steps_since_the_last_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation = {"score": 50.0, "best_score": 75.0}
    with ProgressRecorder(tmp_path, 9, show_progress=True) as recorder:
        recorder.start(0)
        for step, loss in enumerate([4.0, 1.0, 1.0, 0.5, 0.1], start=1):
            recorder("step", {"step": step, **STEP, "loss": loss})
            if step in (3, 5):
                recorder("evaluation", {"step": step, **evaluation})
        recorder("evaluation", {"step": 5, **evaluation})
    shown = [line.split(", ")[1] for line in capsys.readouterr().err.splitlines()]
    assert shown == ["loss 2.000", "loss 0.300", "loss 0.300"]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [line["loss"] for line in lines if line["kind"] == "step"] == [4.0, 1.0, 1.0, 0.5, 0.1]


def test_without_progress_nothing_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressRecorder(tmp_path, 9, show_progress=False) as recorder:
        recorder.note("prompt-tuning")
        recorder.start(0)
        recorder("evaluation", {"step": 3, "score": 50.0, "best_score": 75.0})
    assert capsys.readouterr().err == ""


def test_warnings_are_printed_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressRecorder(tmp_path, num_steps=1, show_progress=False) as recorder:
        recorder.warn(["label '[x]' is never predicted"])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "warning: label '[x]' is never predicted\n"
