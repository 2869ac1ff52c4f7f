"""Rows on which other software than torch, running a cue, is compared with the cue itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from softcue.cue.cue import Cue
from softcue.errors import SoftcueError
from softcue.evaluation import read_evaluation_set
from softcue.tasks.readers import HUB_PREFIX
from softcue.tasks.splits import limit_rows
from softcue.types import Example

MADE_UP_WORDS = (1, 2, 3, 5, 8, 13, 21, 34)  # words of the made-up texts


@dataclass(frozen=True)
class RowsToCompare:
    """Rows of data, and where they are from."""

    examples: Sequence[Example]
    source: str


def read_rows_to_compare(
    cue: Cue, data: str | None, splits: Sequence[Sequence[str]] = (("validation",),), most: int = 0
) -> RowsToCompare:
    """Read the rows of a file, or the task's own rows as far as its record still leads to them, but not to the network.

    Of a folder with published files, or of the task's own rows, the first group of splits that has rows is read, its
    splits one after the other until there are `most` rows; 0 reads all.

    Example:
        read_rows_to_compare(softcue.load("cues/tickets"), None).source     # "tickets (validation)"
    """
    if data is not None and not Path(data).is_dir():
        return RowsToCompare(limit_rows(cue.examples(Path(data)), most, seed=0), data)
    for group in splits:
        examples: list[Example] = []
        sources: list[str] = []
        for name in group:
            if data is None and str(getattr(cue.task, name)).startswith(HUB_PREFIX):
                continue
            if most and len(examples) == most:
                break
            try:
                rows = read_evaluation_set(cue.task, data, split=name, num_rows=most and most - len(examples))
            except (SoftcueError, OSError):
                continue
            examples += rows.examples
            sources.append(rows.name)
        if examples:
            return RowsToCompare(examples, " and ".join(sources))
    return RowsToCompare([], "")


def made_up_examples(cue: Cue) -> list[Example]:
    """Texts of random words of the vocabulary, of many lengths, none longer than the cue reads.

    If some columns may be empty, there is a row in which they are.

    Example:
        made_up_examples(softcue.load("cues/tickets"))[0].texts
    """
    tokenizer, task = cue.backbone.tokenizer, cue.model.readout.task
    generator = torch.Generator().manual_seed(0)
    special, vocabulary = set(tokenizer.all_special_ids), len(tokenizer)
    examples = []
    for number in MADE_UP_WORDS:
        texts = []
        for _ in task.text:
            drawn = torch.randint(vocabulary, (number,), generator=generator).tolist()
            texts.append(tokenizer.decode([token for token in drawn if token not in special]))
        examples.append(Example(tuple(texts)))
    if task.may_be_empty:
        texts = ["" if column in task.may_be_empty else "a" for column in task.text]
        examples.append(Example(tuple(texts)))
    return [example for example in examples if not cue.model.formatter.source(example).is_truncated]
