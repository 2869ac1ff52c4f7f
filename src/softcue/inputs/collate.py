"""Tokenized rows to padded batches, and the grouping of rows into batches of similar length."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from softcue.types import Batch, TokenizedRow

PaddingSide = Literal["left", "right"]

NO_SPAN = (-1, -1)  # the offsets of a token that has no characters in the last text
NO_LABEL = -100  # the label of a token that the loss leaves out


def collate(rows: Sequence[TokenizedRow], pad_id: int, side: PaddingSide = "right") -> Batch:
    """Join rows to one batch, padded to the longest row.

    Example:
        >>> collate([TokenizedRow((5, 6), None, 0), TokenizedRow((7,), None, 0)], pad_id=0).mask.tolist()
        [[True, True], [True, False]]
    """
    ids, mask = _pad([row.ids for row in rows], pad_id, side)
    has_segments = any(row.segments is not None for row in rows)
    target_ids, target_mask = _pad([row.target_ids for row in rows], pad_id, "right")
    has_parts = any(row.parts is not None for row in rows)
    labels = [row.label for row in rows if row.label is not None]
    has_token_labels = any(row.token_labels is not None for row in rows)
    return Batch(
        ids,
        mask,
        _pad([row.segments or (0,) * len(row.ids) for row in rows], 0, side)[0] if has_segments else None,
        torch.tensor([row.insert_at for row in rows]),
        target_ids,
        target_mask,
        torch.tensor(labels) if len(labels) == len(rows) else None,
        _pad([row.parts or (-1,) * len(row.ids) for row in rows], -1, side)[0] if has_parts else None,
        _stack_offsets(rows, side),
        _pad([row.token_labels or (NO_LABEL,) * len(row.ids) for row in rows], NO_LABEL, side)[0]
        if has_token_labels
        else None,
        stack_sentence_vectors(rows),
        _collate_plain(rows, pad_id, side),
        _stack_places(rows),
    )


def _collate_plain(rows: Sequence[TokenizedRow], pad_id: int, side: PaddingSide) -> Batch | None:
    """The inputs of M(x), if all rows have one."""
    plain_rows = [row.plain for row in rows if row.plain is not None]
    return collate(plain_rows, pad_id, side) if rows and len(plain_rows) == len(rows) else None


def _stack_places(rows: Sequence[TokenizedRow]) -> Tensor | None:
    """The place of each prompt vector, if any row has a prompt in several parts. [B P]"""
    num_vectors = max((len(row.places) for row in rows if row.places is not None), default=0)
    if not num_vectors:
        return None
    places = torch.tensor([[row.insert_at] * num_vectors for row in rows])
    for number, row in enumerate(rows):
        if row.places is not None:
            places[number, : len(row.places)] = torch.tensor(row.places)
    return places


def _stack_offsets(rows: Sequence[TokenizedRow], side: PaddingSide) -> Tensor | None:
    """The character spans of the tokens, if any row has them. [B T 2]"""
    if all(row.offsets is None for row in rows):
        return None
    spans = [row.offsets or (NO_SPAN,) * len(row.ids) for row in rows]
    edges = [_pad([tuple(span[edge] for span in row) for row in spans], -1, side)[0] for edge in (0, 1)]
    return torch.stack(edges, dim=2)


def stack_sentence_vectors(rows: Sequence[TokenizedRow]) -> Tensor | None:
    """The sentence vectors M(x) of the rows, if all rows have one of the same width. [B R]"""
    vectors = [row.representation for row in rows if row.representation is not None]
    if len(vectors) < len(rows) or len({vector.shape for vector in vectors}) != 1:
        return None
    return torch.stack(vectors)


def batch_by_length(lengths: Sequence[int], batch_size: int, max_tokens: int) -> list[list[int]]:
    """Group row indices into batches of similar length, longest first.

    Similar lengths need little padding, and with the longest batch first a lack of memory shows at once.

    Example:
        >>> batch_by_length([3, 9, 4], batch_size=2, max_tokens=100)
        [[1, 2], [0]]
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    return split_by_budget(order, lengths, batch_size, max_tokens)


def batch_by_equal_length(lengths: Sequence[int], batch_size: int, max_tokens: int) -> list[list[int]]:
    """Group row indices into batches of one length each, longest first, so that no row is padded.

    Padding changes the last bits of a row's states, and in bfloat16 not only the last. Without it they do not depend
    on which rows are read together.

    Example:
        >>> batch_by_equal_length([3, 9, 3, 3], batch_size=2, max_tokens=100)
        [[1], [0, 2], [3]]
    """
    rows_by_length: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        rows_by_length.setdefault(length, []).append(row)
    return [
        batch
        for length in sorted(rows_by_length, reverse=True)
        for batch in split_by_budget(rows_by_length[length], lengths, batch_size, max_tokens)
    ]


def split_by_budget(order: Sequence[int], lengths: Sequence[int], max_rows: int, max_tokens: int) -> list[list[int]]:
    """Split rows, in their order, into batches of at most `max_rows` rows and `max_tokens` tokens with padding.

    A limit of 0 is no limit. A single row may exceed `max_tokens`.

    Example:
        >>> split_by_budget([0, 1, 2], [5, 5, 6], max_rows=0, max_tokens=12)
        [[0, 1], [2]]
    """
    batches: list[list[int]] = []
    longest = 0
    for row in order:
        longest = max(longest, lengths[row])
        size = len(batches[-1]) + 1 if batches else 1
        if not batches or (max_rows and size > max_rows) or (max_tokens and size * longest > max_tokens):
            batches.append([])
            longest = lengths[row]
        batches[-1].append(row)
    return batches


def _pad(rows: Sequence[tuple[int, ...]], pad: int, side: PaddingSide) -> tuple[Tensor, Tensor]:
    """The padded rows and the mask of their real values. [B T], [B T]"""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))  # [B]
    width = int(lengths.max(initial=0))
    columns = np.arange(width)
    starts = width - lengths if side == "left" else np.zeros_like(lengths)
    mask = (columns >= starts[:, None]) & (columns < (starts + lengths)[:, None])  # [B T]
    values = np.full(mask.shape, pad, np.int64)  # [B T]
    values[mask] = np.fromiter(chain.from_iterable(rows), np.int64, int(lengths.sum()))  # row by row
    return torch.from_numpy(values), torch.from_numpy(mask)
