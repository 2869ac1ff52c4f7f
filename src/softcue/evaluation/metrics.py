"""Scores as pure functions of two lists: what was predicted and what is true. All lie in 0..100 or -100..100.

Each is tested against a hand-worked or official example.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy

from softcue.errors import ConfigurationError, near_matches

Metric = Callable[[Sequence[str], Sequence[str]], float]
NumberMetric = Callable[[Sequence[float], Sequence[float]], float]


def accuracy(predicted: Sequence[str], true: Sequence[str]) -> float:
    """Share of equal pairs.

    Example:
        >>> accuracy(["a", "b", "b", "b"], ["a", "b", "b", "a"])
        75.0
    """
    return 100.0 * sum(p == t for p, t in zip(predicted, true, strict=True)) / len(true)


def macro_f1(predicted: Sequence[str], true: Sequence[str]) -> float:
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


def matthews(predicted: Sequence[str], true: Sequence[str]) -> float:
    """Matthews correlation, for any number of labels; 0 when either side is constant."""
    from sklearn.metrics import matthews_corrcoef

    if len(set(predicted)) == 1 or len(set(true)) == 1:
        return 0.0  # sklearn says so too, with a warning
    return 100.0 * float(matthews_corrcoef(list(true), list(predicted)))


def exact_match(predicted: Sequence[str], true: Sequence[str]) -> float:
    """Share of texts equal after SQuAD's normalisation: case, punctuation, articles and spaces ignored.

    Example:
        >>> exact_match(["The  cat!"], ["cat"])
        100.0
    """
    return accuracy([_normalised(text) for text in predicted], [_normalised(text) for text in true])


def word_f1(predicted: Sequence[str], true: Sequence[str]) -> float:
    """SQuAD's F1 over normalised words.

    Example:
        >>> round(word_f1(["the black cat"], ["a cat"]), 2)  # precision 1/2, recall 1
        66.67
    """
    return 100.0 * sum(_overlap(p, t) for p, t in zip(predicted, true, strict=True)) / len(true)


def pearson(predicted: Sequence[float], true: Sequence[float]) -> float:
    """Pearson correlation; 0 when either side is constant."""
    if numpy.ptp(predicted) == 0 or numpy.ptp(true) == 0:
        return 0.0
    return 100.0 * float(numpy.corrcoef(predicted, true)[0, 1])


def spearman(predicted: Sequence[float], true: Sequence[float]) -> float:
    """Pearson correlation of the ranks, ties at their mean rank."""
    from scipy.stats import rankdata

    return pearson(rankdata(predicted).tolist(), rankdata(true).tolist())


def pearson_spearman(predicted: Sequence[float], true: Sequence[float]) -> float:
    """Mean of the two correlations, as GLUE averages them for STS-B."""
    return (pearson(predicted, true) + spearman(predicted, true)) / 2


LABEL_METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "macro_f1": macro_f1,
    "matthews": matthews,
}
TEXT_METRICS: dict[str, Metric] = {"exact_match": exact_match, "word_f1": word_f1}
NUMBER_METRICS: dict[str, NumberMetric] = {
    "pearson": pearson,
    "spearman": spearman,
    "pearson_spearman": pearson_spearman,
}
METRICS_OF: dict[str, Mapping[str, Callable[..., float]]] = {
    "classification": LABEL_METRICS,
    "generation": TEXT_METRICS,
    "regression": NUMBER_METRICS,
}


def check_metric(name: str, kind: str) -> None:
    """Refuse a metric the task's kind does not have."""
    known = METRICS_OF[kind]
    if name not in known:
        raise ConfigurationError("task.metric", name, f"a metric for {kind}", near_matches(name, known))


def _normalised(text: str) -> str:
    text = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def _overlap(predicted: str, true: str) -> float:
    found, wanted = _normalised(predicted).split(), _normalised(true).split()
    if not found or not wanted:
        return float(found == wanted)
    common = sum((Counter(found) & Counter(wanted)).values())
    return 2.0 * common / (len(found) + len(wanted))
