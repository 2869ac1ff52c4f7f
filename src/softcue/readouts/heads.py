"""A trained head on one vector per text: classes by softmax, or a score by regression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from softcue.backbones import Backbone, ForwardPass, Summary
from softcue.randomness import RowDropout
from softcue.readouts.closed_form import best_strength, solve_linear
from softcue.readouts.readout import Loss, Readout, ReadoutConfig, label_prediction
from softcue.tasks import Task
from softcue.types import Batch, Example, Prediction, TokenizedRow


def make_head(kind: str, width: int, num_outputs: int, dropout: float, init: float) -> nn.Sequential:
    """`linear`, or RoBERTa's dense-tanh-linear.

    Example:
        >>> sum(p.numel() for p in make_head("mlp", 1024, 2, 0.1, 0.02).parameters())
        1051650
    """
    layers: list[nn.Module] = []
    if kind == "mlp":
        layers += [RowDropout(dropout), nn.Linear(width, width), nn.Tanh()]
    layers += [RowDropout(dropout), nn.Linear(width, num_outputs)]
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=init)
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


class PooledHead(Readout):
    """What classifier and regression share: pooling, then a head."""

    def __init__(self, task: Task, config: ReadoutConfig, backbone: Backbone) -> None:
        super().__init__(task, config, backbone)
        assert config.pooling != "auto", "settled by make_readout"
        compares = config.pairs == "compare" and task.num_sentences == 2
        self.summary: Summary = "compared" if compares else config.pooling
        num_outputs = 1 if task.kind == "regression" else len(task.labels)
        width = backbone.hidden_width * (2 if compares else 1)
        self.head = make_head(config.head, width, num_outputs, config.dropout, config.head_init)

    def outputs(self, forward_pass: ForwardPass) -> Tensor:
        """The head's outputs. [B C]"""
        return self.head(forward_pass.features(self.summary))  # type: ignore[no-any-return]

    @property
    def linear(self) -> nn.Linear | None:
        """The head, where it is a single linear layer."""
        layers = [layer for layer in self.head if isinstance(layer, nn.Linear)]
        return layers[0] if len(layers) == 1 else None

    def solve(self, features: Tensor, labels: Sequence[int | float], strength: float | None = None) -> None:
        """Logistic regression, or ridge regression on standardised scores."""
        if self.linear is None:
            return super().solve(features, labels, strength)
        wanted = self.standardised(labels)
        strength = best_strength(features, wanted, self.linear.out_features) if strength is None else strength
        return solve_linear(self.linear, features, wanted, strength)

    def standardised(self, labels: Sequence[int | float]) -> Sequence[int | float]:
        """What the head's outputs are to be for these labels."""
        return labels


class Classifier(PooledHead):
    """Cross-entropy over the task's labels.

    Outputs keep the order of `task.label_names`.
    """

    def with_target(self, tokens: TokenizedRow, example: Example) -> TokenizedRow:
        """With the class number."""
        return replace(tokens, label=self.task.label_names.index(str(example.target)))

    def loss(self, forward_pass: ForwardPass, batch: Batch) -> Loss:
        """Cross-entropy."""
        assert batch.labels is not None
        return Loss(functional.cross_entropy(self.outputs(forward_pass), batch.labels, reduction="sum"), batch.size)

    def predict(self, forward_pass: ForwardPass) -> list[Prediction]:
        """A label per row."""
        probabilities = self.outputs(forward_pass).softmax(dim=-1)  # [B C]
        return [label_prediction(self.task, row) for row in probabilities.tolist()]


class Regression(PooledHead):
    """Squared error on one number, standardised by what the training rows showed."""

    mean: Tensor
    scale: Tensor

    def __init__(self, task: Task, config: ReadoutConfig, backbone: Backbone) -> None:
        super().__init__(task, config, backbone)
        # Buffers: no optimizer may touch them, and a cue must bring them along.
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    def see(self, examples: Sequence[Example]) -> None:
        """Take centre and spread from the training scores."""
        scores = torch.tensor([float(example.target) for example in examples if example.target is not None])
        self.mean.copy_(scores.mean())
        self.scale.copy_(scores.std(unbiased=False).clamp(min=1e-6))

    def standardised(self, labels: Sequence[int | float]) -> Sequence[int | float]:
        """In standard deviations."""
        return ((torch.tensor(labels) - self.mean.cpu()) / self.scale.cpu()).tolist()

    def with_target(self, tokens: TokenizedRow, example: Example) -> TokenizedRow:
        """With the score."""
        assert example.target is not None
        return replace(tokens, label=float(example.target))

    def loss(self, forward_pass: ForwardPass, batch: Batch) -> Loss:
        """Squared error in standard deviations."""
        assert batch.labels is not None
        wanted = (batch.labels - self.mean) / self.scale  # [B]
        return Loss((self.outputs(forward_pass).squeeze(1) - wanted).square().sum(), batch.size)

    def predict(self, forward_pass: ForwardPass) -> list[Prediction]:
        """A number per row."""
        values = self.outputs(forward_pass).squeeze(1) * self.scale + self.mean  # [B]
        return [Prediction(None, value=value) for value in values.tolist()]
