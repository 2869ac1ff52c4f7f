"""Several cues of one task as one answer: a majority vote (Lester et al. 2021, section 6), or mean probabilities.

The paper votes over prompts on one frozen model and leaves ties open. Ours go to the label that all cues together
find likeliest, then to the task's order of labels.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from softcue.errors import ConfigurationError
from softcue.tasks import Task
from softcue.types import Prediction

TINY = sys.float_info.min  # stands for a probability that is zero or unknown


def vote(answers: Sequence[Prediction]) -> Prediction:
    """One answer from several cues' answers to one row: the label most of them give, or their mean value.

    The scores are mean probabilities, so the winner need not have the highest of them.

    Example:
        >>> sure, unsure = {"a": 0.9, "b": 0.1}, {"a": 0.4, "b": 0.6}
        >>> vote([Prediction("a", scores=sure), Prediction("b", scores=unsure)]).as_dict()
        {'label': 'a', 'scores': {'a': 0.65, 'b': 0.35}}
        >>> vote([Prediction(None, value=1.0), Prediction(None, value=2.0)]).value
        1.5
    """
    if not answers:
        raise ValueError("a vote needs at least one answer")
    values = [answer.value for answer in answers if answer.value is not None]
    if values:
        return Prediction(None, value=fmean(values))
    counts = votes(answers)
    scores = [answer.scores or {} for answer in answers]
    labels = list(dict.fromkeys([*(label for known in scores for label in known), *counts]))
    tied = [label for label in labels if counts.get(label) == max(counts.values())]
    # Spans have a likelihood of their own instead of scores; max takes the first of equals.
    strengths = {label: math.fsum(answer.strength for answer in answers if answer.label == label) for label in tied}
    winner = max(tied, key=lambda label: (_log_likelihood(label, scores), strengths[label]))
    named = max((answer for answer in answers if answer.label == winner), key=lambda answer: answer.strength)
    return Prediction(winner, scores=_means(labels, scores) or None, spans=named.spans, is_illegal=named.is_illegal)


def mean(answers: Sequence[Prediction]) -> Prediction:
    """One answer from several cues' answers to one row: the label with the highest mean probability, or a mean value.

    Example:
        >>> sure, unsure = {"a": 0.1, "b": 0.9}, {"a": 0.6, "b": 0.4}
        >>> mean([Prediction("b", scores=sure), Prediction("a", scores=unsure), Prediction("a", scores=unsure)]).label
        'b'
    """
    if any(answer.value is not None for answer in answers):
        return vote(answers)
    scores = [answer.scores or {} for answer in answers]
    means = _means(list(scores[0]), scores) if scores else {}
    if not means:
        raise ConfigurationError(
            setting="mean",
            got="answers without probabilities",
            expected="cues that rank labels or have a head",
            fix="use a vote",
        )
    return Prediction(max(means, key=means.__getitem__), scores=means)


def _means(labels: Sequence[str], scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean probability of every label that all cues know."""
    return {
        label: fmean(known[label] for known in scores) for label in labels if all(label in known for known in scores)
    }


def votes(answers: Sequence[Prediction]) -> dict[str, int]:
    """How many answers each label got, most first; empty for regression.

    Example:
        >>> votes([Prediction("a"), Prediction("b"), Prediction("b")])
        {'b': 2, 'a': 1}
    """
    return dict(Counter(answer.label for answer in answers if answer.label is not None).most_common())


def check_one_task(tasks: Mapping[str, Task]) -> None:
    """Refuse to let cues, by name, vote together that read or answer different things.

    Example:
        >>> check_one_task({"seed0": Task(name="films"), "seed1": Task(name="films", text=("review",))})
        Traceback (most recent call last):
        softcue.errors.ConfigurationError: cues: got 'seed1: reads review'; expected seed0: reads text, ...
    """
    (first, wanted), *others = [(name, _summary(task)) for name, task in tasks.items()]
    for name, found in others:
        for ours, theirs in zip(wanted, found, strict=True):
            if ours != theirs:
                raise ConfigurationError(
                    setting="cues",
                    got=f"{name}: {theirs}",
                    expected=f"{first}: {ours}, as it votes with it",
                    fix="name cues of one task",
                )


def _summary(task: Task) -> tuple[str, str, str]:
    """What cues must have in common to vote."""
    # Without labels, nothing but its column tells what a number or a text stands for.
    answers = ", ".join(sorted(task.label_names)) or f"column {task.label}"
    return f"reads {', '.join(task.text)}", f"is for {task.kind}", f"answers {answers}"


def _log_likelihood(label: str, scores: Sequence[Mapping[str, float]]) -> float:
    """Of the label under all cues; summed exactly, so that the order of the cues cannot decide."""
    return math.fsum(math.log(max(known.get(label, TINY), TINY)) for known in scores)
