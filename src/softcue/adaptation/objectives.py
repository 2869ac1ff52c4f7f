"""Objectives: how a chunk of tokens becomes a source and a target.

Both are T5's (Raffel et al. 2020). Prefix-LM splits a chunk at a random point. Span corruption drops spans of tokens:
in the source each is replaced by a sentinel, and the target gives each sentinel followed by what it replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from softcue.adaptation.config import AdaptationConfig
from softcue.errors import BackboneError, ConfigurationError

_SENTINEL = re.compile(r"▁?<extra_id_(\d+)>")  # mT5's pieces begin with the mark of a space


class RowMaker(Protocol):
    """An objective: makes a row of a chunk."""

    @property
    def chunk_length(self) -> int:
        """The number of tokens of a chunk."""
        ...

    def __call__(self, chunk: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The source's and the target's tokens, without the tokenizer's marks of begin and end."""
        ...


@dataclass(frozen=True)
class PrefixLM:
    """The text before a random point is the source, the text after it the target; both have at least one token.

    Example:
        >>> source, target = PrefixLM(4)(torch.tensor([5, 6, 7, 8]), torch.Generator().manual_seed(0))
        >>> source.tolist() + target.tolist()
        [5, 6, 7, 8]
    """

    chunk_length: int

    def __call__(self, chunk: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Split a chunk; each of the L - 1 points is as likely."""
        point = int(torch.randint(1, len(chunk), (), generator=generator))
        return chunk[:point], chunk[point:]


@dataclass(frozen=True)
class SpanCorruption:
    """Spans of tokens are dropped, and sentinels stand for them.

    Example:
        >>> corrupt = SpanCorruption(6, sentinels=(90, 91), noise_density=0.3, mean_span=1.0)
        >>> source, target = corrupt(torch.tensor([1, 2, 3, 4, 5, 6]), torch.Generator().manual_seed(0))
        >>> len(source), len(target)  # 4 tokens and 2 sentinels, 2 tokens and 2 sentinels
        (6, 4)
    """

    chunk_length: int
    sentinels: Sequence[int]  # in the order of their use
    noise_density: float
    mean_span: float
    final_sentinel: bool = False

    def __call__(self, chunk: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Replace the dropped spans; the chunk begins with a span that is kept and ends with a dropped one."""
        num_noise, num_spans = count_noise(len(chunk), self.noise_density, self.mean_span)
        kept_lengths = random_lengths(len(chunk) - num_noise, num_spans, generator)
        dropped_lengths = random_lengths(num_noise, num_spans, generator)
        source, target = [], []
        place = 0
        for sentinel, kept, dropped in zip(self.sentinels, kept_lengths, dropped_lengths, strict=False):
            mark = chunk.new_tensor([sentinel])
            source += [chunk[place : place + kept], mark]
            target += [mark, chunk[place + kept : place + kept + dropped]]
            place += kept + dropped
        if self.final_sentinel:
            target.append(chunk.new_tensor([self.sentinels[num_spans]]))
        return torch.cat(source), torch.cat(target)


def count_noise(length: int, noise_density: float, mean_span: float) -> tuple[int, int]:
    """The number of dropped tokens of a chunk, and of the spans they form.

    Example:
        >>> count_noise(568, 0.15, 3.0)
        (85, 28)
    """
    num_noise = min(max(round(length * noise_density), 1), length - 1)
    num_spans = max(round(num_noise / mean_span), 1)
    return num_noise, min(num_spans, num_noise, length - num_noise)


def random_lengths(total: int, num_parts: int, generator: torch.Generator) -> list[int]:
    """Lengths of `num_parts` parts, each at least 1, that sum to `total`; all such lists are as likely.

    Example:
        >>> sum(random_lengths(10, 4, torch.Generator().manual_seed(1)))
        10
    """
    cuts = torch.randperm(total - 1, generator=generator)[: num_parts - 1].sort().values + 1
    edges = [0, *cuts.tolist(), total]
    return [end - start for start, end in pairwise(edges)]


def corrupted_lengths(chunk_length: int, noise_density: float, mean_span: float) -> tuple[int, int]:
    """The lengths of source and target that a chunk gives, with a sentinel per span and one end token each.

    Example:
        >>> corrupted_lengths(568, 0.15, 3.0)
        (512, 114)
    """
    num_noise, num_spans = count_noise(chunk_length, noise_density, mean_span)
    return chunk_length - num_noise + num_spans + 1, num_noise + num_spans + 1


def chunk_length_for(source_length: int, noise_density: float, mean_span: float) -> int:
    """The longest chunk whose corrupted source is not longer than `source_length`: 568 tokens for T5's 512.

    Example:
        >>> chunk_length_for(512, 0.15, 3.0)
        568
    """
    length = 2
    while corrupted_lengths(length + 1, noise_density, mean_span)[0] <= source_length:
        length += 1
    return length


def sentinel_ids(vocabulary: Mapping[str, int]) -> list[int]:
    """The ids of a tokenizer's sentinels <extra_id_0>, <extra_id_1>, ... in this order.

    Example:
        >>> sentinel_ids({"word": 0, "<extra_id_1>": 1, "<extra_id_0>": 2})
        [2, 1]
    """
    matches = [(match, token_id) for token, token_id in vocabulary.items() if (match := _SENTINEL.fullmatch(token))]
    numbered = {int(match[1]): token_id for match, token_id in matches}
    return [numbered[number] for number in sorted(numbered)]


def make_objective(config: AdaptationConfig, vocabulary: Mapping[str, int], model_name: str) -> RowMaker:
    """The objective of the settings, for a tokenizer with this vocabulary.

    Example:
        >>> make_objective(AdaptationConfig(), {}, "t5").chunk_length
        511
    """
    if config.objective == "prefix-lm":
        return PrefixLM(config.length - 1)
    chunk_length = chunk_length_for(config.length, config.noise_density, config.mean_span)
    _, num_spans = count_noise(chunk_length, config.noise_density, config.mean_span)
    needed = num_spans + config.final_sentinel
    sentinels = sentinel_ids(vocabulary)
    if not sentinels:
        raise BackboneError(
            setting="objective",
            got=f"span-corruption on {model_name}",
            expected="a tokenizer with sentinels <extra_id_0>, <extra_id_1>, ...",
            fix="take a T5 or mT5, or set `objective=prefix-lm`",
        )
    if needed > len(sentinels):
        raise ConfigurationError(
            setting="length",
            got=config.length,
            expected=f"at most {len(sentinels)} dropped spans, as many as there are sentinels ({needed} here)",
            fix="lower length or noise_density, or raise mean_span",
        )
    return SpanCorruption(chunk_length, tuple(sentinels), config.noise_density, config.mean_span, config.final_sentinel)
