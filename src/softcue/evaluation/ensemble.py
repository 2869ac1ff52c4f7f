"""Ensembles of cues of one task: a majority vote (Lester et al. 2021, section 6), or mean probabilities.

For sets of labels, cues vote on each label.

The paper votes over prompts on one frozen model and does not define ties. Here a tie goes to the label with the
highest likelihood under all cues together, then to the first label in the task's order.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from softcue.errors import ConfigurationError
from softcue.tasks import Task
from softcue.types import LabelValue, Prediction, label_text

TINY = sys.float_info.min  # stands for a probability that is zero or unknown


def vote(predictions: Sequence[Prediction]) -> Prediction:
    """Join several cues' predictions for one row: the label most of them predict, or their mean value.

    The scores are mean probabilities, so the winner need not have the highest score.

    Example:
        >>> sure, unsure = {"a": 0.9, "b": 0.1}, {"a": 0.4, "b": 0.6}
        >>> vote([Prediction("a", scores=sure), Prediction("b", scores=unsure)]).as_dict()
        {'label': 'a', 'scores': {'a': 0.65, 'b': 0.35}}
        >>> vote([Prediction(None, value=1.0), Prediction(None, value=2.0)]).value
        1.5
        >>> vote([Prediction(1), Prediction(0), Prediction(1)])
        Prediction(1)
        >>> vote([Prediction(None, labels=("a",)), Prediction(None, labels=("a", "b")), Prediction(None, labels=())])
        Prediction(labels=['a'])
    """
    if not predictions:
        raise ValueError("a vote needs at least one prediction")
    if any(prediction.labels is not None for prediction in predictions):
        return _vote_on_each_label(predictions)
    values = [prediction.value for prediction in predictions if prediction.value is not None]
    if values:
        return Prediction(None, value=fmean(values))
    values_by_text = _values_by_text(predictions)
    counts = _count_votes(predictions)
    scores = _scores_by_text(predictions)
    labels = list(dict.fromkeys([*(label for cue_scores in scores for label in cue_scores), *counts]))
    tied = [label for label in labels if counts.get(label) == max(counts.values())]
    # Spans have a likelihood (`strength`) instead of scores. `max` takes the first of equals.
    by_label = {label: [prediction for prediction in predictions if prediction.label_text == label] for label in tied}
    strengths = {label: math.fsum(prediction.strength for prediction in members) for label, members in by_label.items()}
    winner = max(tied, key=lambda label: (_log_likelihood(label, scores), strengths[label]))
    best = max(by_label[winner], key=lambda prediction: prediction.strength)
    means = {values_by_text[label]: score for label, score in _means(labels, scores).items()}
    return Prediction(values_by_text[winner], scores=means or None, spans=best.spans, is_illegal=best.is_illegal)


def mean(predictions: Sequence[Prediction]) -> Prediction:
    """Join several cues' predictions for one row: the label with the highest mean probability, or the mean value.

    Example:
        >>> sure, unsure = {"a": 0.1, "b": 0.9}, {"a": 0.6, "b": 0.4}
        >>> mean([Prediction("b", scores=sure), Prediction("a", scores=unsure), Prediction("a", scores=unsure)]).label
        'b'
    """
    if any(prediction.value is not None for prediction in predictions):
        return vote(predictions)
    scores = _scores_by_text(predictions)
    means = _means(list(scores[0]), scores) if scores else {}
    if not means:
        raise ConfigurationError(
            setting="mean",
            got="predictions without probabilities",
            expected="cues that rank labels or have a head",
            fix="use `vote`",
        )
    if any(prediction.labels is not None for prediction in predictions):
        return _mean_of_sets(predictions)
    values_by_text = _values_by_text(predictions)
    return Prediction(
        values_by_text[max(means, key=means.__getitem__)],
        scores={values_by_text[label]: score for label, score in means.items()},
    )


def votes(predictions: Sequence[Prediction]) -> dict[LabelValue, int]:
    """Count the predictions of each label, most frequent first; empty for regression.

    Example:
        >>> votes([Prediction("a"), Prediction("b"), Prediction("b")])
        {'b': 2, 'a': 1}
    """
    values_by_text = _values_by_text(predictions)
    return {values_by_text[label]: count for label, count in _count_votes(predictions).items()}


def _mean_of_sets(predictions: Sequence[Prediction]) -> Prediction:
    """The set of labels whose mean probability reaches the mean threshold of the cues."""
    values_by_text = _values_by_text(predictions)
    scores = _scores_by_text(predictions)
    means = _means(list(scores[0]), scores)
    threshold = fmean(prediction.threshold for prediction in predictions)
    return Prediction(
        None,
        scores={values_by_text[label]: score for label, score in means.items()} or None,
        labels=tuple(values_by_text[label] for label, score in means.items() if score >= threshold),
        threshold=threshold,
    )


def _vote_on_each_label(predictions: Sequence[Prediction]) -> Prediction:
    """The set of labels that more than half of the cues predict; the mean probability decides between halves."""
    values_by_text = _values_by_text(predictions)
    by_mean = _mean_of_sets(predictions)
    likely = {label_text(label) for label in by_mean.labels or ()}
    counts = _count_votes(predictions)
    labels = dict.fromkeys([*map(label_text, by_mean.scores or ()), *counts])  # in the order of the task
    chosen = [label for label in labels if (2 * counts.get(label, 0), label in likely) >= (len(predictions), True)]
    return replace(by_mean, labels=tuple(values_by_text[label] for label in chosen))


def _count_votes(predictions: Sequence[Prediction]) -> dict[str, int]:
    labels = (label_text(label) for prediction in predictions for label in _labels_of(prediction))
    return dict(Counter(labels).most_common())


def _labels_of(prediction: Prediction) -> tuple[LabelValue, ...]:
    """The predicted label or labels."""
    return prediction.labels or (() if prediction.label is None else (prediction.label,))


def _scores_by_text(predictions: Sequence[Prediction]) -> list[dict[str, float]]:
    """The probabilities of each prediction by the text of the label."""
    return [
        {label_text(label): score for label, score in (prediction.scores or {}).items()} for prediction in predictions
    ]


def _values_by_text(predictions: Sequence[Prediction]) -> dict[str, LabelValue]:
    """The label of each text. Cues of one task may have labels 1 and "1", trained on a DataFrame and on a csv file."""
    labels: list[LabelValue] = []
    for prediction in predictions:
        labels += prediction.scores or ()
        labels += _labels_of(prediction)
    labels.sort(key=lambda label: isinstance(label, str))  # a type beside text says more
    values: dict[str, LabelValue] = {}
    for label in labels:
        values.setdefault(label_text(label), label)
    return values


def _means(labels: Sequence[str], scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean probability of each label that all cues score."""
    return {
        label: fmean(cue_scores[label] for cue_scores in scores)
        for label in labels
        if all(label in cue_scores for cue_scores in scores)
    }


