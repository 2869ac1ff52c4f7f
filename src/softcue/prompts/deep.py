"""Prompts for every layer (P-tuning v2, prefix tuning), and the rules by which a layer takes them.

`add` (IDPG's form of P-tuning v2): each layer adds its vectors to the hidden states at the prompt's positions.
`replace`: its vectors replace these hidden states. `kv` (P-tuning v2, prefix tuning): its vectors are keys and values
of the attention; the hidden states at the prompt's positions then influence no text token. `parallel`: its vectors are
keys and values of a second attention with a softmax of its own, whose output is added to that of the layer:
    attention(text) + softmax(q K^T / sqrt(d)) V
Such a prompt has no positions. While V is 0, the backbone computes what it computes without a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from softcue.prompts.encoder import PromptEncoder, make_prompt
from softcue.randomness import RowDropout
from softcue.types import Instance, LayerPrompt, Prompt

Rule = Literal["add", "replace", "kv", "parallel"]


@dataclass(frozen=True)
class PromptedLayers:
    """The layers that get prompts, and the width of a prompt vector in each.

    With `add` and `replace` a layer's prompt goes into its input; the input of layer 0 is the embeddings. With `kv`
    it goes into its attention.
    """

    layers: tuple[int, ...]
    rule: Rule
    embedding_width: int  # D of embeddings
    hidden_width: int  # D of hidden states
    key_width: int  # K of keys, with `parallel` that of queries; 0 with other rules

    def vector_width(self, layer: int) -> int:
        """Return the width X of one prompt token's vector in a layer; of keys and values both together."""
        if self.key_width:
            return 2 * self.key_width
        return self.embedding_width if layer == 0 else self.hidden_width

    def make_layer_prompt(self, vectors: Tensor) -> LayerPrompt:
        """Return a layer's prompt, by the rule, from its vectors [B P X]."""
        if self.key_width:
            keys, values = vectors.chunk(2, dim=2)  # [B P K] each
            if self.rule == "parallel":
                return LayerPrompt(parallel_keys=keys, parallel_values=values)
            return LayerPrompt(keys=keys, values=values)
        if self.rule == "add":
            return LayerPrompt(states=vectors)
        return LayerPrompt(states=vectors, adds=torch.zeros(vectors.shape[0], dtype=torch.bool, device=vectors.device))

    def zero_embeddings(self, num_rows: int, length: int, like: Tensor) -> Tensor:
        """Return zeros for the prompt's positions, where no prompt goes into the embeddings. [B P D]"""
        return like.new_zeros(num_rows, length, self.embedding_width)

    @property
    def has_embedding_prompt(self) -> bool:
        """Whether a part of the prompt goes into the embeddings."""
        return not self.key_width and 0 in self.layers

    @property
    def needs_positions(self) -> bool:
        """Whether text reads the states at a prompt's positions, and not only keys and values set there."""
        return self.rule != "kv"

    def num_positions(self, num_vectors: int) -> int:
        """Return the number of positions that prompts of so many vectors take among the text's."""
        return 0 if self.rule == "parallel" else num_vectors


class Units(nn.Module):
    """The sizes of each layer's own keys and values. Vectors in these units need no learning rate of their own.

    Example:
        >>> Units([(2.0, 0.5)])(torch.ones(1, 1, 4), 0).tolist()
        [[[2.0, 2.0, 0.5, 0.5]]]
    """

    sizes: Tensor

    def __init__(self, sizes: Sequence[tuple[float, float]]) -> None:
        super().__init__()
        # [L 2] of keys and of values. They are in the configuration, so the cue's tensors need not hold them.
        self.register_buffer("sizes", torch.tensor(sizes), persistent=False)

    def forward(self, vectors: Tensor, index: int) -> Tensor:
        """Return the vectors [... 2K] of a prompted layer, by its index, in the layer's own size."""
        return vectors * self.sizes[index].repeat_interleave(vectors.shape[-1] // 2)


class DeepPrompt(PromptEncoder):
    """P-tuning v2: trained vectors for every layer, the same for every input.

    Example:
        >>> layers = PromptedLayers((0, 1), "add", embedding_width=8, hidden_width=8, key_width=0)
        >>> encoder = DeepPrompt(layers, [torch.zeros(3, 8), torch.ones(3, 8)])
        >>> prompt = encoder(Instance(torch.zeros(2, 5, 8), torch.ones(2, 5)))
        >>> prompt.layer_prompts(1, torch.zeros(2, 5, 8), torch.ones(2, 5)).states.shape
        torch.Size([2, 3, 8])
    """

    def __init__(
        self,
        prompted_layers: PromptedLayers,
        initial: Sequence[Tensor],
        dropout: float = 0.0,
        units: Sequence[tuple[float, float]] = (),
    ) -> None:
        super().__init__()
        self.prompted_layers = prompted_layers
        self.dropout = RowDropout(dropout)
        self.prompt_length = prompted_layers.num_positions(initial[0].shape[0])
        self.units = Units(units) if units else None
        self.prompts = nn.ParameterList(nn.Parameter(values.clone()) for values in initial)  # each [P X]

    def vectors(self) -> list[Tensor]:
        """Return the vectors of each layer, in the order of `prompted_layers.layers`. Each [P X]"""
        return list(self.prompts)

    def forward(self, instance: Instance) -> Prompt:
        """Return the same vectors for every row."""
        num_rows = instance.embeds.shape[0]
        by_layer = self.vectors()
        if self.units is not None:
            by_layer = [self.units(vectors, index) for index, vectors in enumerate(by_layer)]
        vectors = dict(zip(self.prompted_layers.layers, by_layer, strict=True))
        if self.prompted_layers.has_embedding_prompt:
            tokens = self.dropout(vectors.pop(0).expand(num_rows, -1, -1))  # [B P D]
        else:
            tokens = self.prompted_layers.zero_embeddings(num_rows, self.prompt_length, instance.embeds)

        def layer_prompts(layer: int, hidden: Tensor, mask: Tensor) -> LayerPrompt | None:
            if layer not in vectors:
                return None
            return self.prompted_layers.make_layer_prompt(self.dropout(vectors[layer].expand(hidden.shape[0], -1, -1)))

        has_dropout = self.training and self.dropout.share > 0  # then the rows' prompts differ
        shared_by = None if has_dropout else self
        return replace(
            make_prompt(tokens),
            layer_prompts=layer_prompts if vectors else None,
            shared_by=shared_by,
            is_parallel=self.prompted_layers.rule == "parallel",
            needs_positions=self.prompted_layers.needs_positions,
        )

    def prompt_parameters(self) -> list[nn.Parameter]:
        """Return the vectors of all layers."""
        return list(self.prompts)

    def static_vectors(self) -> Tensor | None:
        """Return the vectors among the embeddings."""
        return self.vectors()[0] if self.prompted_layers.has_embedding_prompt else None


class ReparameterisedPrompt(DeepPrompt):
    """Prefix tuning's re-parameterisation (Li and Liang 2021): a table [P D], Linear, tanh, Linear."""

    def __init__(self, prompted_layers: PromptedLayers, table: Tensor, hidden: int, dropout: float = 0.0) -> None:
        super().__init__(prompted_layers, [table], dropout)
        self.widths = [prompted_layers.vector_width(layer) for layer in prompted_layers.layers]
        self.network = nn.Sequential(nn.Linear(table.shape[1], hidden), nn.Tanh(), nn.Linear(hidden, sum(self.widths)))

    def vectors(self) -> list[Tensor]:
        """Return the network's output for every row of the table, split by layer."""
        return list(self.network(self.prompts[0]).split(self.widths, dim=1))
