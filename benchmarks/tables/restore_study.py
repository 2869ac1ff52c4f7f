"""A study folder from the reports of finished runs, so that `softcue study run` goes on where they ended.

    python -m benchmarks.tables.restore_study STUDY FOLDER REPORT... [--regimes K=100 --tasks A,B --methods A,B]

STUDY is the study file, FOLDER a new study folder, each REPORT a folder that `softcue study report` wrote; the options
are those of `softcue study run`. The scores, seconds and sizes of scores.csv become results of the study's runs, where
the report's own study.yaml gives a run the same settings; of two reports with the same run the first counts. Cues,
curves and single predictions are not there again. Runs whose preset has changed since then must be made anew: remove
their folders.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

from softcue.cli.options import split_names
from softcue.studies import read_study
from softcue.studies.runs import Result, StudyRun, plan_runs
from softcue.studies.store import StudyFolder

AXES = ("backbone", "trained_on", "method", "regime", "variant", "seed")  # columns of scores.csv that name a run
Cell = tuple[tuple[str, ...], str]  # of a study: axes, and a digest of the settings
ScoreRow = dict[str, str]
SECONDS = ("seconds", "run_seconds", "processor_seconds", "peak_megabytes")
STEPS = ("steps", "best_step")
FACTS = {*AXES, *SECONDS, *STEPS, "task", "run", "score", "rows", "split", "trainable"}  # other columns are metrics


def restore_study(study_file: str, folder: Path, reports: list[Path], **choices: Any) -> int:
    """Write a result for each run of the study that a report has scores of; returns their number.

    Example:
        restore_study("benchmarks/studies/evidence.yaml", Path("studies/evidence"), [Path("docs/results/evidence")])
    """
    study = read_study(study_file, **choices)
    target = StudyFolder(folder)
    target.begin(study)
    reported = [read_report(report) for report in reports]
    restored = 0
    for run in plan_runs(study, {}).runs:
        rows = next((runs[cell_of(run)] for runs in reported if cell_of(run) in runs), None)
        if rows is not None:
            (target.runs / run.id).mkdir(parents=True)
            target.finish(run, make_result(run, rows))
            restored += 1
    return restored


def read_report(folder: Path) -> dict[Cell, list[ScoreRow]]:
    """The rows of scores.csv for each run of the study that the report is about."""
    rows: dict[tuple[str, ...], list[ScoreRow]] = defaultdict(list)
    with (folder / "scores.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            rows[tuple(row[name] for name in AXES)].append(row)
    runs = plan_runs(read_study(folder / "study.yaml"), {}).runs
    return {cell_of(run): found for run in runs if (found := rows.get(axes_of(run)))}


def axes_of(run: StudyRun) -> tuple[str, ...]:
    """What names a run in scores.csv."""
    values = {**run.axes, "seed": run.seed}
    return tuple(str(values[name]) for name in AXES)


def cell_of(run: StudyRun) -> Cell:
    """A run with all its settings, whatever its folder is called: a report of other settings is of other runs."""
    return axes_of(run), replace(run, id="").digest


def make_result(run: StudyRun, rows: list[ScoreRow]) -> Result:
    """The content of result.json by the rows of scores.csv, one for each task that the run was scored on."""
    first = rows[0]
    return {
        "id": run.id,
        "digest": run.digest,
        "kind": run.kind,
        "axes": run.axes,
        "seed": run.seed,
        "settings": run.settings,
        "scores": {row["task"]: make_score(row) for row in rows},
        "trainable": int(first["trainable"] or 0),
        **{key: float(first[key]) for key in SECONDS if first[key]},
        **{key: int(first[key]) for key in STEPS if first[key]},
    }


def make_score(row: ScoreRow) -> dict[str, Any]:
    """A score of result.json by a row of scores.csv."""
    metrics = {name: float(value) for name, value in row.items() if name not in FACTS and value}
    return {"main": float(row["score"]), "metrics": metrics, "rows": int(row["rows"]), "split": row["split"]}


def main() -> None:
    """Read the arguments and write the study folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study")
    parser.add_argument("folder", type=Path)
    parser.add_argument("reports", nargs="+", type=Path)
    for name in ("regimes", "tasks", "methods"):
        parser.add_argument(f"--{name}", type=split_names)
    arguments = parser.parse_args()
    choices = {name: value for name in ("regimes", "tasks", "methods") if (value := getattr(arguments, name))}
    number = restore_study(arguments.study, arguments.folder, arguments.reports, **choices)
    print(f"{number} runs restored in {arguments.folder}")


if __name__ == "__main__":
    main()
