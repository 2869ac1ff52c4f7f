"""The result of scoring predictions: scores with row counts, scores of each label, and a confusion matrix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from statistics import fmean
from typing import Any

from softcue.backbones import Backbone
from softcue.drawing import heat_table, html_table
from softcue.evaluation.label_scores import (
    ConfusionMatrix,
    LabelScores,
    confusion_matrix,
    label_scores,
    set_label_scores,
    span_label_scores,
)
from softcue.evaluation.scoring import ScoredRows, check_metric, format_score, scores_of
from softcue.inference import TaskModel
from softcue.inference.predict import predict
from softcue.tasks import Task
from softcue.types import Example, Prediction, labels_text

# key of a baseline -> its name for people
BASELINES = {
    "majority_class": "majority class",
    "majority_set": "most frequent set",
    "all_labels": "all labels",
    "mean_target": "mean target",
    "zero_shot": "zero-shot",
}
FEW_ROWS = 30  # with fewer rows, one row changes a score by more than three points


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Scores of a task on rows, with counts that explain them.

    Example:
        evaluation = cue.evaluate("held-out.csv")
        evaluation.by_label["billing"].recall
        print(evaluation)     # with a line per label
    """

    scores: dict[str, float]
    main: float  # the task's metric, or the mean of several; early stopping watches it
    num_rows: int
    num_truncated: int
    num_illegal: int  # predictions the task or the row does not allow
    predicted_labels: dict[str, int]  # label, or set of labels as text -> rows that are predicted so
    num_true_labels: int = 0
    scored_rows: ScoredRows | None = field(default=None, compare=False)  # what the scores were computed from
    # Scores of baselines on the same rows, by the keys of BASELINES; empty if they were not computed.
    baselines: dict[str, dict[str, float]] = field(default_factory=dict, compare=False)

    @property
    def has_collapsed(self) -> bool:
        """Whether all rows got the same label, or set of labels, although the true ones differ."""
        return len(self.predicted_labels) == 1 and self.num_true_labels > 1

    @property
    def collapse_note(self) -> str:
        """What to say of a cue that gives all rows the same label, or set of labels."""
        label = next(iter(self.predicted_labels), "")
        return f"every row is predicted as '{label}': this cue has learned nothing"

    @property
    def illegal_note(self) -> str:
        """What is wrong with illegal predictions and how they count, for a sentence that starts with their number."""
        if self.scored_rows is not None and self.scored_rows.task.kind in ("generation", "span"):
            return "are none of the row's options; they count as the official scripts count any text"
        return "are not allowed by the task and count as wrong"

    @property
    def illegal_share(self) -> float:
        """Share of illegal predictions, from 0 to 1.

        Example:
            >>> Evaluation({}, 0.0, num_rows=8, num_truncated=0, num_illegal=2, predicted_labels={}).illegal_share
            0.25
        """
        return self.num_illegal / self.num_rows if self.num_rows else 0.0

    @cached_property
    def by_label(self) -> dict[str, LabelScores]:
        """Precision, recall and F1 of each label: of rows, or of the spans of tags; else empty."""
        rows = self.scored_rows
        if rows is None:
            return {}
        if rows.task.kind == "tags":
            return span_label_scores(rows.spans, rows.true_spans, rows.task.label_names)
        if rows.task.kind == "multi-label":
            return set_label_scores(rows.label_sets, rows.true_label_sets, rows.task.label_names)
        if not rows.task.has_classes:
            return {}
        return label_scores(rows.predicted, rows.true, rows.task.label_names)

    @cached_property
    def confusion(self) -> ConfusionMatrix | None:
        """Rows by true and predicted label, for tasks with classes."""
        rows = self.scored_rows
        if rows is None or not rows.task.has_classes:
            return None
        return confusion_matrix(rows.predicted, rows.true, rows.task.label_names)

    @property
    def support_unit(self) -> str:
        """What the `support` of a label counts: rows, or spans."""
        return "spans" if self.scored_rows is not None and self.scored_rows.task.kind == "tags" else "rows"

    def as_dict(self) -> dict[str, Any]:
        """Scores, counts, scores of each label and the confusion matrix, for JSON.

        Example:
            cue.evaluate("held-out.csv").as_dict()["by_label"]["billing"]["recall"]
        """
        return {
            "rows": self.num_rows,
            "scores": self.scores,
            "main": self.main,
            "truncated": self.num_truncated,
            "illegal": self.num_illegal,
            "illegal_share": self.illegal_share,
            "predicted_labels": self.predicted_labels,
            "by_label": {label: scores.as_dict() for label, scores in self.by_label.items()},
            "confusion": None if self.confusion is None else self.confusion.as_dict(),
            "baselines": self.baselines,
        }

    def __repr__(self) -> str:
        illegal = f", {self.num_illegal} illegal" if self.num_illegal else ""
        main_metrics = self.scored_rows.task.main_metrics if self.scored_rows else tuple(self.scores)
        scores = format_scores(self.scores, self.baselines, main_metrics)
        return f"Evaluation({scores}; {count_rows(self.num_rows)}{illegal})"

    def __str__(self) -> str:
        lines = [repr(self)]
        if self.by_label:
            width = max(map(len, ["label", *self.by_label]))
            lines.append(f"{'label':{width}}  precision  recall     f1  {self.support_unit:>5}")
            lines += [
                f"{label:{width}}  {format_score('', scores.precision):>9}  {format_score('', scores.recall):>6}  "
                f"{format_score('', scores.f1):>5}  {scores.support:>5}"
                for label, scores in self.by_label.items()
            ]
            lines += label_notes(self)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Tables for a notebook: scores, scores of each label, confusion matrix."""
        parts = [html_table(*compare_rows({"this cue": self.scores}, self))]
        if self.by_label:
            parts.append(label_table(self))
        if self.confusion is not None:
            parts.append(confusion_table(self.confusion))
        return "".join(parts)


def evaluate(backbone: Backbone, model: TaskModel, examples: Sequence[Example], batch_size: int = 64) -> Evaluation:
    """Score a task's model on examples with known targets.

    Example:
        evaluate(backbone, model, examples).scores["accuracy"]
    """
    predicted = predict(backbone, [(model, example) for example in examples], batch_size)
    return score(model.task, predicted.predictions, examples, predicted.num_truncated)


def score(
    task: Task, predictions: Sequence[Prediction], examples: Sequence[Example], num_truncated: int = 0
) -> Evaluation:
    """Score predictions with the usual metrics of the task's kind and with those the task names.

    Example:
        >>> from softcue.tasks import Label
        >>> task = Task(name="t", labels={"a": Label(words="a"), "b": Label(words="b")}, metric="accuracy+macro_f1")
        >>> score(task, [Prediction("a"), Prediction("nonsense")], [Example(("x",), "a"), Example(("y",), "b")]).main
        50.0
    """
    check_metric(task)
    rows = ScoredRows.of(task, predictions, examples)
    scores = scores_of(rows)
    predicted: Sequence[str] = ()
    true: Sequence[str] = ()
    if task.kind == "multi-label":
        predicted, true = (list(map(labels_text, sets)) for sets in (rows.label_sets, rows.true_label_sets))
    elif task.has_classes and task.labels:
        predicted, true = [str(prediction.label_text) for prediction in predictions], rows.true
    return Evaluation(
        scores,
        main=fmean(scores[name] for name in task.main_metrics),
        num_rows=len(examples),
        num_truncated=num_truncated,
        num_illegal=sum(rows.is_illegal),
        predicted_labels=dict(sorted(Counter(predicted).items())),
        num_true_labels=len(set(true)),
        scored_rows=rows,
    )


def count_rows(num_rows: int | None, unit: str = "row") -> str:
    """A number of rows as text; fewer than 30 are said to be few, and None is unknown (cues of version 0.1).

    Example:
        >>> count_rows(1200), count_rows(1), count_rows(20), count_rows(20, unit="")
        ('1,200 rows', '1 row: fewer than 30', '20 rows: fewer than 30', '20 (few)')
    """
    if num_rows is None:
        return f"unknown number of {unit}s" if unit else "unknown"
    text = f"{num_rows:,}"
    if unit:
        text += f" {unit}" if num_rows == 1 else f" {unit}s"
    if num_rows >= FEW_ROWS:
        return text
    return text + (f": fewer than {FEW_ROWS}" if unit else " (few)")


def format_scores(
    scores: Mapping[str, float],
    baselines: Mapping[str, Mapping[str, float]] | None = None,
    main_metrics: Sequence[str] = (),
) -> str:
    """Scores in one line; those of the main metrics with the baselines behind them.

    Example:
        >>> format_scores({"accuracy": 84.127, "macro_f1": 80.0}, {"zero_shot": {"accuracy": 50.0}}, ["accuracy"])
        'accuracy 84.1 (zero-shot 50.0), macro_f1 80.0'
    """
    named = name_baselines(baselines or {})
    parts = []
    for metric, value in scores.items():
        beside = [f"{name} {format_score(metric, others.get(metric))}" for name, others in named.items()]
        behind = f" ({', '.join(beside)})" if beside and metric in main_metrics else ""
        parts.append(f"{metric} {format_score(metric, value)}{behind}")
    return ", ".join(parts)


def main_of_scores(task: Task, scores: Mapping[str, float]) -> float | None:
    """The task's metric, or the mean of several, as a cue records them; None if one is missing.

    Example:
        >>> main_of_scores(Task(name="t", metric="accuracy+f1"), {"accuracy": 80.0, "f1": 60.0})
        70.0
    """
    values = [scores[name] for name in task.main_metrics if name in scores]
    return sum(values) / len(values) if len(values) == len(task.main_metrics) else None


def name_baselines(scores: Mapping[str, Mapping[str, float]]) -> dict[str, Mapping[str, float]]:
    """Scores of baselines by the names that people read.

    Example:
        >>> name_baselines({"zero_shot": {"accuracy": 50.0}})
        {'zero-shot': {'accuracy': 50.0}}
    """
    return {BASELINES.get(key, key): values for key, values in scores.items()}


def compare_rows(
    scores: Mapping[str, Mapping[str, float]], evaluation: Evaluation
) -> tuple[list[str], list[list[str]]]:
    """Columns and lines of a table of scores by predictor, with the baselines of an evaluation of the same rows.

    Example:
        columns, lines = compare_rows({"this cue": evaluation.scores}, evaluation)
    """
    metrics = list(evaluation.scores)
    count = count_rows(evaluation.num_rows, unit="")
    lines = [
        [name, count, *(format_score(metric, values.get(metric)) for metric in metrics)]
        for name, values in {**scores, **name_baselines(evaluation.baselines)}.items()
    ]
    return ["predictions of", "rows", *metrics], lines


def label_rows(evaluation: Evaluation) -> tuple[list[str], list[list[str]]]:
    """Columns and lines of the table of labels: precision, recall, F1 and how many rows or spans there are.

    Example:
        columns, lines = label_rows(cue.evaluate("held-out.csv"))
    """
    columns = ["label", "precision", "recall", "f1", evaluation.support_unit, "predicted"]
    lines = [
        [
            label,
            *(format_score("", value) for value in (scores.precision, scores.recall, scores.f1)),
            f"{scores.support:,}",
            f"{scores.num_predicted:,}",
        ]
        for label, scores in evaluation.by_label.items()
    ]
    return columns, lines


def label_notes(evaluation: Evaluation) -> list[str]:
    """A note if labels have few rows or spans.

    Example:
        >>> from softcue.tasks import Label
        >>> task = Task(name="t", labels={"a": Label(words="a"), "b": Label(words="b")})
        >>> label_notes(score(task, [Prediction("a")], [Example(("x",), "a")]))
        ['a, b: fewer than 30 rows; with other rows their scores may be many points higher or lower']
    """
    few = [label for label, scores in evaluation.by_label.items() if scores.support < FEW_ROWS]
    names = "all labels" if 2 < len(few) == len(evaluation.by_label) else ", ".join(few[:5])
    if 5 < len(few) < len(evaluation.by_label):
        names += f" and {len(few) - 5} more"
    unit = evaluation.support_unit
    note = f"{names}: fewer than {FEW_ROWS} {unit}; with other {unit} their scores may be many points higher or lower"
    return [note] if few else []


def label_table(evaluation: Evaluation) -> str:
    """The table of labels as HTML, with a note on labels with few rows."""
    notes = "".join(f"<p><small>{escape(note)}</small></p>" for note in label_notes(evaluation))
    return html_table(*label_rows(evaluation)) + notes


def confusion_table(confusion: ConfusionMatrix) -> str:
    """The confusion matrix as an HTML table whose cells are shaded by their share of the true label's rows."""
    return heat_table("true \\ predicted", confusion.labels, confusion.predicted, confusion.counts)
