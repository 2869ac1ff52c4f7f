"""Methods trained on the same rows, with several seeds: scores, spread, cost, and which can be told apart."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from softcue.api import TrainArguments, request_run
from softcue.auto_run import AutoRun, make_training_run
from softcue.backbones import Backbone, BackboneConfig, load_backbone
from softcue.configuration import merged, override, resolve
from softcue.cue import Cue
from softcue.cue.score_table import baseline_notes, few_rows_notes
from softcue.errors import ConfigurationError
from softcue.evaluation import BASELINES, BaselineLine, EvaluationSet, LabelMapping, baseline_lines, main_of_scores
from softcue.evaluation.scoring import ScoredRows
from softcue.listing import Listing
from softcue.run import Run, describe_backbone, describe_rows, splits_of_run
from softcue.studies.comparison import Comparison, Pair
from softcue.studies.cue_loading import num_trainable
from softcue.studies.execution import list_warnings, read_metrics
from softcue.studies.methods_page import methods_page
from softcue.studies.predictions import group_rows, pair_scores, show_num_rows
from softcue.studies.statistics import Difference, bootstrap_difference
from softcue.studies.table import Column, Table
from softcue.tasks import examples_from
from softcue.tasks.readers import name_of

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
    baselines: dict[str, float | None]  # the same metric of each baseline on the same rows
    warnings: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its line with the seed."""
        return f"{self.line}, seed {self.seed}"


@dataclass(frozen=True)
class MethodLine:
    """A method on a backbone: its runs in one line of the table."""

    name: str  # the method, with its backbone if there are several
    method: str
    backbone: str
    mean: float
    spread: float | None  # standard deviation over seeds; None with one seed
    seeds: int
    rows: int
    trainable: int  # parameters, with the head
    seconds: float  # of training, mean
    kilobytes: float  # of the cue's tensors, mean
    scores: tuple[float, ...]  # by seed


