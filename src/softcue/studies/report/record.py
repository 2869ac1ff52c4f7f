"""All that a report is made from: the scores of a study's finished runs, and how many runs each cell should have."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev
from typing import Any, get_args

from softcue.errors import RunError
from softcue.studies.runner import StudyStatus
from softcue.studies.runs import Result, StudyRun
from softcue.studies.study import Axis, Regime, Study

AXES: tuple[Axis, ...] = get_args(Axis)
_PATH = re.compile(r"(?<![\w/:.~])~?/(?:[\w.@+-]+/)+([\w.@+-]*)")
_NUMBER = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True)
class Place:
    """A cell of the grid: what was trained on what, and the task it is scored on. Its runs differ in the seed."""

    backbone: str
    trained_on: str
    task: str
    method: str
    regime: str
    variant: str

    def without(self, *axes: Axis) -> tuple[str, ...]:
        """The values of all other axes.

        Example:
            >>> Place("minilm", "rte", "rte", "vip", "full", "").without("method", "variant")
            ('minilm', 'rte', 'rte', 'full')
        """
        return tuple(getattr(self, axis) for axis in AXES if axis not in axes)


@dataclass(frozen=True)
class StudyScore:
    """The score of a finished run on a task."""

    run: str
    place: Place
    seed: int
    main: float  # of several metrics, their mean
    metrics: dict[str, float]
    rows: int
    split: str  # test, or validation if the task has no test rows
    baselines: dict[str, float]  # on the same rows
    result: Result


class StudyRecord:
    """The scores of a study in the order of the study, with names to show.

    Example:
        record = StudyRecord(folder.read_study(), read_status(folder))
        record.mean_of(record.scores[0].place)
    """

    def __init__(self, study: Study, status: StudyStatus) -> None:
        self.study, self.status = study, status
        self.regimes: dict[str, Regime] = {regime.name: regime for regime in study.regimes}
        self.bases: dict[str, str] = {}  # name of an ensemble -> its method
        shown = study.layout.tasks
        self.planned = {place: count for place, count in self._plan().items() if not shown or place.task in shown}
        self.all_scores = sorted(self._scores(), key=lambda score: (*self.rank(score.place), score.seed))
        self.scores = [score for score in self.all_scores if score.place in self.planned]  # those that are shown
        if not self.scores:
            num_failed = len(status.failed)
            raise RunError(
                setting="study folder",
                got=study.name,
                expected="at least one finished run with a score",
                fix=f"{num_failed} runs have failed: see `softcue study status`"
                if num_failed
                else "run it first: `softcue study run`",
            )

    def _plan(self) -> dict[Place, int]:
        """How many runs each cell has when the study is finished."""
        counts: Counter[Place] = Counter()
        searched: set[Place] = set()
        for run in self.status.plan.runs:
            if run.kind == "ensemble":
                self.bases[run.axes["method"]] = run.axes["method"].rpartition(", ")[0]
            for place in self._places(run):
                if run.trial:
                    searched.add(place)
                else:
                    counts[place] += 1
        # Runs of chosen settings are not named before their search ends.
        counts.update({place: self.study.seeds for place in searched if place not in counts})
        return {place: counts[place] for place in sorted(counts, key=self.rank)}

    def _places(self, run: StudyRun) -> list[Place]:
        if run.kind == "adapt":
            return []
        is_joint = len(run.tasks) > 1
        tasks = [task.name for task in self.study.tasks] if is_joint else [run.axes["trained_on"], *run.score_on]
        return [Place(**run.axes, task=task) for task in tasks]

    def _scores(self) -> Iterable[StudyScore]:
        for run in self.status.done:
            result = self.status.results[run.id]
            if run.trial or run.kind == "adapt":
                continue
            scores: Mapping[str, Any] = result["scores"]
            # A run gives its scores in the order of its tasks; a task of a file may have another name there.
            for place, (name, score) in zip(self._places(run), scores.items(), strict=False):
                baselines = (result.get("baselines") or {}).get(name, {})
                yield StudyScore(
                    run.id,
                    place,
                    run.seed,
                    float(score["main"]),
                    dict(score["metrics"]),
                    int(score["rows"] or 0),
                    str(score["split"]),
                    {baseline: float(value) for baseline, value in baselines.items()},
                    result,
                )

    def rank(self, place: Place) -> tuple[int, ...]:
        """The position of a cell in the order of the study."""
        return tuple(self._ranks[axis].get(getattr(place, axis), len(self._ranks[axis])) for axis in AXES)

    @cached_property
    def _ranks(self) -> dict[Axis, dict[str, int]]:
        study = self.study
        tasks = [task.name for task in study.tasks]
        methods = [
            name
            for method in study.methods
            for name in (method.name, *(joined for joined, base in self.bases.items() if base == method.name))
        ]
        names: dict[Axis, list[str]] = {
            "backbone": [backbone.name for backbone in study.backbones],
            "trained_on": [*tasks, *self.regimes],
            "task": [*tasks, *(target for task in study.tasks for target in task.score_on)],
            "method": methods,
            "regime": list(self.regimes),
            "variant": [str(value) for values in study.vary.values() for value in values],
        }
        return {axis: {name: rank for rank, name in enumerate(dict.fromkeys(values))} for axis, values in names.items()}

    def values_of(self, axis: Axis) -> list[str]:
        """The values of an axis that the study has, in its order."""
        values = {getattr(place, axis) for place in self.planned}
        ranks = self._ranks[axis]
        return sorted(values, key=lambda value: (ranks.get(value, len(ranks)), value))

    @cached_property
    def by_place(self) -> dict[Place, list[StudyScore]]:
        """The scores of each cell, in the order of seeds."""
        cells: dict[Place, list[StudyScore]] = {place: [] for place in self.planned}
        for score in self.scores:
            cells.setdefault(score.place, []).append(score)
        return cells

    def mean_of(self, place: Place) -> float | None:
        """The mean score of a cell, if it has runs."""
        scores = self.by_place.get(place)
        return fmean(score.main for score in scores) if scores else None

    def is_in_domain(self, place: Place) -> bool:
        """Whether the task is one that the prompt was trained on."""
        return place.trained_on == place.task or self.is_joint(place)

    def source_of(self, place: Place) -> str:
        """What the prompt was trained on if that is another task, else nothing."""
        return "" if self.is_in_domain(place) else place.trained_on

    @cached_property
    def is_regime_of_method(self) -> bool:
        """Whether each method has a regime of its own, so that methods are compared across regimes."""
        pairs = {(place.method, place.regime) for place in self.planned}
        sizes = {self.few_shot_of(place) for place in self.planned}
        return len(pairs) == len(self.values_of("method")) and len(sizes) == 1

    def is_joint(self, place: Place) -> bool:
        """Whether the prompt was trained on all tasks together."""
        regime = self.regimes.get(place.regime)
        return regime is not None and regime.joint

    def few_shot_of(self, place: Place) -> int:
        """The number of training rows K, or 0 for all."""
        regime = self.regimes.get(place.regime)
        return regime.few_shot if regime is not None else 0

    def is_ensemble(self, place: Place) -> bool:
        """Whether the cell holds joined predictions."""
        return place.method in self.bases

    def label(self, axis: Axis, value: str) -> str:
        """The name of a value as a table shows it; folders are shortened to their last part."""
        if axis == "regime" and (regime := self.regimes.get(value)) is not None and regime.few_shot:
            return f"K = {regime.few_shot:,}" if _NUMBER.fullmatch(value) else value
        if axis == "variant":
            key = next(iter(self.study.vary), "")
            return f"{key.partition('.')[2].replace('_', ' ')} {value}".strip()
        return self.short_names.get(value, value)

    @cached_property
    def short_names(self) -> dict[str, str]:
        """Paths of backbones and tasks -> their last part, where no two would be the same."""
        axes: tuple[Axis, ...] = ("backbone", "trained_on", "task")
        names = [name for axis in axes for name in self._ranks[axis]]
        paths = {name: name.rstrip("/").rpartition("/")[2] for name in names if "/" in name}
        shared = Counter([*paths.values(), *(name for name in dict.fromkeys(names) if "/" not in name)])
        shorter = {name: last for name, last in paths.items() if shared[last] == 1}
        longer = {name: "-".join(name.rstrip("/").split("/")[-2:]) for name, last in paths.items() if shared[last] > 1}
        return {**shorter, **longer}

    def plain(self, text: str) -> str:
        """A text without folders of this machine: DATA and TEXT stand for those of the study, other paths are cut.

        Example:
            record.plain("no file /home/me/data/rte/train.tsv")     # "no file DATA/rte/train.tsv"
        """
        for path, word in ((self.study.data, "DATA"), (self.study.text, "TEXT")):
            if path and path != word:
                text = text.replace(path.rstrip("/"), word)
        return _PATH.sub(r"\1", text)


def spread_of(values: Sequence[float]) -> float | None:
    """The sample standard deviation, or None for a single value.

    Example:
        >>> spread_of([1.0, 3.0]), spread_of([1.0])
        (1.4142135623730951, None)
    """
    return stdev(values) if len(values) > 1 else None
