"""One run of a study in this process: train, adapt or join cues, and describe the result as plain data."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from softcue.adaptation import adapt
from softcue.auto_run import AutoRun, make_training_run
from softcue.backbones import Backbone, BackboneConfig, load_backbone
from softcue.configuration import merged, override, resolve
from softcue.cue import Cue, load
from softcue.cue.cue_file import package_versions
from softcue.errors import RunError, TrainingError
from softcue.evaluation import (
    Evaluation,
    EvaluationSet,
    LabelMapping,
    check_metric,
    main_of_scores,
    mean,
    score,
    vote,
)
from softcue.files import remove
from softcue.machine import processor_name, reset_peak_memory
from softcue.run import Run, splits_of_run
from softcue.studies.peers import PeerRun, find_peer
from softcue.studies.runs import Result, StudyRun
from softcue.tasks import find_task
from softcue.tasks.splits import read_splits
from softcue.training.loop import peak_megabytes

LOADED_BACKBONES = 2  # at once in a process
RULES = {"vote": vote, "mean": mean}


class BackbonePool:
    """The backbones that a process has loaded; the least recently used is dropped first.

    Example:
        pool = BackbonePool()
        pool.get("minilm", {"max_length": 128})
    """

    def __init__(self) -> None:
        self._loaded: dict[str, Backbone] = {}

    def get(self, name: str, settings: Mapping[str, Any]) -> Backbone:
        """Load a backbone, or take it if it is loaded. Its length and dropout are settings of a run, not of it."""
        of_run = ("max_length", "dropout")
        values = {"name": name, **{key: value for key, value in settings.items() if key not in of_run}}
        key = json.dumps(values, sort_keys=True)
        backbone = self._loaded.pop(key, None) or load_backbone(BackboneConfig.model_validate(values))
        self._loaded[key] = backbone
        if len(self._loaded) > LOADED_BACKBONES:
            del self._loaded[next(iter(self._loaded))]
        return backbone


def execute(run: StudyRun, folder: Path, runs_folder: Path, backbones: BackbonePool) -> Result:
    """Execute a run in its folder. A run that was interrupted goes on where it was, unless it was another one.

    Example:
        execute(run, Path("studies/mine/runs") / run.id, Path("studies/mine/runs"), BackbonePool())
    """
    started, processor_started = time.monotonic(), time.process_time()
    reset_peak_memory()
    try:
        facts = _execute(run, folder, runs_folder, backbones)
    except TrainingError as error:
        if not run.trial:
            raise
        # A search goes on without settings that do not train, such as too high a rate: they have the lowest score.
        facts = {"scores": {}, "validation": {}, "broke_down": " ".join(str(error).split())}
    return {
        "id": run.id,
        "digest": run.digest,
        "kind": run.kind,
        "axes": run.axes,
        "seed": run.seed,
        "trial": run.trial,
        "settings": run.settings,
        **facts,
        "run_seconds": round(time.monotonic() - started, 2),
        "processor_seconds": round(time.process_time() - processor_started, 2),
        "finished": time.strftime("%Y-%m-%d %H:%M:%S"),
        "threads": run.threads,
        "processor": processor_name(),
        "versions": package_versions(),
    }


def _execute(run: StudyRun, folder: Path, runs_folder: Path, backbones: BackbonePool) -> dict[str, Any]:
    kinds = {"train": _train, "adapt": _adapt, "ensemble": _join, "peer": _train_peer}
    try:
        return kinds[run.kind](run, folder, runs_folder, backbones)
    except RunError as error:
        if error.setting != "resume":
            raise
        # It has no result, so it counts for nothing: an attempt with other settings, rows or versions has left it.
        for leftover in ("cue", "model"):
            remove(folder / leftover)
        return kinds[run.kind](run, folder, runs_folder, backbones)


def remove_large_cue(run: StudyRun, folder: Path, result: Result) -> None:
    """Remove the cue of a finished run if it is larger than the study keeps, such as a copy of the backbone.

    Example:
        remove_large_cue(run, folder, result)  # after result.json is written
    """
    if result.get("cue_bytes", 0) > run.keep_below_mb * 1e6:
        shutil.rmtree(folder / "cue", ignore_errors=True)


def make_run(
    run: StudyRun, folder: Path, runs_folder: Path, backbones: BackbonePool, changes: Mapping[str, Any] | None = None
) -> Run | AutoRun:
    """Make the training run of a study's run: rows are read and models are built, nothing is trained or written yet.

    Example:
        make_run(run, Path("trial"), Path("studies/mine/runs"), BackbonePool(), {"training.steps": 3})
    """
    backbone = _load(run, runs_folder, backbones)
    is_joint = len(run.tasks) > 1
    settings = merged(
        {
            "backbone": {**run.backbone_settings, "name": backbone.name},
            "method": {"name": run.method},
            "task": task_settings(run),
            "training": {
                "seed": run.seed,
                "report_group": runs_folder.absolute().parent.name,
            },  # trackers group by study
            "mixture": {"tasks": list(run.tasks)} if is_joint else {},
        },
        *(override(key, value) for key, value in {**run.settings, **(changes or {})}.items()),
    )
    return make_training_run(folder / "cue", settings, backbone=backbone, is_joint=is_joint, recipe=run.recipe)


def _load(run: StudyRun, runs_folder: Path, backbones: BackbonePool) -> Backbone:
    """The backbone of a run, or the one that a run before has adapted."""
    source = str(runs_folder / run.needs[0] / "model") if run.needs else run.backbone
    return backbones.get(source, run.backbone_settings)


def task_settings(run: StudyRun) -> dict[str, Any]:
    """The settings of a run's rows, besides those that the study gives it.

    Published validation rows are scored at the end if a task has no test rows, so they must not choose the best step.
    A trial of a search reads no test rows at all.

    Example:
        >>> from softcue.studies.runs import plan_runs
        >>> from softcue.studies.study import read_study
        >>> task_settings(plan_runs(read_study("quick"), {}).runs[0])
        {'hold_out_validation': True, 'use_test_rows': True, 'name': 'tickets'}
    """
    settings: dict[str, Any] = {"hold_out_validation": True, "use_test_rows": not run.trial}
    if len(run.tasks) == 1:
        settings["name"] = run.tasks[0]
    if run.data and all(find_task(task).files for task in run.tasks):
        settings["data"] = run.data
    return settings


def _train(run: StudyRun, folder: Path, runs_folder: Path, backbones: BackbonePool) -> dict[str, Any]:
    trained = make_run(run, folder, runs_folder, backbones)
    trained_cues = trained.execute(resume=True, progress=False)
    is_joint = len(run.tasks) > 1
    cues = {cue.task.name if is_joint else run.axes["trained_on"]: cue for cue in trained_cues}
    metrics_folder = trained.cue_folders[0]
    first = trained_cues[0]
    scores = {name: recorded_score(cue) for name, cue in cues.items()}
    for target in run.score_on:
        evaluation = first.evaluate(
            run.data or None, task=target, num_rows=run.settings.get("task.test_rows", 0), baselines=False
        )
        name = find_task(target).name
        scores[target if name in scores else name] = {  # the file of a task may have the name of another task
            "main": _main_score(evaluation, run.settings.get("task.metric", "")),
            "metrics": evaluation.scores,
            "rows": evaluation.num_rows,
            "split": "test",
        }
    metrics = read_metrics(metrics_folder)
    tensor_bytes = sum(file.stat().st_size for file in (folder / "cue").rglob("cue.safetensors"))
    counts = first.cue_file.counts
    return {
        "scores": scores,
        "validation": {name: recorded_score(cue, "validation") for name, cue in cues.items()},
        "baselines": {name: _baselines(cue) for name, cue in cues.items()},
        "trainable": counts.get("gradient", 0) + counts.get("head", 0),
        "counts": counts,
        "seconds": metrics["seconds"],
        "steps": metrics["steps"],
        "best_step": metrics["best_step"],
        "curve": [[entry["step"], entry["score"]] for entry in metrics["history"] if "score" in entry],
        "health": metrics["health"],
        "peak_megabytes": metrics["peak_megabytes"],
        "cue_bytes": tensor_bytes,
        "warnings": metrics["warnings"],
        "recipe": first.cue_file.recipe.summary if first.cue_file.recipe else "",
        "rows": first.cue_file.rows,
    }


def _train_peer(run: StudyRun, folder: Path, runs_folder: Path, backbones: BackbonePool) -> dict[str, Any]:
    layers = (override(key, value) for key, value in run.settings.items())
    config = resolve(merged({"task": task_settings(run)}, *layers)).task
    splits = read_splits(config, {}, check_metric)
    train_peer = find_peer(run.details["function"])
    started = time.monotonic()
    result = train_peer(PeerRun(_load(run, runs_folder, backbones), splits, run.seed, run.backbone_settings))
    split = "test" if splits.test else "validation"
    evaluation = score(splits.task, result.predictions, splits.test or splits.validation)
    return {
        "scores": {
            run.axes["trained_on"]: {
                "main": evaluation.main,
                "metrics": evaluation.scores,
                "rows": evaluation.num_rows,
                "split": split,
            }
        },
        "trainable": result.trainable,
        "seconds": round(time.monotonic() - started, 1),
        "steps": 0,
        "curve": [],
        "peak_megabytes": round(peak_megabytes(torch.device("cpu")), 1),
        "warnings": [],
    }


def recorded_score(cue: Cue, split: str = "") -> dict[str, Any]:
    """The score of a split as the cue records it: test rows, else validation rows.

    Example:
        recorded_score(cue, "validation")["main"]
    """
    split = split or ("test" if "test" in cue.scores else "validation")
    metrics = cue.scores[split]
    main = sum(metrics[name] for name in cue.task.main_metrics) / len(cue.task.main_metrics)
    return {"main": main, "metrics": metrics, "rows": cue.cue_file.num_rows(split), "split": split}


def read_metrics(folder: Path) -> dict[str, Any]:
    """Read what a run has written at its end: metrics.json.

    Example:
        read_metrics(Path("cues/tickets"))["warnings"]
    """
    metrics: dict[str, Any] = json.loads((folder / "metrics.json").read_text("utf-8"))
    return metrics


def list_warnings(by_run: Mapping[str, Sequence[str]]) -> list[str]:
    """List the warnings of several runs, each once behind the names of the runs that have it.

    Example:
        >>> list_warnings({"vip, seed 0": ["the loss is flat"], "vip, seed 1": []})
        ['vip, seed 0: the loss is flat']
        >>> list_warnings({"trial 1": ["the loss is flat"], "trial 2": ["the loss is flat"]})
        ['all runs: the loss is flat']
    """
    runs: dict[str, list[str]] = {}
    for name, warnings in by_run.items():
        for warning in dict.fromkeys(warnings):
            runs.setdefault(warning, []).append(name)
    return [
        f"{'all runs' if 1 < len(names) == len(by_run) else '; '.join(names)}: {warning}"
        for warning, names in runs.items()
    ]


def _main_score(evaluation: Evaluation, metric: str) -> float:
    """The metric that the study sets, if these rows have it, else the main metric of their task."""
    names = metric.split("+") if metric else []
    if not names or not all(name in evaluation.scores for name in names):
        return evaluation.main
    return sum(evaluation.scores[name] for name in names) / len(names)


def _baselines(cue: Cue) -> dict[str, float]:
    """The main score of each baseline on the rows of the score."""
    recorded = cue.cue_file.baselines.get("test" if "test" in cue.scores else "validation", {})
    scores = {baseline: main_of_scores(cue.task, metrics) for baseline, metrics in recorded.items()}
    return {baseline: main for baseline, main in scores.items() if main is not None}


def _adapt(run: StudyRun, folder: Path, runs_folder: Path, backbones: BackbonePool) -> dict[str, Any]:
    adapted = adapt(folder / "model", backbone=run.backbone, resume=True, progress=False, **run.details)
    history = adapted.history
    return {
        "scores": {},
        "seconds": adapted.seconds,
        "steps": adapted.steps,
        "curve": [[entry["step"], entry["perplexity"]] for entry in history],
        "perplexity": adapted.perplexity,
        "warnings": [],
    }


def _join(run: StudyRun, folder: Path, runs_folder: Path, backbones: BackbonePool) -> dict[str, Any]:
    members = [runs_folder / member / "cue" for member in run.details["members"]]
    splits = splits_of_run(members[0])
    rows = EvaluationSet("test", list(splits.test or splits.validation), LabelMapping(splits.task, {}, {}))
    predictions, cues = [], []
    backbone: Backbone | None = None
    for member in members:
        cue = load(member, backbone)
        backbone = cue.backbone
        cues.append(cue)
        predictions.append(cue.evaluate_set(rows, baselines=False)[1])
    join = RULES[run.details["rule"]]
    evaluation = rows.score([join(votes) for votes in zip(*predictions, strict=True)])
    score = {
        "main": evaluation.main,
        "metrics": evaluation.scores,
        "rows": evaluation.num_rows,
        "split": "test" if splits.test else "validation",
    }
    return {
        "scores": {run.axes["trained_on"]: score},
        "trainable": sum(cue.counts.gradient + cue.counts.head for cue in cues),
        "seconds": 0.0,
        "steps": 0,
        "curve": [],
        "warnings": [],
    }
