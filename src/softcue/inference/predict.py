"""Predictions for many rows, in batches of similar length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from softcue.backbones import Backbone
from softcue.inference.mixed_batches import predict_mixed, tokenize_requests
from softcue.inference.task_model import TaskModel
from softcue.inputs.collate import batch_by_length
from softcue.types import Example, Prediction, TokenizedRow


@dataclass(frozen=True)
class Predictions:
    """Predictions in the order of the requests, and the number of texts that were cut."""

    predictions: list[Prediction]
    num_truncated: int


Requests = Sequence[tuple[TaskModel, Example]]


@dataclass(frozen=True)
class PreparedRequests:
    """Tokenized requests, with M(x) where a method reads it. They can be predicted again while a model trains."""

    requests: Requests
    sizes: list[int]  # number of rows of each request
    rows: list[tuple[TaskModel, TokenizedRow]]

    @classmethod
    def of(cls, backbone: Backbone, requests: Requests) -> PreparedRequests:
        """Split and tokenize requests."""
        return cls.from_rows(requests, tokenize_split(backbone, requests))

    @classmethod
    def from_rows(cls, requests: Requests, split_rows: Sequence[Sequence[TokenizedRow]]) -> PreparedRequests:
        """Requests whose rows are tokenized already, by request."""
        rows = [(model, row) for (model, _), parts in zip(requests, split_rows, strict=True) for row in parts]
        return cls(requests, list(map(len, split_rows)), rows)

    def merge(self, predictions: Sequence[Prediction]) -> Predictions:
        """Join the predictions of all rows into those of the requests."""
        in_order = iter(predictions)
        return Predictions(
            [
                model.merge(example, [next(in_order) for _ in range(size)])
                for (model, example), size in zip(self.requests, self.sizes, strict=True)
            ],
            sum(tokenized.is_truncated for _, tokenized in self.rows),
        )


def tokenize_split(backbone: Backbone, requests: Requests) -> list[list[TokenizedRow]]:
    """The tokenized rows of each request; a long text has several.

    Example:
        tokenize_split(backbone, [(tickets_model, example)])[0][0].ids
    """
    split_examples = [model.split(example) for model, example in requests]
    split_requests = [
        (model, part) for (model, _), parts in zip(requests, split_examples, strict=True) for part in parts
    ]
    tokenized = iter(tokenize_requests(backbone, split_requests))
    return [[next(tokenized) for _ in parts] for parts in split_examples]


def predict(backbone: Backbone, requests: Requests | PreparedRequests, batch_size: int = 64) -> Predictions:
    """Predict requests of any tasks, in order. Rows of similar length share a pass, whatever their task.

    Example:
        predict(backbone, [(tickets_model, example), (urgency_model, example)]).predictions[0].label
    """
    prepared = requests if isinstance(requests, PreparedRequests) else PreparedRequests.of(backbone, requests)
    return prepared.merge(predict_rows(backbone, prepared.rows, batch_size))


def predict_rows(
    backbone: Backbone, rows: Sequence[tuple[TaskModel, TokenizedRow]], batch_size: int = 64
) -> list[Prediction]:
    """Predict tokenized rows of any tasks, in order.

    Example:
        predict_rows(backbone, PreparedRequests.of(backbone, requests).rows)[0].label
    """
    for model in {id(model): model for model, _ in rows if model.training}.values():
        model.eval()
    predictions: list[Prediction | None] = [None] * len(rows)
    by_token_limit: dict[int, list[int]] = {}  # most tokens per pass -> row numbers
    for number, (model, _) in enumerate(rows):
        by_token_limit.setdefault(model.tokens_at_once, []).append(number)
    for max_tokens, members in by_token_limit.items():
        lengths = [model.length(tokenized) for model, tokenized in (rows[number] for number in members)]
        for positions in batch_by_length(lengths, batch_size, max_tokens):
            numbers = [members[position] for position in positions]
            predicted = predict_mixed(backbone, [rows[number] for number in numbers])
            for number, prediction in zip(numbers, predicted, strict=True):
                predictions[number] = prediction
    return [prediction for prediction in predictions if prediction is not None]
