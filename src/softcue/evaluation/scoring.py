"""Scores of a task's predictions: which metrics a kind of task has, and how they are computed from rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Self

from softcue.backbones import Backbone
from softcue.errors import ConfigurationError, near_matches
from softcue.evaluation.metrics import (
    accuracy,
    exact_match,
    f1,
    macro_f1,
    matthews,
    micro_f1,
    multirc_em,
    normalise_text,
    pearson,
    pearson_spearman,
    relation_of,
    semeval_f1,
    span_f1,
    span_precision,
    span_recall,
    spearman,
    word_f1,
)
from softcue.inference import TaskModel
from softcue.inference.predict import predict
from softcue.tasks import Task
from softcue.types import Example, Prediction, Span

LEFT_OUT = ("no_relation",)  # labels for "none of the others": micro_f1 does not count them as hits
_NOWHERE = (Span(-1, -1),)  # a span that is never right


@dataclass(frozen=True)
class ScoredRows:
    """The rows of a task with their predictions, as metrics read them. Fields of other kinds of task stay empty."""

    task: Task
    is_illegal: tuple[bool, ...]
    predicted: tuple[str | None, ...] = ()  # label or text; None if it is illegal
    true: tuple[str, ...] = ()
    right: tuple[tuple[str, ...], ...] = ()  # every text that counts as right
    groups: tuple[str, ...] = ()
    values: tuple[float, ...] = ()
    true_values: tuple[float, ...] = ()
    spans: tuple[tuple[Span, ...], ...] = ()
    true_spans: tuple[tuple[Span, ...], ...] = ()

    @classmethod
    def of(cls, task: Task, predictions: Sequence[Prediction], examples: Sequence[Example]) -> Self:
        """Pair predictions with examples.

        A number that is missing or not finite is illegal. It is scored as the scale's lowest value minus one (T5's
        published post-processing takes -1 for STS-B's 0 to 5), without a scale as 0. Predicted spans are illegal if
        the readout could not place all generated text, if the prediction has no list of spans (an empty one is
        legal), or if a span has a label the task does not have. Spans that could be placed count; the rest counts as
        one false span.
        """
        if task.kind == "regression":
            values = [legal_value(prediction) for prediction in predictions]
            worst = task.scale[0] - 1 if task.scale else 0.0
            return cls(
                task,
                is_illegal=tuple(value is None for value in values),
                values=tuple(worst if value is None else value for value in values),
                true_values=tuple(float(example.target or 0.0) for example in examples),
            )
        if task.kind == "tags":
            return cls(
                task,
                is_illegal=tuple(_has_illegal_spans(task, prediction) for prediction in predictions),
                spans=tuple(
                    (prediction.spans or ()) + (_NOWHERE if _is_unplaced(prediction) else ())
                    for prediction in predictions
                ),
                true_spans=tuple(example.spans for example in examples),
            )
        predicted = tuple(legal_text(task, *pair) for pair in zip(predictions, examples, strict=True))
        targets = [() if example.target is None else (str(example.target),) for example in examples]
        return cls(
            task,
            is_illegal=tuple(text is None for text in predicted),
            predicted=predicted,
            true=tuple(str(example.target) for example in examples),
            right=tuple(example.answers or target for example, target in zip(examples, targets, strict=True)),
            groups=tuple(example.group for example in examples),
        )


@dataclass(frozen=True)
class Metric:
    """A metric: its kinds of task, its function, what a task must have, and when it is reported.

    A metric the task names is reported in any case.
    """

    kinds: tuple[str, ...]
    compute: Callable[[ScoredRows], float]
    missing: Callable[[Task], str] = lambda _: ""  # what the task would need beside its kind; empty if it has it
    is_usual: Callable[[ScoredRows], bool] = lambda _: True


def legal_text(task: Task, prediction: Prediction, example: Example) -> str | None:
    """The predicted label or text, or None if the readout, the task or the row does not allow it.

    Example:
        >>> row = Example(("Who?",), options=("Ada Lovelace", "Babbage"))
        >>> task = Task(name="t", kind="generation")
        >>> legal_text(task, Prediction("the Babbage!"), row), legal_text(task, Prediction("Ada"), row)
        ('the Babbage!', None)
    """
    text = prediction.label_text
    if text is None or prediction.is_illegal:
        return None
    if task.has_classes:
        return text if text in task.labels or not task.labels else None
    if example.options and normalise_text(text) not in {normalise_text(option) for option in example.options}:
        return None
    return text


def legal_value(prediction: Prediction) -> float | None:
    """The predicted number, or None if there is none that can be scored.

    Example:
        >>> legal_value(Prediction(None, value=2.5)), legal_value(Prediction("warm"))
        (2.5, None)
    """
    if prediction.is_illegal or prediction.value is None or not math.isfinite(prediction.value):
        return None
    return prediction.value


def _is_unplaced(prediction: Prediction) -> bool:
    return prediction.is_illegal or prediction.spans is None


def _has_illegal_spans(task: Task, prediction: Prediction) -> bool:
    labels = {span.label for span in prediction.spans or ()}
    return _is_unplaced(prediction) or bool(task.labels and labels - set(task.labels))


def _missing_positive(task: Task) -> str:
    return "" if task.positive else "a task that says which label is `positive`"


def _missing_directions(task: Task) -> str:
    # A user's labels are read from the rows, after the metric has been checked.
    return "a task with labels like 'Cause-Effect(e1,e2)'" if task.labels and not _has_directions(task) else ""


def _has_directions(task: Task) -> bool:
    return any(map(relation_of, task.labels))


_CLASSES, _TEXTS, _NUMBERS, _SPANS = ("classification",), ("generation", "span"), ("regression",), ("tags",)
METRICS: dict[str, Metric] = {
    "accuracy": Metric((*_CLASSES, "referent"), lambda rows: accuracy(rows.predicted, rows.true)),
    "macro_f1": Metric(_CLASSES, lambda rows: macro_f1(rows.predicted, rows.true)),
    "micro_f1": Metric(
        _CLASSES,
        lambda rows: micro_f1(rows.predicted, rows.true, LEFT_OUT),
        is_usual=lambda rows: any(label in rows.task.labels for label in LEFT_OUT),  # else it is accuracy
    ),
    "f1": Metric(_CLASSES, lambda rows: f1(rows.predicted, rows.true, rows.task.positive), _missing_positive),
    "matthews": Metric(_CLASSES, lambda rows: matthews(rows.predicted, rows.true)),
    "semeval_f1": Metric(
        _CLASSES,
        lambda rows: semeval_f1(rows.predicted, rows.true),
        _missing_directions,
        is_usual=lambda rows: _has_directions(rows.task),
    ),
    "multirc_em": Metric(
        _CLASSES,
        lambda rows: multirc_em(rows.predicted, rows.true, rows.groups),
        is_usual=lambda rows: any(rows.groups),
    ),
    "multirc_f1a": Metric(  # over the rows of all questions
        _CLASSES,
        lambda rows: f1(rows.predicted, rows.true, rows.task.positive),
        _missing_positive,
        is_usual=lambda rows: any(rows.groups),
    ),
    "exact_match": Metric(_TEXTS, lambda rows: exact_match(rows.predicted, rows.right)),
    "word_f1": Metric(_TEXTS, lambda rows: word_f1(rows.predicted, rows.right)),
    "pearson": Metric(_NUMBERS, lambda rows: pearson(rows.values, rows.true_values)),
    "spearman": Metric(_NUMBERS, lambda rows: spearman(rows.values, rows.true_values)),
    "pearson_spearman": Metric(_NUMBERS, lambda rows: pearson_spearman(rows.values, rows.true_values)),
    "span_f1": Metric(_SPANS, lambda rows: span_f1(rows.spans, rows.true_spans)),
    "span_precision": Metric(_SPANS, lambda rows: span_precision(rows.spans, rows.true_spans)),
    "span_recall": Metric(_SPANS, lambda rows: span_recall(rows.spans, rows.true_spans)),
}


def metrics_of(kind: str) -> tuple[str, ...]:
    """The metrics a task of this kind may name.

    Example:
        >>> metrics_of("span")
        ('exact_match', 'word_f1')
    """
    return tuple(name for name, metric in METRICS.items() if kind in metric.kinds)


def scores_of(rows: ScoredRows) -> dict[str, float]:
    """Scores of the usual metrics for these rows, and of those the task names.

    Example:
        >>> scores_of(ScoredRows(Task(name="t", kind="span"), (False,), ("a cat",), right=(("cat",),)))
        {'exact_match': 100.0, 'word_f1': 100.0}
    """
    task = rows.task
    usual = [n for n in metrics_of(task.kind) if METRICS[n].is_usual(rows) and not METRICS[n].missing(task)]
    return {name: METRICS[name].compute(rows) for name in dict.fromkeys([*usual, *task.main_metrics])}


def check_metric(task: Task) -> None:
    """Check that the task's metrics are for its kind, and that the task has what they need.

    Example:
        >>> check_metric(Task(name="t", kind="span", metric="exact_match+word_f1"))
        >>> check_metric(Task(name="t", metric="accuracy+f1"))
        Traceback (most recent call last):
        softcue.errors.ConfigurationError: task.metric: got 'f1'; expected a task that says which label is `positive`...
    """
    metrics = metrics_of(task.kind)
    for part in task.main_metrics:
        if part not in metrics:
            fix = near_matches(part, metrics)
            if part in METRICS:
                fix += f"; or set task.kind={METRICS[part].kinds[0]}"
            raise ConfigurationError(setting="task.metric", got=part, expected=f"a metric for {task.kind}", fix=fix)
        if missing := METRICS[part].missing(task):
            raise ConfigurationError(
                setting="task.metric", got=part, expected=f"{missing} for it", fix="name another metric"
            )


@dataclass(frozen=True)
class Evaluation:
    """Scores of a task on rows, with counts that explain them."""

    scores: dict[str, float]
    main: float  # the task's metric, or the mean of several; early stopping watches it
    num_rows: int
    num_truncated: int
    num_illegal: int  # predictions the task or the row does not allow; they count as wrong
    predicted_labels: dict[str, int]
    num_true_labels: int = 0

    @property
    def has_collapsed(self) -> bool:
        """Whether all rows got the same label although the true labels differ."""
        return len(self.predicted_labels) == 1 and self.num_true_labels > 1

    @property
    def illegal_share(self) -> float:
        """Share of illegal predictions, from 0 to 1.

        Example:
            >>> Evaluation({}, 0.0, num_rows=8, num_truncated=0, num_illegal=2, predicted_labels={}).illegal_share
            0.25
        """
        return self.num_illegal / self.num_rows if self.num_rows else 0.0


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
    has_labels = bool(task.has_classes and task.labels)
    counts = Counter(str(prediction.label_text) for prediction in predictions) if has_labels else {}
    return Evaluation(
        scores,
        main=fmean(scores[name] for name in task.main_metrics),
        num_rows=len(examples),
        num_truncated=num_truncated,
        num_illegal=sum(rows.is_illegal),
        predicted_labels=dict(sorted(counts.items())),
        num_true_labels=len(set(rows.true)) if has_labels else 0,
    )
