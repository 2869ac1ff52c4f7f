"""Which metrics a task may name, and how each is filled from answers and examples. Adding one is one entry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from softcue.errors import ConfigurationError, near_matches
from softcue.evaluation.answers import exact_match, legal_text, legal_value, word_f1
from softcue.evaluation.metrics import (
    accuracy,
    f1,
    macro_f1,
    matthews,
    micro_f1,
    multirc_em,
    pearson,
    pearson_spearman,
    relation_of,
    semeval_f1,
    span_f1,
    span_precision,
    span_recall,
    spearman,
)
from softcue.tasks import Task
from softcue.types import Example, Prediction, Span

LEFT_OUT = ("no_relation",)  # labels that say there is nothing to label: micro_f1 does not count finding them
_NOWHERE = (Span(-1, -1),)  # a mark that is never right


@dataclass(frozen=True)
class ScoredRows:
    """All rows of a task with their answers, as metrics read them; what the task's kind does not have stays empty."""

    task: Task
    is_illegal: tuple[bool, ...]
    predicted: tuple[str | None, ...] = ()  # class or text; None where it is illegal
    true: tuple[str, ...] = ()
    right: tuple[tuple[str, ...], ...] = ()  # every text that counts as right
    groups: tuple[str, ...] = ()
    values: tuple[float, ...] = ()
    true_values: tuple[float, ...] = ()
    spans: tuple[tuple[Span, ...], ...] = ()
    true_spans: tuple[tuple[Span, ...], ...] = ()

    @classmethod
    def of(cls, task: Task, answers: Sequence[Prediction], examples: Sequence[Example]) -> Self:
        """What the answers come to.

        A number that is missing or not finite is illegal and scored as one less than the scale's lowest (T5's
        published post-processing takes -1 for STS-B's 0 to 5), without a scale as 0. Marks are illegal if the readout
        says so (it could not place all that was written), if there are none, not even an empty list, or if one has a
        label the task does not have. What could be placed counts; the rest counts as one false mark.
        """
        if task.kind == "regression":
            values = [legal_value(answer) for answer in answers]
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
                is_illegal=tuple(_has_illegal_marks(task, answer) for answer in answers),
                spans=tuple((answer.spans or ()) + (_NOWHERE if _is_unplaced(answer) else ()) for answer in answers),
                true_spans=tuple(example.spans for example in examples),
            )
        predicted = tuple(legal_text(task, *pair) for pair in zip(answers, examples, strict=True))
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
    """One score: for which kinds of task, how it is computed, what a task must have, and when it is worth a column.

    A metric the task names is computed in any case.
    """

    kinds: tuple[str, ...]
    of: Callable[[ScoredRows], float]
    lacks: Callable[[Task], str] = lambda _: ""  # what the task would need beside its kind, if it does not have it
    is_usual: Callable[[ScoredRows], bool] = lambda _: True


def _is_unplaced(answer: Prediction) -> bool:
    return answer.is_illegal or answer.spans is None


def _has_illegal_marks(task: Task, answer: Prediction) -> bool:
    labels = {span.label for span in answer.spans or ()}
    return _is_unplaced(answer) or bool(task.labels and labels - set(task.labels))


def _lacks_positive(task: Task) -> str:
    return "" if task.positive else "a task that says which label is `positive`"


def _lacks_directions(task: Task) -> str:
    # A user's labels are read from the rows, after the metric has been checked.
    return "a task with labels like 'Cause-Effect(e1,e2)'" if task.labels and not _has_directions(task) else ""


def _has_directions(task: Task) -> bool:
    return any(map(relation_of, task.labels))


