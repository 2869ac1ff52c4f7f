"""Several tasks on one method: the prompt is the same for all, each task has its own readout (Bhardwaj et al. 2022,
section 5.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from torch import nn

from softcue.inference.task_model import TaskModel


class JointModel(nn.Module):
    """All trained numbers of several tasks that share a method: its own once, and every task's readout."""

    def __init__(self, models: Sequence[TaskModel]) -> None:
        super().__init__()
        self.method = models[0].method
        self.readouts = nn.ModuleList(model.readout for model in models)
        self.models = tuple(models)  # a tuple: their numbers are registered above, once

    def train(self, mode: bool = True) -> Self:
        """Training or evaluation, also for what each task decides by it."""
        for model in self.models:
            model.train(mode)
        return super().train(mode)
