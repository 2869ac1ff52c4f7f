"""Linear probe: logistic (or ridge) regression on the frozen representation, solved rather than trained by steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field

from softcue.methods.method import MethodConfig
from softcue.methods.prompted import NoPrompt
from softcue.readouts import Readout
from softcue.readouts.closed_form import STRENGTHS
from softcue.types import TokenizedRow


class LinearProbeConfig(MethodConfig):
    """How strongly the probe is held back."""

    only_training: ClassVar[tuple[str, ...]] = ("strengths",)

    strengths: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        STRENGTHS, min_length=1, description="inverse regularisation; validation rows choose one"
    )


class LinearProbe(NoPrompt):
    """A head solved in closed form on features that are computed once."""

    Config: ClassVar[type[MethodConfig]] = LinearProbeConfig
    summary = "logistic regression on the frozen representation (a baseline)"
    paper = "-"
    needs_head = True

    def solutions(self, readout: Readout, rows: Sequence[TokenizedRow]) -> Iterator[None]:
        """One solution per strength."""
        assert isinstance(self.config, LinearProbeConfig)
        features = torch.stack([row.representation for row in rows if row.representation is not None])  # [N R]
        for strength in self.config.strengths:
            readout.solve(features, [row.label for row in rows if row.label is not None], strength)
            yield
