"""Metrics as pure functions of predicted and true values.

All lie in 0..100 or -100..100, except R2, which has no lower bound, and the two errors (MAE, RMSE), which are in the
unit of the targets. Each is tested against a hand-worked or official example. Among predicted labels and texts, None
stands for an illegal prediction. It is never right; where it counts as more than wrong, the metric says so.

Text metrics follow the evaluate script of SQuAD v1.1, which MRQA and ReCoRD use unchanged with their own answers. Its
order of operations: lower case, remove punctuation, remove articles, join spaces. Its F1 is 0 if no word is shared,
also if both texts are empty after that. SQuAD v2's script gives 1 there, to score questions without an answer, which
v1.1 does not have.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Sequence

import numpy
import numpy.typing

from softcue.types import Span

Labels = Sequence[str | None]
SpanRows = Sequence[Sequence[Span]]  # the spans of each row
LabelSets = Sequence[Collection[str]]  # the labels of each row, each once
_DIRECTED = re.compile(r"(.+)\((?:e1,e2|e2,e1)\)")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def accuracy(predicted: Labels, true: Sequence[str]) -> float:
    """Share of equal pairs.

    Example:
        >>> accuracy(["a", "b", "b", "b"], ["a", "b", "b", "a"])
        75.0
    """
    return 100.0 * sum(p == t for p, t in zip(predicted, true, strict=True)) / len(true)


def macro_f1(predicted: Labels, true: Sequence[str]) -> float:
    """Mean F1 over the true labels; predictions of other labels count as misses.

    Example:
        >>> round(macro_f1(["a", "a", "b", "c"], ["a", "b", "b", "b"]), 2)
        58.33
    """
    scores = []
    for label in sorted(set(true)):
        hits = sum(p == t == label for p, t in zip(predicted, true, strict=True))
        occurrences = sum(p == label for p in predicted) + sum(t == label for t in true)
        scores.append(200.0 * hits / occurrences)
    return sum(scores) / len(scores)


def micro_f1(predicted: Labels, true: Sequence[str], without: Collection[str] = ()) -> float:
    """F1 over all labels together except those in `without`, as TACRED's scorer leaves out no_relation.

    With one label per row it equals accuracy, unless a label is left out. A prediction of a left-out label counts
    neither as a hit nor as a false positive. Any other prediction for a row whose true label is left out is a false
    positive. An illegal prediction is a false positive.

    Example:
        >>> micro_f1(["a", "none", "b"], ["a", "none", "none"], without=["none"])  # precision 1/2, recall 1
        66.66666666666667
    """
    hits = sum(p == t and t not in without for p, t in zip(predicted, true, strict=True))
    occurrences = sum(p not in without for p in predicted) + sum(t not in without for t in true)
    return 200.0 * hits / occurrences if hits else 0.0


def set_micro_f1(predicted: LabelSets, true: LabelSets) -> float:
    """F1 of sets of labels over all labels together; 0 if no row has a label and none is predicted.

    Example:
        >>> round(set_micro_f1([{"a", "b"}, {"a"}], [{"a"}, {"a", "c"}]), 2)  # 2 hits, 3 predicted, 3 true
        66.67
    """
    hits, occurrences = _count_labels(predicted, true)
    return 200.0 * hits.total() / occurrences.total() if occurrences else 0.0


def set_macro_f1(predicted: LabelSets, true: LabelSets, labels: Sequence[str]) -> float:
    """Mean F1 of sets of labels over the given labels; 0 for a label that no row has and that is never predicted.

    Example:
        >>> round(set_macro_f1([{"a", "b"}, {"a"}], [{"a"}, {"a", "c"}], ["a", "b", "c"]), 2)  # 100, 0 and 0
        33.33
    """
    hits, occurrences = _count_labels(predicted, true)
    scores = [200.0 * hits[label] / occurrences[label] if hits[label] else 0.0 for label in labels]
    return sum(scores) / len(scores) if scores else 0.0


def samples_f1(predicted: LabelSets, true: LabelSets) -> float:
    """Mean over rows of the F1 of a row's labels; 100 for a row without labels that gets none.

    Example:
        >>> round(samples_f1([{"a", "b"}, set()], [{"a"}, set()]), 2)  # 66.67 and 100
        83.33
    """
    rows = [(set(labels), set(true_labels)) for labels, true_labels in zip(predicted, true, strict=True)]
    scores = [
        200.0 * len(labels & true_labels) / (len(labels) + len(true_labels)) if labels or true_labels else 100.0
        for labels, true_labels in rows
    ]
    return sum(scores) / len(scores)


def subset_accuracy(predicted: LabelSets, true: LabelSets) -> float:
    """Share of rows whose labels are all right: none missing, none too many.

    Example:
        >>> subset_accuracy([{"a", "b"}, set()], [{"a"}, set()])
        50.0
    """
    return 100.0 * sum(set(labels) == set(right) for labels, right in zip(predicted, true, strict=True)) / len(true)


def average_precision(probabilities: Sequence[Sequence[float]], true: LabelSets, labels: Sequence[str]) -> float:
    """Area below the curve of precision over recall, of all pairs of row and label ordered by their probability.

    It needs no threshold. As scikit-learn's micro average; 0 if no row has a label.

    Example:
        >>> round(average_precision([[0.9, 0.2], [0.8, 0.7]], [{"a"}, {"b"}], ["a", "b"]), 2)  # 1/2 * 1 + 1/2 * 2/3
        83.33
    """
    from sklearn.metrics import average_precision_score

    targets = [label in right for right in true for label in labels]
    if not any(targets):
        return 0.0
    return 100.0 * float(average_precision_score(targets, numpy.concatenate([numpy.asarray(p) for p in probabilities])))


def _count_labels(predicted: LabelSets, true: LabelSets) -> tuple[Counter[str], Counter[str]]:
    """Of each label: how often it is right, and how often it is predicted or true, both counted."""
    hits: Counter[str] = Counter()
    occurrences: Counter[str] = Counter()
    for labels, true_labels in zip(predicted, true, strict=True):
        hits.update(set(labels) & set(true_labels))
        occurrences.update([*labels, *true_labels])
    return hits, occurrences


def f1(predicted: Labels, true: Sequence[str], positive: str) -> float:
    """F1 of one label. An illegal prediction counts as the wrong one of the two labels, as in T5's published metric.

    Example:
        >>> f1(["yes", "yes", "no", None], ["yes", "no", "yes", "no"], positive="yes")  # 1 hit, 2 false, 1 missed
        40.0
    """
    pairs = list(zip(predicted, true, strict=True))
    hits = sum(p == t == positive for p, t in pairs)
    false_positives = sum(p in (positive, None) and t != positive for p, t in pairs)
    missed = sum(p != positive and t == positive for p, t in pairs)
    return 200.0 * hits / (2 * hits + false_positives + missed) if hits else 0.0


def matthews(predicted: Labels, true: Sequence[str]) -> float:
    """Matthews correlation, for any number of labels; 0 when either side is constant.

    All illegal predictions count as one more label.

    Example:
        >>> matthews(["a", "a", "b", "b"], ["a", "b", "b", "b"])  # (1 * 2 - 1 * 0) / sqrt(2 * 1 * 3 * 2)
        57.73502691896258
    """
    predicted_counts, true_counts, num_rows = Counter(predicted), Counter(true), len(true)
    hits = sum(p == t for p, t in zip(predicted, true, strict=True))
    covariance = hits * num_rows - sum(predicted_counts[label] * count for label, count in true_counts.items())
    spreads = [num_rows**2 - sum(count**2 for count in counts.values()) for counts in (predicted_counts, true_counts)]
    return 100.0 * covariance / math.sqrt(spreads[0] * spreads[1]) if all(spreads) else 0.0


def semeval_f1(predicted: Labels, true: Sequence[str]) -> float:
    """The official score of SemEval-2010 Task 8: mean F1 over the true relations, direction counted.

    Labels have the form "Cause-Effect(e1,e2)". A label without direction ("Other", an illegal prediction) is no
    relation and has no F1. A prediction is right if relation and direction are right. Precision divides by all
    predictions of the relation and recall by all its rows, in either direction.

    Example:
        >>> true = ["Cause-Effect(e1,e2)", "Cause-Effect(e2,e1)", "Other"]
        >>> semeval_f1(["Cause-Effect(e1,e2)", "Cause-Effect(e1,e2)", "Other"], true)  # 1 of 2, not 1 of 1
        50.0
    """
    hits = Counter(relation_of(t) for p, t in zip(predicted, true, strict=True) if p == t)
    predicted_counts, true_counts = Counter(map(relation_of, predicted)), Counter(map(relation_of, true))
    scores = [200.0 * hits[name] / (predicted_counts[name] + true_counts[name]) for name in true_counts if name]
    return sum(scores) / len(scores) if scores else 0.0


def multirc_em(predicted: Labels, true: Sequence[str], groups: Sequence[str]) -> float:
    """Share of questions (rows of one group) with all rows right; a row without a group is a question by itself.

    Samples that hold only some rows of a question are not comparable: fewer rows are easier to get all right.

    Example:
        >>> multirc_em(["yes", "no", "yes"], ["yes", "yes", "yes"], ["1", "1", "2"])
        50.0
    """
    is_right: dict[tuple[str, int], bool] = {}
    for row, (p, t, group) in enumerate(zip(predicted, true, groups, strict=True)):
        question = (group, -1 if group else row)
        is_right[question] = is_right.get(question, True) and p == t
    return 100.0 * sum(is_right.values()) / len(is_right)


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


def mae(predicted: Sequence[float], true: Sequence[float]) -> float:
    """Mean absolute error, in the unit of the targets.

    Example:
        >>> mae([1.0, 2.0, 3.0], [1.0, 4.0, 4.0])
        1.0
    """
    return float(numpy.abs(_errors(predicted, true)).mean())


def rmse(predicted: Sequence[float], true: Sequence[float]) -> float:
    """Root mean squared error, in the unit of the targets.

    Example:
        >>> rmse([1.0, 2.0, 3.0, 4.0], [1.0, 4.0, 3.0, 4.0])
        1.0
    """
    errors = _errors(predicted, true)
    largest = float(numpy.abs(errors).max())
    return largest * math.sqrt(float(((errors / largest) ** 2).mean())) if largest else 0.0  # no square overflows


def r2(predicted: Sequence[float], true: Sequence[float]) -> float:
    """Share of the targets' variance that is predicted: 100 is perfect, 0 is as good as the mean of these targets.

    With constant targets it is 0, or 100 if every prediction is right, as in scikit-learn.

    Example:
        >>> r2([1.0, 2.0, 3.0], [1.0, 2.0, 4.0])  # errors 0, 0, 1; deviations from 7/3
        78.57142857142857
    """
    error = rmse(predicted, true)
    spread = rmse([float(numpy.mean(true))] * len(true), true) if numpy.ptp(true) else 0.0
    if not spread:
        return 0.0 if error else 100.0
    return 100.0 * (1.0 - (error / spread) ** 2)


def _errors(predicted: Sequence[float], true: Sequence[float]) -> numpy.typing.NDArray[numpy.float64]:
    return numpy.asarray(predicted, dtype=numpy.float64) - numpy.asarray(true, dtype=numpy.float64)


def relation_of(label: str | None) -> str:
    """The relation of a label with a direction; empty for other labels.

    Example:
        >>> relation_of("Cause-Effect(e2,e1)"), relation_of("Other")
        ('Cause-Effect', '')
    """
    match = _DIRECTED.fullmatch(label or "")
    return match[1] if match else ""


def normalise_text(text: str) -> str:
    """A text as SQuAD compares it.

    Example:
        >>> normalise_text(" The  U.S. of A!")
        'us of'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(predicted: Labels, right: Sequence[tuple[str, ...]]) -> float:
    """Share of texts equal to one of the row's right answers after SQuAD's normalisation.

    Example:
        >>> exact_match(["The  cat!", "dog"], [("kitten", "cat"), ("hog",)])
        50.0
    """
    return _mean_of_best(_is_equal, predicted, right)


