"""Noise that belongs to a row's position in the global batch, not to the process or micro-batch that computes it.

Every micro-batch of a step starts from the same seed, draws for all rows of the global batch and uses the noise of its
rows. Several processes and gradient accumulation then have the noise of one big batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_positions: ContextVar[tuple[Sequence[int], int] | None] = ContextVar("softcue_batch_positions", default=None)


@contextmanager
def rows_of_global_batch(positions: Sequence[int], total: int) -> Iterator[None]:
    """While active, row i of a micro-batch is row `positions[i]` of a global batch of `total` rows.

    Example:
        >>> with rows_of_global_batch([2, 0], total=4):
        ...     batch_positions(2)
        ([2, 0], 4)
    """
    token = _positions.set((positions, total))
    try:
        yield
    finally:
        _positions.reset(token)


def uniform_like(values: Tensor) -> Tensor:
    """Draw from U[0, 1) in the shape of `values`, whose first axis is the rows.

    Example:
        >>> torch.manual_seed(0) is not None and uniform_like(torch.zeros(2, 3)).shape
        torch.Size([2, 3])
    """
    positions, total = batch_positions(len(values))
    global_noise = torch.rand(total, *values.shape[1:], device=values.device)
    return global_noise[torch.tensor(positions, device=values.device)]


def batch_positions(num_rows: int) -> tuple[Sequence[int], int]:
    """Return the positions of a micro-batch's rows in the global batch, and the global batch's number of rows.

    Example:
        >>> batch_positions(2)
        (range(0, 2), 2)
    """
    active = _positions.get()
    return (range(num_rows), num_rows) if active is None or len(active[0]) != num_rows else active


def row_generators(num_rows: int) -> list[torch.Generator]:
    """Return a generator for each row of a micro-batch, the same in whatever micro-batch the row is.

    It is for noise whose shape depends on a row's length: drawn for the row alone, it does not depend on padding.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> len(row_generators(3))
        3
    """
    seed = int(torch.randint(2**62, ()))
    return [torch.Generator().manual_seed(seed + position) for position in batch_positions(num_rows)[0]]


def text_generator(seed: int, ids: Sequence[int]) -> torch.Generator:
    """Return a generator that depends only on the seed and a text's token ids.

    Example:
        >>> torch.equal(*(torch.rand(2, generator=text_generator(0, [5, 6])) for _ in range(2)))
        True
    """
    digest = hashlib.blake2b(f"{seed} {list(ids)}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


class RowDropout(nn.Module):
    """Dropout whose noise does not depend on how a batch is split into micro-batches.

    Example:
        >>> RowDropout(0.5).eval()(torch.ones(1, 2))
        tensor([[1., 1.]])
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, values: Tensor) -> Tensor:
        """Set a share of the values to zero in training, and scale the others up."""
        if not self.training or self.share == 0:
            return values
        return values * (uniform_like(values) >= self.share) / (1 - self.share)


@dataclass(frozen=True)
class Dropout:
    """Dropout of a training pass of the backbone: the share of values set to zero, and the seed of the step."""

    share: float
    seed: int

    def of_tokens(self, tokens: Tensor) -> TokenNoise:
        """Return the noise of rows whose tokens have these numbers. [B S]"""
        rows = torch.tensor(list(batch_positions(len(tokens))[0]), device=tokens.device)
        return TokenNoise(self.share, self.seed, rows, tokens)


@dataclass(frozen=True)
class TokenNoise:
    """Dropout at many places of a pass, by a hash of seed, row, place, token and feature.

    It keeps no state. So a row has the same noise in whatever micro-batch, under any padding and on any device, and a
    layer that runs again in the backward pass has the noise of its first run.

    Example:
        >>> noise = TokenNoise(0.5, seed=3, rows=torch.tensor([0, 1]), tokens=torch.tensor([[0, 1], [0, 1]]))
        >>> dropped = noise.drop(torch.ones(2, 2, 4), place=0)
        >>> torch.equal(dropped, noise.drop(torch.ones(2, 2, 4), place=0)), sorted(set(dropped.flatten().tolist()))
        (True, [0.0, 2.0])
    """

    share: float  # of the values that are set to zero
    seed: int
    rows: Tensor  # [B] position of each row in the global batch
    tokens: Tensor  # [B S] number of each token within its row; at padding it has no meaning

    def drop(self, values: Tensor, place: int) -> Tensor:
        """Set a share of the values to zero and scale the others up. [B S D]"""
        start = torch.tensor(self.seed % 2**31, dtype=torch.int32, device=values.device)
        key = _mixed(_mixed(_mixed(start + place) + self.rows.int()).unsqueeze(1) + self.tokens.int())  # [B S]
        features = _mixed(torch.arange(values.shape[2], dtype=torch.int32, device=values.device))  # [D]
        drawn = _mixed(key.unsqueeze(2) ^ features) & _LARGEST  # [B S D] even in 0 .. 2^31 - 1
        return torch.where(drawn >= int(self.share * 2**31), values / (1 - self.share), 0.0)


_LARGEST = 2**31 - 1


def _mixed(numbers: Tensor) -> Tensor:
    """Mix the bits of 32-bit integers: near numbers give unrelated ones."""
    numbers = numbers ^ ((numbers >> 16) & 0xFFFF)  # >> keeps the sign, the mask removes it
    numbers = numbers * 0x7FEB352D  # products wrap around
    numbers = numbers ^ ((numbers >> 15) & 0x1FFFF)
    numbers = numbers * (0x846CA68B - 2**32)
    return numbers ^ ((numbers >> 16) & 0xFFFF)
