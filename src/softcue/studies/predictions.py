"""Finished cues of one task on the same rows: scores side by side, agreement, and the rows on which they differ."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from softcue.cue import Cue
from softcue.evaluation import Evaluation, EvaluationSet, format_score
from softcue.evaluation.scoring import METRICS, ScoredRows
from softcue.evaluation.wrong_rows import row_outcome
from softcue.studies.cue_loading import check_several
from softcue.studies.statistics import LEVEL, Difference, Indices, PairedScores, bootstrap_difference, exact_mcnemar
from softcue.types import Prediction


@dataclass(frozen=True)
class DifferentRow:
    """A row for which the cues do not all predict the same."""

    number: int  # of the row, from 1
    texts: tuple[str, ...]
    true: str
    predictions: dict[str, str]  # by cue
    right: tuple[str, ...]  # the cues that are right


@dataclass(frozen=True)
class CuePair:
    """Two cues on the same rows."""

    first: str
    second: str
    agreement: float  # share of rows with the same prediction, in percent
    only_first: int  # rows that only the first cue gets right
    only_second: int
    p_value: float | None  # McNemar's exact test of these two numbers; None where no row is simply right (regression)
    difference: Difference  # of the task's metric, the second minus the first

    @property
    def is_told_apart(self) -> bool:
        """Whether the interval leaves out zero and the test agrees: with few rows either alone is too sure."""
        return self.difference.is_significant and (self.p_value is None or self.p_value < 1 - LEVEL)

    @property
    def sentence(self) -> str:
        """The difference in plain words."""
        sentence = self.difference.describe(self.first, self.second, self.is_told_apart)
        return sentence if self.p_value is None else f"{sentence.removesuffix(')')}, p {self.p_value:.2g})"

    def as_dict(self) -> dict[str, Any]:
        """All values, for JSON."""
        return {**asdict(self), "told_apart": self.is_told_apart, "sentence": self.sentence}


@dataclass(frozen=True)
class PredictionComparison:
    """Several cues on the same rows. It prints as tables, in a notebook as HTML."""

    data: str  # the name of the rows
    metric: str
    evaluations: dict[str, Evaluation]  # by cue
    facts: dict[str, dict[str, Any]]  # method, backbone and trainable parameters, by cue
    pairs: list[CuePair]
    different_rows: list[DifferentRow]

    @property
    def num_rows(self) -> int:
        """The number of rows all cues were scored on."""
        return next(iter(self.evaluations.values())).num_rows

    def score_table(self) -> tuple[list[str], list[list[object]]]:
        """Columns and rows: each cue with its method, backbone, trainable parameters and scores."""
        metrics = list(next(iter(self.evaluations.values())).scores)
        columns = ["cue", "method", "backbone", "trainable", *metrics, "rows"]
        rows: list[list[object]] = []
        for name, evaluation in self.evaluations.items():
            facts = self.facts[name]
            scores = [format_score(metric, evaluation.scores[metric]) for metric in metrics]
            rows.append([name, facts["method"], facts["backbone"], f"{facts['trainable']:,}", *scores, self.num_rows])
        return columns, rows

    def pair_table(self) -> tuple[list[str], list[list[object]]]:
        """Columns and rows: each pair of cues with agreement, difference, interval and p-value."""
        columns = ["first", "second", "same prediction, %", "only first right", "only second right"]
        columns += [f"difference of {self.metric}", "95 % interval", "p (McNemar)", "told apart"]
        rows: list[list[object]] = []
        for pair in self.pairs:
            difference = pair.difference
            interval = f"{difference.low:.1f} to {difference.high:.1f}"
            facts: list[object] = [pair.first, pair.second, f"{pair.agreement:.1f}", pair.only_first, pair.only_second]
            p_value = "-" if pair.p_value is None else f"{pair.p_value:.3g}"
            told_apart = "yes" if pair.is_told_apart else "no"
            rows.append([*facts, f"{difference.value:+.1f}", interval, p_value, told_apart])
        return columns, rows

    def as_dict(self) -> dict[str, Any]:
        """All values, for JSON."""
        return {
            "data": self.data,
            "rows": self.num_rows,
            "metric": self.metric,
            "cues": {
                name: {**self.facts[name], "main": evaluation.main, "scores": evaluation.scores}
                for name, evaluation in self.evaluations.items()
            },
            "pairs": [pair.as_dict() for pair in self.pairs],
            "different_rows": [asdict(row) for row in self.different_rows],
        }


def compare_predictions(
    cues: Mapping[str, Cue], rows: EvaluationSet, predictions: Mapping[str, Sequence[Prediction]], seed: int = 0
) -> PredictionComparison:
    """Compare the predictions of several cues of one task for the same rows, each cue with each other.

    Example:
        rows = read_evaluation_set(cue.task, "held-out.csv")
        comparison = compare_predictions(cues, rows, {name: cue.evaluate_set(rows)[1] for name, cue in cues.items()})
    """
    check_several(cues)
    evaluations = {name: rows.score(predictions[name]) for name in cues}
    task = rows.labels.task
    outcomes = {
        name: [
            row_outcome(task, prediction, example)
            for prediction, example in zip(*rows.labels.map_labels(predictions[name], rows.examples), strict=True)
        ]
        for name in cues
    }
    pairs = []
    for first, second in itertools.combinations(cues, 2):
        compared = list(zip(outcomes[first], outcomes[second], strict=True))
        only_first = sum(left.is_right and not right.is_right for left, right in compared)
        only_second = sum(right.is_right and not left.is_right for left, right in compared)
        pairs.append(
            CuePair(
                first,
                second,
                agreement=100 * fmean(left.predicted == right.predicted for left, right in compared),
                only_first=only_first,
                only_second=only_second,
                p_value=None if task.kind == "regression" else exact_mcnemar(only_first, only_second),
                difference=_difference(evaluations[first], evaluations[second], seed),
            )
        )
    different_rows = []
    for number, example in enumerate(rows.examples):
        row_outcomes = {name: outcomes[name][number] for name in cues}
        if len({outcome.predicted for outcome in row_outcomes.values()}) > 1:
            different_rows.append(
                DifferentRow(
                    number + 1,
                    example.texts,
                    next(iter(row_outcomes.values())).true,
                    {name: outcome.predicted for name, outcome in row_outcomes.items()},
                    tuple(name for name, outcome in row_outcomes.items() if outcome.is_right),
                )
            )
    facts = {
        name: {
            "method": cue.cue_file.method["name"],
            "backbone": cue.cue_file.backbone.name,
            "trainable": cue.cue_file.counts.get("gradient", 0) + cue.cue_file.counts.get("head", 0),
        }
        for name, cue in cues.items()
    }
    return PredictionComparison(rows.name, task.main_metric, evaluations, facts, pairs, different_rows)


def _difference(first: Evaluation, second: Evaluation, seed: int) -> Difference:
    """The difference of the task's metric, with its interval over rows."""
    assert first.scored_rows is not None and second.scored_rows is not None
    scores = pair_scores(first.scored_rows, second.scored_rows)
    return bootstrap_difference([scores], group_rows(first.scored_rows), seed)


