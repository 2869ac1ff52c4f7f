"""The contract of a prompt encoder: it reads an instance and returns a prompt.

An encoder never touches the backbone, the tokenizer, labels or files. It stores no results on the module: the Prompt
holds all that the trainer needs. State that is learned without gradients, such as a codebook, is a buffer. It changes
only in `update_state`, once per optimizer step, by sums (`Prompt.statistics`) over all micro-batches and processes of
that step. A loss that compares rows with each other is `batch_loss`: the trainer computes it once per step, over the
rows of all micro-batches and processes (`Prompt.compared`). A buffer that is not persistent is for training
only: it is in checkpoints, but not in the cue.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from softcue.types import Instance, Prompt


class PromptEncoder(nn.Module, ABC):
    """Makes prompt vectors, from the input or the same for every input. Subclass it for a method of your own.

    Subclasses set `prompt_length`, the P of every Prompt they return: texts are cut so that the prompt fits.

    Example:
        >>> class MeanPrompt(PromptEncoder):
        ...     prompt_length = 1  # the mean of the words of the text
        ...
        ...     def forward(self, instance: Instance) -> Prompt:
        ...         weights = instance.mask.unsqueeze(2).float()  # [B T 1]
        ...         total = (instance.embeds * weights).sum(dim=1, keepdim=True)  # [B 1 D]
        ...         return make_prompt(total / weights.sum(dim=1, keepdim=True))
        >>> texts = Instance(embeds=torch.ones(2, 5, 8), mask=torch.ones(2, 5, dtype=torch.bool))
        >>> MeanPrompt()(texts).tokens.shape  # [B P D]
        torch.Size([2, 1, 8])
    """

    prompt_length: int

    @property
    def compared_shape(self) -> tuple[int, ...] | None:
        """The shape of one row of `Prompt.compared`; None if no loss compares rows."""
        return None

    def batch_loss(self, compared: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss that compares the rows of a step, and its statistics.

        `compared` holds the vectors of all rows of the step, from all micro-batches and processes. [B ...]
        """
        raise NotImplementedError

    @abstractmethod
    def forward(self, instance: Instance) -> Prompt:
        """Return the prompt of each row of the instance."""

    @property
    def is_ready(self) -> bool:
        """Whether prompts are what they will be in training. A codebook that training fills is not there at first."""
        return True

    def prompt_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that are prompt vectors; they use `learning_rate`, others `network_learning_rate`."""
        return []

    def zero_statistics(self) -> dict[str, Tensor]:
        """Return zeros with the shapes of `Prompt.statistics`, for a process that has no rows in a step."""
        return {}

    def update_state(self, statistics: Mapping[str, Tensor], epoch_begins: bool) -> dict[str, float]:
        """Update the buffers by the statistics of one optimizer step, and return values to log."""
        return {}

    def health_warnings(self, health: Mapping[str, float]) -> list[str]:
        """Return problems visible in the last values of `update_state`, each with a remedy to try."""
        return []

    def static_vectors(self) -> Tensor | None:
        """Return the prompt vectors among the word embeddings that are the same for every input. [P D]"""
        return None

    def codebook(self) -> Tensor | None:
        """Return the codebook, for encoders that have one. [K D]"""
        return None

    def assignment(self, instance: Instance) -> Tensor:
        """Return the probability of each code for each prompt token, where there is a codebook. [B n K]"""
        raise NotImplementedError


def make_prompt(tokens: Tensor) -> Prompt:
    """Return a prompt of these tokens, without padding and without an auxiliary loss.

    Example:
        >>> make_prompt(torch.zeros(2, 3, 4)).mask.shape
        torch.Size([2, 3])
    """
    mask = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)  # [B P]
    return Prompt(tokens, mask, aux_loss=tokens.new_zeros(()), is_full=True)
