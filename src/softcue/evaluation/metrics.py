"""Scores as pure functions of what was predicted and what is true.

All lie in 0..100 or -100..100. Each is tested against a hand-worked or official example. Among predicted labels, None
stands for an illegal answer: it is never right, and what else it counts as is said where it matters.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Sequence

import numpy

from softcue.types import Span

Labels = Sequence[str | None]
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
    hits = Counter(relation_of(t) for p, t in zip(predicted, true, strict=True) if p == t)
    guesses, truths = Counter(map(relation_of, predicted)), Counter(map(relation_of, true))
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


def relation_of(label: str | None) -> str:
    """The relation of a label with a direction; empty for other labels.

    Example:
        >>> relation_of("Cause-Effect(e2,e1)"), relation_of("Other")
        ('Cause-Effect', '')
    """
    found = _DIRECTED.fullmatch(label or "")
    return found[1] if found else ""


Marks = Sequence[Sequence[Span]]  # of every row


def span_precision(predicted: Marks, true: Marks) -> float:
    """Share of the marked pieces that are right.

    Example:
        >>> span_precision([[Span(0, 3, "PER"), Span(8, 12, "LOC")]], [[Span(0, 3, "PER")]])
        50.0
    """
    hits, marked, _ = _counted(predicted, true)
    return 100.0 * hits / marked if marked else 0.0


def span_recall(predicted: Marks, true: Marks) -> float:
    """Share of the pieces to be marked that are.

    Example:
        >>> span_recall([[Span(0, 3, "PER"), Span(8, 12, "LOC")]], [[Span(0, 3, "PER")]])
        100.0
    """
    hits, _, wanted = _counted(predicted, true)
    return 100.0 * hits / wanted if wanted else 0.0


def span_f1(predicted: Marks, true: Marks) -> float:
    """Harmonic mean of span_precision and span_recall.

    Example:
        >>> round(span_f1([[Span(0, 3, "PER"), Span(8, 12, "LOC")]], [[Span(0, 3, "PER")]]), 2)
        66.67
    """
    hits, marked, wanted = _counted(predicted, true)
    return 200.0 * hits / (marked + wanted) if hits else 0.0


def _counted(predicted: Marks, true: Marks) -> tuple[int, int, int]:
    """Right, marked and wanted pieces."""
    rows = [(set(found), set(wanted)) for found, wanted in zip(predicted, true, strict=True)]
    return (
        sum(len(found & wanted) for found, wanted in rows),
        sum(len(found) for found, _ in rows),
        sum(len(wanted) for _, wanted in rows),
    )