def pair_scores(first: ScoredRows, second: ScoredRows) -> PairedScores:
    """Make the function that scores two sides on some of the rows."""
    return lambda rows: (main_score(first, rows), main_score(second, rows))


def group_rows(rows: ScoredRows) -> list[list[int]]:
    """Group the numbers of rows that are scored together; a row without a group is alone.

    Example:
        >>> from softcue.tasks import Task
        >>> group_rows(ScoredRows(Task(name="t"), (False,) * 3, ("a",) * 3, ("a",) * 3, groups=("q1", "", "q1")))
        [[0, 2], [1]]
    """
    groups: dict[object, list[int]] = {}
    for number in range(len(rows.is_illegal)):
        group = rows.groups[number] if rows.groups else ""
        groups.setdefault(group or number, []).append(number)
    return list(groups.values())


def main_score(rows: ScoredRows, index: Indices) -> float:
    """Compute the task's metric, or the mean of several, on some of the rows.

    Example:
        >>> from softcue.tasks import Task
        >>> main_score(ScoredRows(Task(name="t"), (False,) * 2, ("a", "b"), ("a", "a")), np.array([0, 0, 1, 0]))
        75.0
    """
    numbers = index.tolist()
    fields = {name: value for name, value in vars(rows).items() if name != "task" and value}
    chosen: dict[str, Any] = {name: tuple(value[number] for number in numbers) for name, value in fields.items()}
    chosen_rows = replace(rows, **chosen)
    return float(np.mean([METRICS[name].compute(chosen_rows) for name in rows.task.main_metrics]))
