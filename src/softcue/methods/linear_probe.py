"""Baselines that train only a head: by steps (no-prompt), or in closed form (linear-probe).

The backbone computes each row's features once, because nothing trainable stands between text and head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Self

import torch
from pydantic import Field

from softcue.backbones import Backbone
from softcue.methods.method import Method, MethodConfig
from softcue.readouts import Readout
from softcue.readouts.closed_form import STRENGTHS
from softcue.tasks import Task
from softcue.types import TokenizedRow


class NoPromptConfig(MethodConfig):
    """The backbone without a prompt has no settings."""


class NoPrompt(Method):
    """The backbone as it is. Only the readout's head is trained, if there is one."""

    Config: ClassVar[type[MethodConfig]] = NoPromptConfig
    summary = "no prompt at all: only the readout's head is trained (a baseline)"
    paper = "-"
    changes_hidden_states = False

    def __init__(self, config: MethodConfig) -> None:
        super().__init__()
        self.config = config

    @classmethod
    def build(cls, config: MethodConfig, backbone: Backbone, task: Task, generator: torch.Generator | None) -> Self:
        """Make a method without parameters."""
        return cls(config)


class LinearProbeConfig(MethodConfig):
    """Linear probe: its regularisation."""

    fields_free_to_differ: ClassVar[tuple[str, ...]] = ("strengths",)

    strengths: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        STRENGTHS, min_length=1, description="inverse regularisation; validation rows choose one"
    )


class LinearProbe(NoPrompt):
    """Logistic or ridge regression on the frozen backbone's features."""

    Config: ClassVar[type[MethodConfig]] = LinearProbeConfig
    summary = "logistic regression on the frozen representation (a baseline)"
    paper = "-"
    needs_head = True

    def closed_form_solutions(self, readout: Readout, rows: Sequence[TokenizedRow]) -> Iterator[None]:
        """Solve for the head with each strength."""
        assert isinstance(self.config, LinearProbeConfig)
        features = torch.stack([row.representation for row in rows if row.representation is not None])  # [N R]
        labels = [row.label for row in rows if row.label is not None]
        for strength in self.config.strengths:
            readout.solve(features, labels, strength, [row.weight for row in rows])
            yield

    @property
    def num_solutions(self) -> int:
        """One for each strength."""
        assert isinstance(self.config, LinearProbeConfig)
        return len(self.config.strengths)
