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


def with_labels(
    task: Task, examples: Sequence[Example], words: Mapping[str, str], descriptions: Mapping[str, str] | None = None
) -> Task:
    """The task with the labels its training rows show, in sorted order, and the user's words and sentences for them.

    Example:
        >>> rows = [Example(("great film",), "1"), Example(("dull film",), "0")]
        >>> task = with_labels(Task(name="films"), rows, {"0": "bad"}, {"0": "The film is not worth seeing."})
        >>> task.labels["0"]
        Label(words='bad', description='The film is not worth seeing.')
    """
    found = sorted({str(example.target) for example in examples})
    labels = dict(task.labels) or {name: Label(words=name, description="") for name in found}
    for key, values in {"words": words, "description": descriptions or {}}.items():
        setting = {"words": "task.label_words", "description": "task.label_descriptions"}[key]
        for name, value in values.items():
            if name not in labels:
                raise DataError(setting, name, "a label of the training rows", near_matches(name, labels))
            labels[name] = labels[name].model_copy(update={key: value})
    if len(found) < 2:
        raise DataError(f"label column '{task.label}'", ", ".join(found), "at least two classes in training",
                        "check the column, or set task.kind=regression or generation")  # fmt: skip
    return task.model_copy(update={"labels": labels})


def split_off(
    examples: Sequence[Example], share: float, seed: int, by_class: bool = True
) -> tuple[list[Example], list[Example]]:
    """Hold out a share of every class (or of all rows alike) for validation; the seed alone decides which.

    Every class keeps at least one row for training, and copies of a text (or a pair, in either order) stay on
    one side.

    Example:
        >>> rows = [Example((str(i),), "ab"[i % 2]) for i in range(20)]
        >>> kept, held = split_off(rows, 0.2, seed=0)
        >>> len(kept), len(held), {row.target for row in held} == {"a", "b"}
        (16, 4, True)
    """
    classes: dict[object, list[tuple[str, ...]]] = defaultdict(list)
    for texts, target in {_identity(example): example.target for example in examples}.items():
        classes[target if by_class and isinstance(target, str) else None].append(texts)
    generator = random.Random(seed)
    held: set[tuple[str, ...]] = set()
    for distinct in classes.values():
        generator.shuffle(distinct)
        wanted = max(1, round(share * len(distinct)))
        held.update(distinct[: min(wanted, len(distinct) - 1)])
    kept = [example for example in examples if _identity(example) not in held]
    return kept, [example for example in examples if _identity(example) in held]


def sample(examples: Sequence[Example], num_rows: int, seed: int, stratified: bool = False) -> list[Example]:
    """A seeded sample without replacement, in the rows' own order; all rows when fewer than asked.

    Stratified, every class gets its share of the rows (`shares`).

    Example:
        >>> len(sample([Example((str(i),)) for i in range(9)], 4, seed=1))
        4
    """
    if num_rows >= len(examples):
        return list(examples)
    if stratified:
        chosen = _first_of_each_class(examples, _drawn_order(len(examples), seed), num_rows)
    else:
        chosen = random.Random(seed).sample(range(len(examples)), num_rows)
    return [examples[index] for index in sorted(chosen)]


def few_shot(
    examples: Sequence[Example], num_train: int, num_validation: int, seed: int, stratified: bool = False
) -> tuple[list[Example], list[Example]]:
    """K training rows and as many of the validation rows asked for as are left, none a copy of another.

    Of the copies of a text the first row counts. The seed alone decides, in every process and Python version.

    Example:
        >>> rows = [Example((str(i),), "ab"[i % 2]) for i in range(20)]
        >>> train, validation = few_shot(rows, 4, 10, seed=0, stratified=True)
        >>> [row.target for row in train].count("a"), len(validation), set(train) & set(validation)
        (2, 10, set())
    """
    pool = distinct(examples)
    order = _drawn_order(len(pool), seed)
    chosen = _first_of_each_class(pool, order, num_train) if stratified else order[:num_train]
    taken = {_identity(pool[index]) for index in chosen}
    left = [index for index in order if _identity(pool[index]) not in taken][:num_validation]
    return [pool[index] for index in sorted(chosen)], [pool[index] for index in sorted(left)]


def distinct(examples: Sequence[Example]) -> list[Example]:
    """The first row of every text (or ordered pair).

    Example:
        >>> distinct([Example(("hi",), "a"), Example(("hi",), "b"), Example(("ho",), "b")])
        [Example(texts=('hi',), target='a'), Example(texts=('ho',), target='b')]
    """
    first: dict[tuple[str, ...], Example] = {}
    for example in examples:
        first.setdefault(example.texts, example)
    return list(first.values())


def shares(sizes: Mapping[str, int], num_rows: int) -> dict[str, int]:
    """What each class gets of a sample, in proportion to its size: largest remainder, ties in the order given.

    With at least as many rows as classes, a class left with none gets one from the class furthest above its
    exact share that can spare one.

    Example:
        >>> shares({"a": 6, "b": 3, "c": 1}, 4)  # 2.4, 1.2 and 0.4 rows; c would get none
        {'a': 2, 'b': 1, 'c': 1}
    """
    total = sum(sizes.values())
    parts = {name: divmod(num_rows * size, total) for name, size in sizes.items()}  # whole rows, so no rounding
    found = {name: whole for name, (whole, _) in parts.items()}
    by_remainder = sorted(parts, key=lambda name: -parts[name][1])
    for name in by_remainder[: num_rows - sum(found.values())]:
        found[name] += 1
    if num_rows >= len(found):
        for name in [name for name, count in found.items() if count == 0]:
            spare = [other for other, count in found.items() if count > 1]
            found[max(spare, key=lambda other: found[other] * total - num_rows * sizes[other])] -= 1
            found[name] = 1
    return found


def with_swapped(examples: Sequence[Example]) -> list[Example]:
    """Every pair, then every pair with its texts in the other order (IDPG, Wu et al. 2022, appendix A.4).

    Example:
        >>> with_swapped([Example(("one", "two"), "same")])[1]
        Example(texts=('two', 'one'), target='same')
    """
    return [*examples, *(Example(example.texts[::-1], example.target) for example in examples)]


def without_copies(examples: Sequence[Example], others: Sequence[Example]) -> list[Example]:
    """The rows that are no copy of any of the others, whatever their targets; a swapped pair is a copy.

    Example:
        >>> without_copies([Example(("b", "a")), Example(("b", "c"))], [Example(("a", "b"))])
        [Example(texts=('b', 'c'), target=None)]
    """
    seen = {_identity(other) for other in others}
    return [example for example in examples if _identity(example) not in seen]


def _identity(example: Example) -> tuple[str, ...]:
    """What makes two rows copies: a pair in the other order tells its answer as well."""
    return tuple(sorted(example.texts))


def _drawn_order(num_rows: int, seed: int) -> list[int]:
    """All indices in a seeded order."""
    # Python promises the same numbers for a seed in every version only of random(), not of sample() or shuffle().
    generator = random.Random(seed)
    draws = [generator.random() for _ in range(num_rows)]
    return sorted(range(num_rows), key=draws.__getitem__)


def _first_of_each_class(examples: Sequence[Example], order: Sequence[int], num_rows: int) -> list[int]:
    """The first indices of each class in that order, as many as its share."""
    classes: dict[str, list[int]] = {name: [] for name in sorted({str(example.target) for example in examples})}
    for index in order:
        classes[str(examples[index].target)].append(index)
    counts = shares({name: len(indices) for name, indices in classes.items()}, num_rows)
    return [index for name, indices in classes.items() for index in indices[: counts[name]]]


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
