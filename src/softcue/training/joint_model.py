"""Several tasks on one method: they share the prompt, each has its own readout (Bhardwaj et al. 2022, section 5.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from torch import nn

from softcue.inference.task_model import TaskModel


class JointModel(nn.Module):
    """The trainable parameters of several tasks: the shared method once, and the readout of each task."""

    def __init__(self, models: Sequence[TaskModel]) -> None:
        super().__init__()
        self.method = models[0].method
        self.readouts = nn.ModuleList(model.readout for model in models)
        self.models = tuple(models)  # a tuple is not registered: the parameters are registered above, once

    def train(self, mode: bool = True) -> Self:
        """Switch all tasks to training or evaluation mode."""
        for model in self.models:
            model.train(mode)
        return super().train(mode)
