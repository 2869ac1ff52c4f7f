"""Noise that belongs to a row's position in the global batch, not to the process or micro-batch that computes it.

A number is a hash of the step's seed, the row's position in the global batch, the place of the draw in the pass, and
its own place within the row. So noise is made where it is needed, on any device and with the same numbers there, and no
draw depends on the other rows. Several processes, micro-batches and gradient checkpointing have the noise of one big
batch in one pass.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from softcue.devices import send


@dataclass
class _GlobalBatch:
    """The rows of a micro-batch in the global batch of a step."""

    positions: Sequence[int]
    total: int
    rows: dict[torch.device, Tensor] = field(default_factory=dict)  # [B] the positions on each device that drew

    @cached_property
    def seed(self) -> int:
        """Of all noise of these rows, from torch's generator at the first draw."""
        return _new_seed()

    def rows_on(self, device: torch.device) -> Tensor:
        if device not in self.rows:
            self.rows[device] = send(torch.tensor(list(self.positions), dtype=torch.int32), device)
        return self.rows[device]


class _DrawPlace(NamedTuple):
    """Where the next draw is. It is kept in a context, so a layer that runs again draws at the same places again."""

    num_passes: int = 0  # of a backbone that have begun so far
    section: int = -1  # the layer that runs; -1 outside of all layers
    num_draws: int = 0  # in this section so far


_batch: ContextVar[_GlobalBatch | None] = ContextVar("softcue_global_batch", default=None)
_START = _DrawPlace()
_place: ContextVar[_DrawPlace] = ContextVar("softcue_draw_place", default=_START)


@contextmanager
def rows_of_global_batch(positions: Sequence[int], total: int) -> Iterator[None]:
    """While active, row i of a micro-batch is row `positions[i]` of a global batch of `total` rows.

    The seed of all noise inside comes from torch's generator of the host.

    Example:
        >>> with rows_of_global_batch([2, 0], total=4):
        ...     batch_positions(2)
        ([2, 0], 4)
    """
    batch_token, place_token = _batch.set(_GlobalBatch(positions, total)), _place.set(_DrawPlace())
    try:
        yield
    finally:
        _batch.reset(batch_token)
        _place.reset(place_token)


@contextmanager
def draws_of_pass() -> Iterator[None]:
    """While active, draws belong to a new pass of a backbone, section by section (`begin_section`)."""
    before = _place.get()
    _place.set(_DrawPlace(before.num_passes + 1))
    try:
        yield
    finally:
        _place.set(before._replace(num_passes=before.num_passes + 1))


def begin_section(number: int) -> None:
    """Let the next draws belong to a layer: what it draws does not depend on what was drawn before.

    Example:
        begin_section(3)
    """
    _place.set(_place.get()._replace(section=number, num_draws=0))


def batch_positions(num_rows: int) -> tuple[Sequence[int], int]:
    """Return the positions of a micro-batch's rows in the global batch, and the global batch's number of rows.

    Example:
        >>> batch_positions(2)
        (range(0, 2), 2)
    """
    active = _active_batch(num_rows)
    return (range(num_rows), num_rows) if active is None else (active.positions, active.total)


def _active_batch(num_rows: int) -> _GlobalBatch | None:
    """The active batch, unless these are other rows, such as those of an evaluation."""
    active = _batch.get()
    return None if active is None or len(active.positions) != num_rows else active


@dataclass
class RowDraws:
    """Random numbers of the rows of a micro-batch. Each call draws new ones.

    Example:
        >>> draws = RowDraws(seed=3, rows=torch.tensor([4, 1], dtype=torch.int32))
        >>> whole = RowDraws(seed=3, rows=torch.arange(5, dtype=torch.int32))
        >>> torch.equal(draws.uniform(7), whole.uniform(7)[[4, 1]])
        True
    """

    seed: int
    rows: Tensor  # [B] int32 position of each row in the global batch, on the device that draws
    num_draws: int = 0

    def uniform(self, *shape: int) -> Tensor:
        """Draw from U[0, 1) for each row. [B ...]"""
        keys = _mixed(_mixed(self.rows.new_full((), self.next_seed())) + self.rows)  # [B]
        return hashed_uniform(keys, math.prod(shape)).view(len(self.rows), *shape)

    def next_seed(self) -> int:
        """Return a seed for the next draw, below 2^31."""
        self.num_draws += 1
        return _hashed(self.seed, self.num_draws)

    def noise(self, tokens: Tensor, share: float) -> TokenNoise:
        """Return the dropout of rows whose tokens have these numbers, for one draw. [B S]"""
        return TokenNoise(share, self.next_seed(), self.rows, tokens)


def row_draws(num_rows: int, device: torch.device) -> RowDraws:
    """Return the random numbers of each row of a micro-batch, the same in whatever micro-batch the row is.

    Example:
        >>> row_draws(3, torch.device("cpu")).uniform(2).shape
        torch.Size([3, 2])
    """
    running, active = _batch.get(), _active_batch(num_rows)
    rows = torch.arange(num_rows, dtype=torch.int32, device=device) if active is None else active.rows_on(device)
    if running is None:
        return RowDraws(_hashed(_new_seed(), *_DrawPlace()), rows)  # as the first draw of a batch
    place = _place.get()
    _place.set(place._replace(num_draws=place.num_draws + 1))
    return RowDraws(_hashed(running.seed, *place), rows)


