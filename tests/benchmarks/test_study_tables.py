"""Folders that the studies of presets need: held-out rows, and results that a report holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from benchmarks.tables.held_out_rows import NUM_HELD_OUT, TASKS, hold_out_rows
from benchmarks.tables.restore_study import restore_study
from softcue.studies import read_study
from softcue.studies.runs import is_result_of, plan_runs
from softcue.studies.store import StudyFolder

STUDY: dict[str, Any] = {
    "name": "two",
    "backbones": ["minilm"],
    "tasks": ["tickets"],
    "methods": ["linear-probe", "vip"],
    "regimes": [{"name": "K=32", "few_shot": 32}, {"name": "K=100", "few_shot": 100}],
    "seeds": 2,
}
SCORES = """\
backbone,trained_on,task,method,regime,variant,seed,score,accuracy,rows,split,trainable,steps,best_step,run,seconds,\
run_seconds,processor_seconds,peak_megabytes
minilm,tickets,tickets,vip,K=100,,1,81.5,81.5,126,test,7680,100,80,elsewhere,20.5,22.0,19.5,700.0
minilm,tickets,tickets,compacter,K=100,,1,70.0,70.0,126,test,1,1,1,unknown,1.0,1.0,1.0,
"""


def test_held_out_rows_are_all_training_rows_and_each_is_there_once(tmp_path: Path) -> None:
    lines = [f"text {number}\t{number % 2}" for number in range(NUM_HELD_OUT + 40)]
    repeated = [*lines, "text 3\t0"]  # the same text under another label: it must not be on both sides
    for task, columns in TASKS.items():
        (tmp_path / "published" / task).mkdir(parents=True)
        before = [f"{column}\t" for column in range(columns.first_text)]
        text = "\n".join(
            "".join(before) + line for line in ["sentence\tlabel", *repeated]
        )  # no last line break, as SST-2
        (tmp_path / "published" / task / columns.train).write_text(text, "utf-8")
    hold_out_rows(tmp_path / "published", tmp_path / "held-out")
    for task, columns in TASKS.items():
        files = [(tmp_path / "held-out" / task / name).read_text("utf-8") for name in (columns.scored, columns.train)]
        (header, *test), (same_header, *train) = (text.splitlines() for text in files)
        assert header == same_header
        assert header.endswith("sentence\tlabel")
        assert len(test) == NUM_HELD_OUT
        texts = [line.split("\t")[columns.first_text] for line in test + train]
        assert sorted(texts) == sorted(line.split("\t")[0] for line in lines)


def write_report(folder: Path, study: dict[str, Any], scores: str) -> Path:
    folder.mkdir()
    (folder / "study.yaml").write_text(yaml.safe_dump(study), "utf-8")
    (folder / "scores.csv").write_text(scores, "utf-8")
    return folder


def test_a_study_goes_on_from_the_scores_of_a_report(tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(STUDY), "utf-8")
    compacter = {**STUDY, "methods": ["vip", "compacter"]}  # which the study itself does not have
    first = write_report(tmp_path / "first", compacter, SCORES)
    second = write_report(tmp_path / "second", STUDY, SCORES.replace("81.5,81.5", "70,70").replace("20.5", "1"))
    folder = tmp_path / "study"
    assert restore_study(str(tmp_path / "two.yaml"), folder, [first, second]) == 1
    results = StudyFolder(folder).results()
    finished = [
        run for run in plan_runs(read_study(tmp_path / "two.yaml"), {}).runs if is_result_of(run, results.get(run.id))
    ]
    assert [(run.method, run.axes["regime"], run.seed) for run in finished] == [("vip", "K=100", 1)]
    [result] = results.values()
    assert result["scores"] == {"tickets": {"main": 81.5, "metrics": {"accuracy": 81.5}, "rows": 126, "split": "test"}}
    assert (result["processor_seconds"], result["best_step"], result["trainable"]) == (19.5, 80, 7680)


def test_a_report_of_other_settings_gives_no_results(tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(STUDY), "utf-8")
    report = write_report(tmp_path / "report", {**STUDY, "settings": {"training.steps": 3}}, SCORES)
    assert restore_study(str(tmp_path / "two.yaml"), tmp_path / "study", [report]) == 0
