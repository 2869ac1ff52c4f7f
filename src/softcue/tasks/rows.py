"""Rows to Examples: every cell checked, every complaint with its file and line."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from numbers import Integral, Number, Real

from softcue.errors import DataError, near_matches
from softcue.tasks.readers import Source, name_of, read_rows
from softcue.tasks.task import Label, Task
from softcue.types import Example


def examples_from(source: Source, task: Task, needs_target: bool = True) -> list[Example]:
    """The examples of a source, all checked; the task's own labels limit the targets when it has any.

    Example:
        >>> task = Task(name="toy", labels={"a": Label(words="a"), "b": Label(words="b")})
        >>> examples_from([{"text": "hello", "label": "a"}], task)
        [Example(texts=('hello',), target='a')]
    """
    examples = []
    for place, row in read_rows(source):
        texts = tuple(_text(place, row, column) for column in task.text)
        target = _target(place, row, task) if needs_target else None
        examples.append(Example(texts, target))
    if not examples:
        raise DataError("data", name_of(source), "at least one row below the header", "check the file")
    return examples


def with_labels(task: Task, examples: Sequence[Example], words: Mapping[str, str]) -> Task:
    """The task with the labels its training rows show, in sorted order, and the user's words for them."""
    found = sorted({str(example.target) for example in examples})
    labels = dict(task.labels) or {name: Label(words=name, description="") for name in found}
    for name, label_words in words.items():
        if name not in labels:
            raise DataError("task.label_words", name, "a label of the training rows",
                            near_matches(name, labels))  # fmt: skip
        labels[name] = Label(words=label_words, description=labels[name].description)
    if len(found) < 2:
        raise DataError(f"label column '{task.label}'", ", ".join(found), "at least two classes in training",
                        "check the column, or set task.kind=regression or generation")  # fmt: skip
    return task.model_copy(update={"labels": labels})


def split_off(
    examples: Sequence[Example], share: float, seed: int, by_class: bool = True
) -> tuple[list[Example], list[Example]]:
    """Hold out a share of every class (or of all rows alike) for validation; the seed alone decides which.

    Every class keeps at least one row for training, and copies of a text stay on one side.

    Example:
        >>> rows = [Example((str(i),), "ab"[i % 2]) for i in range(20)]
        >>> kept, held = split_off(rows, 0.2, seed=0)
        >>> len(kept), len(held), {row.target for row in held} == {"a", "b"}
        (16, 4, True)
    """
    classes: dict[object, list[tuple[str, ...]]] = defaultdict(list)
    for texts, target in {example.texts: example.target for example in examples}.items():
        classes[target if by_class and isinstance(target, str) else None].append(texts)
    generator = random.Random(seed)
    held: set[tuple[str, ...]] = set()
    for distinct in classes.values():
        generator.shuffle(distinct)
        wanted = max(1, round(share * len(distinct)))
        held.update(distinct[: min(wanted, len(distinct) - 1)])
    kept = [example for example in examples if example.texts not in held]
    return kept, [example for example in examples if example.texts in held]


def sample(examples: Sequence[Example], num_rows: int, seed: int) -> list[Example]:
    """A seeded sample without replacement, in the rows' own order; all rows when fewer than asked.

    Example:
        >>> len(sample([Example((str(i),)) for i in range(9)], 4, seed=1))
        4
    """
    if num_rows >= len(examples):
        return list(examples)
    chosen = random.Random(seed).sample(range(len(examples)), num_rows)
    return [examples[index] for index in sorted(chosen)]


def _cell(place: str, row: Mapping[str, object], column: str) -> object:
    if column not in row:
        known = near_matches(column, map(str, row))
        raise DataError(f"{place}, column", column, "a column of the data", known)
    return row[column]


def _text(place: str, row: Mapping[str, object], column: str) -> str:
    value = _cell(place, row, column)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{place}, column '{column}'", value, "a text that is not empty",
                        "fill it in or remove the row")  # fmt: skip
    return _whole_characters(f"{place}, column '{column}'", value)


def _whole_characters(where: str, value: str) -> str:
    """The text, if it can be written as UTF-8: a JSON escape can hold half of a character."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(where, repr(value[:40]), "text without lone surrogates",
                        "repair the escape sequence") from error  # fmt: skip
    return value


def _target(place: str, row: Mapping[str, object], task: Task) -> str | float:
    value = _cell(place, row, task.label)
    where = f"{place}, column '{task.label}'"
    if task.kind == "regression":
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise DataError(where, value, "a finite number", "fix the row, or set task.kind=classification")
        return number
    text = _whole_characters(where, _label_text(value))
    if not text:
        raise DataError(where, value, "a label", "fill it in or remove the row")
    if task.kind == "classification" and task.labels and text not in task.labels:
        raise DataError(where, text, "a label of the task or its training rows", near_matches(text, task.labels))
    return text


def _label_text(value: object) -> str:
    """A label as text; empty for what is none: null, DataFrame gaps, lists and objects."""
    if type(value).__name__ in ("bool", "bool_"):  # Python's and numpy's
        return str(value).lower()
    if isinstance(value, Real) and not isinstance(value, Integral) and float(value).is_integer():
        value = int(float(value))  # a DataFrame column with gaps turns class numbers into floats
    is_plain = isinstance(value, str) or (isinstance(value, Number) and value == value)
    return str(value).strip() if is_plain else ""
