"""Held-out rows and samples, in memory and from streams."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest

from softcue.errors import DataError
from softcue.tasks import Task, examples_from, few_shot, sample, sample_examples, split_off, with_swapped
from softcue.types import Example

ROWS = [Example((str(number),), "ab"[number % 2]) for number in range(30)]


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.99])
def test_every_class_is_in_training_and_validation(share: float) -> None:
    rows = [Example((str(number),), "ab"[number % 5 == 0]) for number in range(20)]
    train, held_out = split_off(rows, share, seed=3)
    assert sorted(train + held_out, key=rows.index) == rows
    assert {row.target for row in train} == {row.target for row in held_out} == {"a", "b"}


def test_class_with_one_row_stays_in_training() -> None:
    rows = [*(Example((str(number),), "many") for number in range(9)), Example(("x",), "one")]
    train, held_out = split_off(rows, 0.3, seed=0)
    assert rows[-1] in train
    assert len(held_out) == 3


def test_split_depends_on_the_seed_alone() -> None:
    assert split_off(ROWS, 0.3, seed=1) == split_off(ROWS, 0.3, seed=1)
    assert split_off(ROWS, 0.3, seed=1) != split_off(ROWS, 0.3, seed=2)


def test_scores_and_free_texts_are_split_as_one_class() -> None:
    scores = [Example((str(number),), float(number)) for number in range(10)]
    texts = [Example((str(number),), f"answer {number}") for number in range(10)]
    assert [len(part) for part in split_off(scores, 0.2, seed=0)] == [8, 2]
    assert [len(part) for part in split_off(texts, 0.2, seed=0, by_class=False)] == [8, 2]


@pytest.mark.parametrize("seed", range(5))
def test_held_out_numbers_are_spread_as_all_numbers_are(seed: int) -> None:
    rows = [Example((str(number),), float(number % 25) ** 2) for number in range(100)]
    train, held_out = split_off(rows, 0.2, seed)
    assert len(held_out) == 20
    ordered = sorted(float(str(row.target)) for row in rows)
    held_out_numbers = sorted(float(str(row.target)) for row in held_out)
    for part, number in enumerate(held_out_numbers):  # one of each five in order
        assert ordered[5 * part] <= number <= ordered[5 * part + 4]
    assert split_off(rows, 0.2, seed, by_class=False) == (train, held_out)


def test_copies_of_a_text_are_never_split_where_targets_are_numbers() -> None:
    rows = [Example((f"text {number % 7}",), float(number)) for number in range(70)]
    train, held_out = split_off(rows, 0.3, seed=1)
    assert len(held_out) == 20 and not {row.texts for row in train} & {row.texts for row in held_out}


def test_sample_is_seeded_ordered_and_without_duplicates() -> None:
    sampled = sample(ROWS, 10, seed=4)
    assert sampled == sample(ROWS, 10, seed=4) != sample(ROWS, 10, seed=5)
    assert len(sampled) == len(set(sampled)) == 10
    assert sampled == sorted(sampled, key=ROWS.index)
    assert sample(ROWS, 99, seed=4) == ROWS


def test_copies_of_a_text_are_never_split() -> None:
    rows = [Example((f"text {number % 7}",), "ab"[number % 7 % 2]) for number in range(70)]
    train, held_out = split_off(rows, 0.3, seed=1)
    assert held_out and len(train) + len(held_out) == 70
    assert not {row.texts for row in train} & {row.texts for row in held_out}


def test_swapped_pairs_keep_the_other_fields_of_a_row() -> None:
    row = Example(("one", "two"), "same", group="7", options=("same", "other"))
    assert with_swapped([row])[1] == Example(("two", "one"), "same", group="7", options=("same", "other"))


GROUPED = [Example((f"answer {number}",), "yes", group=f"question {number // 4}") for number in range(40)]


@pytest.mark.parametrize("seed", range(5))
def test_groups_are_sampled_and_held_out_as_a_whole(seed: int) -> None:
    sampled = sample(GROUPED, 10, seed)
    assert len(sampled) == 8  # two questions of four; a third would be too many
    train, held_out = split_off(GROUPED, 0.2, seed)
    assert len(train) + len(held_out) == 40
    train, validation = few_shot(GROUPED, 5, 10, seed)
    assert not {row.group for row in train} & {row.group for row in validation}
    for part in (sampled, held_out):
        counts = Counter(row.group for row in part)
        assert set(counts.values()) == {4}


# --- samples of streams ---

OPEN = Task(name="open")
DICTS = [{"text": f"text {number}", "label": "ab"[number % 2]} for number in range(20)]


def numbers(rows: list[Example]) -> list[int]:
    return [int(row.texts[0].split()[1]) for row in rows]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("num_rows", [0, 1, 7, 19, 20, 99])
def test_sample_of_a_stream_equals_the_sample_of_rows_in_memory(num_rows: int, seed: int) -> None:
    sampled = sample_examples(DICTS, OPEN, num_rows, seed)
    assert sampled == sample(examples_from(DICTS, OPEN), num_rows, seed)
    assert len(sampled) == min(num_rows, 20)


def test_every_row_has_the_same_chance() -> None:
    counts = [0] * 20
    for seed in range(600):
        for number in numbers(sample_examples(DICTS, OPEN, 5, seed)):
            counts[number] += 1
    assert all(100 < count < 200 for count in counts)  # 150 expected, standard deviation 11


def test_rows_outside_the_sample_are_checked_too() -> None:
    rows = [*DICTS, {"text": "", "label": "a"}]
    with pytest.raises(DataError, match="row 21, column 'text'"):
        sample_examples(rows, OPEN, 1, seed=0)
    with pytest.warns(UserWarning, match="skipped 1 of 21 rows"):
        assert len(sample_examples(rows, OPEN, 3, seed=0, skip_bad_rows=True)) == 3


def test_sample_of_a_large_file_needs_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    with gzip.open(path, "wt", compresslevel=1) as file:
        for number in range(2000):
            file.write(json.dumps({"text": f"text {number} " + "word " * 500, "label": "a"}) + "\n")
    tracemalloc.start()
    sampled = sample_examples(path, OPEN, 10, seed=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(sampled) == 10 and numbers(sampled) == sorted(numbers(sampled))
    assert peak < 3e6


def test_questions_about_one_text_are_never_split() -> None:
    rows = [Example((f"q{number}", f"text {number // 5}"), "a", answers=("a",)) for number in range(50)]
    train, held_out = split_off(rows, 0.3, seed=0)
    assert len(held_out) == 15
    assert not {row.texts[1] for row in train} & {row.texts[1] for row in held_out}
