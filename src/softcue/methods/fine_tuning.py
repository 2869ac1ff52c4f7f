"""Fine-tuning: all weights of the backbone are trained, in a copy. The shared backbone itself never changes."""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from pydantic import Field
from torch import nn

from softcue.backbones import Backbone
from softcue.methods.backbone_weights import BackboneWeights
from softcue.methods.method import Method, MethodConfig
from softcue.tasks import Task


class FineTuningConfig(MethodConfig):
    """Fine-tuning."""

    dropout: bool = Field(
        False,
        description="the backbone's own dropout in training, as in RoBERTa's recipe; "
        "micro-batches of a batch share its noise",
    )

    @property
    def tunes_backbone(self) -> bool:
        """Always."""
        return True


class FineTuning(Method):
    """All weights are trained. The cue holds a full copy of them."""

    Config: ClassVar[type[MethodConfig]] = FineTuningConfig
    summary = "all weights of the backbone are trained: a copy per task (a baseline)"
    paper = "-"

    weights: BackboneWeights

    def __init__(self, config: FineTuningConfig) -> None:
        super().__init__()
        self.config: FineTuningConfig = config

    @classmethod
    def build(cls, config: MethodConfig, backbone: Backbone, task: Task, generator: torch.Generator | None) -> Self:
        """Make a method without other parameters than the copy of the backbone's weights."""
        assert isinstance(config, FineTuningConfig)
        return cls(config)

    def prompt_parameters(self) -> list[nn.Parameter]:
        """Return the backbone's weights: they use `learning_rate`, so a new head can learn faster than they do."""
        return list(self.weights.values())

    def view_of(self, backbone: Backbone) -> Backbone:
        """Return the twin of the backbone, with its own dropout in training if that is on."""
        twin = super().view_of(backbone)
        twin.model.train(self.training and self.config.dropout)
        return twin
