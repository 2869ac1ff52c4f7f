"""Random draws that belong to a row's place in the global batch, not to the process or piece that runs it.

Every piece of a step starts from the same seed, draws for all rows of the global batch and takes its own, so
several processes and gradient accumulation see the noise that one big batch would.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

_places: ContextVar[tuple[Sequence[int], int] | None] = ContextVar("softcue_places", default=None)


@contextmanager
def rows_of_global_batch(places: Sequence[int], total: int) -> Iterator[None]:
    """While active, row i of a piece is row `places[i]` of a global batch of `total` rows."""
    token = _places.set((places, total))
    try:
        yield
    finally:
        _places.reset(token)


def uniform_like(values: Tensor) -> Tensor:
    """U[0, 1) numbers of the shape of `values`, whose first axis is the rows.

    Example:
        >>> torch.manual_seed(0) is not None and uniform_like(torch.zeros(2, 3)).shape
        torch.Size([2, 3])
    """
    places, total = batch_positions(len(values))
    everything = torch.rand(total, *values.shape[1:], device=values.device)
    return everything[torch.tensor(places, device=values.device)]


def batch_positions(num_rows: int) -> tuple[Sequence[int], int]:
    """The places of a piece's rows in the global batch, and how many rows that has.

    Example:
        >>> batch_positions(2)
        (range(0, 2), 2)
    """
    active = _places.get()
    return (range(num_rows), num_rows) if active is None or len(active[0]) != num_rows else active


def row_generators(num_rows: int) -> list[torch.Generator]:
    """A random stream for each row of a piece, the same wherever the row is run.

    For noise whose shape depends on a row's length: drawn at its own length, it does not depend on padding either.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> len(row_generators(3))
        3
    """
    seed = int(torch.randint(2**62, ()))
    return [torch.Generator().manual_seed(seed + place) for place in batch_positions(num_rows)[0]]


def text_generator(seed: int, ids: Sequence[int]) -> torch.Generator:
    """A random stream that belongs to a text.

    Example:
        >>> torch.equal(*(torch.rand(2, generator=text_generator(0, [5, 6])) for _ in range(2)))
        True
    """
    digest = hashlib.blake2b(f"{seed} {list(ids)}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


class RowDropout(nn.Module):
    """Dropout whose noise follows a row wherever it is run."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, values: Tensor) -> Tensor:
        """Drop a share of the numbers in training and scale up the rest."""
        if not self.training or self.share == 0:
            return values
        return values * (uniform_like(values) >= self.share) / (1 - self.share)