_CLASSES, _TEXTS, _NUMBERS, _MARKS = ("classification",), ("generation", "span"), ("regression",), ("tags",)
METRICS: dict[str, Metric] = {
    "accuracy": Metric((*_CLASSES, "referent"), lambda rows: accuracy(rows.predicted, rows.true)),
    "macro_f1": Metric(_CLASSES, lambda rows: macro_f1(rows.predicted, rows.true)),
    "micro_f1": Metric(
        _CLASSES,
        lambda rows: micro_f1(rows.predicted, rows.true, LEFT_OUT),
        is_usual=lambda rows: any(label in rows.task.labels for label in LEFT_OUT),  # else it is accuracy
    ),
    "f1": Metric(_CLASSES, lambda rows: f1(rows.predicted, rows.true, rows.task.positive), _lacks_positive),
    "matthews": Metric(_CLASSES, lambda rows: matthews(rows.predicted, rows.true)),
    "semeval_f1": Metric(
        _CLASSES,
        lambda rows: semeval_f1(rows.predicted, rows.true),
        _lacks_directions,
        is_usual=lambda rows: _has_directions(rows.task),
    ),
    "multirc_em": Metric(
        _CLASSES,
        lambda rows: multirc_em(rows.predicted, rows.true, rows.groups),
        is_usual=lambda rows: any(rows.groups),
    ),
    "multirc_f1a": Metric(  # over all answers of all questions
        _CLASSES,
        lambda rows: f1(rows.predicted, rows.true, rows.task.positive),
        _lacks_positive,
        is_usual=lambda rows: any(rows.groups),
    ),
    "exact_match": Metric(_TEXTS, lambda rows: exact_match(rows.predicted, rows.right)),
    "word_f1": Metric(_TEXTS, lambda rows: word_f1(rows.predicted, rows.right)),
    "pearson": Metric(_NUMBERS, lambda rows: pearson(rows.values, rows.true_values)),
    "spearman": Metric(_NUMBERS, lambda rows: spearman(rows.values, rows.true_values)),
    "pearson_spearman": Metric(_NUMBERS, lambda rows: pearson_spearman(rows.values, rows.true_values)),
    "span_f1": Metric(_MARKS, lambda rows: span_f1(rows.spans, rows.true_spans)),
    "span_precision": Metric(_MARKS, lambda rows: span_precision(rows.spans, rows.true_spans)),
    "span_recall": Metric(_MARKS, lambda rows: span_recall(rows.spans, rows.true_spans)),
}


def metrics_of(kind: str) -> tuple[str, ...]:
    """The metrics a task of this kind may name.

    Example:
        >>> metrics_of("span")
        ('exact_match', 'word_f1')
    """
    return tuple(name for name, metric in METRICS.items() if kind in metric.kinds)


def scores_of(rows: ScoredRows) -> dict[str, float]:
    """Every metric that is worth reporting of these rows, and every one the task names.

    Example:
        >>> scores_of(ScoredRows(Task(name="t", kind="span"), (False,), ("a cat",), right=(("cat",),)))
        {'exact_match': 100.0, 'word_f1': 100.0}
    """
    task = rows.task
    usual = [n for n in metrics_of(task.kind) if METRICS[n].is_usual(rows) and not METRICS[n].lacks(task)]
    return {name: METRICS[name].of(rows) for name in dict.fromkeys([*usual, *task.main_metrics])}


def check_metric(task: Task) -> None:
    """Refuse a metric that the task's kind does not have, or that lacks something the task must say.

    Example:
        >>> check_metric(Task(name="t", kind="span", metric="exact_match+word_f1"))
        >>> check_metric(Task(name="t", metric="accuracy+f1"))
        Traceback (most recent call last):
        softcue.errors.ConfigurationError: task.metric: got 'f1'; expected a task that says which label is `positive`...
    """
    known = metrics_of(task.kind)
    for part in task.main_metrics:
        if part not in known:
            raise ConfigurationError(
                setting="task.metric", got=part, expected=f"a metric for {task.kind}", fix=near_matches(part, known)
            )
        if lacking := METRICS[part].lacks(task):
            raise ConfigurationError(
                setting="task.metric", got=part, expected=f"{lacking} for it", fix="name another metric"
            )
