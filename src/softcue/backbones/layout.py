"""Where prompt, text and target of each row go in one sequence, for every method and every kind of backbone.

Embeddings, mask, positions, segments and slots of a `Layout` all come from the same gather indices, so they cannot
disagree. Rows are packed without gaps: the padding of a shorter prompt goes to the padding at the edge of the row.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from softcue.devices import send
from softcue.inputs.collate import PaddingSide
from softcue.types import Batch


@dataclass(frozen=True)
class JoinedVectors:
    """Prompt vectors of rows whose prompt is only keys and values: they join the keys of a layer, without positions.

    Tokens are numbered as if the vectors stood among them.
    """

    mask: Tensor  # [B P] False in rows whose prompts have positions
    positions: Tensor  # [B P] the number of each vector's position
    num_before: Tensor  # [B S] how many of them come before each laid-out token

    def rows(self, index: Tensor | slice) -> JoinedVectors:
        """Return the vectors of some of the rows."""
        return JoinedVectors(self.mask[index], self.positions[index], self.num_before[index])

    def on(self, device: torch.device) -> JoinedVectors:
        """Return the vectors on a device."""
        return JoinedVectors(send(self.mask, device), send(self.positions, device), send(self.num_before, device))


@dataclass(frozen=True)
class Layout:
    """Gather indices into the pool [prompt | text | target | padding], and the masks and slots derived from them."""

    index: Tensor  # [B S] the source of each position in the pool
    mask: Tensor  # [B S] False at padding
    text_slots: Tensor  # [B T] the position of each text token; 0 for padding
    target_slots: Tensor  # [B U] the position of each target token; 0 for padding
    text_mask: Tensor  # [B T]
    target_mask: Tensor  # [B U]
    prompt_length: int  # P; positions with index < P hold prompt tokens
    pool_size: int  # P + T + U; the index of padding
    joined: JoinedVectors | None = None  # prompt vectors that are counted as positions, but take none
    host: Layout | None = None  # the same where the host made it, if this is a copy on another device
    _copies: dict[torch.device, Layout] = field(default_factory=dict, repr=False)  # on devices of other layers

    @property
    def on_host(self) -> Layout:
        """The layout where it was made: the host reads it there without waiting for a device."""
        return self if self.host is None else self.host

    def on(self, device: torch.device) -> Layout:
        """Return the layout on a device: that of the layer that needs it. Copies are kept."""
        if self.index.device == device:
            return self
        if device not in self._copies:
            host = self.on_host
            tensors: dict[str, Any] = {
                name: send(value, device) for name, value in vars(host).items() if isinstance(value, Tensor)
            }
            joined = None if host.joined is None else host.joined.on(device)
            self._copies[device] = replace(self, **tensors, joined=joined, host=host, _copies={})
        return self._copies[device]

    @property
    def positions(self) -> Tensor:
        """Position numbers from 0, counted over real tokens only. Padding repeats the number of a neighbour. [B S]"""
        positions = (self.mask.long().cumsum(dim=1) - 1).clamp(min=0)
        return positions if self.joined is None else positions + self.joined.num_before

    @property
    def num_positions(self) -> Tensor:
        """The number of positions of each row, joined vectors included. [B 1]"""
        num_placed = self.mask.sum(dim=1, keepdim=True)
        return num_placed if self.joined is None else num_placed + self.joined.mask.sum(dim=1, keepdim=True)

    @property
    def is_prompt(self) -> Tensor:
        """Which positions hold prompt tokens."""
        return self.index < self.prompt_length  # [B S]

    @property
    def is_text(self) -> Tensor:
        """Which positions hold text tokens."""
        num_text = self.text_mask.shape[1]
        return (self.index >= self.prompt_length) & (self.index < self.prompt_length + num_text)  # [B S]

    def place(self, prompt: Tensor, text: Tensor, target: Tensor) -> Tensor:
        """Lay out vectors: prompt [B P D], text [B T D], target [B U D] -> [B S D]."""
        pool = torch.cat([prompt, text, target, text.new_zeros(text.shape[0], 1, text.shape[2])], dim=1)
        # index_select, because gather would keep the whole pool for the backward pass
        starts = torch.arange(pool.shape[0], device=pool.device).unsqueeze(1) * pool.shape[1]  # [B 1]
        rows = (starts + self.index).int().flatten()  # kept for the backward pass: int takes half the memory of long
        return pool.flatten(0, 1).index_select(0, rows).view(*self.index.shape, -1)

    def place_segments(self, segments: Tensor) -> Tensor:
        """Lay out the segment numbers of the text [B T]; prompt and padding belong to segment 0."""
        pool = segments.new_zeros(segments.shape[0], self.pool_size + 1)
        pool[:, self.prompt_length : self.prompt_length + segments.shape[1]] = segments
        return pool.gather(1, self.index)  # [B S]

    def rows(self, index: Tensor | slice) -> Layout:
        """Return the layout of some of the rows."""
        host = self.host
        if host is not None:
            host = host.rows(index.to(host.index.device) if isinstance(index, Tensor) else index)
        return replace(
            self,
            host=host,
            _copies={},
            index=self.index[index],
            mask=self.mask[index],
            text_slots=self.text_slots[index],
            target_slots=self.target_slots[index],
            text_mask=self.text_mask[index],
            target_mask=self.target_mask[index],
            joined=None if self.joined is None else self.joined.rows(index),
        )

    def at_slots(self, prompt: Tensor) -> Tensor:
        """Put prompt vectors [B P X] at their positions [B S X]; the values at other positions have no meaning."""
        index = self.index.clamp(max=prompt.shape[1] - 1).unsqueeze(2).expand(-1, -1, prompt.shape[2])
        return prompt.gather(1, index)

    def text_of(self, hidden: Tensor) -> Tensor:
        """Take hidden states at the positions of the text. [B S D] -> [B T D]"""
        return _gather_slots(hidden, self.text_slots)

    def target_of(self, hidden: Tensor) -> Tensor:
        """Take hidden states at the positions of the target. [B S D] -> [B U D]"""
        return _gather_slots(hidden, self.target_slots)


def _gather_slots(hidden: Tensor, slots: Tensor) -> Tensor:
    return hidden.gather(1, slots.unsqueeze(2).expand(-1, -1, hidden.shape[2]))


def lay_out(
    batch: Batch,
    prompt_mask: Tensor,
    side: PaddingSide,
    with_target: bool = False,
    joined_mask: Tensor | None = None,
) -> Layout:
    """Place each row as text[:insert_at], prompt, text[insert_at:], target; pad on the given side.

    With `batch.places` each prompt vector has its own place in the text. Prompt vectors in `joined_mask` take no
    position, but tokens are numbered as if they did.

    Example:
        >>> from softcue.inputs.collate import collate
        >>> from softcue.types import TokenizedRow
        >>> batch = collate([TokenizedRow((7, 8), None, insert_at=1), TokenizedRow((9,), None, insert_at=0)], pad_id=0)
        >>> lay_out(batch, torch.ones(2, 1, dtype=torch.bool), "right").index.tolist()  # pool: [p, t0, t1, pad]
        [[1, 0, 2], [0, 1, 3]]
    """
    device = batch.ids.device
    if joined_mask is not None:
        prompt_mask = prompt_mask & ~joined_mask
    target_mask = batch.target_mask if with_target else batch.target_mask[:, :0]
    prompt_lengths = prompt_mask.sum(dim=1, keepdim=True)  # [B 1]
    text_lengths = batch.mask.sum(dim=1, keepdim=True)  # [B 1]
    lengths = prompt_lengths + text_lengths + target_mask.sum(dim=1, keepdim=True)  # [B 1]
    # S. A graph that is exported serves other batches too, so it has a column for every token.
    num_columns = prompt_mask.shape[1] + batch.mask.shape[1] + target_mask.shape[1]
    total = num_columns if torch.compiler.is_exporting() else int(lengths.max())
    shift = total - lengths if side == "left" else torch.zeros_like(lengths)  # [B 1]

    text_rank = batch.mask.long().cumsum(dim=1) - 1  # [B T] number among the real tokens of the row
    prompt_places, num_before = _insert(batch, prompt_mask, text_rank)
    text_slots = text_rank + num_before + shift
    prompt_slots = prompt_places + shift  # [B P]
    target_slots = prompt_lengths + text_lengths + target_mask.long().cumsum(dim=1) - 1 + shift  # [B U]

    slots = torch.cat([prompt_slots, text_slots, target_slots], dim=1)  # [B P+T+U]
    is_real = torch.cat([prompt_mask, batch.mask, target_mask], dim=1)  # [B P+T+U]
    pool_size = slots.shape[1]
    index = torch.full(
        (batch.size, total + 1), pool_size, device=device
    )  # the last column takes padding and is dropped
    source = torch.arange(pool_size, device=device).expand_as(slots)
    index = index.scatter(1, slots.where(is_real, total), source)[:, :total]  # [B S]
    joined = None
    if joined_mask is not None:
        positions, num_joined_before = _insert(batch, joined_mask, text_rank)
        num_joined = joined_mask.sum(dim=1, keepdim=True)  # [B 1]
        in_pool = torch.cat(
            [
                torch.zeros_like(joined_mask).long(),
                num_joined_before,
                num_joined.expand(-1, target_mask.shape[1]),
                torch.zeros_like(num_joined),
            ],
            dim=1,
        )  # [B P+T+U+1]
        joined = JoinedVectors(joined_mask, positions, in_pool.gather(1, index))
    return Layout(
        index=index,
        mask=index < pool_size,
        text_slots=text_slots.where(batch.mask, 0),
        target_slots=target_slots.where(target_mask, 0),
        text_mask=batch.mask,
        target_mask=target_mask,
        prompt_length=prompt_mask.shape[1],
        pool_size=pool_size,
        joined=joined,
    )


def _insert(batch: Batch, prompt_mask: Tensor, text_rank: Tensor) -> tuple[Tensor, Tensor]:
    """The place of each prompt vector in its row, and the number of vectors before each token. [B P], [B T]"""
    insert_at = batch.insert_at.unsqueeze(1)  # [B 1]
    num_before = prompt_mask.sum(dim=1, keepdim=True) * (text_rank >= insert_at)  # [B T]
    if batch.places is not None:
        insert_at = insert_at.expand(-1, prompt_mask.shape[1]).clone()  # [B P]
        num_placed = min(insert_at.shape[1], batch.places.shape[1])
        insert_at[:, :num_placed] = batch.places[:, :num_placed]
        is_before = insert_at.unsqueeze(1) <= text_rank.unsqueeze(2)  # [B T P]
        num_before = (is_before & prompt_mask.unsqueeze(1)).sum(dim=2)
    return insert_at + prompt_mask.long().cumsum(dim=1) - 1, num_before
