"""The runs of a study: what its grid and the results so far ask for, in the order in which they are started."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from statistics import fmean
from typing import Any, Literal

from softcue.studies.search import propose
from softcue.studies.study import Regime, Study, StudyBackbone, StudyMethod, StudyTask, name_value
from softcue.training.config import REPORTING_KEYS

RunKind = Literal["train", "adapt", "ensemble", "peer"]
Result = dict[str, Any]  # the content of result.json
MAX_PART = 60  # characters of a part of a run's folder
_REPORTING = {f"training.{key}" for key in REPORTING_KEYS}


@dataclass(frozen=True)
class StudyRun:
    """A run of a study: all that a worker needs to know. Plain data, so that it can be sent to another machine."""

    id: str  # its folder below `runs`
    kind: RunKind
    axes: dict[str, str]  # backbone, trained_on, method, regime, variant
    seed: int
    backbone: str
    backbone_settings: dict[str, Any]
    method: str
    recipe: str
    tasks: tuple[str, ...]  # several for one prompt of all
    settings: dict[str, Any]
    score_on: tuple[str, ...]
    data: str
    threads: int
    keep_below_mb: float
    trial: str = ""  # the settings of a search; its score is that of validation rows
    needs: tuple[str, ...] = ()  # runs that must be finished before
    details: dict[str, Any] = field(default_factory=dict)  # of an adaptation, an ensemble or other software

    @property
    def digest(self) -> str:
        """What tells two runs with the same folder apart: a result counts only for the run it was made by.

        Where a run reports to, and where its data are, is no part of what it learns.
        """
        facts = {key: value for key, value in asdict(self).items() if key not in ("needs", "keep_below_mb", "data")}
        facts["settings"] = {key: value for key, value in self.settings.items() if key not in _REPORTING}
        return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON and other processes."""
        return asdict(self)


@dataclass(frozen=True)
class StudyPlan:
    """The runs that can be named so far, and how many more will follow from their results."""

    runs: list[StudyRun]
    later: dict[tuple[str, str], int] = field(default_factory=dict)  # backbone and method -> runs to follow

    @property
    def num_later(self) -> int:
        """The number of runs that will follow from results."""
        return sum(self.later.values())

    @property
    def size(self) -> int:
        """The number of all runs."""
        return len(self.runs) + self.num_later


def run_from_dict(values: Mapping[str, Any]) -> StudyRun:
    """Make a run from the plain values of `as_dict`.

    Example:
        run_from_dict(run.as_dict()) == run
    """
    lists = {name: tuple(values[name]) for name in ("tasks", "score_on", "needs")}
    return StudyRun(**{**values, **lists})


def is_result_of(run: StudyRun, result: Result | None) -> bool:
    """Whether a result was made by this run, with all its settings.

    Example:
        is_result_of(run, folder.result_of(run.id))
    """
    return result is not None and result.get("digest") == run.digest


def plan_runs(study: Study, results: Mapping[str, Result]) -> StudyPlan:
    """List the runs of a study. Runs that follow from results, such as those of chosen settings, join when these exist.

    Example:
        >>> from softcue.studies.study import read_study
        >>> plan = plan_runs(read_study("quick", seeds=2), {})
        >>> plan.size, plan.runs[0].id
        (32, 'minilm/tickets/linear-probe/seed-0')
    """
    runs: list[StudyRun] = []
    later: Counter[tuple[str, str]] = Counter()
    for backbone in study.backbones:
        if backbone.adapt is not None:
            runs.append(_adaptation(study, backbone))
    for backbone, regime, variant in itertools.product(study.backbones, study.regimes, _variants(study)):
        for tasks, method in itertools.product(_task_groups(study, regime), study.methods):
            if method.tasks and not {task.name for task in tasks} <= set(method.tasks):
                continue
            if method.regimes and regime.name not in method.regimes:
                continue
            cell = _Cell(study, backbone, tasks, method, regime, variant)
            cell_runs, num_trained, num_joined = cell.list_runs(results)
            runs += cell_runs
            later[backbone.name, method.name] += num_trained
            later[backbone.name, f"{method.name}, ensembles"] += num_joined
    adaptations_first = sorted(range(len(runs)), key=lambda number: _order(runs[number], number))
    return StudyPlan([runs[number] for number in adaptations_first], dict(+later))  # without zeros


