"""VIP's contextualiser (Bhardwaj et al. 2022, section 4.1): a narrow transformer over prompt and text."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from softcue.randomness import RowDraws
from softcue.types import Instance


@dataclass(frozen=True)
class ContextShape:
    """Sizes and settings of a contextualiser."""

    width: int  # D
    inner: int  # d'
    layers: int
    heads: int
    dropout: float
    scale: float  # inputs are divided by it, outputs multiplied


class RowNoise:
    """Dropout over rows of different lengths: noise depends on a token's number in its row, not on padding."""

    def __init__(self, draws: RowDraws, visible: Tensor, share: float) -> None:
        self.draws, self.share = draws, share
        self.tokens = (visible.int().cumsum(dim=1) - 1).int()  # [B S] the number of each token within its row

    def drop_states(self, values: Tensor) -> Tensor:
        """Drop values of states at all positions, or at those of the prompt alone. [B Q X]"""
        if not self.share:
            return values
        return self.draws.noise(self.tokens[:, : values.shape[1]], self.share).drop(values, place=0)

    def drop_weights(self, values: Tensor) -> Tensor:
        """Drop attention weights. [B H Q S]"""
        return self.draws.noise(self.tokens, self.share).drop_weights(values, place=0) if self.share else values


class EncoderLayer(nn.Module):
    """A post-norm transformer layer with ReLU, as torch's own, but with dropout by row."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attend = nn.Linear(width, 3 * width)  # queries, keys and values
        self.merge = nn.Linear(width, width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def initialize(self, generator: torch.Generator) -> None:
        """Draw initial values as torch does: Xavier for the attention, U(±1/sqrt(inputs)) elsewhere."""
        nn.init.xavier_uniform_(self.attend.weight, generator=generator)
        initialize_linear(self.merge, generator)
        nn.init.zeros_(self.attend.bias)
        nn.init.zeros_(self.merge.bias)
        initialize_linear(self.up, generator)
        initialize_linear(self.down, generator)

    def forward(self, states: Tensor, visible: Tensor, num_queries: int, noise: RowNoise | None) -> Tensor:
        """Return the states of the first `num_queries` positions after this layer. [B S d'] -> [B Q d']"""
        drop = (lambda values: values) if noise is None else noise.drop_states
        residual = states[:, :num_queries]
        queries, keys, values = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.attend(states).chunk(3, dim=2)
        )  # [B H S d'/H]
        scores = queries[:, :, :num_queries] @ keys.transpose(2, 3) / keys.shape[3] ** 0.5  # [B H Q S]
        weights = scores.masked_fill(~visible[:, None, None, :], float("-inf")).softmax(-1)
        if noise is not None:
            weights = noise.drop_weights(weights)
        attended = self.merge((weights @ values).transpose(1, 2).flatten(2))
        states = self.norms[0](residual + drop(attended))
        inner = drop(functional.relu(self.up(states)))
        return self.norms[1](states + drop(self.down(inner)))  # type: ignore[no-any-return]


class Contextualizer(nn.Module):
    """Section 4.1: prompt and text attend to each other in a narrow space. The output is the prompt's states.

    It has no positions, as the paper names none: it reads the text as a set of words, and "dog bites man" gives the
    same P^c as "man bites dog". Prompt vectors differ by their values alone. The backbone itself reads the order.
    """

    def __init__(self, shape: ContextShape) -> None:
        super().__init__()
        self.shape = shape
        self.project = nn.Linear(shape.width, shape.inner)  # shared by P and X
        self.layers = nn.ModuleList(EncoderLayer(shape.inner, shape.heads) for _ in range(shape.layers))
        self.back = nn.Linear(shape.inner, shape.width)

    def initialize(self, generator: torch.Generator) -> None:
        """Draw the initial values."""
        initialize_linear(self.project, generator)
        for layer in self.layers:
            layer.initialize(generator)  # type: ignore[operator]
        initialize_linear(self.back, generator)

    def forward(self, prompt: Tensor, instance: Instance, draws: RowDraws | None) -> Tensor:
        """Return P^c, with dropout if there are random numbers for the rows. [n D] -> [B n D]"""
        num_rows, num_tokens = instance.mask.shape[0], prompt.shape[0]
        text = self.project(instance.embeds.float() / self.shape.scale)  # [B T d']
        tokens = self.project(prompt / self.shape.scale).expand(num_rows, -1, -1)  # [B n d']
        visible = torch.cat([instance.mask.new_ones(num_rows, num_tokens), instance.mask], dim=1).bool()  # [B n+T]
        noise = None if draws is None else RowNoise(draws, visible, self.shape.dropout)
        states = torch.cat([tokens, text], dim=1)
        for number, layer in enumerate(self.layers, start=1):
            # After the last layer only the prompt's states are needed.
            num_queries = num_tokens if number == len(self.layers) else states.shape[1]
            states = layer(states, visible, num_queries, noise)
        return self.back(states) * self.shape.scale  # type: ignore[no-any-return]


def initialize_linear(layer: nn.Linear, generator: torch.Generator) -> None:
    """Draw weights and biases from U(±1/sqrt(inputs)), as torch does for linear layers.

    Example:
        >>> layer = nn.Linear(4, 2)
        >>> initialize_linear(layer, torch.Generator().manual_seed(0))
        >>> bool((layer.weight.abs() <= 0.5).all())
        True
    """
    bound = layer.in_features**-0.5
    for parameter in layer.parameters():
        parameter.data.uniform_(-bound, bound, generator=generator)