def word_f1(predicted: Labels, right: Sequence[tuple[str, ...]]) -> float:
    """SQuAD's F1 over normalised words, of the right answer that fits best.

    Example:
        >>> round(word_f1(["the black cat"], [("dog", "a cat")]), 2)  # precision 1/2, recall 1
        66.67
    """
    return _mean_of_best(_word_overlap, predicted, right)


def _mean_of_best(measure: Callable[[str, str], float], predicted: Labels, right: Sequence[tuple[str, ...]]) -> float:
    scores = [
        0.0 if text is None else max((measure(text, answer) for answer in answers), default=0.0)
        for text, answers in zip(predicted, right, strict=True)
    ]
    return 100.0 * sum(scores) / len(scores)


def _is_equal(predicted: str, right: str) -> float:
    return float(normalise_text(predicted) == normalise_text(right))


def _word_overlap(predicted: str, right: str) -> float:
    words, right_words = normalise_text(predicted).split(), normalise_text(right).split()
    common = sum((Counter(words) & Counter(right_words)).values())
    return 2.0 * common / (len(words) + len(right_words)) if common else 0.0


def span_precision(predicted: SpanRows, true: SpanRows) -> float:
    """Share of the predicted spans that are right.

    Example:
        >>> span_precision([[Span(0, 3, "PER"), Span(8, 12, "LOC")]], [[Span(0, 3, "PER")]])
        50.0
    """
    hits, num_predicted, _ = _count_spans(predicted, true)
    return 100.0 * hits / num_predicted if num_predicted else 0.0


