"""Scores as pure functions of what was predicted and what is true, and the table that names them.

All lie in 0..100 or -100..100. Each is tested against a hand-worked or official example. Among predicted labels, None
stands for an illegal answer: it is never right, and what else it counts as is said where it matters.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Self

import numpy

from softcue.errors import ConfigurationError, near_matches
from softcue.evaluation.answers import exact_match, legal_text, legal_value, word_f1
from softcue.evaluation.marking import span_f1, span_precision, span_recall
from softcue.tasks import Task
from softcue.types import Example, Prediction, Span

Labels = Sequence[str | None]
LEFT_OUT = ("no_relation",)  # labels that say there is nothing to label: micro_f1 does not count finding them
_NOWHERE = (Span(-1, -1),)  # a mark that is never right
_DIRECTED = re.compile(r"(.+)\((?:e1,e2|e2,e1)\)")


def accuracy(predicted: Labels, true: Sequence[str]) -> float:
    """Share of equal pairs.

    Example:
        >>> accuracy(["a", "b", "b", "b"], ["a", "b", "b", "a"])
        75.0
    """
    return 100.0 * sum(p == t for p, t in zip(predicted, true, strict=True)) / len(true)


def macro_f1(predicted: Labels, true: Sequence[str]) -> float:
    """Mean F1 over the labels that occur in the truth; answers outside them count as misses.

    Example:
        >>> round(macro_f1(["a", "a", "b", "c"], ["a", "b", "b", "b"]), 2)
        58.33
    """
    scores = []
    for label in sorted(set(true)):
        hits = sum(p == t == label for p, t in zip(predicted, true, strict=True))
        seen = sum(p == label for p in predicted) + sum(t == label for t in true)
        scores.append(200.0 * hits / seen)
    return sum(scores) / len(scores)


def micro_f1(predicted: Labels, true: Sequence[str], without: Collection[str] = ()) -> float:
    """F1 over all labels together, but for those left `without`, as TACRED's scorer leaves out no_relation.

    With one label per row it equals accuracy, unless a label is left out: then rows with it in the truth can only
    lose (any other answer is a false guess), and answers with it are no guesses. An illegal answer is a false guess.

    Example:
        >>> micro_f1(["a", "none", "b"], ["a", "none", "none"], without=["none"])  # precision 1/2, recall 1
        66.66666666666667
    """
    hits = sum(p == t and t not in without for p, t in zip(predicted, true, strict=True))
    seen = sum(p not in without for p in predicted) + sum(t not in without for t in true)
    return 200.0 * hits / seen if hits else 0.0


def f1(predicted: Labels, true: Sequence[str], positive: str) -> float:
    """F1 of one label. An illegal answer counts as the wrong one of the two, as T5's published metric has it.

    Example:
        >>> f1(["yes", "yes", "no", None], ["yes", "no", "yes", "no"], positive="yes")  # 1 hit, 2 false, 1 missed
        40.0
    """
    pairs = list(zip(predicted, true, strict=True))
    hits = sum(p == t == positive for p, t in pairs)
    false = sum(p in (positive, None) and t != positive for p, t in pairs)
    missed = sum(p != positive and t == positive for p, t in pairs)
    return 200.0 * hits / (2 * hits + false + missed) if hits else 0.0


def matthews(predicted: Labels, true: Sequence[str]) -> float:
    """Matthews correlation, for any number of labels; 0 when either side is constant.

    Illegal answers are one more label, whatever they say.

    Example:
        >>> matthews(["a", "a", "b", "b"], ["a", "b", "b", "b"])  # (1 * 2 - 1 * 0) / sqrt(2 * 1 * 3 * 2)
        57.73502691896258
    """
    guesses, truths, rows = Counter(predicted), Counter(true), len(true)
    hits = sum(p == t for p, t in zip(predicted, true, strict=True))
    above = hits * rows - sum(guesses[label] * number for label, number in truths.items())
    spreads = [rows**2 - sum(number**2 for number in counts.values()) for counts in (guesses, truths)]
    return 100.0 * above / math.sqrt(spreads[0] * spreads[1]) if all(spreads) else 0.0


def semeval_f1(predicted: Labels, true: Sequence[str]) -> float:
    """The official score of SemEval-2010 Task 8: mean F1 over the relations in the truth, direction counted.

    Labels read "Cause-Effect(e1,e2)"; one without direction ("Other", an illegal answer) is no relation and has no F1.
    An answer is right if relation and direction are. Precision divides by all answers of the relation and recall by
    all its rows, in either direction.

    Example:
        >>> true = ["Cause-Effect(e1,e2)", "Cause-Effect(e2,e1)", "Other"]
        >>> semeval_f1(["Cause-Effect(e1,e2)", "Cause-Effect(e1,e2)", "Other"], true)  # 1 of 2, not 1 of 1
        50.0
    """
    hits = Counter(_relation(t) for p, t in zip(predicted, true, strict=True) if p == t)
    guesses, truths = Counter(map(_relation, predicted)), Counter(map(_relation, true))
    scores = [200.0 * hits[name] / (guesses[name] + truths[name]) for name in truths if name]
    return sum(scores) / len(scores) if scores else 0.0


def multirc_em(predicted: Labels, true: Sequence[str], groups: Sequence[str]) -> float:
    """Share of questions (rows of one group) all of whose answers are judged right; a row without group is its own.

    Not comparable between samples that hold parts of questions: fewer rows are easier to have all right.

    Example:
        >>> multirc_em(["yes", "no", "yes"], ["yes", "yes", "yes"], ["1", "1", "2"])
        50.0
    """
    right: dict[tuple[str, int], bool] = {}
    for row, (p, t, group) in enumerate(zip(predicted, true, groups, strict=True)):
        question = (group, -1 if group else row)
        right[question] = right.get(question, True) and p == t
    return 100.0 * sum(right.values()) / len(right)


def multirc_f1a(predicted: Labels, true: Sequence[str], positive: str) -> float:
    """F1 of the positive label over all answers of all questions.

    Example:
        >>> multirc_f1a(["yes", "no", "yes"], ["yes", "yes", "yes"], positive="yes")  # precision 1, recall 2/3
        80.0
    """
    return f1(predicted, true, positive)


def pearson(predicted: Sequence[float], true: Sequence[float]) -> float:
    """Pearson correlation; 0 when either side is constant.

    Example:
        >>> round(pearson([1, 2, 3], [1, 2, 4]), 2)  # 3 / sqrt(2 * 14/3)
        98.2
    """
    if numpy.ptp(predicted) == 0 or numpy.ptp(true) == 0:
        return 0.0
    return 100.0 * float(numpy.corrcoef(predicted, true)[0, 1])


def spearman(predicted: Sequence[float], true: Sequence[float]) -> float:
    """Pearson correlation of the ranks, ties at their mean rank.

    Example:
        >>> round(spearman([1, 2, 3, 4], [1, 30, 20, 400]), 2)  # 1 - 6 * 2 / (4 * 15)
        80.0
    """
    from scipy.stats import rankdata

    return pearson(rankdata(predicted).tolist(), rankdata(true).tolist())


def pearson_spearman(predicted: Sequence[float], true: Sequence[float]) -> float:
    """Mean of the two correlations, as GLUE averages them for STS-B.

    Example:
        >>> round(pearson_spearman([1, 2, 3], [1, 2, 4]), 2)  # 98.2 and 100
        99.1
    """
    return (pearson(predicted, true) + spearman(predicted, true)) / 2


@dataclass(frozen=True)
class Outcome:
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
    of: Callable[[Outcome], float]
    lacks: Callable[[Task], str] = lambda _: ""  # what the task would need beside its kind, if it does not have it
    is_usual: Callable[[Outcome], bool] = lambda _: True


def _relation(label: str | None) -> str:
    found = _DIRECTED.fullmatch(label or "")
    return found[1] if found else ""


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
    return any(map(_relation, task.labels))


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
    "multirc_f1a": Metric(
        _CLASSES,
        lambda rows: multirc_f1a(rows.predicted, rows.true, rows.task.positive),
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


def scores_of(rows: Outcome) -> dict[str, float]:
    """Every metric that is worth reporting of these rows, and every one the task names.

    Example:
        >>> scores_of(Outcome(Task(name="t", kind="span"), (False,), ("a cat",), right=(("cat",),)))
        {'exact_match': 100.0, 'word_f1': 100.0}
    """
    task = rows.task
    usual = [n for n in metrics_of(task.kind) if METRICS[n].is_usual(rows) and not METRICS[n].lacks(task)]
    return {name: METRICS[name].of(rows) for name in dict.fromkeys([*usual, *task.main_metrics])}


def check_metric(metric: str | Task, kind: str = "") -> None:
    """Refuse a metric, or a mean of some, that the kind of task does not have; of a task, also what it has no use for.

    Example:
        >>> check_metric("exact_match+word_f1", "span")
        >>> check_metric(Task(name="t", metric="accuracy+f1"))
        Traceback (most recent call last):
        softcue.errors.ConfigurationError: task.metric: got 'f1'; expected a task that says which label is `positive`...
    """
    task = metric if isinstance(metric, Task) else None
    name, kind = (metric, kind) if isinstance(metric, str) else (metric.main_metric, metric.kind)
    known = metrics_of(kind)
    for part in name.split("+"):
        if part not in known:
            raise ConfigurationError("task.metric", part, f"a metric for {kind}", near_matches(part, known))
        if task and (lacking := METRICS[part].lacks(task)):
            raise ConfigurationError("task.metric", part, f"{lacking} for it", "name another metric")
