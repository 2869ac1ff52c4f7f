"""Prompt tuning (Lester et al. 2021): one trainable matrix P, the same for every input, and its initial values.

Section 2 of the paper: the input [P; X] of shape [p + n, e] replaces X, and only P is trained. Section 3.2 and figure
3b: five ways to initialise P. These are pure functions on word vectors. Words come in as token ids, so there is no
tokenizer here. The released code draws from [0, 0.5); we follow the paper.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from softcue.errors import ConfigurationError
from softcue.prompts.encoder import PromptEncoder, make_prompt
from softcue.types import Instance, Prompt, WordVectors

COMMON_VOCABULARY = 5000  # SentencePiece orders tokens by frequency; the paper samples among the most common ones


class StaticPrompt(PromptEncoder):
    """P, one row per prompt token. It does not read the input.

    Example:
        >>> encoder = StaticPrompt(torch.zeros(3, 8))
        >>> encoder(Instance(torch.zeros(2, 5, 8), torch.ones(2, 5))).tokens.shape
        torch.Size([2, 3, 8])
    """

    def __init__(self, initial: Tensor) -> None:
        super().__init__()
        self.prompt_length = initial.shape[0]
        self.prompt = nn.Parameter(initial.clone())  # [P D]

    def forward(self, instance: Instance) -> Prompt:
        """Return P for every row."""
        num_rows = instance.embeds.shape[0]
        return replace(make_prompt(self.prompt.expand(num_rows, -1, -1)), shared_by=self)  # [B P D]

    def prompt_parameters(self) -> list[nn.Parameter]:
        """Return P."""
        return [self.prompt]

    def static_vectors(self) -> Tensor:
        """Return P."""
        return self.prompt


def uniform_vectors(length: int, width: int, generator: torch.Generator) -> Tensor:
    """Draw each value from U[-0.5, 0.5].

    Example:
        >>> bool(uniform_vectors(4, 8, torch.Generator().manual_seed(0)).abs().max() <= 0.5)
        True
    """
    return torch.rand(length, width, generator=generator) - 0.5  # [P D]


def vocabulary_vectors(
    words: WordVectors, length: int, generator: torch.Generator, skip: Collection[int] = ()
) -> Tensor:
    """Draw vectors of common words, without replacement unless the prompt is longer than the vocabulary.

    `skip` are ids of special tokens (padding, mask, ...), which are no words.
    """
    skipped = set(skip)
    population = torch.tensor([row for row in range(min(COMMON_VOCABULARY, len(words))) if row not in skipped])
    if length <= len(population):
        chosen = torch.randperm(len(population), generator=generator)[:length]
    else:
        chosen = torch.randint(len(population), (length,), generator=generator)
    return words[population[chosen]].float()  # [P D]


def label_vectors(words: WordVectors, label_ids: Sequence[Sequence[int]], fallback: Tensor) -> Tensor:
    """Return one vector per label, the mean over the label's tokens. The fallback fills the rest. [P D]"""
    vectors = fallback.clone()  # [P D]
    if len(label_ids) > len(vectors):
        warnings.warn(
            f"method.prompt_length={len(vectors)} holds only that many of {len(label_ids)} labels; "
            "the others do not start the prompt",
            stacklevel=2,
        )
    for row, ids in enumerate(label_ids[: len(vectors)]):
        vectors[row] = words[torch.tensor(ids)].float().mean(dim=0)
    return vectors


def text_vectors(words: WordVectors, ids: Sequence[int], fallback: Tensor) -> Tensor:
    """Return the vector of the text's token i as vector i. The fallback fills the rest. [P D]"""
    return label_vectors(words, [[token_id] for token_id in ids[: len(fallback)]], fallback)


def check_vectors(vectors: Tensor, length: int, width: int, origin: str) -> Tensor:
    """Return vectors from elsewhere (a file, another cue) after a check of their shape and values. [P D]"""
    if tuple(vectors.shape) != (length, width):
        has_same_width = vectors.dim() == 2 and vectors.shape[1] == width
        raise ConfigurationError(
            setting="method.init_from",
            got=f"{origin} of shape {list(vectors.shape)}",
            expected=f"shape [{length}, {width}]",
            fix=f"set method.prompt_length={vectors.shape[0]}"
            if has_same_width
            else "take a prompt trained on a backbone of the same width",
        )
    if not bool(torch.isfinite(vectors).all()):
        raise ConfigurationError(
            setting="method.init_from", got=origin, expected="finite numbers", fix="train that prompt again"
        )
    return vectors.float()