def uniform_like(values: Tensor) -> Tensor:
    """Draw from U[0, 1) in the shape of `values`, whose first axis is the rows.

    Example:
        >>> torch.manual_seed(0) is not None and uniform_like(torch.zeros(2, 3)).shape
        torch.Size([2, 3])
    """
    return row_draws(len(values), values.device).uniform(*values.shape[1:])


def text_key(seed: int, ids: Sequence[int]) -> int:
    """Return a number below 2^31 that depends only on the seed and a text's token ids.

    Example:
        >>> text_key(0, [5, 6]) == text_key(0, (5, 6)) != text_key(1, [5, 6])
        True
    """
    return _hashed(seed, *ids)


def hashed_uniform(keys: Tensor, count: int) -> Tensor:
    """Return numbers of U[0, 1) by a hash of a row's key and their place in the row. [B] int32 -> [B count]

    Example:
        >>> numbers = hashed_uniform(torch.tensor([1, 2], dtype=torch.int32), 5000)
        >>> bool((numbers.mean(dim=1) - 0.5).abs().max() < 0.02), bool(numbers.max() < 1)
        (True, True)
    """
    places = _mixed(torch.arange(count, dtype=torch.int32, device=keys.device))  # [count]
    drawn = _mixed(keys.unsqueeze(1) ^ places)  # [B count]
    return ((drawn >> 8) & (2**24 - 1)).float() * 2.0**-24  # as many bits as float32 holds


def step_keys(keys: Tensor, step: int) -> Tensor:
    """Return other keys of the same rows for each step. [B] int32

    Example:
        >>> keys = torch.tensor([1, 2], dtype=torch.int32)
        >>> torch.equal(step_keys(keys, 0), step_keys(keys, 1))
        False
    """
    return _mixed(_mixed(keys) + step)


def _new_seed() -> int:
    return int(torch.randint(2**62, (), device="cpu"))


def _hashed(*numbers: int) -> int:
    """A number below 2^31."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") >> 1


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
        active = _active_batch(len(tokens))
        rows = torch.arange(len(tokens), device=tokens.device) if active is None else active.rows_on(tokens.device)
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

    def on(self, device: torch.device) -> TokenNoise:
        """Return the noise for values on a device."""
        if self.tokens.device == device:
            return self
        return replace(self, rows=self.rows.to(device), tokens=self.tokens.to(device))

    def drop(self, values: Tensor, place: int) -> Tensor:
        """Set a share of the values to zero and scale the others up. [B S D]"""
        features = _mixed(torch.arange(values.shape[2], dtype=torch.int32, device=values.device))  # [D]
        drawn = _mixed(self._keys(place).unsqueeze(2) ^ features)  # [B S D]
        return self._dropped(values, drawn)

    def drop_weights(self, values: Tensor, place: int) -> Tensor:
        """Drop attention weights of the first Q tokens to all S, the same way. [B H Q S]"""
        queries = self._keys(place)[:, : values.shape[2]].unsqueeze(2)  # [B Q 1]
        tokens = _mixed(self.tokens.int()).unsqueeze(1)  # [B 1 S]
        heads = _mixed(torch.arange(1, values.shape[1] + 1, dtype=torch.int32, device=values.device)).view(-1, 1, 1)
        least = int(self.share * 2**32) - 2**31
        kept = torch.empty_like(values)
        rows_at_once = 1 if values.device.type == "cpu" else len(values)  # one row fits a processor's cache
        for first in range(0, len(values), rows_at_once):
            rows = slice(first, first + rows_at_once)
            pairs = _mixed(queries[rows] + tokens[rows])  # [b Q S]
            drawn = pairs.unsqueeze(1) ^ heads  # [b H Q S]
            kept[rows] = drawn.mul_(_FACTOR) >= least
            kept[rows] *= 1 / (1 - self.share)
        return values * kept

    def _keys(self, place: int) -> Tensor:
        """A number for each token at a place of the pass. [B S]"""
        start = torch.full((), self.seed % 2**31, dtype=torch.int32, device=self.tokens.device)
        return _mixed(_mixed(_mixed(start + place) + self.rows.int()).unsqueeze(1) + self.tokens.int())

    def _dropped(self, values: Tensor, drawn: Tensor) -> Tensor:
        return torch.where((drawn & _LARGEST) >= int(self.share * 2**31), values / (1 - self.share), 0.0)


_LARGEST = 2**31 - 1
_FACTOR = 0x7FEB352D


def _mixed(numbers: Tensor) -> Tensor:
    """Mix the bits of 32-bit integers: near numbers give unrelated ones."""
    numbers = numbers ^ ((numbers >> 16) & 0xFFFF)  # >> keeps the sign, the mask removes it
    numbers = numbers * _FACTOR  # products wrap around
    numbers = numbers ^ ((numbers >> 15) & 0x1FFFF)
    numbers = numbers * (0x846CA68B - 2**32)
    return numbers ^ ((numbers >> 16) & 0xFFFF)
