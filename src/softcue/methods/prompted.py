"""Methods made of one prompt encoder, and the unprompted baseline."""

from __future__ import annotations

from typing import Self

import torch
from pydantic import Field
from torch import nn

from softcue.backbones import Backbone
from softcue.methods.method import Method, MethodConfig
from softcue.prompts import PromptEncoder
from softcue.tasks import Task
from softcue.tokens import InsertAt
from softcue.types import Instance, Prompt


class PromptedConfig(MethodConfig):
    """Settings of every method that puts prompt vectors beside the text."""

    prompt_length: int = Field(20, ge=1, le=1000, description="number of prompt vectors, P")
    insert_at: InsertAt = Field(
        "start", description="front: before everything; start: after a leading [CLS]/BOS; end: after the text"
    )


class Prompted(Method):
    """A method whose only trained part is a prompt encoder."""

    def __init__(self, encoder: PromptEncoder, insert_at: InsertAt) -> None:
        super().__init__()
        self.encoder = encoder
        self.prompt_length = encoder.prompt_length
        self.insert_at = insert_at

    def prompt(self, instance: Instance) -> Prompt:
        """The encoder's prompt."""
        return self.encoder(instance)  # type: ignore[no-any-return]

    def prompt_parameters(self) -> list[nn.Parameter]:
        """The encoder's own vectors."""
        return self.encoder.prompt_parameters()


class NoPromptConfig(MethodConfig):
    """The unprompted backbone has no settings."""


class NoPrompt(Method):
    """The backbone as it is; only a readout's head, if there is one, is trained."""

    Config = NoPromptConfig
    summary = "no prompt at all: only the readout's head is trained (a baseline)"
    paper = "-"

    @classmethod
    def build(cls, config: MethodConfig, backbone: Backbone, task: Task, generator: torch.Generator | None) -> Self:
        """Nothing to build."""
        return cls()

    def prompt(self, instance: Instance) -> None:
        """None."""
        return
