"""Scores of each label, and the confusion matrix: which true label is predicted as which."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from softcue.evaluation.metrics import Labels, LabelSets, SpanRows, span_f1, span_precision, span_recall
from softcue.types import Span

ILLEGAL = "(illegal)"  # the column of predictions that the task does not allow


@dataclass(frozen=True)
class LabelScores:
    """Precision, recall and F1 of one label, from 0 to 100; None where there is nothing to divide by."""

    precision: float | None  # None if the label is never predicted
    recall: float | None  # None if no row has the label
    f1: float | None
    support: int  # rows with this true label; for tags, spans
    num_predicted: int  # rows or spans that are predicted as this label

    def as_dict(self) -> dict[str, float | int | None]:
        """All values, for JSON.

        Example:
            >>> LabelScores(50.0, 100.0, 66.7, 1, 2).as_dict()["support"]
            1
        """
        return asdict(self)


@dataclass(frozen=True)
class ConfusionMatrix:
    """Rows by true label and predicted label. The last column holds illegal predictions, if there are any."""

    labels: tuple[str, ...]  # of the rows: the true labels
    predicted: tuple[str, ...]  # of the columns
    counts: tuple[tuple[int, ...], ...]

    def as_dict(self) -> dict[str, object]:
        """Labels and counts, for JSON.

        Example:
            >>> confusion_matrix(["a", "a"], ["a", "b"], ["a", "b"]).as_dict()
            {'true': ['a', 'b'], 'predicted': ['a', 'b'], 'counts': [[1, 0], [1, 0]]}
        """
        return {
            "true": list(self.labels),
            "predicted": list(self.predicted),
            "counts": [list(row) for row in self.counts],
        }

    def as_csv(self) -> str:
        """A csv table: one line per true label, one column per predicted label.

        Example:
            >>> print(confusion_matrix(["a", None], ["a", "b"], ["a", "b"]).as_csv(), end="")
            true,a,b,(illegal)
            a,1,0,0
            b,0,0,1
        """
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(["true", *self.predicted])
        writer.writerows([label, *counts] for label, counts in zip(self.labels, self.counts, strict=True))
        return buffer.getvalue()


def confusion_matrix(predicted: Labels, true: Sequence[str], labels: Sequence[str]) -> ConfusionMatrix:
    """Count the rows of each pair of true and predicted label; None among the predictions is an illegal one.

    True labels that are not in `labels` come after them.

    Example:
        >>> confusion_matrix(["a", "b", "b"], ["a", "a", "b"], ["a", "b"]).counts
        ((1, 1), (0, 1))
    """
    from sklearn.metrics import confusion_matrix as count_pairs

    all_labels = _all_labels(predicted, true, labels)
    codes, true_codes = _codes(predicted, all_labels), _codes(true, all_labels)
    num_columns = len(all_labels) + (len(all_labels) in codes)
    names = (*all_labels, ILLEGAL)[:num_columns]
    if not true:
        return ConfusionMatrix(tuple(all_labels), names, ((0,) * num_columns,) * len(all_labels))
    counts = count_pairs(true_codes, codes, labels=range(num_columns)).tolist()  # no row is truly illegal
    return ConfusionMatrix(tuple(all_labels), names, tuple(tuple(row) for row in counts[: len(all_labels)]))


def label_scores(predicted: Labels, true: Sequence[str], labels: Sequence[str]) -> dict[str, LabelScores]:
    """Precision, recall and F1 of each label. An illegal prediction is a miss of the true label and of no other.

    The metric `f1` of a task with a positive label is stricter: there an illegal prediction counts as the wrong one of
    the two labels.

    Example:
        >>> label_scores(["a", "b", "b"], ["a", "a", "b"], ["a", "b"])["a"]
        LabelScores(precision=100.0, recall=50.0, f1=66.66666666666666, support=2, num_predicted=1)
    """
    from sklearn.metrics import precision_recall_fscore_support

    all_labels = _all_labels(predicted, true, labels)
    if not true:
        return {label: LabelScores(None, None, None, 0, 0) for label in all_labels}
    codes, true_codes = _codes(predicted, all_labels), _codes(true, all_labels)
    precisions, recalls, f1s, supports = precision_recall_fscore_support(
        true_codes, codes, labels=range(len(all_labels)), zero_division=math.nan
    )
    return {
        label: LabelScores(
            _percent(precisions[number]),
            _percent(recalls[number]),
            _percent(f1s[number]),
            int(supports[number]),
            codes.count(number),
        )
        for number, label in enumerate(all_labels)
    }


def set_label_scores(predicted: LabelSets, true: LabelSets, labels: Sequence[str]) -> dict[str, LabelScores]:
    """Precision, recall and F1 of each label of sets of labels.

    Example:
        >>> set_label_scores([{"a", "b"}, {"a"}], [{"a"}, {"a", "b"}], ["a", "b"])["b"]
        LabelScores(precision=0.0, recall=0.0, f1=0.0, support=1, num_predicted=1)
    """
    others = {label for labels_of_row in true for label in labels_of_row} - set(labels)
    scores = {}
    for label in [*labels, *sorted(others)]:
        is_predicted, is_true = ([label in labels_of_row for labels_of_row in rows] for rows in (predicted, true))
        hits = sum(map(all, zip(is_predicted, is_true, strict=True)))
        num_predicted, support = sum(is_predicted), sum(is_true)
        scores[label] = LabelScores(
            100.0 * hits / num_predicted if num_predicted else None,
            100.0 * hits / support if support else None,
            200.0 * hits / (num_predicted + support) if num_predicted or support else None,
            support,
            num_predicted,
        )
    return scores


def span_label_scores(predicted: SpanRows, true: SpanRows, labels: Sequence[str]) -> dict[str, LabelScores]:
    """Precision, recall and F1 of the spans of each label.

    Example:
        >>> rows = [[Span(0, 3, "PER"), Span(8, 12, "LOC")]], [[Span(0, 3, "PER")]]
        >>> span_label_scores(*rows, ["PER", "LOC"])["LOC"].precision
        0.0
    """
    other_labels = {span.label for spans in true for span in spans} - set(labels)
    scores = {}
    for label in [*labels, *sorted(other_labels)]:
        label_spans = _spans_of(predicted, label), _spans_of(true, label)
        num_predicted, support = (sum(len(set(spans)) for spans in rows) for rows in label_spans)
        scores[label] = LabelScores(
            span_precision(*label_spans) if num_predicted else None,
            span_recall(*label_spans) if support else None,
            span_f1(*label_spans) if num_predicted or support else None,
            support,
            num_predicted,
        )
    return scores


def _all_labels(predicted: Labels, true: Sequence[str], labels: Sequence[str]) -> list[str]:
    """The given labels, then the other true ones; without given labels, also those that are predicted."""
    others = set(true) | (set() if labels else {label for label in predicted if label is not None})
    return [*labels, *sorted(others - set(labels))]


def _codes(predicted: Labels, labels: Sequence[str]) -> list[int]:
    """The number of each label; an illegal prediction has the number after the last label."""
    numbers = {label: number for number, label in enumerate(labels)}
    return [len(labels) if label is None else numbers.get(label, len(labels)) for label in predicted]


def _spans_of(rows: SpanRows, label: str) -> list[list[Span]]:
    return [[span for span in spans if span.label == label] for spans in rows]


def _percent(share: float) -> float | None:
    return None if math.isnan(share) else 100.0 * float(share)
