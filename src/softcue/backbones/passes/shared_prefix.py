"""What rows of a batch begin with alike, found, run once and kept (causal.py reads with it)."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from softcue.inputs.collate import PaddingSide
from softcue.types import Batch, Prompt

KeysValues = list[tuple[Tensor, Tensor]]  # per layer [B heads S K/heads]
KEPT_BYTES = 1 << 28  # of keys and values that wait for the next batch


class Shared(NamedTuple):
    """Rows that begin alike."""

    rows: Tensor  # [b] places in the batch
    length: int  # N positions: what stands before the prompt, and the prompt
    before: tuple[int, ...]  # token numbers before the prompt
    prompt: Prompt


class Prefix(NamedTuple):
    """What a pass over those positions gives, for one row."""

    hidden: Tensor  # [1 N D] last-layer states
    cache: KeysValues


def shared_parts(batch: Batch, prompt: Prompt | None, side: PaddingSide) -> list[Shared]:
    """The rows of each prompt that begin alike; none if some prompt depends on the text or does not stand in front.

    Example:
        >>> from softcue.inputs.collate import collate
        >>> from softcue.types import TokenizedRow
        >>> rows = [TokenizedRow((1, 7, 8), None, insert_at=1), TokenizedRow((1, 9), None, insert_at=1)]
        >>> batch = collate(rows, pad_id=0)
        >>> whole = torch.ones(2, 5, dtype=torch.bool)
        >>> prompt = Prompt(torch.zeros(2, 5, 4), whole, torch.zeros(()), shared_by=nn.Identity())
        >>> shared_parts(batch, prompt, "left")[0].length
        6
    """
    if prompt is None:
        return []
    found = []
    every = torch.arange(batch.size, device=batch.ids.device)
    for rows, own in prompt.parts or ((every, prompt),):
        length = own.tokens.shape[1]
        if length and own.shared_by is None:
            return []
        before = int(batch.insert_at[rows[0]]) if length else 0
        ids, mask = batch.ids[rows, :before], batch.mask[rows]
        is_alike = bool((batch.insert_at[rows] == before).all()) if length else True
        if not is_alike or not bool((ids == ids[:1]).all() & mask[:, :before].all()):
            return []
        if not bool((mask.sum(dim=1) > before).all()):
            return []
        found.append(Shared(rows, before + length, tuple(ids[0].tolist()), own))
    lengths = {part.length for part in found}
    return [] if lengths == {0} or (side == "right" and len(lengths) > 1) else found


class PrefixStore:
    """Prefixes of prompts whose numbers have not changed since, those used last as far as there is room."""

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[nn.Module, tuple[list[Tensor], tuple[int, ...], Prefix]] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def get(self, part: Shared) -> Prefix | None:
        """What is kept for these rows, if it is still what a pass would give."""
        assert part.prompt.shared_by is not None
        with self._lock:
            known = self._kept.pop(part.prompt.shared_by, None)
            if known is not None:
                self._kept[part.prompt.shared_by] = known  # used last, so it goes last
        numbers, before, prefix = known or ([], None, None)
        now = _numbers(part.prompt.shared_by)
        is_same = before == part.before and len(numbers) == len(now) and all(map(torch.equal, numbers, now))
        return prefix if is_same else None

    def put(self, part: Shared, prefix: Prefix) -> None:
        """Keep a prefix; what was used longest ago goes where there are too many."""
        assert part.prompt.shared_by is not None
        numbers = [value.clone() for value in _numbers(part.prompt.shared_by)]
        with self._lock:
            self._kept.pop(part.prompt.shared_by, None)
            self._kept[part.prompt.shared_by] = (numbers, part.before, prefix)
            total = sum(_bytes(kept) for _, _, kept in self._kept.values())
            for module in list(self._kept):
                if total <= KEPT_BYTES:
                    break
                total -= _bytes(self._kept.pop(module)[2])

    def forget(self) -> None:
        """Drop everything that is kept."""
        with self._lock:
            self._kept.clear()


def cache_of(known: KeysValues) -> Any:
    """A cache of transformers that begins with these keys and values, and never crops them to a window of columns."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    cache = DynamicCache()
    for keys, values in known:
        layer = DynamicLayer()
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values  # an update of an empty layer would copy what is expanded
        cache.layers.append(layer)
    return cache


def _numbers(module: nn.Module) -> list[Tensor]:
    # Compared number by number: a version counter does not see what is changed through `.data`.
    return [value.detach() for value in (*module.parameters(), *module.buffers())]


def _bytes(prefix: Prefix) -> int:
    return sum(k.nbytes + v.nbytes for k, v in prefix.cache) + prefix.hidden.nbytes
