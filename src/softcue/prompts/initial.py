"""Where prompt vectors start (Lester et al. 2021, section 3.2 and figure 3b): five initialisers.

Pure functions on word vectors; the pieces of words come in as token numbers, so no tokenizer here.
Where the released code differs from the paper (it draws from [0, 0.5)), the paper is followed.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from softcue.errors import ConfigurationError
from softcue.types import Words

COMMON_VOCABULARY = 5000  # SentencePiece numbers pieces by frequency; the paper samples among the commonest


def uniform(length: int, width: int, generator: torch.Generator) -> Tensor:
    """Each number from U[-0.5, 0.5].

    Example:
        >>> bool(uniform(4, 8, torch.Generator().manual_seed(0)).abs().max() <= 0.5)
        True
    """
    return torch.rand(length, width, generator=generator) - 0.5  # [P D]


def sampled_vocabulary(words: Words, length: int, generator: torch.Generator, skip: Collection[int] = ()) -> Tensor:
    """Rows of common words, drawn without replacement unless the prompt is longer than the population.

    `skip` names special tokens (padding, mask, ...), whose vectors are no words.
    """
    skipped = set(skip)
    population = torch.tensor([row for row in range(min(COMMON_VOCABULARY, len(words))) if row not in skipped])
    if length <= len(population):
        chosen = torch.randperm(len(population), generator=generator)[:length]
    else:
        chosen = torch.randint(len(population), (length,), generator=generator)
    return words[population[chosen]].float()  # [P D]


def class_labels(words: Words, label_pieces: Sequence[Sequence[int]], fallback: Tensor) -> Tensor:
    """One row per label, in the given order, the mean of its pieces; the fallback fills the rest."""
    initial = fallback.clone()  # [P D]
    if len(label_pieces) > len(initial):
        warnings.warn(
            f"method.prompt_length={len(initial)} holds only that many of {len(label_pieces)} labels; "
            "the others do not start the prompt",
            stacklevel=2,
        )
    for row, pieces in enumerate(label_pieces[: len(initial)]):
        initial[row] = words[torch.tensor(pieces)].float().mean(dim=0)
    return initial


def free_text(words: Words, pieces: Sequence[int], fallback: Tensor) -> Tensor:
    """Row i takes piece i of the text; the fallback fills the rest."""
    return class_labels(words, [[piece] for piece in pieces[: len(fallback)]], fallback)


def exactly(values: Tensor, length: int, width: int, origin: str) -> Tensor:
    """Vectors from elsewhere (a file, another cue), which must fit to the number."""
    if tuple(values.shape) != (length, width):
        fits = values.dim() == 2 and values.shape[1] == width
        raise ConfigurationError(
            setting="method.init_from",
            got=f"{origin} of shape {list(values.shape)}",
            expected=f"shape [{length}, {width}]",
            fix=f"set method.prompt_length={values.shape[0]}"
            if fits
            else "take a prompt trained on a backbone of the same width",
        )
    if not bool(torch.isfinite(values).all()):
        raise ConfigurationError(
            setting="method.init_from", got=origin, expected="finite numbers", fix="train that prompt again"
        )
    return values.float()