def _order(run: StudyRun, number: int) -> tuple[int, int, int]:
    """Backbones are adapted first, then the searches run, then all cells with their first seed, and so on."""
    stage = {"adapt": 0, "train": 1 if run.trial else 2, "peer": 2, "ensemble": 3}[run.kind]
    return stage, run.seed, number


def _variants(study: Study) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and the settings of each value that varies; a single nameless variant if none does."""
    if not study.vary:
        yield "", {}
    for key, values in study.vary.items():
        for value in values:
            yield str(value), {key: value}


def _task_groups(study: Study, regime: Regime) -> list[tuple[StudyTask, ...]]:
    """The tasks of each run: one, or all of them for a shared prompt."""
    return [study.tasks] if regime.joint else [(task,) for task in study.tasks]


@dataclass(frozen=True)
class _Cell:
    """A place of the grid, whose runs differ in the seed."""

    study: Study
    backbone: StudyBackbone
    tasks: tuple[StudyTask, ...]
    method: StudyMethod
    regime: Regime
    variant: tuple[str, dict[str, Any]]

    def list_runs(self, results: Mapping[str, Result]) -> tuple[list[StudyRun], int, int]:
        """The runs of this cell, and how many more will be trained and joined, as their results say."""
        study, search = self.study, self.method.search
        if search is None:
            runs = [self._run(seed, {}) for seed in range(study.seeds)]
            return [*runs, *self._ensembles(runs)], 0, 0
        searched: list[StudyRun] = []
        rounds: list[list[tuple[dict[str, Any], float]]] = []  # finished ones: settings and validation scores
        while (proposals := propose(search, rounds)) is not None:
            trials = [(settings, self._trial_runs(settings)) for settings in proposals]
            # optuna may propose the same again: its runs are there once.
            searched = list({run.id: run for run in [*searched, *(run for _, runs in trials for run in runs)]}.values())
            if not all(run.id in results for _, runs in trials for run in runs):
                num_tried = sum(map(len, rounds)) + len(proposals)
                later = (search.trials - num_tried) * search.seeds if search.trials else 0
                return searched, max(0, later) + study.seeds, self._num_ensembles
            rounds.append(
                [(settings, fmean(validation_score(results[run.id]) for run in runs)) for settings, runs in trials]
            )
        tried = [trial for finished in rounds for trial in finished]
        best_settings, _ = max(tried, key=lambda trial: trial[1])  # the first of equals
        fresh_seeds = range(search.seeds, search.seeds + study.seeds)
        runs = [self._run(seed, best_settings) for seed in fresh_seeds]
        return [*searched, *runs, *self._ensembles(runs)], 0, 0

    @property
    def _num_ensembles(self) -> int:
        """How many ensembles join the cues of this cell, which are then kept however large they are."""
        can_join = self.study.seeds > 1 and not self.regime.joint and not self.method.function
        return len(self.study.ensembles) if can_join else 0

    def _trial_runs(self, settings: Mapping[str, Any]) -> list[StudyRun]:
        search = self.method.search
        assert search is not None
        name = ", ".join(f"{key.partition('.')[2]}={name_value(value)}" for key, value in settings.items())
        return [self._run(seed, settings, trial=name) for seed in range(search.seeds)]

    def _run(self, seed: int, chosen: Mapping[str, Any], trial: str = "") -> StudyRun:
        study, regime = self.study, self.regime
        variant, variant_settings = self.variant
        settings = study.settings_for(self.method)
        for layer in (*(task.settings for task in self.tasks), regime.settings, self.backbone.settings):
            settings |= layer
        settings |= {**self.method.settings, **variant_settings, **chosen}
        if regime.few_shot:
            # The budget of rows belongs to runs on all rows.
            settings = {key: value for key, value in settings.items() if key != "task.train_rows"}
            settings |= {"task.few_shot": regime.few_shot, "task.sample_seed": seed}
        axes = {
            "backbone": self.backbone.name,
            "trained_on": "+".join(task.name for task in self.tasks) if len(self.tasks) == 1 else regime.name,
            "method": self.method.name,
            "regime": regime.name,
            "variant": variant,
        }
        names = [axes["backbone"], axes["trained_on"], axes["method"]]
        names += [regime.name] if len(study.regimes) > 1 and axes["trained_on"] != regime.name else []
        names += [variant] if variant else []
        names += [f"search-{trial}"] if trial else []
        adaptation = self.backbone.adapt
        is_single = len(self.tasks) == 1
        return StudyRun(
            id="/".join([*map(_folder_name, names), f"seed-{seed}"]),
            kind="peer" if self.method.function else "train",
            axes=axes,
            seed=seed,
            backbone=_adapted_id(self.backbone) if adaptation else self.backbone.source,
            backbone_settings=_backbone_settings(settings),
            method="" if self.method.function else self.method.method_name,
            recipe=self.method.recipe or study.recipe,
            tasks=tuple(task.source for task in self.tasks),
            settings={key: value for key, value in settings.items() if not key.startswith("backbone.")},
            score_on=self.tasks[0].score_on if is_single and not trial else (),
            data=study.data,
            threads=study.threads,
            keep_below_mb=inf if self._num_ensembles and not trial else study.keep_below_mb,
            trial=trial,
            needs=(_adapted_id(self.backbone),) if adaptation else (),
            details={"function": self.method.function} if self.method.function else {},
        )

    def _ensembles(self, members: Sequence[StudyRun]) -> list[StudyRun]:
        """The ensembles of the cues of all seeds."""
        runs = []
        for rule in self.study.ensembles if self._num_ensembles else ():
            first = members[0]
            folder = first.id.rpartition("/")[0]
            runs.append(
                StudyRun(
                    **{
                        **vars(first),
                        "id": f"{folder}/ensemble-{rule}",
                        "kind": "ensemble",
                        "axes": {**first.axes, "method": f"{first.axes['method']}, {rule} of {len(members)}"},
                        "score_on": (),
                        "needs": tuple(run.id for run in members),
                        "details": {"rule": rule, "members": [run.id for run in members]},
                    }
                )
            )
        return runs


def _adaptation(study: Study, backbone: StudyBackbone) -> StudyRun:
    assert backbone.adapt is not None
    details = {**backbone.adapt.model_dump(), "text": backbone.adapt.text or study.text}
    return StudyRun(
        id=_adapted_id(backbone),
        kind="adapt",
        axes={"backbone": backbone.name, "trained_on": "", "method": "adapt", "regime": "", "variant": ""},
        seed=0,
        backbone=backbone.source,
        backbone_settings={},
        method="",
        recipe="",
        tasks=(),
        settings={},
        score_on=(),
        data="",
        threads=study.threads,
        keep_below_mb=study.keep_below_mb,
        details=details,
    )


def _adapted_id(backbone: StudyBackbone) -> str:
    return f"backbones/{_folder_name(backbone.name)}"


def _backbone_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key.partition(".")[2]: value for key, value in settings.items() if key.startswith("backbone.")}


def validation_score(result: Result) -> float:
    """The validation score of a run, the mean of several tasks. A trial whose training broke down has the lowest.

    Example:
        >>> validation_score({"validation": {"rte": {"main": 60.0}, "cb": {"main": 70.0}}}), validation_score({})
        (65.0, -inf)
    """
    scores = result.get("validation") or {}
    return fmean(score["main"] for score in scores.values()) if scores else -inf


def _folder_name(name: str) -> str:
    """A name for a folder. A long name, or one with other characters, ends with a digest, so that none collide."""
    last = name.rstrip("/").rpartition("/")[2]
    plain = re.sub(r"[^\w.,=+-]+", "-", last).strip("-.") or "run"
    if plain == name and len(plain) <= MAX_PART:
        return plain
    return f"{plain[:MAX_PART]}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
