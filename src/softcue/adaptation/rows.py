"""Rows of an objective as padded batches, in the form the model reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softcue.adaptation.objectives import RowMaker

IGNORED = -100  # a label that no loss reads


@dataclass(frozen=True)
class AdaptationRow:
    """Source and target ids of one row, with the tokenizer's marks of begin and end."""

    source: Tensor  # [S]
    target: Tensor  # [T]


@dataclass(frozen=True)
class AdaptationBatch:
    """Rows of one forward pass, padded at the right."""

    ids: Tensor  # [B S]
    mask: Tensor  # [B S]
    labels: Tensor  # [B T], IGNORED where padded


class RowFormat:
    """Makes rows and batches for one tokenizer: T5 and mT5 end texts with </s>, BART also begins them with <s>."""

    def __init__(self, tokenizer: Any, make_row: RowMaker) -> None:
        self.tokenizer, self.make_row = tokenizer, make_row
        marks = tokenizer("")["input_ids"]
        end = tokenizer.eos_token_id
        self.begin_ids = [token_id for token_id in marks if token_id != end]
        self.end_ids = [end]

    def tokenize(self, passage: str) -> list[int]:
        """The ids of a passage without marks of begin and end."""
        ids: list[int] = self.tokenizer(passage, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    def row(self, chunk: Tensor, seed: int) -> AdaptationRow:
        """The row of a chunk; what is random in it depends on the seed alone."""
        source, target = self.make_row(chunk.long(), torch.Generator().manual_seed(seed))
        return AdaptationRow(self._with_marks(source), self._with_marks(target))

    def batch(self, rows: Sequence[AdaptationRow], device: torch.device) -> AdaptationBatch:
        """Pad rows to the longest source and the longest target."""
        sources, targets = [row.source for row in rows], [row.target for row in rows]
        ids = _pad(sources, self.tokenizer.pad_token_id)
        mask = _pad([torch.ones_like(source) for source in sources], 0)
        return AdaptationBatch(ids.to(device), mask.to(device), _pad(targets, IGNORED).to(device))

    def _with_marks(self, ids: Tensor) -> Tensor:
        return torch.cat([ids.new_tensor(self.begin_ids), ids, ids.new_tensor(self.end_ids)])


def _pad(rows: Sequence[Tensor], value: int) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=value)
