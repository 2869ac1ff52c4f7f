"""Which rows each step takes: a function of seed and epoch alone, so a resumed run sees the same rows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from softcue.inputs.collate import split_by_budget

BUCKET = 50  # batches that are sorted by length together: little padding, and the order stays random


def stream_seed(*parts: object) -> int:
    """A separate seed for each (run seed, purpose, number).

    Example:
        >>> stream_seed(0, "order", 1) != stream_seed(0, "order", 2)
        True
    """
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:7], "big")


def epoch_batches(lengths: Sequence[int], batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """The epoch's batches of row numbers: shuffled, sorted by length within buckets, shuffled again.

    Example:
        >>> batches = epoch_batches([5, 1, 5, 1], batch_size=2, seed=0, epoch=0)
        >>> sorted(map(sorted, batches))
        [[0, 2], [1, 3]]
    """
    generator = torch.Generator().manual_seed(stream_seed(seed, "order", epoch))
    order = torch.randperm(len(lengths), generator=generator).tolist()
    batches = []
    for start in range(0, len(order), BUCKET * batch_size):
        bucket = sorted(order[start : start + BUCKET * batch_size], key=lambda row: lengths[row])
        batches += [bucket[first : first + batch_size] for first in range(0, len(bucket), batch_size)]
    return [batches[index] for index in torch.randperm(len(batches), generator=generator).tolist()]


def micro_batches(
    lengths: Sequence[int], rank: int, world_size: int, max_rows: int = 0, max_tokens: int = 0
) -> list[list[int]]:
    """The micro-batches of this process: positions in the global batch, limited in rows and tokens; 0 is no limit.

    Example:
        >>> micro_batches([9, 9, 9, 9, 9], rank=0, world_size=2, max_rows=2)
        [[0, 2], [4]]
    """
    return split_by_budget(range(rank, len(lengths), world_size), lengths, max_rows, max_tokens)