def span_recall(predicted: SpanRows, true: SpanRows) -> float:
    """Share of the true spans that are predicted.

    Example:
        >>> span_recall([[Span(0, 3, "PER"), Span(8, 12, "LOC")]], [[Span(0, 3, "PER")]])
        100.0
    """
    hits, _, num_true = _count_spans(predicted, true)
    return 100.0 * hits / num_true if num_true else 0.0


def span_f1(predicted: SpanRows, true: SpanRows) -> float:
    """Harmonic mean of span_precision and span_recall.

    Example:
        >>> round(span_f1([[Span(0, 3, "PER"), Span(8, 12, "LOC")]], [[Span(0, 3, "PER")]]), 2)
        66.67
    """
    hits, num_predicted, num_true = _count_spans(predicted, true)
    return 200.0 * hits / (num_predicted + num_true) if hits else 0.0


def _count_spans(predicted: SpanRows, true: SpanRows) -> tuple[int, int, int]:
    """Numbers of right, predicted and true spans."""
    rows = [(set(spans), set(true_spans)) for spans, true_spans in zip(predicted, true, strict=True)]
    return (
        sum(len(spans & true_spans) for spans, true_spans in rows),
        sum(len(spans) for spans, _ in rows),
        sum(len(true_spans) for _, true_spans in rows),
    )
