"""The table and the plot of LM adaptation: finished runs become cells; nothing is trained here."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from benchmarks.tables.adaptation import AdaptedBackbone, draw_plot, list_prompt_runs, print_scores


def make_table(folder: Path) -> tuple[list[AdaptedBackbone], argparse.Namespace]:
    backbones = [AdaptedBackbone("new", steps, folder / f"model{steps}") for steps in (0, 10, 100)]
    for backbone in backbones:
        backbone.path.mkdir()
        history = [{"step": 0, "perplexity": 90.0}, {"step": 9, "perplexity": 30.0}]
        (backbone.path / "adaptation.json").write_text(json.dumps({"history": history}))
    backbones.append(AdaptedBackbone("t5", 0, folder / "given"))
    return backbones, argparse.Namespace(output=folder, seeds=2, t5_seeds=1, tasks="sst2,subj")


def test_scores_of_finished_runs_are_printed_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    backbones, arguments = make_table(tmp_path)
    runs = list(list_prompt_runs(backbones, arguments))
    assert len(runs) == (3 * 2 + 1) * 2 * 2 + 4 * 2  # the T5 has one seed, a linear probe too
    assert len({run.folder for run in runs}) == len(runs)
    for run in runs:
        if run.backbone.origin == "new" and (run.targets, run.backbone.num_steps) != ("sentinel", 10):
            run.folder.mkdir(parents=True)
            (run.folder / "score.json").write_text(json.dumps(60.0 + run.backbone.num_steps / 10 + 2 * run.seed))
    print_scores(runs, backbones, ["sst2", "subj"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| new | 0 | 90.0 to 30.0 | plain | 61.0 ± 1.4 | 61.0 ± 1.4 |"
    assert lines[6] == "| new | 10 | 90.0 to 30.0 | with sentinel | not run | not run |"
    assert lines[8] == "| new | 100 | 90.0 to 30.0 | plain | 71.0 ± 1.4 | 71.0 ± 1.4 |"
    assert lines[11] == "| t5 | 0 | - | plain | not run | not run |"
    draw_plot(runs, backbones, ["sst2", "subj"], tmp_path / "plots/adaptation.png")
    assert (tmp_path / "plots/adaptation.png").read_bytes().startswith(b"\x89PNG")


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    backbones, arguments = make_table(tmp_path)
    run = next(list_prompt_runs(backbones, arguments))
    run.folder.mkdir(parents=True)
    (run.folder / "score.json").write_text("70.5")
    run.run(tmp_path / "no data", "")
    assert run.score == 70.5
