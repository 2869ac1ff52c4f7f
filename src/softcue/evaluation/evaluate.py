"""Predict many rows in length-sorted mixed batches, and score them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from softcue.backbones import Backbone
from softcue.evaluation.metrics import METRICS_OF, NUMBER_METRICS
from softcue.methods import TaskModel, by_model, predict_mixed
from softcue.tasks import Task
from softcue.tokens import by_length
from softcue.types import Example, Prediction, Tokens


@dataclass(frozen=True)
class Evaluation:
    """Scores of one task on some rows, and what else a reader should know of them."""

    scores: dict[str, float]
    main: float  # the task's own metric
    num_rows: int
    num_truncated: int
    num_illegal: int  # generated answers that are no label
    predicted_labels: dict[str, int]
    num_true_labels: int = 0

    @property
    def has_collapsed(self) -> bool:
        """Whether every row got the same label although the truth has several."""
        return len(self.predicted_labels) == 1 and self.num_true_labels > 1


@dataclass(frozen=True)
class Predicted:
    """Answers in the order asked, and how many texts had to be cut."""

    answers: list[Prediction]
    num_truncated: int


def predict(
    backbone: Backbone,
    requests: Sequence[tuple[TaskModel, Example]],
    batch_size: int = 64,
) -> Predicted:
    """Answers for requests of any tasks, in order; rows of like length share a pass, whatever their task."""
    unfolded = [model.unfold(example) for model, example in requests]
    models = [model for model, _ in requests]
    rows = _rows(backbone, [(model, part) for model, own in zip(models, unfolded, strict=True) for part in own])
    answers: list[Prediction | None] = [None] * len(rows)
    lengths = [len(tokens.ids) + model.method.prompt_length for model, tokens in rows]
    for numbers in by_length(lengths, batch_size):
        found = predict_mixed(backbone, [rows[number] for number in numbers])
        for number, answer in zip(numbers, found, strict=True):
            answers[number] = answer
    in_order = iter([answer for answer in answers if answer is not None])
    return Predicted(
        [model.fold([next(in_order) for _ in own]) for model, own in zip(models, unfolded, strict=True)],
        sum(tokens.is_truncated for _, tokens in rows),
    )


def _rows(backbone: Backbone, requests: Sequence[tuple[TaskModel, Example]]) -> list[tuple[TaskModel, Tokens]]:
    """Tokens of each request, made together for all requests of a model."""
    rows: dict[int, tuple[TaskModel, Tokens]] = {}
    for model, numbers in by_model([model for model, _ in requests]):
        made = model.eval().rows(backbone, [requests[number][1] for number in numbers])
        rows |= {number: (model, tokens) for number, tokens in zip(numbers, made, strict=True)}
    return [rows[number] for number in range(len(requests))]


def evaluate(backbone: Backbone, model: TaskModel, examples: Sequence[Example], batch_size: int = 64) -> Evaluation:
    """Score a task's model on examples with known answers."""
    found = predict(backbone, [(model, example) for example in examples], batch_size)
    return score(model.task, found.answers, examples, found.num_truncated)


def score(task: Task, answers: Sequence[Prediction], examples: Sequence[Example], num_truncated: int = 0) -> Evaluation:
    """All metrics of the task's kind."""
    scores: dict[str, float] = {}
    if task.kind == "regression":
        values = [answer.value or 0.0 for answer in answers]
        truths = [float(example.target or 0.0) for example in examples]
        scores = {name: metric(values, truths) for name, metric in NUMBER_METRICS.items()}
        return Evaluation(scores, scores[task.main_metric], len(examples), num_truncated, 0, {})
    labels = [str(answer.label) for answer in answers]
    wanted = [str(example.target) for example in examples]
    scores = {name: metric(labels, wanted) for name, metric in METRICS_OF[task.kind].items()}
    counts = {label: labels.count(label) for label in sorted(set(labels))} if task.labels else {}
    illegal = sum(label not in task.labels for label in labels) if task.labels else 0
    num_true = len(set(wanted)) if task.labels else 0
    return Evaluation(scores, scores[task.main_metric], len(examples), num_truncated, illegal, counts, num_true)
