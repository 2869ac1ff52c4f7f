from __future__ import annotations

import re
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

from softcue.tasks import examples_from, library_names, library_task
from softcue.types import Example

SAMPLES = ["same-request", "tickets", "urgency"]
AT_LEAST = {"train": 240, "validation": 60, "test": 120}


def splits(name: str) -> dict[str, list[Example]]:
    task = library_task(name)
    return {split: examples_from(getattr(task, split), task) for split in AT_LEAST}


def words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.casefold()))


def test_three_tasks_are_bundled() -> None:
    bundled = [name for name in library_names() if Path(library_task(name).train).is_absolute()]
    assert bundled == SAMPLES


@pytest.mark.parametrize("name", SAMPLES)
def test_sample_files_have_enough_rows(name: str) -> None:
    for split, rows in splits(name).items():
        assert len(rows) >= AT_LEAST[split]


@pytest.mark.parametrize("name", SAMPLES)
def test_no_text_occurs_twice(name: str) -> None:
    texts = [" ".join(text.casefold().split()) for rows in splits(name).values() for e in rows for text in e.texts]
    assert [text for text, count in Counter(texts).items() if count > 1] == []


@pytest.mark.parametrize("name", SAMPLES)
def test_no_text_has_a_near_duplicate_in_another_split(name: str) -> None:
    texts_by_split = [[(words(text), text) for row in rows for text in row.texts] for rows in splits(name).values()]
    near = [
        (first_text, second_text)
        for first_split, second_split in combinations(texts_by_split, 2)
        for first_words, first_text in first_split
        for second_words, second_text in second_split
        if len(first_words & second_words) >= 0.6 * len(first_words | second_words)
    ]
    assert near == []


@pytest.mark.parametrize("name", SAMPLES)
def test_labels_are_the_declared_ones_and_roughly_balanced(name: str) -> None:
    task = library_task(name)
    for rows in splits(name).values():
        counts = Counter(str(row.target) for row in rows)
        assert set(counts) == set(task.label_names)
        fair = len(rows) / len(task.labels)
        assert all(0.7 * fair <= count <= 1.4 * fair for count in counts.values()), counts


@pytest.mark.parametrize("name", SAMPLES)
def test_every_label_has_distinct_words_and_a_description(name: str) -> None:
    task = library_task(name)
    assert len(set(task.label_words)) == len(task.labels)
    assert all(label.words and label.description for label in task.labels.values())
