"""What a study costs on this machine, before anything starts: runs, parameters, hours and memory.

For each method on each backbone a few steps are taken on real rows of the first task. Other tasks take as much longer
as their texts are longer. The estimate is rough: it knows nothing about what else the machine will do.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from softcue.configuration import merged, override, resolve
from softcue.errors import SoftcueError
from softcue.run import Run
from softcue.selection import AUTO
from softcue.studies.execution import BackbonePool, make_run, task_settings
from softcue.studies.runs import StudyRun, plan_runs
from softcue.studies.study import Study
from softcue.tasks.splits import read_splits, read_splits_of_each
from softcue.training import TrainingConfig
from softcue.training.loop import plan_steps
from softcue.types import Example

TRIAL_STEPS = 3
TRIAL_TRAIN_ROWS, TRIAL_VALIDATION_ROWS = 128, 32
CHARACTERS_PER_TOKEN = 4.0  # of English text, roughly
SAMPLED_TEXTS = 200


@dataclass(frozen=True)
class RowCounts:
    """The rows of a run, and how long their texts are."""

    train: int
    validation: int
    test: int
    tokens: float  # of a training row, on average


@dataclass(frozen=True)
class MethodSpeed:
    """How fast a method trains on a backbone, measured on a few rows."""

    trainable: int
    step: float  # seconds
    row: float  # seconds to predict one
    preparation: float  # seconds per training row before the first step
    megabytes: float
    tokens: float  # of the rows it was measured on
    prompt_length: int


@dataclass(frozen=True)
class LineEstimate:
    """The runs of a method on a backbone."""

    backbone: str
    method: str
    runs: int
    trainable: int | None  # None if it could not be tried
    seconds: float | None  # of a run, on average
    megabytes: float | None
    problem: str = ""


@dataclass(frozen=True)
class StudyEstimate:
    """What a study needs."""

    lines: list[LineEstimate]
    num_runs: int
    problems: dict[str, str]  # task -> why its rows cannot be read

    def hours(self, num_workers: int) -> float | None:
        """The time of all runs that could be tried, with so many at a time."""
        if not any(line.seconds is not None for line in self.lines):
            return None
        return sum((line.seconds or 0.0) * line.runs for line in self.lines) / 3600 / num_workers

    @property
    def megabytes(self) -> float:
        """The memory of the largest run."""
        return max((line.megabytes or 0.0 for line in self.lines), default=0.0)


def estimate_study(study: Study, report: Callable[[str], None] = lambda line: None) -> StudyEstimate:
    """Estimate what a study needs on this machine. Nothing is written.

    Example:
        estimate_study(read_study("quick")).hours(num_workers=2)
    """
    plan = plan_runs(study, {})
    runs = [run for run in plan.runs if run.kind == "train"]
    rows = _Rows()
    groups: dict[tuple[str, str], list[StudyRun]] = {}
    for run in runs:
        groups.setdefault((run.axes["backbone"], run.axes["method"]), []).append(run)
    backbones = BackbonePool()
    lines = []
    for (backbone, method), members in groups.items():
        readable = [run for run in members if rows.of(run) is not None]
        report(f"trying {method} on {backbone}")
        num_runs = len(members) + plan.later.get((backbone, method), 0)
        lines.append(replace(_estimate_line(backbone, method, readable, rows, backbones), runs=num_runs))
    problems = {run.axes["trained_on"]: rows.problems[key] for run in runs if (key := _rows_key(run)) in rows.problems}
    return StudyEstimate(lines, plan.size, problems)


def _estimate_line(
    backbone: str,
    method: str,
    readable: Sequence[StudyRun],
    rows: _Rows,
    backbones: BackbonePool,
) -> LineEstimate:
    unknown = LineEstimate(backbone, method, 0, None, None, None)
    if not readable:
        return replace(unknown, problem="no rows of its tasks")
    if readable[0].needs:
        return replace(unknown, problem="its backbone is adapted first")
    if readable[0].method == AUTO:
        return replace(unknown, problem="it tries several methods: see their own lines")
    counts = rows.of(readable[0])
    assert counts is not None
    try:
        speed, training = measure_speed(readable[0], counts, backbones)
    except SoftcueError as error:
        return replace(unknown, problem=str(error))
    seconds = [_seconds(speed, training, row_counts) for run in readable if (row_counts := rows.of(run)) is not None]
    return replace(unknown, trainable=speed.trainable, seconds=fmean(seconds), megabytes=speed.megabytes)


def _seconds(speed: MethodSpeed, training: TrainingConfig, rows: RowCounts) -> float:
    """The time of a run: preparation, steps, evaluations, and at the end test rows with their baselines."""
    steps, evaluations = 0, 1
    if speed.step:
        steps, evaluate_every = plan_steps(training, math.ceil(rows.train / training.batch_size))
        evaluations = math.ceil(steps / evaluate_every)
    longer = (rows.tokens + speed.prompt_length) / (speed.tokens + speed.prompt_length)
    predicted = rows.validation * (evaluations + 1) + 2 * rows.test
    return longer * (rows.train * speed.preparation + steps * speed.step + predicted * speed.row)


def measure_speed(run: StudyRun, rows: RowCounts, backbones: BackbonePool) -> tuple[MethodSpeed, TrainingConfig]:
    """Take a few steps of a run on some of its rows.

    Example:
        speed, training = measure_speed(run, rows, BackbonePool())
    """
    import torch

    torch.set_num_threads(run.threads)
    changes: dict[str, Any] = {"task.validation_rows": TRIAL_VALIDATION_ROWS, "task.use_test_rows": False}
    if "task.few_shot" not in run.settings:
        changes["task.train_rows"] = min(TRIAL_TRAIN_ROWS, rows.train)
    with tempfile.TemporaryDirectory() as folder:
        trial = make_run(run, Path(folder), Path(folder), backbones, changes)
    assert isinstance(trial, Run)
    started = time.monotonic()
    trainer = trial.make_trainer()
    prepared = time.monotonic()
    num_rows = sum(len(splits.train) for splits in trial.splits)
    times: dict[str, list[float]] = {"step": [], "evaluation": []}
    trainer.num_steps = min(trainer.num_steps, TRIAL_STEPS)
    trainer.evaluate_every = TRIAL_STEPS
    trainer.listener = lambda kind, values: times[kind].append(time.monotonic())
    result = trainer.run()
    steps, evaluations = times["step"], times["evaluation"]
    step = (steps[-1] - steps[0]) / (len(steps) - 1) if len(steps) > 1 else 0.0  # the first one warms up
    num_validation = sum(len(splits.validation) for splits in trial.splits)
    before_evaluation = steps[-1] if steps else prepared
    evaluation = evaluations[-1] - before_evaluation
    counts = trial.models[0].counts()
    preparation = prepared - started + (0.0 if steps else evaluation)
    return (
        MethodSpeed(
            trainable=counts.gradient + counts.head,
            step=step,
            row=evaluation / max(1, num_validation),
            preparation=preparation / max(1, num_rows),
            megabytes=result.peak_megabytes,
            tokens=rows.tokens,
            prompt_length=trial.models[0].method.prompt_length,
        ),
        trial.config.training,
    )


def _rows_key(run: StudyRun) -> str:
    sampling = {key: value for key, value in run.settings.items() if key.startswith("task.")}
    sampling.pop("task.sample_seed", None)
    return repr((run.tasks, sorted(sampling.items()), run.backbone_settings.get("max_length")))


class _Rows:
    """The rows of runs; each task is read once."""

    def __init__(self) -> None:
        self.problems: dict[str, str] = {}
        self._counts: dict[str, RowCounts] = {}

    def of(self, run: StudyRun) -> RowCounts | None:
        """The rows of a run, or None if they cannot be read."""
        key = _rows_key(run)
        if key not in self._counts and key not in self.problems:
            try:
                self._counts[key] = self._count(run)
            except SoftcueError as error:
                self.problems[key] = str(error)
        return self._counts.get(key)

    def _count(self, run: StudyRun) -> RowCounts:
        mixture = {"tasks": list(run.tasks)} if len(run.tasks) > 1 else {}
        settings = {key: value for key, value in run.settings.items() if key.startswith(("task.", "mixture."))}
        layers = (override(key, value) for key, value in settings.items())
        config = resolve(merged({"task": task_settings(run), "mixture": mixture}, *layers))
        if mixture:
            splits = read_splits_of_each(config.task, config.mixture.tasks, config.mixture.cap)
        else:
            splits = [read_splits(config.task, {})]
        texts = [_tokens(example) for part in splits for example in part.train[:SAMPLED_TEXTS]]
        limit = float(run.backbone_settings.get("max_length") or math.inf)
        train, validation, test = (
            sum(len(getattr(part, split)) for part in splits) for split in ("train", "validation", "test")
        )
        return RowCounts(train, validation, test, fmean(min(limit, length) for length in texts))


def _tokens(example: Example) -> float:
    return sum(map(len, example.texts)) / CHARACTERS_PER_TOKEN
