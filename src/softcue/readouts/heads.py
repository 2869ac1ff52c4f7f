"""A trained head on one vector per text: classification by softmax, sets of labels by sigmoids, or regression."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from softcue.backbones import Backbone, ForwardPass, Summary
from softcue.errors import ConfigurationError
from softcue.randomness import RowDropout
from softcue.readouts.closed_form import solve_linear
from softcue.readouts.readout import (
    Readout,
    ReadoutConfig,
    class_label,
    class_losses,
    label_predictions,
    label_set_prediction,
    mask_suffix,
)
from softcue.tasks import Task
from softcue.types import Batch, Example, Prediction, RowLabel, TokenizedRow

TEMPERATURES = tuple(2.0 ** (step / 4) for step in range(41))  # 1 to 1024


def make_head(kind: str, width: int, num_outputs: int, dropout: float, init: float) -> nn.Sequential:
    """Make a head: `linear`, or `mlp` (RoBERTa's dense-tanh-linear).

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
    """A head on the pooled hidden states; the base of classification, sets of labels and regression."""

    feature_mean: Tensor  # [R] with `centre`; saved in the cue, but not trained
    feature_scale: Tensor  # []

    def __init__(self, task: Task, config: ReadoutConfig, backbone: Backbone) -> None:
        super().__init__(task, config, backbone)
        assert config.pooling != "auto" and config.pooling != "measured", "make_readout replaces them"
        compares = config.pairs == "compare" and task.num_sentences == 2
        self.summary: Summary = "compared" if compares else config.pooling
        self._suffix = mask_suffix(config, backbone) if self.summary == "mask" else ""
        num_outputs = 1 if task.kind == "regression" else len(task.labels)
        width = backbone.hidden_width * (2 if compares else 1)
        self._notes: list[str] = []
        if self.summary == "mask":
            width = backbone.mask_width
            if backbone.word_head is None:
                self._notes = [f"{backbone.name} has no masked-word head: the head reads the mask's last hidden state"]
        self.feature_width = width
        if config.centre:
            self.register_buffer("feature_mean", torch.zeros(width))
            self.register_buffer("feature_scale", torch.ones(()))
        self.head = make_head(config.head, width, num_outputs, config.dropout, config.head_init)

    @property
    def suffix(self) -> str:
        """The phrase with the mask token, if the head reads the state there."""
        return self._suffix

    @property
    def suffix_in_first(self) -> bool:
        """The mask is between two texts, as in WARP."""
        return self.summary == "mask"

    def fit_features(self, features: Tensor, weights: Tensor) -> None:
        """Set mean and root mean square of the features with `centre`."""
        if self.config.centre:
            row_weights = weights.to(features)  # [N]
            mean = row_weights @ features / row_weights.sum()  # [R]
            variances = row_weights @ (features - mean).square() / row_weights.sum()  # [R]
            self.feature_mean.copy_(mean)
            self.feature_scale.copy_(variances.mean().sqrt().clamp(min=1e-6))

    def _centred(self, features: Tensor) -> Tensor:
        """Return the features as the head reads them. [N R]"""
        return (features - self.feature_mean) / self.feature_scale if self.config.centre else features

    def outputs(self, features: Tensor) -> Tensor:
        """Return the head's outputs for features [B R]. [B C]"""
        return self.head(self._centred(features))  # type: ignore[no-any-return]

    @abstractmethod
    def scores(self, features: Tensor) -> Tensor:
        """Return what is predicted for features [B R]: a probability per label, or one number. [B C]"""

    def predict(self, forward_pass: ForwardPass) -> list[Prediction]:
        """Return a prediction per row."""
        return self.predict_from(forward_pass.features(self.summary))

    def notes(self) -> list[str]:
        """Return that the backbone has no masked-word head, if the head reads the state at a mask."""
        return self._notes

    def settings_to_try(self) -> list[str]:
        """Return the mean over all tokens instead of the vector of a single one."""
        return ["readout.pooling=mean"] if self.summary in ("cls", "last") else []

    @property
    def linear(self) -> nn.Linear | None:
        """The head's linear layer, if the head is only that."""
        layers = [layer for layer in self.head if isinstance(layer, nn.Linear)]
        return layers[0] if len(layers) == 1 else None

    def solve(
        self, features: Tensor, labels: Sequence[RowLabel], strength: float, weights: Sequence[float] | None = None
    ) -> None:
        """Set the head by logistic regression (for sets, of each label) or ridge regression on standardised scores."""
        self.check_solvable()
        assert self.linear is not None
        centred = self._centred(features.to(self.linear.weight.device))
        solve_linear(self.linear, centred.cpu(), self.standardise(labels), strength, weights)

    @property
    def ignores_scale(self) -> bool:
        """Whether predictions stay the same if all outputs are divided by a number."""
        return False

    @torch.no_grad()
    def calibrate(self, features: Tensor, labels: Sequence[RowLabel], weights: Sequence[float] | None = None) -> None:
        """Divide the outputs by the temperature under which the labels are likeliest (Guo et al. 2017).

        The predictions stay. A head that is sure of all its training rows would leave prompts nothing to learn.
        """
        if self.linear is None or not self.ignores_scale:
            return
        outputs, targets = self.outputs(features), torch.tensor(labels, device=features.device)  # [N C], [N ...]
        row_weights = outputs.new_tensor(weights or [1.0] * len(labels))  # [N]
        losses = {scale: float(self.losses_of(outputs / scale, targets) @ row_weights) for scale in TEMPERATURES}
        temperature = min(losses, key=losses.__getitem__)
        self.linear.weight.div_(temperature)
        self.linear.bias.div_(temperature)

    @abstractmethod
    def losses_of(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the losses of the head's outputs [B C] for the labels [B ...]. [B]"""

    def losses(self, forward_pass: ForwardPass, batch: Batch) -> Tensor:
        """Return the training loss of each row. [B]"""
        assert batch.labels is not None
        return self.losses_of(self.outputs(forward_pass.features(self.summary)), batch.labels)

    def start_from_words(self, backbone: Backbone) -> None:
        """Set each row of the head to the mean of the word vectors of a label's words."""
        if self.linear is None or self.summary != "mask" or not self.task.has_row_labels:
            return super().start_from_words(backbone)
        if self.linear.in_features != backbone.width:
            raise ConfigurationError(
                setting="readout.head_start",
                got="words",
                expected=f"a mask's state as wide as words, {backbone.width}; that of {backbone.name} has "
                f"{self.linear.in_features}",
                fix="leave it out",
            )
        for row, words in enumerate(self.task.label_words):
            ids = backbone.tokenizer(f" {words}", add_special_tokens=False)["input_ids"]
            self.linear.weight.data[row] = backbone.word_table[torch.tensor(ids)].detach().float().mean(dim=0)
        return None

    def standardise(self, labels: Sequence[RowLabel]) -> Sequence[RowLabel]:
        """Return the targets of the head's outputs for these labels."""
        return labels


class Classifier(PooledHead):
    """Cross-entropy over the task's labels.

    Outputs keep the order of `task.label_names`.
    """

    def with_target(self, row: TokenizedRow, example: Example) -> TokenizedRow:
        """Add the class index."""
        return replace(row, label=class_label(self.task, example.target))

    def solve(
        self, features: Tensor, labels: Sequence[RowLabel], strength: float, weights: Sequence[float] | None = None
    ) -> None:
        """Set the head by logistic regression, which needs classes and not probabilities."""
        if any(isinstance(label, float) for label in labels):
            raise ConfigurationError(
                setting="readout.head_start",
                got="solved",
                expected="random with a method whose targets are probabilities",
                fix="leave it out",
            )
        super().solve(features, labels, strength, weights)

    @property
    def ignores_scale(self) -> bool:
        """The label with the largest output stays."""
        return True

    def losses_of(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropies. [B]"""
        return class_losses(outputs, labels)

    def scores(self, features: Tensor) -> Tensor:
        """Return the probability of each label; they sum to 1. [B C]"""
        return self.outputs(features).softmax(dim=-1)

    def predict_from(self, features: Tensor) -> list[Prediction]:
        """Predict a label per row."""
        return label_predictions(self.task, self.scores(features).tolist())


class LabelSetClassifier(PooledHead):
    """Binary cross-entropy of each of the task's labels: a row may have none, one or several.

    Outputs keep the order of `task.label_names`. A label is predicted if its sigmoid reaches `readout.threshold`.
    """

    def with_target(self, row: TokenizedRow, example: Example) -> TokenizedRow:
        """Add a number for each label: 1 if the row has it, else 0."""
        return replace(row, label=tuple(float(name in example.labels) for name in self.task.label_names))

    @property
    def ignores_scale(self) -> bool:
        """A threshold of a half is an output of zero, whatever the scale."""
        return self.config.threshold == 0.5

    def losses_of(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the binary cross-entropies, means over the labels: they do not grow with the number of labels. [B]"""
        losses = functional.binary_cross_entropy_with_logits(outputs, labels.to(outputs.dtype), reduction="none")
        return losses.mean(dim=1)

    def scores(self, features: Tensor) -> Tensor:
        """Return the probability of each label by itself. [B C]"""
        return self.outputs(features).sigmoid()

    def predict_from(self, features: Tensor) -> list[Prediction]:
        """Predict a set of labels per row."""
        threshold = self.config.threshold
        return [label_set_prediction(self.task, row, threshold) for row in self.scores(features).tolist()]

    def settings_to_try(self) -> list[str]:
        """Return a lower threshold too: rare labels seldom reach a high probability."""
        return [*super().settings_to_try(), f"a lower readout.threshold (now {self.config.threshold:g})"]


class Regression(PooledHead):
    """Squared error on one score, standardised by the training rows."""

    mean: Tensor
    scale: Tensor

    def __init__(self, task: Task, config: ReadoutConfig, backbone: Backbone) -> None:
        super().__init__(task, config, backbone)
        # Buffers: they are saved in the cue, but not trained.
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    def fit_statistics(self, examples: Sequence[Example]) -> None:
        """Set mean and standard deviation from the training scores and their weights."""
        scores = torch.tensor([float(example.target) for example in examples if example.target is not None])
        weights = torch.tensor([example.weight for example in examples if example.target is not None])
        mean = weights @ scores / weights.sum()
        self.mean.copy_(mean)
        self.scale.copy_((weights @ (scores - mean).square() / weights.sum()).sqrt().clamp(min=1e-6))

    def standardise(self, labels: Sequence[RowLabel]) -> Sequence[RowLabel]:
        """Return the scores in standard deviations from the mean."""
        return ((torch.tensor(labels) - self.mean.cpu()) / self.scale.cpu()).tolist()

    def with_target(self, row: TokenizedRow, example: Example) -> TokenizedRow:
        """Add the score."""
        assert example.target is not None
        return replace(row, label=float(example.target))

    def losses_of(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the squared errors in standard deviations. [B]"""
        targets = (labels - self.mean) / self.scale  # [B]
        return (outputs.squeeze(1) - targets).square()

    def scores(self, features: Tensor) -> Tensor:
        """Return the score in its own unit. [B 1]"""
        return self.outputs(features) * self.scale + self.mean

    def predict_from(self, features: Tensor) -> list[Prediction]:
        """Predict a score per row."""
        return [Prediction(None, value=value) for (value,) in self.scores(features).tolist()]
