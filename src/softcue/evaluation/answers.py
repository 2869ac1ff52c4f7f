"""Answers as texts: which of them a row allows, and SQuAD's scores for them.

The scores follow the evaluate script of SQuAD v1.1, which MRQA and ReCoRD use unchanged with their own answers. Its
order of operations: lower case, punctuation away, articles away, spaces joined. Its F1 is 0 wherever no word is
shared, so also where both texts are empty after that; SQuAD v2's script gives 1 there, to score questions without
an answer, which v1.1 does not have.

None stands for an illegal answer, which is never right.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

from softcue.tasks import Task
from softcue.types import Example, Prediction

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def legal_text(task: Task, answer: Prediction, example: Example) -> str | None:
    """The answer's label or text, or None if the readout, the task or the row does not allow it.

    Example:
        >>> row = Example(("Who?",), options=("Ada Lovelace", "Babbage"))
        >>> task = Task(name="t", kind="generation")
        >>> legal_text(task, Prediction("the Babbage!"), row), legal_text(task, Prediction("Ada"), row)
        ('the Babbage!', None)
    """
    text = answer.label
    if text is None or answer.is_illegal:
        return None
    if task.has_classes:
        return text if text in task.labels or not task.labels else None
    if example.options and normalised(text) not in {normalised(option) for option in example.options}:
        return None
    return text


def legal_value(answer: Prediction) -> float | None:
    """The answer's number, or None if there is none that could be scored.

    Example:
        >>> legal_value(Prediction(None, value=2.5)), legal_value(Prediction("warm"))
        (2.5, None)
    """
    if answer.is_illegal or answer.value is None or not math.isfinite(answer.value):
        return None
    return answer.value


def normalised(text: str) -> str:
    """A text as SQuAD compares it.

    Example:
        >>> normalised(" The  U.S. of A!")
        'us of'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(predicted: Sequence[str | None], right: Sequence[tuple[str, ...]]) -> float:
    """Share of texts equal to one of the row's right answers after SQuAD's normalisation.

    Example:
        >>> exact_match(["The  cat!", "dog"], [("kitten", "cat"), ("hog",)])
        50.0
    """
    return _mean_of_best(_is_equal, predicted, right)


def word_f1(predicted: Sequence[str | None], right: Sequence[tuple[str, ...]]) -> float:
    """SQuAD's F1 over normalised words, of the right answer that fits best.

    Example:
        >>> round(word_f1(["the black cat"], [("dog", "a cat")]), 2)  # precision 1/2, recall 1
        66.67
    """
    return _mean_of_best(_overlap, predicted, right)


def _mean_of_best(
    measure: Callable[[str, str], float], predicted: Sequence[str | None], right: Sequence[tuple[str, ...]]
) -> float:
    found = [
        0.0 if text is None else max((measure(text, answer) for answer in answers), default=0.0)
        for text, answers in zip(predicted, right, strict=True)
    ]
    return 100.0 * sum(found) / len(found)


def _is_equal(predicted: str, right: str) -> float:
    return float(normalised(predicted) == normalised(right))


def _overlap(predicted: str, right: str) -> float:
    found, wanted = normalised(predicted).split(), normalised(right).split()
    common = sum((Counter(found) & Counter(wanted)).values())
    return 2.0 * common / (len(found) + len(wanted)) if common else 0.0
