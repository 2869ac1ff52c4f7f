"""Prompt tuning (Lester et al. 2021): one trainable matrix P, the same for every input.

Section 2 of the paper: the input [P; X] of shape [p + n, e] replaces X; only P is trained.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from softcue.prompts.encoder import PromptEncoder, full_prompt
from softcue.types import Instance, Prompt


class StaticPrompt(PromptEncoder):
    """P, one row per prompt token; it does not read the input.

    Example:
        >>> import torch
        >>> encoder = StaticPrompt(torch.zeros(3, 8))
        >>> encoder(Instance(torch.zeros(2, 5, 8), torch.ones(2, 5))).tokens.shape
        torch.Size([2, 3, 8])
    """

    def __init__(self, initial: Tensor) -> None:
        super().__init__()
        self.prompt_length = initial.shape[0]
        self.prompt = nn.Parameter(initial.clone())  # [P D]

    def forward(self, instance: Instance) -> Prompt:
        """P for every row."""
        num_rows = instance.embeds.shape[0]
        return replace(full_prompt(self.prompt.expand(num_rows, -1, -1)), shared_by=self)  # [B P D]

    def prompt_parameters(self) -> list[nn.Parameter]:
        """P itself."""
        return [self.prompt]

    def embedded(self) -> Tensor:
        """P itself."""
        return self.prompt
