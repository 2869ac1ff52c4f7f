"""Few-shot samples, stratified samples, swapped pairs and label descriptions, from settings to rows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from softcue.configuration import parse_overrides, resolve
from softcue.errors import ConfigurationError, DataError
from softcue.run import splits_of_run
from softcue.tasks import Label, Task, few_shot, library_task, sample, shares, split_off, with_labels, with_swapped
from softcue.tasks.splits import Splits, TaskConfig, read_splits
from softcue.types import Example

POOL = [Example((f"text {number}",), "ab"[number % 2]) for number in range(20)]


def numbers(rows: list[Example]) -> list[int]:
    return [int(row.texts[0].split()[1]) for row in rows]


def texts_of(rows: list[Example]) -> set[tuple[str, ...]]:
    return {row.texts for row in rows}


# --- the split itself ---


def test_few_shot_rows_are_the_same_in_every_python_version() -> None:
    # The smallest of the 20 numbers of random.Random(0).random(), the same in every Python, with their indices:
    # 0.251 (15), 0.259 (3), 0.282 (12), 0.303 (7),
    # 0.405 (5), 0.421 (2), 0.477 (8), 0.505 (11), 0.511 (4), 0.583 (9)
    train, validation = few_shot(POOL, 4, 6, seed=0)
    assert numbers(train) == [3, 7, 12, 15]
    assert numbers(validation) == [2, 4, 5, 8, 9, 11]


def test_few_shot_rows_are_the_same_in_another_process() -> None:
    code = (
        "import json; from softcue.tasks import few_shot; from softcue.types import Example\n"
        "pool = [Example((f'text {n}',), 'ab'[n % 2]) for n in range(20)]\n"
        "print(json.dumps([[row.texts for row in part] for part in few_shot(pool, 6, 9, 3, stratified=True)]))"
    )
    printed = [
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env={"PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    ]
    here = [[list(row.texts) for row in part] for part in few_shot(POOL, 6, 9, 3, stratified=True)]
    assert [json.loads(process.stdout) for process in printed] == [here, here]


def test_other_seeds_give_other_rows_in_the_order_of_the_file() -> None:
    samples = [few_shot(POOL, 5, 5, seed) for seed in range(4)]
    assert len({tuple(train) for train, _ in samples}) == 4
    for train, validation in samples:
        assert numbers(train) == sorted(numbers(train))
        assert numbers(validation) == sorted(numbers(validation))


@pytest.mark.parametrize("stratified", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_copies_of_a_text_are_never_in_both_splits(seed: int, stratified: bool) -> None:
    copied = [Example((f"text {number % 9}",), "abc"[number % 3]) for number in range(90)]
    train, validation = few_shot(copied, 5, 1000, seed, stratified)
    assert len(train) == len(texts_of(train)) == 5
    assert len(validation) == len(texts_of(validation)) == 4  # the rest of nine distinct texts
    assert not texts_of(train) & texts_of(validation)


def test_first_of_contradicting_copies_is_used() -> None:
    rows = [Example(("x",), "a"), Example(("x",), "b"), Example(("y",), "b")]
    train, validation = few_shot(rows, 1, 9, seed=0)
    assert {*train, *validation} == {rows[0], rows[2]}


@pytest.mark.parametrize("seed", range(5))
def test_pair_and_swapped_pair_are_never_in_both_splits(seed: int) -> None:
    pairs = [Example((f"{n}", f"{n + 1}")[:: 1 if side else -1], "a") for n in range(10) for side in (0, 1)]
    train, validation = few_shot(pairs, 6, 1000, seed)
    kept, held = split_off(pairs, 0.3, seed)
    for first, second in ((train, validation), (kept, held)):
        assert first and second
        assert not {frozenset(row.texts) for row in first} & {frozenset(row.texts) for row in second}
    assert len(train) == 6
    assert len(kept) + len(held) == 20


# --- shares ---


@pytest.mark.parametrize(
    ("sizes", "num_rows", "expected"),
    [
        ((5, 5), 4, (2, 2)),
        ((5, 5), 3, (2, 1)),  # 1.5 each: the first of equals
        ((50, 30, 20), 10, (5, 3, 2)),
        ((41, 33, 26), 10, (4, 3, 3)),  # 4.1, 3.3, 2.6: whole rows 4+3+2, the tenth to 0.6
        ((47, 16, 37), 5, (2, 1, 2)),  # 2.35, 0.8, 1.85: whole rows 2+0+1, then 0.85 and 0.8
        ((98, 1, 1), 3, (1, 1, 1)),  # 2.94, 0.03, 0.03 would be 3, 0, 0
        ((98, 1, 1), 10, (8, 1, 1)),  # 9.8, 0.1, 0.1 would be 10, 0, 0
        ((60, 39, 1), 4, (2, 1, 1)),  # 2.4, 1.56, 0.04 would be 2, 2, 0; the second has 0.44 too many
        ((30, 69, 1), 4, (1, 2, 1)),  # 1.2, 2.76, 0.04 would be 1, 3, 0
        ((98, 1, 1), 2, (2, 0, 0)),  # fewer rows than classes
        ((3, 4), 7, (3, 4)),
    ],
)
def test_shares_equal_those_computed_by_hand(sizes: tuple[int, ...], num_rows: int, expected: tuple[int, ...]) -> None:
    counts = shares(dict(zip("abc", sizes, strict=False)), num_rows)
    assert tuple(counts.values()) == expected


def test_shares_never_exceed_a_class_and_fill_the_sample() -> None:
    for sizes in ((1, 1, 1, 97), (2, 3, 5, 7), (1, 2, 40, 1), (10, 10, 10, 10)):
        for num_rows in range(1, sum(sizes) + 1):
            counts = shares(dict(zip("abcd", sizes, strict=True)), num_rows)
            assert sum(counts.values()) == num_rows
            assert all(0 <= count <= size for count, size in zip(counts.values(), sizes, strict=True))
            assert num_rows < 4 or min(counts.values()) >= 1


RARE = [Example((f"text {number}",), "rare" if number in (7, 90) else "often") for number in range(100)]


def test_stratified_sample_contains_the_rare_class() -> None:
    for seed in range(5):
        assert Counter(row.target for row in sample(RARE, 5, seed, stratified=True)) == {"often": 4, "rare": 1}
        assert Counter(row.target for row in few_shot(RARE, 50, 9, seed, stratified=True)[0])["rare"] == 1
    assert any(len({row.target for row in sample(RARE, 5, seed)}) == 1 for seed in range(5))


def test_stratified_samples_depend_on_the_seed() -> None:
    samples = [sample(RARE, 5, seed, stratified=True) for seed in (0, 0, 1)]
    assert samples[0] == samples[1] != samples[2]
    assert numbers(samples[0]) == sorted(numbers(samples[0]))


# --- from settings to rows ---


def write_rows(path: Path, rows: list[Example]) -> str:
    columns = ("text",) if len(rows[0].texts) == 1 else ("first", "second")
    lines = [dict(zip(columns, row.texts, strict=True)) | {"label": row.target} for row in rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def read(tmp_path: Path, rows: list[Example] = POOL, **settings: Any) -> Splits:
    given = {"train": write_rows(tmp_path / "train.jsonl", rows), "text": "text", "label": "label"}
    return read_splits(TaskConfig.model_validate(given | settings), {})


def error_message(tmp_path: Path, rows: list[Example] = POOL, **settings: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, rows, **settings)
    return str(caught.value)


def test_few_shot_setting_gives_training_and_validation_rows(tmp_path: Path) -> None:
    splits = read(tmp_path, few_shot=4, validation_rows=6, sample_seed=3)
    assert (splits.train, splits.validation, splits.test) == (*few_shot(POOL, 4, 6, 3), [])
    assert splits == read(tmp_path, few_shot=4, validation_rows=6, sample_seed=3)
    assert splits != read(tmp_path, few_shot=4, validation_rows=6, sample_seed=4)


def test_few_shot_validates_on_a_thousand_rows_by_default(tmp_path: Path) -> None:
    many = [Example((f"text {number}",), "ab"[number % 2]) for number in range(1200)]
    splits = read(tmp_path, many, few_shot=100)
    assert (len(splits.train), len(splits.validation)) == (100, 1000)


def test_warning_reports_too_few_validation_rows(tmp_path: Path) -> None:
    message = "5 rows to validate on instead of {}: the 20 distinct training texts have no more beside task.few_shot=15"
    for settings, num_expected in (({}, 1000), ({"validation_rows": 6}, 6)):
        with pytest.warns(UserWarning, match="instead of") as caught:
            splits = read(tmp_path, POOL * 2, few_shot=15, **settings)
        assert [str(warning.message) for warning in caught] == [message.format(num_expected)]
        assert (len(splits.train), len(splits.validation)) == (15, 5)


@pytest.mark.parametrize("num_rows", [20, 21, 500])
def test_few_shot_without_remaining_validation_rows_is_an_error(tmp_path: Path, num_rows: int) -> None:
    assert error_message(tmp_path, POOL * 3, few_shot=num_rows) == (
        f"task.few_shot: got {num_rows}; expected rows of the 20 distinct training texts to be left to validate on, "
        "none a copy of a training row; lower it, or pass `validation=FILE`"
    )


OTHERS = [Example((f"text {number}",), "ab"[number % 2]) for number in range(10, 40)]  # half of them are in POOL


@pytest.mark.parametrize("seed", range(4))
def test_validation_comes_from_its_file_without_the_training_rows(tmp_path: Path, seed: int) -> None:
    file = write_rows(tmp_path / "validation.jsonl", OTHERS)
    splits = read(tmp_path, few_shot=12, validation=file, sample_seed=seed)  # a thousand at most, so no warning
    assert texts_of(splits.train) <= texts_of(POOL)
    assert texts_of(splits.validation) == texts_of(OTHERS) - texts_of(splits.train)
    assert len(splits.train) == 12
    fewer = read(tmp_path, few_shot=12, validation=file, validation_rows=7, sample_seed=seed)
    assert fewer.train == splits.train
    assert len(fewer.validation) == 7
    assert texts_of(fewer.validation) <= texts_of(splits.validation)


def test_training_rows_do_not_depend_on_where_validation_comes_from(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "validation.jsonl", OTHERS)
    alone = read(tmp_path, few_shot=5, validation_rows=5)
    assert read(tmp_path, few_shot=5, validation_rows=5, validation=file).train == alone.train


def test_warning_reports_a_validation_file_with_too_few_rows(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "validation.jsonl", OTHERS[-5:])
    with pytest.warns(UserWarning, match=r"^5 rows to validate on instead of 9: the 5 validation rows have no more"):
        assert len(read(tmp_path, few_shot=4, validation=file, validation_rows=9).validation) == 5


def test_few_shot_may_use_all_distinct_texts_with_a_validation_file(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "validation.jsonl", OTHERS)
    assert len(read(tmp_path, POOL * 2, few_shot=20, validation=file).train) == 20
    assert error_message(tmp_path, POOL * 2, few_shot=21, validation=file) == (
        "task.few_shot: got 21; expected at most 20, the number of distinct training texts; lower it"
    )


def test_validation_file_with_only_training_rows_is_an_error(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "validation.jsonl", POOL[:4])
    message = error_message(tmp_path, few_shot=20, validation=file)
    assert message.startswith("task.few_shot: got 20; expected rows of the 4 validation rows to be left to validate on")
    assert message.endswith("pass other rows with `validation=FILE`")


DEV = [Example((f"dev {number}",), "ab"[number % 2]) for number in range(9)]
TEST = [Example((f"test {number}",), "ab"[number % 2]) for number in range(7)]


def published_task(folder: Path, with_test: bool) -> TaskConfig:
    """A task file like those of the library: its rows come from published files."""
    files = {"train": ["train.jsonl"], "validation": ["dev.jsonl"]} | ({"test": ["test.jsonl"]} if with_test else {})
    for name, rows in (("train", POOL), ("dev", DEV), ("test", TEST)):
        write_rows(folder / f"{name}.jsonl", rows)
    task = {
        "name": "published",
        "text": ["text"],
        "label": "label",
        "labels": {"a": {"words": "a"}, "b": {"words": "b"}},
        "files": files,
    }
    (folder / "task.yaml").write_text(yaml.safe_dump(task))
    return TaskConfig(name=str(folder / "task.yaml"), data=str(folder), few_shot=4, validation_rows=6, sample_seed=3)


@pytest.mark.parametrize("with_test", [False, True])
def test_few_shot_on_a_published_task_validates_on_training_rows_and_scores_other_rows(
    tmp_path: Path, with_test: bool
) -> None:
    splits = read_splits(published_task(tmp_path, with_test), {})
    assert (splits.train, splits.validation) == few_shot(POOL, 4, 6, 3)
    assert splits.test == (TEST if with_test else DEV)  # without test rows, scores are reported on the validation file


def test_few_shot_uses_validation_rows_that_the_user_names(tmp_path: Path) -> None:
    config = published_task(tmp_path, with_test=False)
    by_file = read_splits(config.model_copy(update={"validation": str(tmp_path / "dev.jsonl")}), {})
    in_memory = read_splits(config, {"validation": [{"text": row.texts[0], "label": row.target} for row in DEV]})
    for splits in (by_file, in_memory):
        assert texts_of(splits.validation) <= texts_of(DEV)
        assert (len(splits.validation), splits.test) == (6, [])


def test_without_few_shot_a_published_task_validates_on_its_validation_file(tmp_path: Path) -> None:
    config = published_task(tmp_path, with_test=False).model_copy(update={"few_shot": 0, "validation_rows": 0})
    splits = read_splits(config, {})
    assert (splits.train, splits.validation, splits.test) == (POOL, DEV, [])


def test_sample_task_validates_on_its_own_validation_rows() -> None:
    splits = read_splits(TaskConfig(name="tickets", few_shot=30, stratified=True), {})
    assert len(splits.train) == 30
    assert set(Counter(row.target for row in splits.train).values()) == {5}  # six classes of one size
    assert len(splits.validation) >= 60
    assert len(splits.test) >= 120


def test_few_shot_beside_train_rows_is_an_error(tmp_path: Path) -> None:
    assert error_message(tmp_path, few_shot=4, train_rows=9) == (
        "task.few_shot: got 4; expected no task.train_rows beside it (here 9); set one of the two"
    )


def test_single_class_sample_is_an_error_that_names_the_setting(tmp_path: Path) -> None:
    for setting in ("few_shot", "train_rows"):
        message = error_message(tmp_path, validation_rows=3, **{setting: 1})
        assert message.startswith(f"task.{setting}: got 1; expected a sample with at least two classes; raise it")


def test_stratified_regression_is_an_error(tmp_path: Path) -> None:
    rows = [Example((f"text {number}",), float(number)) for number in range(20)]
    assert len(read(tmp_path, rows, kind="regression", few_shot=4, validation_rows=4).train) == 4
    assert error_message(tmp_path, rows, kind="regression", few_shot=4, stratified=True) == (
        "task.stratified: got True; expected a task with classes, not regression; leave it out"
    )


def test_stratified_applies_to_train_rows(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "validation.jsonl", RARE[:9])
    for seed in range(4):
        splits = read(tmp_path, RARE, train_rows=5, stratified=True, validation=file, sample_seed=seed)
        assert Counter(row.target for row in splits.train) == {"often": 4, "rare": 1}


def test_stratified_changes_nothing_without_sampling(tmp_path: Path) -> None:
    assert read(tmp_path, stratified=True) == read(tmp_path)


def test_finished_run_gives_the_same_few_shot_rows(tmp_path: Path) -> None:
    task = {
        "train": write_rows(tmp_path / "train.jsonl", POOL),
        "few_shot": 4,
        "validation_rows": 6,
        "stratified": True,
        "label_descriptions": {"a": "It is a."},
    }
    run = resolve({"task": task})
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(run.as_settings()))
    assert splits_of_run(tmp_path) == read_splits(run.task, {})


# --- swapped pairs ---

PAIRS = [Example((f"first {number}", f"second {number}"), "ab"[number % 2]) for number in range(20)]


def test_swap_pairs_doubles_the_training_rows_after_sampling(tmp_path: Path) -> None:
    settings = {"text": "first,second", "few_shot": 4, "validation_rows": 6}
    plain, doubled = (read(tmp_path, PAIRS, swap_pairs=swap, **settings) for swap in (False, True))
    assert len(plain.train) == 4
    assert doubled.train[:4] == plain.train
    assert [(row.texts[1], row.texts[0], row.target) for row in doubled.train[4:]] == [
        (*row.texts, row.target) for row in plain.train
    ]
    assert (doubled.validation, doubled.test) == (plain.validation, plain.test)


def test_swapped_training_pairs_are_not_in_validation(tmp_path: Path) -> None:
    pairs = with_swapped(PAIRS)
    splits = read(
        tmp_path, pairs, text="first,second", swap_pairs=True, test=write_rows(tmp_path / "test.jsonl", PAIRS[:3])
    )
    assert len(splits.train) + 2 * len(splits.validation) == 2 * len(pairs)
    assert not texts_of(splits.train) & texts_of(splits.validation)
    assert splits.test == PAIRS[:3]


def test_swap_pairs_with_one_text_is_an_error_before_any_row_is_read(tmp_path: Path) -> None:
    config = TaskConfig(train=str(tmp_path / "no.csv"), text=("review",), swap_pairs=True)
    with pytest.raises(ConfigurationError) as caught:
        read_splits(config, {})
    assert str(caught.value) == (
        "task.swap_pairs: got True; expected a task that reads two texts, not only 'review'; "
        "name two columns in task.text, or leave it out"
    )


# --- label descriptions ---


def test_description_is_added_to_the_label_beside_its_words() -> None:
    task = Task(name="t", labels={"0": Label(words="bad", description="old"), "1": Label(words="good")})
    rows = [Example(("x",), "0"), Example(("y",), "1")]
    described = with_labels(task, rows, {"1": "great"}, {"1": "It is worth seeing."})
    assert described.labels == {
        "0": Label(words="bad", description="old"),
        "1": Label(words="great", description="It is worth seeing."),
    }
    assert with_labels(task, rows, {}, {"0": "new"}).labels["0"] == Label(words="bad", description="new")


def test_description_of_an_unknown_label_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, label_descriptions={"c": "It is neither."})
    assert str(caught.value) == ("task.label_descriptions: got 'c'; expected a label of the training rows; known: a, b")


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("task.label_descriptions.0=It is not worth seeing.", {"0": "It is not worth seeing."}),
        ("task.label_descriptions.0='text with spaces'", {"0": "text with spaces"}),
        ("task.label_descriptions.yes=no", {"yes": "no"}),
        ("task.label_descriptions.a.b=c", {"a.b": "c"}),
        ("""task.label_descriptions.0="Verdict: it's bad." """, {"0": "Verdict: it's bad."}),
        ("task.label_descriptions={0: bad film, 1: good film}", {"0": "bad film", "1": "good film"}),
    ],
)
def test_overrides_set_label_descriptions(word: str, expected: dict[str, str]) -> None:
    assert resolve(parse_overrides([word])).task.label_descriptions == expected


def test_descriptions_change_the_labels_of_a_library_task() -> None:
    task = parse_overrides(["task.name=urgency", "task.label_descriptions.high=Someone must act at once."])
    described = read_splits(resolve(task).task, {}).task
    assert described.labels["high"].description == "Someone must act at once."
    original = library_task("urgency")
    assert described.label_words == original.label_words
    assert described.labels["low"] == original.labels["low"]
