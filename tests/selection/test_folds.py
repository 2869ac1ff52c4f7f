"""Folds of training and validation rows."""

from __future__ import annotations

from collections import Counter

from softcue.selection import make_folds
from softcue.tasks import Task
from softcue.tasks.splits import Splits
from softcue.types import Example


def splits_of(num_train: int, num_validation: int, classes: str = "abb", task: Task | None = None) -> Splits:
    rows = [
        Example((f"text {number}",), classes[number % len(classes)]) for number in range(num_train + num_validation)
    ]
    test = [Example(("a text to test on",), "a")]
    return Splits(task or Task(name="toy"), rows[:num_train], rows[num_train:], test)


def test_every_row_is_validated_once_and_trained_on_in_the_other_folds() -> None:
    splits = splits_of(60, 30)
    folds = make_folds(splits, 3, seed=0)
    rows = set(splits.train + splits.validation)
    assert Counter(row for fold in folds for row in fold.validation) == Counter(rows)
    for fold in folds:
        assert set(fold.train) == rows - set(fold.validation)
        assert not fold.test
        assert Counter(str(row.target) for row in fold.validation) == {"a": 10, "b": 20}


def test_the_seed_alone_decides_the_folds() -> None:
    assert make_folds(splits_of(60, 30), 3, seed=1) == make_folds(splits_of(60, 30), 3, seed=1)
    assert make_folds(splits_of(60, 30), 3, seed=1) != make_folds(splits_of(60, 30), 3, seed=2)


def test_200_validation_rows_are_enough_without_folds() -> None:
    assert make_folds(few := splits_of(60, 199), 3, seed=0) != [few]
    assert make_folds(enough := splits_of(60, 200), 3, seed=0) == [enough]


def test_fewer_than_30_rows_are_too_few_for_folds() -> None:
    assert make_folds(few := splits_of(20, 9), 3, seed=0) == [few]
    assert len(make_folds(splits_of(20, 10), 3, seed=0)) == 3


def test_one_fold_is_plain_validation() -> None:
    assert make_folds(splits := splits_of(60, 30), 1, seed=0) == [splits]


def test_copies_of_a_text_and_swapped_pairs_stay_together() -> None:
    pairs = [Example((f"first {number}", f"second {number}"), "ab"[number % 2]) for number in range(30)]
    swapped = [Example(row.texts[::-1], row.target) for row in pairs]
    task = Task(name="pairs", text=("one", "two"))
    for fold in make_folds(Splits(task, pairs + swapped, [], []), 3, seed=0):
        validated = {tuple(sorted(row.texts)) for row in fold.validation}
        assert not validated & {tuple(sorted(row.texts)) for row in fold.train}


def test_a_class_with_one_row_is_never_validated_without_having_been_trained_on() -> None:
    splits = splits_of(60, 30)
    splits.train.append(Example(("a rare text",), "rare"))
    for fold in make_folds(splits, 3, seed=0):
        assert "rare" in {row.target for row in fold.train}
        assert "rare" not in {row.target for row in fold.validation}


def test_rows_without_classes_are_drawn_together() -> None:
    rows = [Example((f"text {number}",), float(number)) for number in range(60)]
    folds = make_folds(Splits(Task(name="toy", kind="regression"), rows, [], []), 3, seed=0)
    assert [len(fold.validation) for fold in folds] == [20, 20, 20]
