"""Which rows each step takes: a function of seed and epoch alone, so a resumed run sees the same rows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import overload

import numpy
import torch

from softcue.inputs.collate import split_by_budget
from softcue.inputs.packed_rows import Array

BUCKET = 50  # batches that are sorted by length together: little padding, and the order stays random


def stream_seed(*parts: object) -> int:
    """A separate seed for each (run seed, purpose, number).

    Example:
        >>> stream_seed(0, "order", 1) != stream_seed(0, "order", 2)
        True
    """
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:7], "big")


class EpochBatches(Sequence[list[int]]):
    """The epoch's batches of row numbers: shuffled, sorted by length within buckets, shuffled again.

    It holds one number per row, and makes a batch when it is asked for.

    Example:
        >>> batches = EpochBatches([5, 1, 5, 1], batch_size=2, seed=0, epoch=0)
        >>> sorted(map(sorted, batches))
        [[0, 2], [1, 3]]
    """

    def __init__(self, lengths: Sequence[int] | Array, batch_size: int, seed: int, epoch: int) -> None:
        generator = torch.Generator().manual_seed(stream_seed(seed, "order", epoch))
        self._size, self._lengths = batch_size, numpy.asarray(lengths)
        self._rows = torch.randperm(len(lengths), generator=generator).numpy()
        for start in range(0, len(self._rows), BUCKET * batch_size):
            bucket = self._rows[start : start + BUCKET * batch_size]
            bucket[:] = bucket[numpy.argsort(self._lengths[bucket], kind="stable")]
        num_batches = -(-len(self._rows) // batch_size)
        self._order = torch.randperm(num_batches, generator=generator).numpy()

    def __len__(self) -> int:
        """The number of batches."""
        return len(self._order)

    @overload
    def __getitem__(self, index: int) -> list[int]: ...

    @overload
    def __getitem__(self, index: slice) -> list[list[int]]: ...

    def __getitem__(self, index: int | slice) -> list[int] | list[list[int]]:
        """The rows of a batch, or several batches."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        first = int(self._order[index]) * self._size
        rows: list[int] = self._rows[first : first + self._size].tolist()
        return rows


def micro_batches(
    lengths: Sequence[int], rank: int, world_size: int, max_rows: int = 0, max_tokens: int = 0
) -> list[list[int]]:
    """The micro-batches of this process: positions in the global batch, limited in rows and tokens; 0 is no limit.

    Example:
        >>> micro_batches([9, 9, 9, 9, 9], rank=0, world_size=2, max_rows=2)
        [[0, 2], [4]]
    """
    return split_by_budget(range(rank, len(lengths), world_size), lengths, max_rows, max_tokens)
