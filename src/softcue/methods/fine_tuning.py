"""Fine-tuning: all weights of the backbone are trained, in a copy. The shared backbone itself never changes."""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from pydantic import Field
from torch import nn

from softcue.backbones import Backbone
from softcue.methods.method import Method, MethodConfig
from softcue.tasks import Task


class FineTuningConfig(MethodConfig):
    """Fine-tuning."""

    dropout: bool = Field(
        False,
        description="the backbone's own dropout in training, as in RoBERTa's recipe; "
        "micro-batches of a batch share its noise",
    )


class FineTuning(Method):
    """All weights are trained. The cue holds a full copy of them."""

    Config: ClassVar[type[MethodConfig]] = FineTuningConfig
    summary = "all weights of the backbone are trained: a copy per task (a baseline)"
    paper = "-"
    stores_backbone = True

    def __init__(self, weights: dict[str, nn.Parameter], config: FineTuningConfig) -> None:
        super().__init__()
        # A parameter's name may not contain dots.
        self.weights = nn.ParameterDict({name.replace(".", "/"): value for name, value in weights.items()})
        self.config: FineTuningConfig = config
        self._twin: tuple[Backbone, Backbone] | None = None  # the frozen backbone and its fine-tuned twin

    @classmethod
    def build(cls, config: MethodConfig, backbone: Backbone, task: Task, generator: torch.Generator | None) -> Self:
        """Copy the backbone's weights."""
        assert isinstance(config, FineTuningConfig)
        weights = {name: nn.Parameter(value.detach().clone().float()) for name, value in backbone.weights().items()}
        return cls(weights, config)

    def prompt_parameters(self) -> list[nn.Parameter]:
        """Return the backbone's weights: they use `learning_rate`, so a new head can learn faster than they do."""
        return list(self.weights.values())

    def view_of(self, backbone: Backbone) -> Backbone:
        """Return a twin of the backbone that has these weights."""
        if self._twin is None or self._twin[0] is not backbone:
            weights = {name.replace("/", "."): value for name, value in self.weights.items()}
            self._twin = (backbone, backbone.with_weights(weights))
        twin = self._twin[1]
        twin.model.train(self.training and self.config.dropout)
        return twin
