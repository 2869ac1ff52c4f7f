"""Folds for cross-validation: a few validation rows cannot tell methods apart, so all rows take turns."""

from __future__ import annotations

from collections.abc import Sequence

from softcue.tasks.splits import Splits, split_off
from softcue.types import Example

ENOUGH_VALIDATION_ROWS = 200  # from here on they are compared on the validation rows alone
MIN_ROWS = 30  # training and validation rows; fewer leave too little to train on


def make_folds(splits: Splits, num_folds: int, seed: int) -> list[Splits]:
    """The splits on which methods are compared: as they are, or folds of the training and validation rows.

    Folds have their share of every class. Copies of a text stay together. No fold is validated on a class that it has
    not trained on. Test rows are in none of them.

    Example:
        >>> from softcue.tasks import Task
        >>> rows = [Example((f"text {number}",), "ab"[number % 2]) for number in range(60)]
        >>> folds = make_folds(Splits(Task(name="toy"), rows[:50], rows[50:], []), num_folds=3, seed=0)
        >>> [(len(fold.train), len(fold.validation)) for fold in folds]
        [(40, 20), (40, 20), (40, 20)]
    """
    num_rows = len(splits.train) + len(splits.validation)
    if num_folds < 2 or len(splits.validation) >= ENOUGH_VALIDATION_ROWS or num_rows < MIN_ROWS:
        return [splits]
    rows: Sequence[Example] = [*splits.train, *splits.validation]
    parts: list[Sequence[Example]] = []
    for num_parts in range(num_folds, 1, -1):
        rows, part = split_off(rows, 1 / num_parts, seed, by_class=splits.task.has_classes)
        parts.append(part)
    parts.append(rows)
    return [_fold(splits, parts, number) for number in range(num_folds)]


def _fold(splits: Splits, parts: Sequence[Sequence[Example]], number: int) -> Splits:
    """The fold that is validated on one part and trained on the others."""
    train = [example for index, part in enumerate(parts) if index != number for example in part]
    validation = parts[number]
    if splits.task.has_classes:
        classes = {example.target for example in train}
        train += [example for example in validation if example.target not in classes]
        validation = [example for example in validation if example.target in classes]
    return Splits(splits.task, train, validation, [])
