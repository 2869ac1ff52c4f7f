"""Which rows: held out, sampled, few, distinct, swapped. The seed alone decides."""

from __future__ import annotations

import random
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from softcue.tasks.readers import Source
from softcue.tasks.rows import stream_examples
from softcue.tasks.task import Task
from softcue.types import Example


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

    Stratified, every class gets its share of the rows (`shares`). Rows that are scored together are drawn together,
    so there may be a few less than asked.

    Example:
        >>> len(sample([Example((str(i),)) for i in range(9)], 4, seed=1))
        4
    """
    if num_rows >= len(examples):
        return list(examples)
    if stratified:
        chosen = set(_first_of_each_class(examples, _drawn_order(len(examples), seed), num_rows))
    else:
        chosen = _drawn([example.group for example in examples], num_rows, seed)
    return [examples[index] for index in sorted(chosen)]


def sample_examples(source: Source, task: Task, num_rows: int, seed: int, skip_bad_rows: bool = False) -> list[Example]:
    """What `sample` gives of a source that need not fit into memory: read twice, and every row checked.

    Example:
        >>> rows = [{"text": str(i), "label": "ab"[i % 2]} for i in range(9)]
        >>> len(sample_examples(rows, Task(name="toy"), 4, seed=0))
        4
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # skipped rows are told of in the second pass
        groups = [example.group for example in stream_examples(source, task, skip_bad_rows=skip_bad_rows)]
    chosen = _drawn(groups, num_rows, seed)
    rows = stream_examples(source, task, skip_bad_rows=skip_bad_rows)
    return [example for index, example in enumerate(rows) if index in chosen]


def _drawn(groups: Sequence[str], num_rows: int, seed: int) -> set[int]:
    """Indices of a sample; of rows in groups, whole groups as long as they fit."""
    if num_rows >= len(groups):
        return set(range(len(groups)))
    if not any(groups):
        return set(random.Random(seed).sample(range(len(groups)), num_rows))
    members: dict[str, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        members[group or f"row {index}"].append(index)
    found: set[int] = set()
    for name in random.Random(seed).sample(list(members), len(members)):
        if len(found) + len(members[name]) <= num_rows:
            found.update(members[name])
    return found or set(members[next(iter(members))])


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
        >>> rows = [Example(("hi",), "a"), Example(("hi",), "b"), Example(("ho",), "b")]
        >>> distinct(rows) == [rows[0], rows[2]]
        True
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
        >>> with_swapped([Example(("one", "two"), "same")])[1].texts
        ('two', 'one')
    """
    return [*examples, *(replace(example, texts=example.texts[::-1]) for example in examples)]


def without_copies(examples: Sequence[Example], others: Sequence[Example]) -> list[Example]:
    """The rows that are no copy of any of the others, whatever their targets; a swapped pair is a copy.

    Example:
        >>> rows = [Example(("b", "a")), Example(("b", "c"))]
        >>> [row.texts for row in without_copies(rows, [Example(("a", "b"))])]
        [('b', 'c')]
    """
    seen = {_identity(other) for other in others}
    return [example for example in examples if _identity(example) not in seen]


def _identity(example: Example) -> tuple[str, ...]:
    """What makes two rows copies: a pair in the other order tells its answer as well. Groups stay whole, too."""
    if example.group:
        return (example.group,)
    # Questions about one text tell each other's answers.
    return (example.texts[-1],) if example.answers else tuple(sorted(example.texts))


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
