"""Folders of studies with made-up results: what a report is made from, without training."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from softcue.studies.runs import StudyRun, plan_runs
from softcue.studies.store import StudyFolder
from softcue.studies.study import make_study

ScoreOf = Callable[[StudyRun, str], float]


def made_up_score(run: StudyRun, task: str) -> float:
    """A score that depends on the method, the task and the seed, and is the same every time."""
    generator = random.Random(f"{run.axes['method']} {run.axes['variant']} {task}")
    base = 60 + 20 * generator.random() + {"100": -12.0, "500": -4.0}.get(run.axes["regime"], 0.0)
    return round(base + random.Random(f"{run.id} {task}").gauss(0, 1.0), 4)


def write_study(
    folder: Path,
    values: Mapping[str, Any],
    score_of: ScoreOf = made_up_score,
    skip: Callable[[StudyRun], bool] = lambda run: False,
    failed: Mapping[str, str] | None = None,
    changes: Mapping[str, Any] | None = None,
    scale: str = "full",
) -> StudyFolder:
    """Write a study with a result for each run that is neither skipped nor failed; `changes` are made to results."""
    study = make_study({"name": "made-up", "backbones": ["minilm"], "tasks": ["tickets"], **values}, scale)
    place = StudyFolder(folder)
    place.begin(study)
    results: dict[str, Any] = {}
    while True:
        plan = plan_runs(study, results)
        ready = [
            run
            for run in plan.runs
            if run.id not in results
            and not skip(run)
            and run.id not in (failed or {})
            and set(run.needs) <= set(results)
        ]
        if not ready:
            break
        for run in ready:
            results[run.id] = {**_result(run, score_of), **(changes or {})}
    for run in plan.runs:
        if run.id in results:
            (place.runs / run.id).mkdir(parents=True)
            (place.runs / run.id / "result.json").write_text(json.dumps(results[run.id]))
        elif run.id in (failed or {}):
            place.add_failure(run, (failed or {})[run.id])
    return place


def _result(run: StudyRun, score_of: ScoreOf) -> dict[str, Any]:
    base: dict[str, Any] = {
        "id": run.id,
        "digest": run.digest,
        "kind": run.kind,
        "axes": run.axes,
        "seed": run.seed,
        "trial": run.trial,
        "settings": run.settings,
        "seconds": 12.5,
        "steps": 40,
        "warnings": [],
        "run_seconds": 14.0,
        "processor_seconds": 10.0 + len(run.method),
        "threads": 1,
        "processor": "Some CPU",
        "versions": {"softcue": "0.1.0", "torch": "2.13.0"},
    }
    if run.kind == "adapt":
        return {**base, "scores": {}, "perplexity": 9.5, "curve": [[10, 20.0], [20, 9.5]]}
    tasks = list(run.tasks) if len(run.tasks) > 1 else [run.axes["trained_on"], *run.score_on]
    scores = {task: _score(score_of(run, task), "test") for task in tasks}
    if run.kind == "ensemble":
        return {**base, "scores": scores, "trainable": 5000, "curve": []}
    own = tasks if len(run.tasks) > 1 else tasks[:1]
    validation = {task: _score(score_of(run, task), "validation") for task in own}
    mean = sum(score["main"] for score in validation.values()) / len(validation)
    return {
        **base,
        "scores": {} if run.trial else scores,
        "validation": validation,
        "baselines": {task: {"majority_class": 30.0, "zero_shot": 41.0} for task in own},
        "trainable": 100 * len(run.method) ** 3,
        "best_step": 30,
        "curve": [[10, mean - 20], [20, mean - 5], [30, mean], [40, mean - 1]],
        "peak_megabytes": 700.0,
        "recipe": f"{run.method}, default recipe: 20 vectors (paper 100)",
    }


def _score(main: float, split: str) -> dict[str, Any]:
    return {"main": main, "metrics": {"accuracy": main, "macro_f1": main - 1.5}, "rows": 126, "split": split}