def check_one_task(tasks: Mapping[str, Task]) -> None:
    """Check that cues, by name, can be joined: they must read and predict the same.

    Example:
        >>> check_one_task({"seed0": Task(name="films"), "seed1": Task(name="films", text=("review",))})
        Traceback (most recent call last):
        softcue.errors.ConfigurationError: cues: got 'seed1: reads review'; expected seed0: reads text, ...
    """
    (first, first_facts), *others = [(name, _describe(task)) for name, task in tasks.items()]
    for name, facts in others:
        for first_fact, fact in zip(first_facts, facts, strict=True):
            if first_fact != fact:
                raise ConfigurationError(
                    setting="cues",
                    got=f"{name}: {fact}",
                    expected=f"{first}: {first_fact}, as all of them must",
                    fix="name cues of one task",
                )


def _describe(task: Task) -> tuple[str, str, str]:
    """The facts that cues of an ensemble must share."""
    # Without labels, only the name of the column says what a number or a text means.
    targets = ", ".join(sorted(task.label_names)) or f"column {task.label}"
    return f"reads {', '.join(task.text)}", f"is for {task.kind}", f"answers {targets}"


def _log_likelihood(label: str, scores: Sequence[Mapping[str, float]]) -> float:
    """Log-likelihood of the label under all cues; summed exactly, so that the order of the cues does not matter."""
    return math.fsum(math.log(max(cue_scores.get(label, TINY), TINY)) for cue_scores in scores)
