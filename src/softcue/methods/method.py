"""What can be trained on a frozen backbone. The trainer, the injection and the server know only this."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Self

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from softcue.backbones import Backbone
from softcue.tasks import Task
from softcue.tokens import InsertAt
from softcue.types import Instance, Prompt


class MethodConfig(BaseModel):
    """Settings every method has; each adds its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="what the user types")


class Method(nn.Module, ABC):
    """The numbers one task adds to the backbone, its readout's head apart."""

    Config: ClassVar[type[MethodConfig]]
    summary: ClassVar[str]  # one line for `softcue methods`
    paper: ClassVar[str]

    prompt_length: int = 0
    insert_at: InsertAt = "start"

    @classmethod
    @abstractmethod
    def build(cls, config: MethodConfig, backbone: Backbone, task: Task, generator: torch.Generator | None) -> Self:
        """A new method for a task; without a generator its numbers wait to be loaded."""

    @abstractmethod
    def prompt(self, instance: Instance) -> Prompt | None:
        """The prompt of each row, or None for a method that has none."""

    def prompt_parameters(self) -> list[nn.Parameter]:
        """Prompt vectors, which take `training.prompt_rate`; the other parameters take `network_rate`."""
        return []
