"""Methods trained on the same rows, with several seeds: scores, spread, cost, and which can be told apart."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from softcue.api import TrainArguments, train
from softcue.backbones import Backbone, BackboneConfig, load_backbone
from softcue.cue import Cue
from softcue.errors import ConfigurationError
from softcue.evaluation import EvaluationSet, LabelMapping
from softcue.evaluation.scoring import ScoredRows
from softcue.listing import Listing
from softcue.run import splits_of_run
from softcue.studies.predictions import group_rows, pair_scores
from softcue.studies.statistics import Difference, bootstrap_difference
from softcue.tasks import examples_from

MIN_SEEDS = 3  # for a spread that says something
Report = Callable[[str], None]


@dataclass(frozen=True)
class TrainedRun:
    """A finished run of a comparison."""

    line: str  # of the table
    backbone: str
    method: str
    seed: int
    folder: str
    score: float  # of the task's metric, on the rows of the comparison
    seconds: float  # of training
    num_bytes: int  # of the cue's tensors


@dataclass(frozen=True)
class MethodLine:
    """A method on a backbone: its runs in one line of the table."""

    name: str  # the method, with its backbone if there are several
    mean: float
    spread: float | None  # standard deviation over seeds; None with one seed
    seeds: int
    rows: int
    trainable: int  # parameters, with the head
    seconds: float  # of training, mean
    kilobytes: float  # of the cue's tensors, mean


@dataclass(frozen=True)
class MethodPair:
    """Two methods on the same rows, seed by seed."""

    first: str
    second: str
    difference: Difference

    @property
    def sentence(self) -> str:
        """The difference in plain words."""
        return self.difference.describe(self.first, self.second, self.difference.is_significant)


@dataclass(frozen=True)
class MethodComparison:
    """Methods trained with several seeds. `lines` prints as a table, in a notebook as HTML."""

    metric: str
    split: str  # the rows of the scores: test, or validation if there are no test rows
    lines: Listing[MethodLine]
    pairs: list[MethodPair]
    runs: list[TrainedRun]

    @property
    def notes(self) -> list[str]:
        """What a reader of the table should know."""
        notes = ["Spread is the standard deviation over seeds. Intervals come from drawing rows and seeds together."]
        if self.split == "validation":
            notes.append(
                "Validation rows chose the best step of each run, so these scores are too high for all methods."
            )
        if len({run.seed for run in self.runs}) < MIN_SEEDS:
            notes.append("One or two seeds show no spread: compare over at least three.")
        return notes

    def runs_of(self, line: str) -> list[TrainedRun]:
        """The runs of a line of the table."""
        return [run for run in self.runs if run.line == line]

    def __repr__(self) -> str:
        return f"{self.metric} on {self.split} rows\n{self.lines!r}"

    def _repr_html_(self) -> str:
        return f"<p>{self.metric} on {self.split} rows</p>{self.lines._repr_html_()}"

    def table(self) -> tuple[list[str], list[list[object]]]:
        """Columns and rows of the table, the best mean first."""
        columns = ["method", f"{self.metric}, mean", "spread", "seeds", f"{self.split} rows"]
        columns += ["trainable", "seconds", "cue, KB"]
        rows: list[list[object]] = []
        for line in sorted(self.lines, key=lambda line: -line.mean):
            spread = "-" if line.spread is None else f"{line.spread:.1f}"
            cost = [f"{line.trainable:,}", f"{line.seconds:.0f}", f"{line.kilobytes:.1f}"]
            rows.append([line.name, f"{line.mean:.1f}", spread, line.seeds, line.rows, *cost])
        return columns, rows

    def as_dict(self) -> dict[str, Any]:
        """All values, for JSON."""
        return {
            "metric": self.metric,
            "split": self.split,
            "methods": [asdict(line) for line in self.lines],
            "pairs": [
                {**asdict(pair), "told_apart": pair.difference.is_significant, "sentence": pair.sentence}
                for pair in self.pairs
            ],
            "runs": [asdict(run) for run in self.runs],
        }


def compare_methods(
    output_dir: str | Path,
    methods: Sequence[str],
    seeds: int = 3,
    backbones: Sequence[str] = (BackboneConfig().name,),
    report: Report = lambda line: None,
    **arguments: Any,
) -> MethodComparison:
    """Train every method on every backbone with each seed, and compare them on the test rows.

    `arguments` are those of `softcue.train`. Each run is an ordinary cue in BACKBONE/METHOD/seed-N of the folder. A
    comparison that was stopped goes on where it was; what is finished is not trained again. With `few_shot` each seed
    has its own sample of rows, the same for all methods. Without test rows validation rows are compared, which flatters
    all methods: they chose the best step.

    Example:
        compare_methods("runs/tickets", ["linear-probe", "prompt-tuning"], seeds=3, task="tickets").pairs[0].sentence
    """
    _check(methods, seeds, backbones, arguments)
    runs: list[TrainedRun] = []
    scored: dict[tuple[str, int], ScoredRows] = {}  # by line and seed
    facts: dict[str, Cue] = {}
    split = metric = ""
    for backbone_name in backbones:
        # Loaded once for all runs, unless they have settings of their own for it.
        backbone = backbone_name if _has_backbone_settings(arguments) else load_backbone(backbone_name)
        for method, seed in itertools.product(methods, range(seeds)):
            folder = Path(output_dir) / _slug(backbone_name) / method / f"seed-{seed}"
            cue = _train(folder, backbone, method, seed, arguments, Path(output_dir).resolve().name)
            rows, split = _rows_of(folder, cue, arguments.get("test"), arguments.get("validation"))
            evaluation = cue.evaluate_set(rows, baselines=False)[0]
            assert evaluation.scored_rows is not None
            line = method if len(backbones) == 1 else f"{method}, {backbone_name}"
            scored[line, seed], facts[line], metric = evaluation.scored_rows, cue, cue.task.main_metric
            runs.append(_describe(folder, line, backbone_name, method, seed, evaluation.main))
            report(f"{line}, seed {seed}: {evaluation.main:.1f} on {evaluation.num_rows} {split} rows")
    lines = [_line(name, cue, runs, scored, seeds) for name, cue in facts.items()]
    pairs = [
        MethodPair(first, second, _difference(scored, first, second, seeds))
        for first, second in itertools.combinations(facts, 2)
    ]
    return MethodComparison(metric, split, Listing(lines), pairs, runs)


def _check(methods: Sequence[str], seeds: int, backbones: Sequence[str], arguments: Mapping[str, Any]) -> None:
    for setting, values in (("methods", methods), ("backbones", backbones)):
        if not values or len(set(values)) < len(values):
            raise ConfigurationError(
                setting=setting, got=", ".join(values) or "none", expected="each name once", fix="leave out the copy"
            )
    if seeds < 1:
        raise ConfigurationError(setting="seeds", got=seeds, expected="at least 1", fix="3 shows a spread")
    taken = {"method": "methods", "seed": "seeds", "backbone": "backbones", "tasks": "one task per comparison"}
    for name, instead in taken.items():
        if arguments.get(name) is not None:
            raise ConfigurationError(setting=name, got=arguments[name], expected=instead, fix=f"pass `{instead}`")
    tables = {name: arguments.get(name) for name in ("train", "validation", "test")}
    is_table = tables["train"] is not None and not isinstance(tables["train"], (str, Path))
    if is_table and tables["validation"] is None and tables["test"] is None:
        raise ConfigurationError(
            setting="test",
            got=None,
            expected="rows to compare on, beside training rows that are in memory",
            fix="pass `test=ROWS`, or files instead of tables",
        )
    unknown = arguments.keys() - TrainArguments.__annotations__.keys()
    if unknown:
        raise ConfigurationError(
            setting=min(unknown),
            got=arguments[min(unknown)],
            expected="an argument of softcue.train",
            fix="leave it out",
        )


def _has_backbone_settings(arguments: Mapping[str, Any]) -> bool:
    keys = [str(word) for word in arguments.get("overrides") or ()]  # of a mapping, its keys
    return any(key.startswith("backbone.") for key in keys) or bool(
        {"config", "allow_pickle", "max_length"} & {name for name, value in arguments.items() if value is not None}
    )


def _train(
    folder: Path, backbone: str | Backbone, method: str, seed: int, arguments: Mapping[str, Any], group: str
) -> Cue:
    settings = {"progress": False, **arguments}
    overrides = settings.pop("overrides", None) or {}
    group_words = {"training.report_group": group}  # the user may name another
    sample_words = {"task.sample_seed": seed} if settings.get("few_shot") else {}
    if isinstance(overrides, Mapping):
        overrides = {**group_words, **overrides, **sample_words}
    else:
        overrides = [*_as_words(group_words), *overrides, *_as_words(sample_words)]
    cue: Cue = train(folder, backbone=backbone, method=method, seed=seed, resume=True, overrides=overrides, **settings)
    return cue


def _as_words(settings: Mapping[str, Any]) -> list[str]:
    return [f"{path}={json.dumps(value)}" for path, value in settings.items()]


def _rows_of(folder: Path, cue: Cue, test: Any, validation: Any) -> tuple[EvaluationSet, str]:
    """The rows a run is scored on, and the name of their split."""
    labels = LabelMapping(cue.task, {}, {})
    for split, table in (("test", test), ("validation", validation)):
        if table is not None and not isinstance(table, (str, Path)):
            return EvaluationSet(split, list(examples_from(table, cue.task)), labels), split
    splits = splits_of_run(folder)
    split = "test" if splits.test else "validation"
    return EvaluationSet(split, list(getattr(splits, split)), labels), split


def _describe(folder: Path, line: str, backbone: str, method: str, seed: int, score: float) -> TrainedRun:
    seconds = json.loads((folder / "metrics.json").read_text("utf-8")).get("seconds", 0.0)
    num_bytes = (folder / "cue.safetensors").stat().st_size
    return TrainedRun(line, backbone, method, seed, str(folder), score, float(seconds), num_bytes)


def _line(
    name: str, cue: Cue, runs: Sequence[TrainedRun], scored: Mapping[tuple[str, int], ScoredRows], seeds: int
) -> MethodLine:
    members = [run for run in runs if run.line == name]
    scores = [run.score for run in members]
    return MethodLine(
        name,
        mean=fmean(scores),
        spread=stdev(scores) if seeds > 1 else None,
        seeds=seeds,
        rows=len(scored[name, 0].is_illegal),
        trainable=cue.cue_file.counts.get("gradient", 0) + cue.cue_file.counts.get("head", 0),
        seconds=fmean(run.seconds for run in members),
        kilobytes=fmean(run.num_bytes for run in members) / 1000,
    )


def _difference(scored: Mapping[tuple[str, int], ScoredRows], first: str, second: str, seeds: int) -> Difference:
    """The mean difference over seeds, with an interval over rows and seeds."""
    scores = [pair_scores(scored[first, seed], scored[second, seed]) for seed in range(seeds)]
    return bootstrap_difference(scores, group_rows(scored[first, 0]))


def _slug(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", Path(name).name if "/" in name else name) or "backbone"
