"""Finished cues of one task on the same rows: scores side by side, agreement, and the rows on which they differ."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from softcue.cue import Cue
from softcue.cue.score_table import baseline_notes, few_rows_notes
from softcue.evaluation import Evaluation, EvaluationSet, baseline_lines, count_rows, format_score, main_of_scores
from softcue.evaluation.scoring import METRICS, ScoredRows
from softcue.evaluation.wrong_rows import row_outcome
from softcue.studies.comparison import Comparison, Pair
from softcue.studies.cue_loading import check_several, num_trainable
from softcue.studies.prediction_page import prediction_page
from softcue.studies.statistics import LEVEL, Difference, Indices, PairedScores, bootstrap_difference, exact_mcnemar
from softcue.studies.table import Column, Table
from softcue.tasks import Task
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
class CuePair(Pair):
    """Two cues on the same rows."""

    agreement: float  # share of rows with the same prediction, in percent
    only_first: int  # rows that only the first cue gets right
    only_second: int
    p_value: float | None  # McNemar's exact test of these two numbers; None where no row is simply right (regression)

    @property
    def is_told_apart(self) -> bool:
        """Whether the interval leaves out zero and the test agrees: with few rows either alone is too sure."""
        return self.difference.is_significant and (self.p_value is None or self.p_value < 1 - LEVEL)

    @property
    def sentence(self) -> str:
        """The difference in plain words."""
        sentence = super().sentence
        return sentence if self.p_value is None else f"{sentence.removesuffix(')')}, p {self.p_value:.2g})"


@dataclass(frozen=True, repr=False)
class PredictionComparison(Comparison):
    """Several cues on the same rows, used like a DataFrame. It prints as a table, in a notebook as HTML."""

    differences: Sequence[CuePair]
    evaluations: dict[str, Evaluation]  # by cue
    facts: dict[str, dict[str, Any]]  # method, backbone and trainable parameters, by cue
    different_rows: list[DifferentRow]
    task: Task  # whose metrics are shown
    remarks: list[str]  # about the baselines

    @property
    def title(self) -> str:
        """How many cues on which rows."""
        return f"{len(self.evaluations)} cues on {self.data}"

    @property
    def num_rows(self) -> int:
        """The number of rows all cues were scored on."""
        return next(iter(self.evaluations.values())).num_rows

    @property
    def sentences(self) -> list[str]:
        """The differences in plain words, and on how many rows the cues differ."""
        num_different = f"{len(self.different_rows):,} of {self.num_rows:,} rows"
        return [*super().sentences, f"the cues differ on {num_different}"]

    @property
    def notes(self) -> list[str]:
        """What a reader of the table should know."""
        return [
            "Intervals come from drawing rows with replacement, for both cues alike. They say how far the difference "
            "would move with other rows, not with other seeds of training. Cues are told apart if the interval leaves "
            "out zero and McNemar's exact test agrees (p below 0.05).",
            *self.remarks,
            *few_rows_notes([self.num_rows]),
        ]

    @property
    def baselines(self) -> Table:
        """The majority class (regression: the mean target) and zero-shot on the same rows."""
        lines = baseline_lines({name: evaluation.baselines for name, evaluation in self.evaluations.items()})
        return Table(
            [
                Column("cue", [line.name for line in lines], "baseline"),
                Column("baseline", [line.key for line in lines], is_shown=False),
                *(
                    Column(metric, [line.scores.get(metric) for line in lines], show=_show_score(metric))
                    for metric in next(iter(self.evaluations.values())).scores
                ),
                Column("main", [main_of_scores(self.task, line.scores) for line in lines], is_shown=False),
                Column("rows", [self.num_rows] * len(lines), show=show_num_rows),
            ]
        )

    def table_columns(self) -> Sequence[Column]:
        """Each cue with its method, backbone, trainable parameters and scores."""
        evaluations, facts = self.evaluations.values(), [self.facts[name] for name in self.evaluations]
        return [
            Column("cue", list(self.evaluations)),
            *(Column(name, [cue[name] for cue in facts]) for name in ("method", "backbone", "trainable")),
            *(
                Column(metric, [evaluation.scores[metric] for evaluation in evaluations], show=_show_score(metric))
                for metric in next(iter(evaluations)).scores
            ),
            Column("main", [evaluation.main for evaluation in evaluations], is_shown=False),
            Column("rows", [self.num_rows] * len(facts), show=show_num_rows),
        ]

    def _pair_facts(self) -> list[Column]:
        return [
            Column("agreement", [pair.agreement for pair in self.differences], "same prediction, %"),
            Column("only_first", [pair.only_first for pair in self.differences], "only first right"),
            Column("only_second", [pair.only_second for pair in self.differences], "only second right"),
            Column("p_value", [pair.p_value for pair in self.differences], "p (McNemar)", "{:.3g}".format),
        ]

    def row_table(self) -> Table:
        """The rows on which the cues differ, with the prediction of each cue and the cues that are right."""
        rows = self.different_rows
        return Table(
            [
                Column("row", [row.number for row in rows]),
                Column("text", [" / ".join(row.texts) for row in rows]),
                Column("true", [row.true for row in rows]),
                *(Column(name, [row.predictions[name] for row in rows]) for name in self.evaluations),
                Column("right", [" ".join(row.right) for row in rows]),
            ]
        )

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
            "baselines": self.baselines.to_dict("records"),
            "pairs": [pair.as_dict() for pair in self.differences],
            "different_rows": [asdict(row) for row in self.different_rows],
            "notes": self.notes,
        }

    def page(self, command: str = "") -> str:
        """The HTML page about the comparison; `command` is what repeats it."""
        return prediction_page(self, command)

    def _more_files(self) -> dict[str, str]:
        return {"different-rows.csv": self.row_table().to_csv()}


def _show_score(metric: str) -> Callable[[float | None], str]:
    return lambda score: format_score(metric, score)


def show_num_rows(num_rows: int) -> str:
    """A number of rows as text; few rows are said to be few.

    Example:
        >>> show_num_rows(1200), show_num_rows(12)
        ('1,200', '12 (few)')
    """
    return count_rows(num_rows, unit="")


def compare_predictions(
    cues: Mapping[str, Cue],
    rows: EvaluationSet,
    predictions: Mapping[str, Sequence[Prediction]],
    seed: int = 0,
    baselines: Mapping[str, Mapping[str, Sequence[Prediction]]] | None = None,
) -> PredictionComparison:
    """Compare the predictions of several cues of one task for the same rows, each cue with each other.

    `baselines` are those of each cue, as `cue.baseline_predictions` gives them.

    Example:
        rows = read_evaluation_set(cue.task, "held-out.csv")
        comparison = compare_predictions(cues, rows, {name: cue.evaluate_set(rows)[1] for name, cue in cues.items()})
    """
    check_several(cues)
    guesses = baselines or {}
    evaluations = {name: rows.score(predictions[name], baselines=guesses.get(name)) for name in cues}
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
            "trainable": num_trainable(cue),
        }
        for name, cue in cues.items()
    }
    remarks = dict.fromkeys(note for name in guesses for note in baseline_notes(cues[name].cue_file))
    return PredictionComparison(
        rows.name, task.main_metric, pairs, evaluations, facts, different_rows, task, list(remarks)
    )


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
