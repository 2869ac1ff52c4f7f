"""Tokenized rows -> one padded batch, and rows in batches of similar length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from softcue.types import Batch, TokenizedRow

PaddingSide = Literal["left", "right"]


NOWHERE = (-1, -1)  # a token that stands for no character of the last text


NO_LABEL = -100  # a token that has no answer


def collate(rows: Sequence[TokenizedRow], pad_id: int, side: PaddingSide = "right") -> Batch:
    """Rows to one batch, padded to the longest row.

    Example:
        >>> collate([TokenizedRow((5, 6), None, 0), TokenizedRow((7,), None, 0)], pad_id=0).mask.tolist()
        [[True, True], [True, False]]
    """
    ids, mask = _padded([row.ids for row in rows], pad_id, side)
    has_segments = any(row.segments is not None for row in rows)
    segments = [row.segments or (0,) * len(row.ids) for row in rows]
    target_ids, target_mask = _padded([row.target_ids for row in rows], pad_id, "right")
    has_parts = any(row.parts is not None for row in rows)
    parts = [row.parts or (-1,) * len(row.ids) for row in rows]
    labels = [row.label for row in rows if row.label is not None]
    has_token_labels = any(row.token_labels is not None for row in rows)
    token_labels = [row.token_labels or (NO_LABEL,) * len(row.ids) for row in rows]
    return Batch(
        ids,
        mask,
        _padded(segments, 0, side)[0] if has_segments else None,
        torch.tensor([row.insert_at for row in rows]),
        target_ids,
        target_mask,
        torch.tensor(labels) if len(labels) == len(rows) else None,
        _padded(parts, -1, side)[0] if has_parts else None,
        _stacked_offsets(rows, side),
        _padded(token_labels, NO_LABEL, side)[0] if has_token_labels else None,
        stack_sentence_vectors(rows),
        collate([row.plain for row in rows if row.plain is not None], pad_id, side) if rows[0].plain else None,
    )


def _stacked_offsets(rows: Sequence[TokenizedRow], side: PaddingSide) -> Tensor | None:
    """Where tokens stand in the last text, where rows know it. [B T 2]"""
    if all(row.offsets is None for row in rows):
        return None
    places = [row.offsets or (NOWHERE,) * len(row.ids) for row in rows]
    edges = [_padded([tuple(place[edge] for place in row) for row in places], -1, side)[0] for edge in (0, 1)]
    return torch.stack(edges, dim=2)


def stack_sentence_vectors(rows: Sequence[TokenizedRow]) -> Tensor | None:
    """M(x) of the rows, where all have one of one width. [B R]"""
    found = [row.representation for row in rows if row.representation is not None]
    if len(found) < len(rows) or len({value.shape for value in found}) != 1:
        return None
    return torch.stack(found)


def by_length(lengths: Sequence[int], batch_size: int, max_tokens: int) -> list[list[int]]:
    """Row numbers in batches of like length, longest first: the least padding, and memory peaks at once.

    Example:
        >>> by_length([3, 9, 4], batch_size=2, max_tokens=100)
        [[1, 2], [0]]
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    return within_budget(order, lengths, batch_size, max_tokens)


def within_budget(order: Sequence[int], lengths: Sequence[int], max_rows: int, max_tokens: int) -> list[list[int]]:
    """Consecutive rows in pieces of at most so many rows, and so many tokens with padding; 0 is no limit.

    Example:
        >>> within_budget([0, 1, 2], [5, 5, 6], max_rows=0, max_tokens=12)
        [[0, 1], [2]]
    """
    pieces: list[list[int]] = []
    longest = 0
    for row in order:
        longest = max(longest, lengths[row])
        size = len(pieces[-1]) + 1 if pieces else 1
        if not pieces or (max_rows and size > max_rows) or (max_tokens and size * longest > max_tokens):
            pieces.append([])
            longest = lengths[row]
        pieces[-1].append(row)
    return pieces


def _padded(rows: Sequence[tuple[int, ...]], pad: int, side: PaddingSide) -> tuple[Tensor, Tensor]:
    width = max((len(row) for row in rows), default=0)
    values = torch.full((len(rows), width), pad)  # [B T]
    mask = torch.zeros(len(rows), width, dtype=torch.bool)  # [B T]
    for index, row in enumerate(rows):
        span = slice(width - len(row), width) if side == "left" else slice(0, len(row))
        values[index, span] = torch.tensor(row, dtype=torch.long)
        mask[index, span] = True
    return values, mask
