"""Predict and score the rows of a task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from softcue.backbones import Backbone
from softcue.evaluation.scoring import ScoredRows, check_metric, scores_of
from softcue.inference import TaskModel
from softcue.inference.predict import predict
from softcue.tasks import Task
from softcue.types import Example, Prediction


@dataclass(frozen=True)
class Evaluation:
    """Scores of a task on rows, with counts that explain them."""

    scores: dict[str, float]
    main: float  # the task's metric, or the mean of several; early stopping watches it
    num_rows: int
    num_truncated: int
    num_illegal: int  # predictions the task or the row does not allow; they count as wrong
    predicted_labels: dict[str, int]
    num_true_labels: int = 0

    @property
    def has_collapsed(self) -> bool:
        """Whether all rows got the same label although the true labels differ."""
        return len(self.predicted_labels) == 1 and self.num_true_labels > 1

    @property
    def illegal_share(self) -> float:
        """Share of illegal predictions, from 0 to 1.

        Example:
            >>> Evaluation({}, 0.0, num_rows=8, num_truncated=0, num_illegal=2, predicted_labels={}).illegal_share
            0.25
        """
        return self.num_illegal / self.num_rows if self.num_rows else 0.0


def evaluate(backbone: Backbone, model: TaskModel, examples: Sequence[Example], batch_size: int = 64) -> Evaluation:
    """Score a task's model on examples with known targets.

    Example:
        evaluate(backbone, model, examples).scores["accuracy"]
    """
    predicted = predict(backbone, [(model, example) for example in examples], batch_size)
    return score(model.task, predicted.predictions, examples, predicted.num_truncated)


def score(
    task: Task, predictions: Sequence[Prediction], examples: Sequence[Example], num_truncated: int = 0
) -> Evaluation:
    """Score predictions with the usual metrics of the task's kind and with those the task names.

    Example:
        >>> from softcue.tasks import Label
        >>> task = Task(name="t", labels={"a": Label(words="a"), "b": Label(words="b")}, metric="accuracy+macro_f1")
        >>> score(task, [Prediction("a"), Prediction("nonsense")], [Example(("x",), "a"), Example(("y",), "b")]).main
        50.0
    """
    check_metric(task)
    rows = ScoredRows.of(task, predictions, examples)
    scores = scores_of(rows)
    has_labels = bool(task.has_classes and task.labels)
    counts = Counter(str(prediction.label) for prediction in predictions) if has_labels else {}
    return Evaluation(
        scores,
        main=fmean(scores[name] for name in task.main_metrics),
        num_rows=len(examples),
        num_truncated=num_truncated,
        num_illegal=sum(rows.is_illegal),
        predicted_labels=dict(sorted(counts.items())),
        num_true_labels=len(set(rows.true)) if has_labels else 0,
    )
