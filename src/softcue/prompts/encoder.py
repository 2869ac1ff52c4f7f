"""The one contract: a prompt encoder reads an instance and returns a prompt.

It never touches the backbone, the tokenizer, labels or files, and leaves nothing on the module: whatever
the trainer must know comes back in the Prompt. Learned state that no optimizer may touch is a buffer: it changes
only in `update_state`, once per optimizer step, by the sums (`Prompt.statistics`) over all pieces and processes
of that step.
A buffer that is not persistent is training's alone: it is in checkpoints, but not in the cue.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from softcue.types import Instance, Prompt


class PromptEncoder(nn.Module, ABC):
    """Turns what may be read of the input into prompt vectors.

    Subclasses set `prompt_length`, the P of every Prompt they return, so that room can be kept for it.
    """

    prompt_length: int

    @abstractmethod
    def forward(self, instance: Instance) -> Prompt:
        """The prompt for each row of the instance."""

    def prompt_parameters(self) -> list[nn.Parameter]:
        """Those parameters that are prompt vectors themselves; the rest are a network's, with another rate."""
        return []

    def zero_statistics(self) -> dict[str, Tensor]:
        """Zeros of the shapes of every Prompt's tally in training: a process may have no rows of its own."""
        return {}

    def update_state(self, statistics: Mapping[str, Tensor], epoch_begins: bool) -> dict[str, float]:
        """Move what no gradient moves, by the tally of a whole step; returns what is worth logging."""
        return {}

    def health_warnings(self, health: Mapping[str, float]) -> list[str]:
        """What is wrong by the last values that `update_state` returned, each with what to try."""
        return []

    def embedded(self) -> Tensor | None:
        """The vectors that stand among word embeddings for every input, to look at. [P D]"""
        return None

    def codebook(self) -> Tensor | None:
        """The codes that prompts are made of, for encoders that have some, to look at. [K D]"""
        return None

    def assignment(self, instance: Instance) -> Tensor:
        """How likely each token of each row takes each code, where there is a codebook. [B n K]"""
        raise NotImplementedError


def full_prompt(tokens: Tensor) -> Prompt:
    """A prompt whose every position is real and that adds no loss.

    Example:
        >>> full_prompt(torch.zeros(2, 3, 4)).mask.shape
        torch.Size([2, 3])
    """
    mask = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)  # [B P]
    return Prompt(tokens, mask, aux_loss=tokens.new_zeros(()))
