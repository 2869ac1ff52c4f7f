"""The tables of docs/results.md: finished runs become cells; nothing is trained here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tables import results
from benchmarks.tables.grid import TableRun, list_runs, make_parser, print_search, print_table, run_missing
from softcue.errors import RunError


def finish_run(folder: Path, test: float = 80.0, validation: float = 82.0) -> None:
    """Write the files of a finished run."""
    folder.mkdir(parents=True, exist_ok=True)
    scores = {"test": {"accuracy": test}, "validation": {"accuracy": validation}}
    (folder / "cue.json").write_text(json.dumps({"scores": scores, "counts": {"gradient": 7680, "head": 770}}))
    (folder / "metrics.json").write_text(json.dumps({"steps": 84, "seconds": 90.0}))


def make_runs(folder: Path, *arguments: str) -> tuple[Any, list[TableRun]]:
    parser = make_parser(None, ["prompt-tuning", "vip"], ["rte"], str(folder))
    parsed = parser.parse_args(["--data", "here", "--seeds", "2", *arguments])
    return parsed, list_runs(parsed, "k100")


def test_a_table_has_means_over_seeds_and_counts_missing_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, runs = make_runs(tmp_path)
    assert [run.folder.name for run in runs[:2]] == ["rte-prompt-tuning-k100-0", "rte-vip-k100-0"]
    for run in runs:
        if run.method == "prompt-tuning" or run.seed == 0:
            finish_run(run.folder, test=80.0 + 2 * run.seed)
    print_table(runs, {"runs": lambda finished: str(len(finished))}, ["rte"], num_seeds=2)
    assert capsys.readouterr().out.splitlines() == [
        "| method | rte | mean | runs |",
        "|---|---|---|---|",
        "| prompt-tuning | 81.0 ± 1.4 | 81.0 | 2 |",
        "| vip | 1 of 2 runs | - | 1 |",
    ]


def test_a_search_prints_validation_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, runs = make_runs(tmp_path, "--search", "vip", "method.scale=0")
    print_search(arguments, runs)
    assert capsys.readouterr().out.startswith("not finished: rte-vip-k100-0-method.scale=0, ")
    for run in runs:
        finish_run(run.folder)
    print_search(arguments, runs)
    assert capsys.readouterr().out == "vip method.scale=0: mean 82.00  rte 82.0\n"


def test_only_missing_runs_are_trained_and_locked_ones_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, runs = make_runs(tmp_path)
    finish_run(runs[0].folder)
    trained: list[str] = []

    def train(run: TableRun) -> None:
        trained.append(run.folder.name)
        if run.seed == 1:
            raise RunError(setting="output_dir", got="x", expected="a free folder", fix="wait")
        finish_run(run.folder)

    run_missing(runs, train)
    assert trained == [run.folder.name for run in runs[1:]]
    errors = capsys.readouterr().err
    assert "rte-vip-k100-0: {'test': 80.0, 'validation': 82.0}" in errors
    assert "rte-vip-k100-1: not run here" in errors


def test_baselines_of_a_backbone_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Scored:
        main = 55.0

    class Loaded:
        task = train = validation = test = backbone = None

    calls: list[str] = []
    monkeypatch.setattr("softcue.load", lambda folder: Loaded(), raising=False)
    monkeypatch.setattr("softcue.run.splits_of_run", lambda folder: Loaded())
    monkeypatch.setattr("softcue.evaluation.zero_shot", lambda *_: calls.append("zero-shot") or Scored())
    monkeypatch.setattr("softcue.evaluation.linear_probe", lambda *_: calls.append("probe") or Scored())
    for seed in range(2):
        folder = tmp_path / f"subj-minilm-{seed}"
        finish_run(folder)
        assert results.run_cells(folder) == ["55.0", "55.0", "80.0", "82.0", "8,450", "84", "1.5"]
    assert calls == ["zero-shot", "probe"]
