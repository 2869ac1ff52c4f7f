"""Real texts and their lengths, from published files if a folder has them, otherwise from the sample tasks."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from softcue.tasks.splits import Splits, TaskConfig, read_splits

PUBLISHED_TASKS, SAMPLE_TASKS = ("subj", "mr", "sst2"), ("tickets", "urgency")


def real_splits(data: Path | None, **sampling: Any) -> Splits:
    """The rows of one task, sampled by `task.*` settings."""
    return read_task(PUBLISHED_TASKS[0] if data else SAMPLE_TASKS[0], data, **sampling)


def real_lengths(data: Path | None, num_rows: int) -> list[int]:
    """Draw lengths of real texts, counted in words and punctuation marks. Random models use them as token counts.

    Example:
        >>> lengths = real_lengths(None, 100)
        >>> len(lengths), min(lengths) > 2, max(lengths) < 100
        (100, True, True)
    """
    tasks = [read_task(name, data) for name in (PUBLISHED_TASKS if data else SAMPLE_TASKS)]
    lengths = [text_length(example.texts[0]) for splits in tasks for example in splits.train]
    return random.Random(0).choices(lengths, k=num_rows)


def text_length(text: str) -> int:
    """Count words and punctuation marks, and the two special tokens around a text.

    Example:
        >>> text_length("It's late.")
        7
    """
    return len(re.findall(r"\w+|[^\w\s]", text)) + 2


def representative_rows(batches: Sequence[Sequence[int]], lengths: Sequence[int], num_batches: int) -> list[int]:
    """Choose the rows of a few batches whose padded widths represent all batches of an epoch.

    Timing a whole epoch many times takes too long. A small epoch is not the same: a sampler that groups rows by length
    has fewer rows to group then, and pads more.

    Example:
        >>> representative_rows([[0], [1], [2], [3], [4], [5]], lengths=[9, 1, 5, 2, 6, 8], num_batches=2)
        [3, 5]
    """
    widths = [max(lengths[row] for row in batch) for batch in batches]
    order = sorted(range(len(batches)), key=lambda index: widths[index])
    num_batches = min(num_batches, len(batches))
    edges = [round(part * len(order) / num_batches) for part in range(num_batches + 1)]
    rows: list[int] = []
    for start, end in pairwise(edges):
        mean = fmean(widths[index] for index in order[start:end])
        rows += batches[min(order[start:end], key=lambda index: abs(widths[index] - mean))]
    return rows


def read_task(name: str, data: Path | None, **sampling: Any) -> Splits:
    """The rows of a task by its name, sampled by `task.*` settings. Sample tasks bring their rows with them."""
    folder = str(data) if data and name in PUBLISHED_TASKS else ""
    return read_splits(TaskConfig(name=name, data=folder, **sampling), {})