@dataclass(frozen=True, repr=False)
class MethodComparison(Comparison):
    """Methods trained with several seeds, used like a DataFrame. It prints as a table, in a notebook as HTML."""

    split: str  # the rows of the scores: test, or validation if there are no test rows
    lines: Listing[MethodLine]
    runs: list[TrainedRun]
    remarks: list[str]  # about the baselines, and the rows of each seed

    @property
    def title(self) -> str:
        """How many methods on which task or rows, and what is scored."""
        num_methods = len({line.method for line in self.lines})
        return (
            f"{num_methods} method{'s' if num_methods > 1 else ''} on {self.data}: {self.metric} on {self.split} rows"
        )

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
        warnings = list_warnings({run.name: run.warnings for run in self.runs})
        return [*notes, *self.remarks, *few_rows_notes([self.lines[0].rows]), *warnings]

    @property
    def baselines(self) -> Table:
        """The mean score over seeds of the majority class (regression: the mean target) and of zero-shot."""
        lines = _baseline_lines(self.runs)
        return Table(
            [
                Column("name", [line.name for line in lines], "baseline"),
                Column("baseline", [line.key for line in lines], is_shown=False),
                Column("mean", [line.scores for line in lines], f"{self.metric}, mean"),
                Column("rows", [self.lines[0].rows] * len(lines), f"{self.split} rows", show_num_rows),
            ]
        )

    def table_columns(self) -> Sequence[Column]:
        """Each method with its mean score, spread, cost and the score of each seed, the best mean first."""
        lines = sorted(self.lines, key=lambda line: -line.mean)

        def column(name: str, heading: str = "", **options: Any) -> Column:
            return Column(name, [getattr(line, name) for line in lines], heading, **options)

        return [
            column("name", "method"),
            column("method", is_shown=False),
            column("backbone", is_shown=False),
            column("mean", f"{self.metric}, mean"),
            column("spread"),
            column("seeds"),
            column("rows", f"{self.split} rows", show=show_num_rows),
            column("trainable"),
            column("seconds", show="{:.0f}".format),
            column("kilobytes", "cue, KB"),
            *(
                Column(f"seed_{seed}", [line.scores[seed] for line in lines], is_shown=False)
                for seed in range(lines[0].seeds)
            ),
        ]

    def as_dict(self) -> dict[str, Any]:
        """All values, for JSON."""
        return {
            "data": self.data,
            "metric": self.metric,
            "split": self.split,
            "methods": [asdict(line) for line in self.lines],
            "baselines": self.baselines.to_dict("records"),
            "pairs": [pair.as_dict() for pair in self.differences],
            "runs": [asdict(run) for run in self.runs],
            "notes": self.notes,
        }

    def page(self, command: str = "") -> str:
        """The HTML page about the comparison; `command` is what repeats it."""
        return methods_page(self, command)


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
    comparison that was stopped goes on where it was; what is finished is not trained again, unless `overwrite` is
    true. With `few_shot` or `shots_per_class`, also as settings, each seed has its own sample of rows, the same for all
    methods; if `task.sample_seed` is set, all seeds have that sample. Without test rows validation rows are compared,
    which flatters all methods: they chose the best step.

    Example:
        compare_methods("runs/tickets", ["linear-probe", "prompt-tuning"], seeds=3, task="tickets").sentences
    """
    _check(methods, seeds, backbones, arguments)
    overrides = arguments.get("overrides") or {}
    arguments["overrides"] = overrides if isinstance(overrides, Mapping) else list(overrides)
    row_settings = request_run(**arguments).settings.get("task", {})
    runs: list[TrainedRun] = []
    scored: dict[tuple[str, int], ScoredRows] = {}  # by line and seed
    facts: dict[str, Cue] = {}
    split = metric = ""
    for backbone_name in backbones:
        # Loaded once for all runs, unless they have settings of their own for it.
        backbone = backbone_name if _has_backbone_settings(arguments) else load_backbone(backbone_name)
        for method, seed in itertools.product(methods, range(seeds)):
            folder = Path(output_dir) / _slug(backbone_name) / method / f"seed-{seed}"
            run = _make_run(folder, backbone, method, seed, arguments, Path(output_dir).resolve().name)
            if (method, seed) == (methods[0], 0):
                report(describe_backbone(run.backbone))
            if not runs:
                [splits] = run.splits if isinstance(run, Run) else [run.splits]
                report(f"rows: {describe_rows(splits)}")
                report(f"settings of each run: {Path(output_dir) / 'BACKBONE' / 'METHOD' / 'seed-N' / 'config.yaml'}")
            overwrite = bool(arguments.get("overwrite"))
            [cue] = run.execute(resume=not overwrite, overwrite=overwrite, progress=bool(arguments.get("progress")))
            rows, split = _rows_of(folder, cue, arguments.get("test"), arguments.get("validation"))
            # Recorded baselines are of the run's own rows; those of a table may be more.
            is_recorded = cue.cue_file.num_rows(split) == len(rows.examples)
            evaluation = cue.evaluate_set(rows, baselines=not is_recorded)[0]
            baselines = cue.cue_file.baselines.get(split, {}) if is_recorded else evaluation.baselines
            assert evaluation.scored_rows is not None
            line = method if len(backbones) == 1 else f"{method}, {backbone_name}"
            scored[line, seed], facts[line], metric = evaluation.scored_rows, cue, cue.task.main_metric
            main_baselines = {name: main_of_scores(cue.task, scores) for name, scores in baselines.items()}
            runs.append(_describe(folder, line, backbone_name, method, seed, evaluation.main, main_baselines))
            report(f"{runs[-1].name}: {evaluation.main:.1f} on {evaluation.num_rows} {split} rows")
    lines = [_line(name, cue, runs, scored, seeds) for name, cue in facts.items()]
    pairs = [
        Pair(first, second, _difference(scored, first, second, seeds))
        for first, second in itertools.combinations(facts, 2)
    ]
    remarks = dict.fromkeys(note for cue in facts.values() for note in baseline_notes(cue.cue_file))
    remarks |= dict.fromkeys(_sample_notes(row_settings))
    return MethodComparison(name_of_rows(arguments, cue), metric, pairs, split, Listing(lines), runs, list(remarks))


def make_line_report(is_shown: bool) -> Report:
    """A report whose lines go to standard error, or nowhere.

    Example:
        make_line_report(True)("prompt-tuning, seed 0: 84.1 on 126 test rows")
    """

    def report(line: str) -> None:
        if is_shown:
            sys.stderr.write(f"{line}\n")

    return report


def name_of_rows(arguments: Mapping[str, Any], cue: Cue) -> str:
    """The task or the training rows as the user named them.

    Example:
        name_of_rows({"train": "rows/tickets.csv"}, cue)
    """
    train_rows = arguments.get("train")
    return str(arguments.get("task") or (cue.task.name if train_rows is None else name_of(train_rows)))


def _check(methods: Sequence[str], seeds: int, backbones: Sequence[str], arguments: Mapping[str, Any]) -> None:
    for setting, values in (("methods", methods), ("backbones", backbones)):
        if not values or len(set(values)) < len(values):
            raise ConfigurationError(
                setting=setting, got=", ".join(values) or "none", expected="each name once", fix="leave out the copy"
            )
    if seeds < 1:
        raise ConfigurationError(setting="seeds", got=seeds, expected="at least 1", fix="3 shows a spread")
    instead = {
        "method": "`methods`",
        "seed": "`seeds`",
        "backbone": "`backbones`",
        "tasks": "`task`: one task per comparison",
        "resume": "no such argument: a comparison always goes on where it was",
    }
    for name, expected in instead.items():
        if arguments.get(name) is not None:
            raise ConfigurationError(setting=name, got=arguments[name], expected=expected, fix="leave it out")
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


def _make_run(
    folder: Path, backbone: str | Backbone, method: str, seed: int, arguments: Mapping[str, Any], group: str
) -> Run | AutoRun:
    """The run of a method with a seed. Its rows are read and its models built; nothing is trained or written yet."""
    changed: dict[str, Any] = {**arguments, "backbone": backbone, "method": method, "seed": seed}
    requested = request_run(**changed)
    settings = merged(override("training.report_group", group), requested.settings)  # the user may name another
    if _has_own_samples(requested.settings.get("task", {})):
        settings = merged(settings, override("task.sample_seed", seed))
    return make_training_run(folder, settings, **requested.options)


def _has_own_samples(row_settings: Mapping[str, Any]) -> bool:
    """Whether each seed draws its own few training rows: so it is unless the user has set the seed of the sample."""
    return resolve({"task": row_settings}).task.is_few_shot and "sample_seed" not in row_settings


def _sample_notes(row_settings: Mapping[str, Any]) -> list[str]:
    """What the rows of a comparison are, if its runs train on samples."""
    config = resolve({"task": row_settings}).task
    if _has_own_samples(row_settings):
        return ["Each seed trains on a sample of its own, the same for all methods."]
    if config.is_few_shot or config.train_rows:
        return [f"All seeds train on the same sample of rows (task.sample_seed={config.sample_seed})."]
    return []


def _baseline_lines(runs: Sequence[TrainedRun]) -> list[BaselineLine[float | None]]:
    """The baselines of a comparison. Those of the backbone have a line for each backbone."""
    lines: dict[tuple[str, float | None], BaselineLine[float | None]] = {}
    backbones = list(dict.fromkeys(run.backbone for run in runs))
    for backbone in backbones:
        by_method: dict[str, list[dict[str, float | None]]] = {}
        for run in runs:
            if run.backbone == backbone:
                by_method.setdefault(run.method, []).append(run.baselines)
        for line in baseline_lines({method: _mean_over_seeds(seeds) for method, seeds in by_method.items()}):
            of_backbone = f", {backbone}" if line.key == "zero_shot" and len(backbones) > 1 else ""
            named = replace(line, name=line.name + of_backbone)
            lines.setdefault((named.name, named.scores), named)
    order = list(BASELINES)
    return sorted(lines.values(), key=lambda line: order.index(line.key))


def _mean_over_seeds(by_seed: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """The mean of each baseline; None where a seed has no score of it."""
    means: dict[str, float | None] = {}
    for key in by_seed[0]:
        scores = [score for baselines in by_seed if (score := baselines.get(key)) is not None]
        means[key] = fmean(scores) if len(scores) == len(by_seed) else None
    return means


def _rows_of(folder: Path, cue: Cue, test: Any, validation: Any) -> tuple[EvaluationSet, str]:
    """The rows a run is scored on, and the name of their split."""
    labels = LabelMapping(cue.task, {}, {})
    for split, table in (("test", test), ("validation", validation)):
        if table is not None and not isinstance(table, (str, Path)):
            return EvaluationSet(split, list(examples_from(table, cue.task)), labels), split
    splits = splits_of_run(folder)
    split = "test" if splits.test else "validation"
    return EvaluationSet(split, list(getattr(splits, split)), labels), split


def _describe(
    folder: Path,
    line: str,
    backbone: str,
    method: str,
    seed: int,
    score: float,
    baselines: dict[str, float | None],
) -> TrainedRun:
    metrics = read_metrics(folder)
    seconds, warnings = float(metrics.get("seconds", 0.0)), tuple(metrics.get("warnings", ()))
    num_bytes = (folder / "cue.safetensors").stat().st_size
    return TrainedRun(line, backbone, method, seed, str(folder), score, seconds, num_bytes, baselines, warnings)


def _line(
    name: str, cue: Cue, runs: Sequence[TrainedRun], scored: Mapping[tuple[str, int], ScoredRows], seeds: int
) -> MethodLine:
    members = [run for run in runs if run.line == name]
    scores = [run.score for run in members]
    return MethodLine(
        name,
        members[0].method,
        members[0].backbone,
        mean=fmean(scores),
        spread=stdev(scores) if seeds > 1 else None,
        seeds=seeds,
        rows=len(scored[name, 0].is_illegal),
        trainable=num_trainable(cue),
        seconds=fmean(run.seconds for run in members),
        kilobytes=fmean(run.num_bytes for run in members) / 1000,
        scores=tuple(scores),
    )


def _difference(scored: Mapping[tuple[str, int], ScoredRows], first: str, second: str, seeds: int) -> Difference:
    """The mean difference over seeds, with an interval over rows and seeds."""
    scores = [pair_scores(scored[first, seed], scored[second, seed]) for seed in range(seeds)]
    return bootstrap_difference(scores, group_rows(scored[first, 0]))


def _slug(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", Path(name).name if "/" in name else name) or "backbone"
