"""What can be trained on a frozen backbone. The trainer, the injection and the server know only this."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Protocol, Self

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from softcue.backbones import Backbone
from softcue.inputs.formatter import InsertAt
from softcue.prompts import PromptEncoder
from softcue.readouts import Readout
from softcue.sentence_vectors import SentenceVector
from softcue.tasks import Task
from softcue.types import Example, Instance, Prediction, Prompt, TokenizedRow


class MethodConfig(BaseModel):
    """Settings every method has; each adds its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    only_training: ClassVar[tuple[str, ...]] = ("dropout",)  # each class names its own

    name: str = Field(description="what the user types")

    def view_of(self, backbone: Backbone) -> Backbone:
        """The backbone as the method's passes see it."""
        return backbone

    def meaning(self) -> dict[str, Any]:
        """The settings without those that only say how numbers start or how they are trained."""
        left_out = {name for one in type(self).__mro__ for name in vars(one).get("only_training", ())}
        return {name: value for name, value in self.model_dump(mode="json").items() if name not in left_out}


class Rewriting(Protocol):
    """Another task that a task's examples are asked as, and the way back."""

    task: Task

    def split(self, example: Example) -> list[Example]:
        """The example as questions of the other task."""

    def merge(self, answers: Sequence[Prediction]) -> Prediction:
        """The answers to those questions as one answer of the task."""


class Method(nn.Module, ABC):
    """The numbers one task adds to the backbone, its readout's head apart."""

    Config: ClassVar[type[MethodConfig]]
    summary: ClassVar[str]  # one line for `softcue methods`
    paper: ClassVar[str]

    config: MethodConfig  # with everything settled, for the cue to record
    prompt_length: int = 0
    insert_at: InsertAt = "start"
    representation: SentenceVector | None = None  # the M(x) its prompts read, if they do
    needs_head: ClassVar[bool] = False  # whether it is nothing without a head, also on backbones that write text
    num_reading: int = 0  # how many prompt tokens, the last ones, are to differ between inputs
    changes_reading: bool = True  # whether the backbone reads a text other than it would by itself

    @property
    def reads_input(self) -> bool:
        """Whether prompts differ between inputs."""
        return self.num_reading > 0 or self.representation is not None

    @classmethod
    @abstractmethod
    def build(cls, config: MethodConfig, backbone: Backbone, task: Task, generator: torch.Generator | None) -> Self:
        """A new method for a task; without a generator its numbers wait to be loaded."""

    @classmethod
    def rewriting(cls, task: Task) -> Rewriting | None:
        """How the task's examples are put to the backbone, if not as they are."""
        return None

    def prompt(self, instance: Instance) -> Prompt | None:
        """The prompt of each row, or None for a method that has none."""
        return None

    def view_of(self, backbone: Backbone) -> Backbone:
        """The backbone as this method's passes see it; rows of methods that see the same one share a batch."""
        return self.config.view_of(backbone)

    def prompt_parameters(self) -> list[nn.Parameter]:
        """Prompt vectors, which take `training.learning_rate`; the other parameters take `network_learning_rate`."""
        return []

    def prompt_encoder(self) -> PromptEncoder | None:
        """What makes its prompts, for those who teach it beside the gradients or look into it."""
        return None

    def solutions(self, readout: Readout, rows: Sequence[TokenizedRow]) -> Iterator[None] | None:
        """For methods with a closed form: sets one solution after the other; the best on validation rows is kept."""
        return None
