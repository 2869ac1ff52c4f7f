"""The metrics of each kind of task, and how they are computed from rows with predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from softcue.errors import ConfigurationError, near_matches
from softcue.evaluation.metrics import (
    accuracy,
    average_precision,
    exact_match,
    f1,
    macro_f1,
    mae,
    matthews,
    micro_f1,
    multirc_em,
    normalise_text,
    pearson,
    pearson_spearman,
    r2,
    relation_of,
    rmse,
    samples_f1,
    semeval_f1,
    set_macro_f1,
    set_micro_f1,
    span_f1,
    span_precision,
    span_recall,
    spearman,
    subset_accuracy,
    word_f1,
)
from softcue.tasks import Task
from softcue.types import Example, Prediction, Span, label_text

LEFT_OUT = ("no_relation",)  # labels for "none of the others": micro_f1 does not count them as hits
_NOWHERE = (Span(-1, -1),)  # a span that is never right


@dataclass(frozen=True)
class ScoredRows:
    """The rows of a task with their predictions, as metrics read them. Fields of other kinds of task stay empty."""

    task: Task
    is_illegal: tuple[bool, ...]
    predicted: tuple[str | None, ...] = ()  # label or text; None for an illegal label
    true: tuple[str, ...] = ()
    right: tuple[tuple[str, ...], ...] = ()  # every text that counts as right
    groups: tuple[str, ...] = ()
    values: tuple[float, ...] = ()
    true_values: tuple[float, ...] = ()
    spans: tuple[tuple[Span, ...], ...] = ()
    true_spans: tuple[tuple[Span, ...], ...] = ()
    label_sets: tuple[tuple[str, ...], ...] = ()
    true_label_sets: tuple[tuple[str, ...], ...] = ()
    probabilities: tuple[tuple[float, ...], ...] = ()  # of each label, for sets of labels

    @classmethod
    def of(cls, task: Task, predictions: Sequence[Prediction], examples: Sequence[Example]) -> Self:
        """Pair predictions with examples.

        A number that is missing or not finite is illegal. It is scored as the scale's lowest value minus one (T5's
        published post-processing takes -1 for STS-B's 0 to 5), without a scale as 0. Predicted spans are illegal if
        the readout could not place all generated text, if the prediction has no list of spans (an empty one is
        legal), or if a span has a label the task does not have. Spans that could be placed count; the rest counts as
        one false span. A label of a set that the task does not have makes the set illegal, and counts as a false one.
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
        if task.kind == "multi-label":
            label_sets = [predicted_set(prediction) for prediction in predictions]
            return cls(
                task,
                is_illegal=tuple(bool(task.labels and set(labels) - set(task.labels)) for labels in label_sets),
                label_sets=tuple(label_sets),
                true_label_sets=tuple(tuple(sorted(example.labels)) for example in examples),
                probabilities=tuple(_probabilities(task, prediction) for prediction in predictions),
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
        pairs = list(zip(predictions, examples, strict=True))
        targets = [() if example.target is None else (str(example.target),) for example in examples]
        return cls(
            task,
            is_illegal=tuple(legal_text(task, *pair) is None for pair in pairs),
            predicted=tuple(scored_text(task, *pair) for pair in pairs),
            true=tuple(str(example.target) for example in examples),
            right=tuple(example.answers or target for example, target in zip(examples, targets, strict=True)),
            groups=tuple(example.group for example in examples),
        )


@dataclass(frozen=True)
class Metric:
    """A metric: its kinds of task, its function, what a task must have, and when it is reported.

    A metric the task names is reported in any case. A task cannot name an error (`is_error`): training keeps the step
    with the highest score, and averages scores over metrics and tasks, which numbers in the unit of a task's targets
    do not allow. `r2` takes the place of `rmse`: on the same rows, the highest R2 is the lowest RMSE.
    """

    kinds: tuple[str, ...]
    compute: Callable[[ScoredRows], float]
    missing: Callable[[Task], str] = lambda _: ""  # what the task would need beside its kind; empty if it has it
    is_usual: Callable[[ScoredRows], bool] = lambda _: True
    is_error: bool = False  # in the unit of the targets, and lower is better


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


def scored_text(task: Task, prediction: Prediction, example: Example) -> str | None:
    """The predicted label or text that metrics compare with the right ones, or None if it is wrong in any case.

    A label must be legal. A text outside the row's options is compared like any other: the official scripts of ReCoRD
    and SQuAD count the words it shares with an answer.

    Example:
        >>> row = Example(("Who?",), options=("Barack Obama", "Ann"), answers=("Barack Obama",))
        >>> scored_text(Task(name="t", kind="span"), Prediction("President Barack Obama"), row)
        'President Barack Obama'
    """
    if task.has_classes or prediction.is_illegal:
        return legal_text(task, prediction, example)
    return prediction.label_text


def legal_value(prediction: Prediction) -> float | None:
    """The predicted number, or None if there is none that can be scored.

    Example:
        >>> legal_value(Prediction(None, value=2.5)), legal_value(Prediction("warm"))
        (2.5, None)
    """
    if prediction.is_illegal or prediction.value is None or not math.isfinite(prediction.value):
        return None
    return prediction.value


def predicted_set(prediction: Prediction) -> tuple[str, ...]:
    """The predicted set of labels, as sorted texts.

    Example:
        >>> predicted_set(Prediction(None, labels=(3, 1)))
        ('1', '3')
    """
    return tuple(sorted(map(label_text, prediction.labels or ())))


def _probabilities(task: Task, prediction: Prediction) -> tuple[float, ...]:
    """The probability of each label of the task; without probabilities, 1 for those that are predicted."""
    scores = prediction.scores
    if scores is None:
        scores = dict.fromkeys(predicted_set(prediction), 1.0)
    by_text = {label_text(label): score for label, score in scores.items()}
    return tuple(by_text.get(name, 0.0) for name in task.label_names)


def _micro_f1(rows: ScoredRows) -> float:
    if rows.label_sets:
        return set_micro_f1(rows.label_sets, rows.true_label_sets)
    return micro_f1(rows.predicted, rows.true, LEFT_OUT)


def _macro_f1(rows: ScoredRows) -> float:
    if rows.label_sets:
        return set_macro_f1(rows.label_sets, rows.true_label_sets, rows.task.label_names)
    return macro_f1(rows.predicted, rows.true)


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
_SETS = ("multi-label",)
METRICS: dict[str, Metric] = {
    "accuracy": Metric((*_CLASSES, "referent"), lambda rows: accuracy(rows.predicted, rows.true)),
    "macro_f1": Metric((*_CLASSES, *_SETS), _macro_f1),
    "micro_f1": Metric(
        (*_CLASSES, *_SETS),
        _micro_f1,
        # of classes it is accuracy, unless a label is left out
        is_usual=lambda rows: bool(rows.label_sets) or any(label in rows.task.labels for label in LEFT_OUT),
    ),
    "samples_f1": Metric(_SETS, lambda rows: samples_f1(rows.label_sets, rows.true_label_sets)),
    "subset_accuracy": Metric(_SETS, lambda rows: subset_accuracy(rows.label_sets, rows.true_label_sets)),
    "average_precision": Metric(
        _SETS, lambda rows: average_precision(rows.probabilities, rows.true_label_sets, rows.task.label_names)
    ),
    "micro_f1_all_labels": Metric(
        _CLASSES,
        lambda rows: micro_f1(rows.predicted, rows.true),
        is_usual=lambda _: False,  # it is accuracy under the name that a paper gives it
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
    "r2": Metric(_NUMBERS, lambda rows: r2(rows.values, rows.true_values)),
    "mae": Metric(_NUMBERS, lambda rows: mae(rows.values, rows.true_values), is_error=True),
    "rmse": Metric(_NUMBERS, lambda rows: rmse(rows.values, rows.true_values), is_error=True),
    "span_f1": Metric(_SPANS, lambda rows: span_f1(rows.spans, rows.true_spans)),
    "span_precision": Metric(_SPANS, lambda rows: span_precision(rows.spans, rows.true_spans)),
    "span_recall": Metric(_SPANS, lambda rows: span_recall(rows.spans, rows.true_spans)),
}


def metrics_of(kind: str) -> tuple[str, ...]:
    """The metrics a task of this kind may name: those where higher is better.

    Example:
        >>> metrics_of("span")
        ('exact_match', 'word_f1')
    """
    return tuple(name for name, metric in METRICS.items() if kind in metric.kinds and not metric.is_error)


def format_score(metric: str, score: float | None) -> str:
    """A score as text: one decimal, or three significant digits for an error in the unit of the targets.

    Example:
        >>> format_score("accuracy", 84.127), format_score("rmse", 0.03141), format_score("f1", None)
        ('84.1', '0.0314', '-')
        >>> format_score("r2", -0.01)
        '0.0'
    """
    if score is None:
        return "-"
    if metric in METRICS and METRICS[metric].is_error:
        return f"{score:.3g}"
    return f"{round(score, 1) + 0.0:.1f}"  # never -0.0


def scores_of(rows: ScoredRows) -> dict[str, float]:
    """Scores of the usual metrics for these rows, and of those that the task names as its own or as a paper's.

    Example:
        >>> scores_of(ScoredRows(Task(name="t", kind="span"), (False,), ("a cat",), right=(("cat",),)))
        {'exact_match': 100.0, 'word_f1': 100.0}
    """
    task = rows.task
    usual = [
        name
        for name, metric in METRICS.items()
        if task.kind in metric.kinds and metric.is_usual(rows) and not metric.missing(task)
    ]
    names = dict.fromkeys([*usual, *task.main_metrics, *task.paper_metrics.values()])
    return {name: METRICS[name].compute(rows) for name in names}


def check_metric(task: Task) -> None:
    """Check that the task's metrics are for its kind, and that the task has what they need.

    Example:
        >>> check_metric(Task(name="t", kind="span", metric="exact_match+word_f1"))
        >>> check_metric(Task(name="t", metric="accuracy+f1"))
        Traceback (most recent call last):
        softcue.errors.ConfigurationError: task.metric: got 'f1'; expected a task that says which label is `positive`...
    """
    metrics = metrics_of(task.kind)
    for part in (*task.main_metrics, *task.paper_metrics.values()):
        if part in METRICS and METRICS[part].is_error and task.kind in METRICS[part].kinds:
            raise ConfigurationError(
                setting="task.metric",
                got=part,
                expected=f"a metric where higher is better: {', '.join(metrics)}",
                fix=f"take r2, whose best step has the lowest rmse; {part} is reported in any case",
            )
        if part not in metrics:
            fix = near_matches(part, metrics)
            if part in METRICS:
                fix += f"; or set task.kind={METRICS[part].kinds[0]}"
            raise ConfigurationError(setting="task.metric", got=part, expected=f"a metric for {task.kind}", fix=fix)
        if missing := METRICS[part].missing(task):
            raise ConfigurationError(
                setting="task.metric", got=part, expected=f"{missing} for it", fix="name another metric"
            )
