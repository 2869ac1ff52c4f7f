"""Real texts and their lengths: of published files where a folder has them, otherwise of the sample tasks."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from softcue.tasks.config import TaskConfig
from softcue.tasks.splits import Splits, read_splits

PUBLISHED, SAMPLES = ("subj", "mr", "sst2"), ("tickets", "urgency")


def real_rows(data: Path | None, **sampling: Any) -> Splits:
    """The rows of one task, sampled as `task.*` settings say."""
    return _rows(PUBLISHED[0] if data else SAMPLES[0], data, **sampling)


def real_lengths(data: Path | None, num_rows: int) -> list[int]:
    """Lengths of that many texts in words and punctuation marks, which stand for tokens where weights are random.

    Example:
        >>> lengths = real_lengths(None, 100)
        >>> len(lengths), min(lengths) > 2, max(lengths) < 100
        (100, True, True)
    """
    rows = [_rows(name, data) for name in (PUBLISHED if data else SAMPLES)]
    known = [length_of(example.texts[0]) for found in rows for example in found.train]
    return random.Random(0).choices(known, k=num_rows)


def length_of(text: str) -> int:
    """Words and punctuation marks, and the two tokens that models put around a text.

    Example:
        >>> length_of("It's late.")
        7
    """
    return len(re.findall(r"\w+|[^\w\s]", text)) + 2


def standing_for(batches: Sequence[Sequence[int]], lengths: Sequence[int], num_batches: int) -> list[int]:
    """Rows of a few batches that stand for all batches of an epoch, by how wide padding makes them.

    A whole epoch takes too long to be timed many times, and a small one would not do: what sorts rows by length sorts
    few at once then, and pads more than it does with thousands.

    Example:
        >>> standing_for([[0], [1], [2], [3], [4], [5]], lengths=[9, 1, 5, 2, 6, 8], num_batches=2)
        [3, 5]
    """
    widths = [max(lengths[row] for row in batch) for batch in batches]
    order = sorted(range(len(batches)), key=lambda place: widths[place])
    num_batches = min(num_batches, len(batches))
    edges = [round(part * len(order) / num_batches) for part in range(num_batches + 1)]
    found: list[int] = []
    for start, end in pairwise(edges):
        mean = fmean(widths[place] for place in order[start:end])
        found += batches[min(order[start:end], key=lambda place: abs(widths[place] - mean))]
    return found


def _rows(name: str, data: Path | None, **sampling: Any) -> Splits:
    return read_splits(TaskConfig(name=name, data=str(data or ""), **sampling), {})
