"""The rows that a cue gets wrong, worst first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from softcue.evaluation.metrics import normalise_text
from softcue.evaluation.scoring import legal_text, legal_value, predicted_set, scored_text
from softcue.tasks import Task
from softcue.types import Example, Prediction, Span, label_text, labels_text


@dataclass(frozen=True)
class WrongRow:
    """A row with a wrong prediction."""

    number: int  # of the row, from 1
    texts: tuple[str, ...]
    true: str
    predicted: str
    # Probability of the predicted label; for regression the error; for sets of labels how far the probability of the
    # worst label is on the wrong side, from 0 to 1. None if there is no such number.
    score: float | None

    def as_dict(self) -> dict[str, object]:
        """All values, for JSON."""
        return asdict(self)


def wrong_rows(
    task: Task, predictions: Sequence[Prediction], examples: Sequence[Example], limit: int = 10
) -> list[WrongRow]:
    """The wrong rows: the most confident ones first, for regression those with the largest error.

    Rows without a probability come last, in their order.

    Example:
        >>> from softcue.tasks import Label
        >>> task = Task(name="t", labels={"a": Label(words="a"), "b": Label(words="b")})
        >>> rows = [Example(("x",), "a"), Example(("y",), "a")]
        >>> unsure, sure = (Prediction("b", scores={"a": 1 - p, "b": p}) for p in (0.6, 0.9))
        >>> [(row.texts, row.score) for row in wrong_rows(task, [unsure, sure], rows)]
        [(('y',), 0.9), (('x',), 0.6)]
    """
    rows = []
    for number, (prediction, example) in enumerate(zip(predictions, examples, strict=True), start=1):
        outcome = row_outcome(task, prediction, example)
        if not outcome.is_right:
            rows.append(WrongRow(number, example.texts, outcome.true, outcome.predicted, outcome.score))
    return sorted(rows, key=lambda row: -math.inf if row.score is None else row.score, reverse=True)[:limit]


@dataclass(frozen=True)
class RowOutcome:
    """A row's target and its prediction, as text."""

    true: str
    predicted: str
    is_right: bool
    score: float | None = None  # as that of WrongRow


def row_outcome(task: Task, prediction: Prediction, example: Example) -> RowOutcome:
    """Compare a prediction with its target.

    Example:
        >>> from softcue.tasks import Label
        >>> task = Task(name="t", labels={"a": Label(words="a"), "b": Label(words="b")})
        >>> row_outcome(task, Prediction("b"), Example(("x",), "a"))
        RowOutcome(true='a', predicted='b', is_right=False, score=None)
    """
    if task.kind == "regression":
        value = legal_value(prediction)
        true = float(example.target or 0.0)
        error = None if value is None else abs(value - true)
        return RowOutcome(f"{true:g}", "none" if value is None else f"{value:.4g}", value == true, error)
    if task.kind == "multi-label":
        predicted, true_labels = predicted_set(prediction), tuple(sorted(example.labels))
        worst = _worst(prediction, example)
        return RowOutcome(labels_text(true_labels), labels_text(predicted), predicted == true_labels, worst)
    if task.kind == "tags":
        spans, text = prediction.spans or (), example.texts[-1]
        is_right = not prediction.is_illegal and set(spans) == set(example.spans)
        return RowOutcome(_name_spans(text, example.spans), _name_spans(text, spans), is_right)
    label = scored_text(task, prediction, example)
    answers = example.answers or (str(example.target),)
    is_right = label is not None and (
        label == str(example.target)
        if task.has_classes
        else normalise_text(label) in {normalise_text(answer) for answer in answers}
    )
    is_legal = legal_text(task, prediction, example) is not None
    shown = str(prediction.label_text) if is_legal else f"{prediction.label_text} (illegal)"
    score = None if prediction.scores is None or prediction.label is None else prediction.scores.get(prediction.label)
    return RowOutcome(answers[0], shown, is_right, score)


def _worst(prediction: Prediction, example: Example) -> float | None:
    """The largest probability of a label that the row does not have, or of the absence of one that it has."""
    if prediction.scores is None:
        return None
    return max(
        1.0 - score if label_text(label) in example.labels else score for label, score in prediction.scores.items()
    )


def _name_spans(text: str, spans: Sequence[Span]) -> str:
    """Spans as text with their labels."""
    return ", ".join(f"{text[span.start : span.end]} ({span.label})" for span in sorted(spans)) or "none"
