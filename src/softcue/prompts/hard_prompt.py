"""A prompt of words that are not trained: an instruction, then demonstrations (GPT-3, Brown et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from softcue.prompts.encoder import PromptEncoder, make_prompt
from softcue.types import Instance, Prompt


class HardPrompt(PromptEncoder):
    """The vectors of the words of several texts, one after the other.

    A row that is too long for all of them gets as many of the first ones as fit; the first text always stays.

    Example:
        >>> encoder = HardPrompt([torch.zeros(2, 8), torch.zeros(3, 8)], limit=9)
        >>> rows = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
        >>> encoder(Instance(torch.zeros(2, 5, 8), rows)).mask.sum(dim=1).tolist()
        [5, 2]
    """

    vectors: Tensor

    def __init__(self, texts: Sequence[Tensor], limit: int = 0) -> None:
        super().__init__()
        self.register_buffer("vectors", torch.cat(list(texts)), persistent=False)  # [P D]; words, not saved
        self.prompt_length = len(self.vectors)
        self.ends = list(accumulate(len(text) for text in texts))  # the length of the prompt with the first texts
        self.limit = limit  # most vectors of prompt and row together; 0: no limit

    def forward(self, instance: Instance) -> Prompt:
        """Return the words for every row."""
        num_rows = len(instance.mask)
        prompt = make_prompt(self.vectors.expand(num_rows, -1, -1))  # [B P D]
        room = self.limit - instance.mask.sum(dim=1, keepdim=True)  # [B 1]
        if not self.limit or bool((room >= self.prompt_length).all()):
            return replace(prompt, shared_by=self)
        ends = torch.tensor(self.ends, device=room.device)  # [texts]
        num_fitting = (ends <= room).sum(dim=1, keepdim=True).clamp(min=1)  # [B 1] texts
        positions = torch.arange(self.prompt_length, device=room.device)  # [P]
        return replace(prompt, mask=positions < ends[num_fitting - 1])
