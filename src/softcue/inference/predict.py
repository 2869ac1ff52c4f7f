"""Predictions for many rows, in batches of similar length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from softcue.backbones import Backbone
from softcue.inference.mixed_batches import predict_mixed, rows_together
from softcue.inference.task_model import TaskModel
from softcue.inputs.collate import by_length
from softcue.types import Example, Prediction, TokenizedRow


@dataclass(frozen=True)
class Predictions:
    """Answers in the order asked, and how many texts had to be cut."""

    answers: list[Prediction]
    num_truncated: int


Requests = Sequence[tuple[TaskModel, Example]]


@dataclass(frozen=True)
class PreparedRequests:
    """Requests as tokens, with M(x) where it is read: the same however often they are answered while a model learns."""

    requests: Requests
    sizes: list[int]  # pieces of each
    rows: list[tuple[TaskModel, TokenizedRow]]

    @classmethod
    def of(cls, backbone: Backbone, requests: Requests) -> PreparedRequests:
        """Made once."""
        unfolded = [model.split(example) for model, example in requests]
        parts = [(model, part) for (model, _), own in zip(requests, unfolded, strict=True) for part in own]
        tokens = rows_together(backbone, parts)
        return cls(
            requests, list(map(len, unfolded)), [(part[0], row) for part, row in zip(parts, tokens, strict=True)]
        )


def predict(backbone: Backbone, requests: Requests | PreparedRequests, batch_size: int = 64) -> Predictions:
    """Answers for requests of any tasks, in order; rows of like length share a pass, whatever their task."""
    asked = requests if isinstance(requests, PreparedRequests) else PreparedRequests.of(backbone, requests)
    rows = asked.rows
    for model in {id(model): model for model, _ in asked.requests if model.training}.values():
        model.eval()
    answers: list[Prediction | None] = [None] * len(rows)
    alike: dict[int, list[int]] = {}  # rows that may be so many tokens at once
    for number, (model, _) in enumerate(rows):
        alike.setdefault(model.tokens_at_once, []).append(number)
    for max_tokens, members in alike.items():
        lengths = [model.length(tokens) for model, tokens in (rows[number] for number in members)]
        for places in by_length(lengths, batch_size, max_tokens):
            numbers = [members[place] for place in places]
            found = predict_mixed(backbone, [rows[number] for number in numbers])
            for number, answer in zip(numbers, found, strict=True):
                answers[number] = answer
    in_order = iter([answer for answer in answers if answer is not None])
    return Predictions(
        [
            model.merge(example, [next(in_order) for _ in range(size)])
            for (model, example), size in zip(asked.requests, asked.sizes, strict=True)
        ],
        sum(tokens.is_truncated for _, tokens in rows),
    )
