from __future__ import annotations

import calendar
import csv
import re
from collections import Counter
from itertools import combinations, groupby
from pathlib import Path

import pytest

from softcue.tasks import examples_from, library_names, library_task
from softcue.types import Example

SAMPLES = ["reply-form", "same-request", "tickets", "urgency"]
AT_LEAST = {"train": 240, "validation": 60, "test": 120}
# reply-form: situations per split, with one row of each class; words that would give a class away
REPLY_FORMS = {"train": 42, "validation": 12, "test": 21}
NOT_NAMES = {"Frau", "Herr", "Mrs", "Sister", *calendar.day_name, *calendar.month_name}
PLAIN_QUESTIONS = {
    "amount": r"how (much|many)",
    "date": r"when|what time",
    "person": r"who",
    "place": r"where",
    "yes-no": r"yes|no",
    "instructions": r"how (do|does|can|to|is)",
}


def splits(name: str) -> dict[str, list[Example]]:
    task = library_task(name)
    return {split: examples_from(getattr(task, split), task) for split in AT_LEAST}


def words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.casefold()))


def test_four_tasks_are_bundled() -> None:
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


# --- reply-form: what is asked, whatever the subject ---


def rows_with_situations(split: str) -> list[dict[str, str]]:
    with Path(getattr(library_task("reply-form"), split)).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_situation_asks_for_each_reply_form_once() -> None:
    for split, count in REPLY_FORMS.items():
        labels: dict[str, list[str]] = {}
        for row in rows_with_situations(split):
            labels.setdefault(row["situation"], []).append(row["label"])
        assert len(labels) == count
        assert all(sorted(found) == sorted(PLAIN_QUESTIONS) for found in labels.values()), labels


def test_no_situation_is_in_two_splits() -> None:
    situations = [{row["situation"] for row in rows_with_situations(split)} for split in REPLY_FORMS]
    for first, second in combinations(situations, 2):
        assert first & second == set()


def test_names_in_messages_are_of_one_split() -> None:
    """The same people in two splits would be the same situation under two names."""
    names = [
        {name for row in rows_with_situations(split) for name in re.findall(r"(?<=[a-z,] )[A-Z][a-z]{2,}", row["text"])}
        for split in REPLY_FORMS
    ]
    for first, second in combinations(names, 2):
        assert first & second <= NOT_NAMES


@pytest.mark.parametrize("label", PLAIN_QUESTIONS)
@pytest.mark.parametrize("split", REPLY_FORMS)
def test_plain_question_words_are_in_less_than_half_of_a_class(split: str, label: str) -> None:
    texts = [row["text"] for row in rows_with_situations(split) if row["label"] == label]
    plain = [text for text in texts if re.search(rf"\b({PLAIN_QUESTIONS[label]})\b", text, re.IGNORECASE)]
    assert 2 * len(plain) < len(texts), plain


def test_question_words_stand_in_messages_of_other_classes_too() -> None:
    texts = {
        label: [row["text"] for row in rows_with_situations("train") if row["label"] == label]
        for label in PLAIN_QUESTIONS
    }
    for label in ("date", "person", "place"):
        with_word = {
            other: sum(bool(re.search(rf"\b({PLAIN_QUESTIONS[label]})\b", text, re.IGNORECASE)) for text in of_other)
            for other, of_other in texts.items()
        }
        assert with_word[label] < sum(with_word.values()) - with_word[label], with_word


def test_names_of_reply_forms_are_rare_and_messages_are_short() -> None:
    texts = [row["text"] for split in REPLY_FORMS for row in rows_with_situations(split)]
    named = [text for text in texts if words(text) & {"amount", "date", "person", "place", "yes", "instructions"}]
    assert len(named) <= 0.01 * len(texts), named
    assert all(6 <= len(text.split()) <= 35 for text in texts)


def test_reply_forms_are_mixed_in_files() -> None:
    for split in REPLY_FORMS:
        labels = [row["label"] for row in rows_with_situations(split)]
        assert max(len(list(run)) for _, run in groupby(labels)) <= 5
