"""Prompts for every layer, and the three rules by which a layer takes them.

`add` (IDPG's form of P-tuning v2): prompts are ordinary positions; each layer's vectors are added to the hidden
states there. `replace`: they take their place. `kv` (P-tuning v2, prefix tuning): they are keys and values of
every layer's attention; the hidden states at the prompt's positions then reach no text token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from softcue.prompts.encoder import PromptEncoder, full_prompt
from softcue.randomness import RowDropout
from softcue.types import Instance, LayerPrompt, Prompt

Rule = Literal["add", "replace", "kv"]


@dataclass(frozen=True)
class PromptedLayers:
    """Which layers get prompts, and how wide one token's vector is there.

    With `add` and `replace` level 0 is the embedding sequence and level l the input of layer l (from 0); with
    `kv` level l is the attention of layer l.
    """

    numbers: tuple[int, ...]
    rule: Rule
    width: int  # D of embeddings
    hidden_width: int  # D of hidden states
    key_width: int  # K of keys; 0 where the rule is not kv

    def width_of(self, level: int) -> int:
        """Numbers per prompt token at a level."""
        if self.rule == "kv":
            return 2 * self.key_width
        return self.width if level == 0 else self.hidden_width

    def taken(self, vectors: Tensor) -> LayerPrompt:
        """What a layer takes, from its vectors [B P X]."""
        if self.rule == "kv":
            keys, values = vectors.chunk(2, dim=2)  # [B P K] each
            return LayerPrompt(keys=keys, values=values)
        if self.rule == "add":
            return LayerPrompt(states=vectors)
        return LayerPrompt(states=vectors, adds=torch.zeros(len(vectors), dtype=torch.bool, device=vectors.device))

    def first_tokens(self, num_rows: int, length: int, like: Tensor) -> Tensor:
        """Embeddings where level 0 has no prompt of its own: zeros. [B P D]"""
        return like.new_zeros(num_rows, length, self.width)

    @property
    def has_embeddings(self) -> bool:
        """Whether the prompt has a part among the embeddings."""
        return self.rule != "kv" and 0 in self.numbers


class DeepPrompt(PromptEncoder):
    """P-tuning v2: trained vectors for every level, the same for every input.

    Example:
        >>> levels = PromptedLayers((0, 1), "add", width=8, hidden_width=8, key_width=0)
        >>> encoder = DeepPrompt(levels, [torch.zeros(3, 8), torch.ones(3, 8)])
        >>> prompt = encoder(Instance(torch.zeros(2, 5, 8), torch.ones(2, 5)))
        >>> prompt.layer_prompts(1, torch.zeros(2, 5, 8), torch.ones(2, 5)).states.shape
        torch.Size([2, 3, 8])
    """

    def __init__(self, levels: PromptedLayers, initial: Sequence[Tensor], dropout: float = 0.0) -> None:
        super().__init__()
        self.levels = levels
        self.dropout = RowDropout(dropout)
        self.prompt_length = initial[0].shape[0]
        self.prompts = nn.ParameterList(nn.Parameter(values.clone()) for values in initial)  # each [P X]

    def vectors(self) -> list[Tensor]:
        """The vectors of each level, in the order of `levels.numbers`. Each [P X]"""
        return list(self.prompts)

    def forward(self, instance: Instance) -> Prompt:
        """The same vectors for every row."""
        num_rows = len(instance.embeds)
        by_level = dict(zip(self.levels.numbers, self.vectors(), strict=True))
        if self.levels.has_embeddings:
            tokens = self.dropout(by_level.pop(0).expand(num_rows, -1, -1))  # [B P D]
        else:
            tokens = self.levels.first_tokens(num_rows, self.prompt_length, instance.embeds)

        def layer_prompts(layer: int, hidden: Tensor, mask: Tensor) -> LayerPrompt | None:
            if layer not in by_level:
                return None
            return self.levels.taken(self.dropout(by_level[layer].expand(len(hidden), -1, -1)))

        is_noisy = self.training and self.dropout.share > 0  # every row has noise of its own
        shared_by = None if is_noisy else self
        return replace(full_prompt(tokens), layer_prompts=layer_prompts if by_level else None, shared_by=shared_by)

    def prompt_parameters(self) -> list[nn.Parameter]:
        """All of them are prompt vectors."""
        return list(self.prompts)

    def embedded(self) -> Tensor | None:
        """Those of level 0."""
        return self.vectors()[0] if self.levels.has_embeddings else None


class ReparameterisedPrompt(DeepPrompt):
    """Prefix tuning's re-parameterisation (Li and Liang 2021): a table [P D], Linear, tanh, Linear."""

    def __init__(self, levels: PromptedLayers, table: Tensor, hidden: int, dropout: float = 0.0) -> None:
        super().__init__(levels, [table], dropout)
        self.widths = [levels.width_of(level) for level in levels.numbers]
        self.network = nn.Sequential(nn.Linear(table.shape[1], hidden), nn.Tanh(), nn.Linear(hidden, sum(self.widths)))

    def vectors(self) -> list[Tensor]:
        """The network's output for every table row, cut into levels."""
        return list(self.network(self.prompts[0]).split(self.widths, dim=1))
