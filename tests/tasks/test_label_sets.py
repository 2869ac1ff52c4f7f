"""Rows with a set of labels: read from every kind of source, checked, split and sampled."""

from __future__ import annotations

import csv
import json
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import numpy
import pandas
import pytest

from softcue.errors import ConfigurationError, DataError
from softcue.evaluation import check_metric
from softcue.tasks import Label, Task, examples_from, find_task
from softcue.tasks.splits import TaskConfig, few_shot, read_splits, split_off
from softcue.types import Example

OPEN = Task(name="open", kind="multi-label")
CLOSED = Task(name="closed", kind="multi-label", labels={"b": Label(words="b", also=("2",)), "a": Label(words="a")})
SETS = [["a", "b"], ["b"], [], ["c", "a"]] * 6
ROWS = [{"text": f"text {number}", "label": labels} for number, labels in enumerate(SETS)]


def read(value: object, task: Task = OPEN) -> tuple[str, ...]:
    [example] = examples_from([{"text": "hi", "label": value}], task)
    assert example.target is None
    return example.labels


def message_of(value: object, task: Task = OPEN) -> str:
    with pytest.raises(DataError) as error:
        read(value, task)
    return str(error.value)


@pytest.mark.parametrize(
    ("value", "labels"),
    [
        (["b", "a"], ("a", "b")),
        (("b",), ("b",)),
        ({"b", "a"}, ("a", "b")),
        (numpy.array(["b", "a"]), ("a", "b")),
        ([3, 1], ("1", "3")),
        ([], ()),
        ("b; a", ("a", "b")),
        (" a ;; b;", ("a", "b")),
        ("a", ("a",)),
        ("", ()),
        (None, ()),
        (float("nan"), ()),
        (pandas.NA, ()),
        (7, ("7",)),
    ],
)
def test_a_cell_holds_a_set_of_labels(value: object, labels: tuple[str, ...]) -> None:
    assert read(value) == labels


def test_labels_are_in_the_order_of_the_task_and_by_their_other_values() -> None:
    assert read(["a", "2"], CLOSED) == ("b", "a")
    assert read("a|b", CLOSED.model_copy(update={"separator": "|"})) == ("b", "a")


def test_a_bad_set_is_an_error_that_says_what_to_do() -> None:
    assert message_of(["a", "x"], CLOSED).startswith(
        "row 1, column 'label': got 'x'; expected a label of the task or its training rows; "
    )
    assert "expected 'a' once; remove the copy" in message_of(["a", "b", "a"])
    assert "expected 'b' once" in message_of("b;2", CLOSED)
    for value in ([["a"]], ["a", None], [""], [{"a": 1}], {"a": 1}):
        assert "expected a label; each item of a list is a label" in message_of(value)
    assert "got 'a;b'; expected labels without ';'" in message_of(["a;b"])
    assert "set task.separator to another text" in message_of(["a;b"])


def test_a_task_file_may_not_have_labels_with_the_separator(tmp_path: Path) -> None:
    text = "kind: multi-label\nseparator: ','\nlabels: {'a,b': {words: x}, c: {words: c}}\n"
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match="labels without the separator ',', which 'a,b' has"):
        find_task(str(tmp_path / "mine.yaml"))


def test_a_task_file_reads_csv_rows(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text,topics\nhi,a|b\nyou,\nthere,b\n")
    (tmp_path / "mine.yaml").write_text(
        "kind: multi-label\nseparator: '|'\nlabel: topics\ntrain: rows.csv\nvalidation: rows.csv\n"
    )
    splits = read_splits(TaskConfig(name=str(tmp_path / "mine.yaml")), {})
    assert [example.labels for example in splits.train] == [("a", "b"), (), ("b",)]
    assert (splits.task.label_names, splits.task.main_metric) == (("a", "b"), "micro_f1")


@pytest.mark.parametrize("suffix", ["json", "jsonl", "parquet"])
def test_lists_in_files_imply_sets(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"rows.{suffix}"
    if suffix == "parquet":
        pandas.DataFrame(ROWS).to_parquet(file)
    else:
        file.write_text(json.dumps(ROWS) if suffix == "json" else "\n".join(map(json.dumps, ROWS)))
    splits = read_splits(TaskConfig(train=str(file)), {}, check_metric)
    assert splits.task.kind == "multi-label"
    assert splits.task.label_names == ("a", "b", "c")
    assert Counter(example.labels for example in (*splits.train, *splits.validation)) == {
        ("a", "b"): 6,
        ("b",): 6,
        (): 6,
        ("a", "c"): 6,
    }


def test_lists_in_tables_imply_sets() -> None:
    tables: list[Any] = [ROWS, pandas.DataFrame(ROWS), datasets.Dataset.from_list(ROWS)]
    for table in tables:
        assert read_splits(TaskConfig(), {"train": table}).task.kind == "multi-label"
    first_is_empty = [{"text": "nothing", "label": None}, *ROWS]
    assert read_splits(TaskConfig(), {"train": first_is_empty}).task.kind == "multi-label"


def test_class_numbers_in_lists_of_a_data_set_get_their_names() -> None:
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.List(datasets.ClassLabel(names=["x", "y", "z"]))}
    )
    rows = [{"text": f"{number}", "label": [0, 2] if number % 2 else [1]} for number in range(12)]
    splits = read_splits(TaskConfig(), {"train": datasets.Dataset.from_list(rows, features=features)})
    assert splits.task.label_names == ("x", "y", "z")


def test_numbers_keep_their_type() -> None:
    rows = [{"text": f"{number}", "label": [10, 2] if number % 2 else []} for number in range(12)]
    task = read_splits(TaskConfig(), {"train": rows}).task
    assert (task.label_type, task.label_names) == ("integer", ("2", "10"))
    mixed = [{"text": f"{number}", "label": [1, "1"]} for number in range(12)]
    with pytest.raises(DataError, match="expected '1' once"):
        read_splits(TaskConfig(), {"train": mixed})


def test_lists_are_an_error_where_the_task_is_a_classification() -> None:
    with pytest.raises(DataError, match=r"expected one label, or task.kind=multi-label for lists"):
        read_splits(TaskConfig(kind="classification"), {"train": ROWS[:2]})
    with pytest.raises(ConfigurationError, match=r"'accuracy'; expected a metric for multi-label"):
        read_splits(TaskConfig(metric="accuracy"), {"train": ROWS}, check_metric)


def test_texts_without_a_separator_cause_a_warning() -> None:
    rows = [{"text": f"{number}", "label": "a/b" if number % 2 else "b/c"} for number in range(12)]
    with pytest.warns(UserWarning, match=r"no row of column 'label' has more than one label; in a text, ';' stands"):
        assert read_splits(TaskConfig(kind="multi-label"), {"train": rows}).task.label_names == ("a/b", "b/c")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_splits(TaskConfig(separator="/"), {"train": rows}).task.label_names == ("a", "b", "c")


@pytest.mark.parametrize("separator", ["|", ","])
def test_another_usual_separator_in_most_cells_is_an_error_that_names_it(separator: str) -> None:
    cells = [f"a{separator}b", f"b {separator} c", "", "c"] * 6
    rows = [{"text": f"{number}", "label": cell} for number, cell in enumerate(cells)]
    with pytest.raises(DataError) as caught:
        read_splits(TaskConfig(kind="multi-label"), {"train": rows})
    assert str(caught.value) == (
        f"column 'label': got 'a{separator}b'; expected ';' between the labels of a row; 12 of 18 cells have "
        f"'{separator}', none has ';'; pass `separator='{separator}'`, or `separator=';'` if each cell is one label"
    )
    assert read_splits(TaskConfig(separator=separator), {"train": rows}).task.label_names == ("a", "b", "c")
    with pytest.warns(UserWarning, match="no row of column 'label' has more than one label"):
        read_splits(TaskConfig(separator=";"), {"train": rows})


def test_one_cell_with_the_separator_is_enough_to_keep_other_signs_in_labels() -> None:
    rows = [
        {"text": f"{number}", "label": "Paris, France" if number else "Paris, France; Rome"} for number in range(12)
    ]
    names = read_splits(TaskConfig(kind="multi-label"), {"train": rows}).task.label_names
    assert names == ("Paris, France", "Rome")


def csv_of(folder: Path, cells: list[str]) -> str:
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([("text", "label"), *((f"text {number}", cell) for number, cell in enumerate(cells))])
    return str(folder / "rows.csv")


def test_lists_as_json_in_a_csv_file_are_sets_of_labels(tmp_path: Path) -> None:
    path = csv_of(tmp_path, ['["water", "heat"]', '["heat"]', "[]", ""] * 6)
    splits = read_splits(TaskConfig(train=path), {})
    assert splits.task.kind == "multi-label"
    assert splits.task.label_names == ("heat", "water")
    assert {row.labels for row in [*splits.train, *splits.validation]} == {(), ("heat",), ("heat", "water")}
    scored = examples_from([{"text": "hi", "label": '["water"]'}, {"text": "ho", "label": ""}], splits.task)
    assert [row.labels for row in scored] == [("water",), ()]


def test_a_column_with_lists_as_json_in_some_cells_only_has_classes(tmp_path: Path) -> None:
    for other in ("water", "[water]", "[true]", '{"a": 1}', '["a", ["b"]]', "[" * 9):
        task = read_splits(TaskConfig(train=csv_of(tmp_path, ['["water"]', other] * 9)), {}).task
        assert task.kind == "classification"
        assert set(task.label_names) == {'["water"]', other}


def test_a_separator_is_for_sets_only() -> None:
    with pytest.raises(ConfigurationError, match=r"expected task.kind=multi-label beside it, not classification"):
        read_splits(TaskConfig(separator="|", kind="classification"), {"train": ROWS})


def test_training_rows_need_a_label() -> None:
    rows = [{"text": f"{number}", "label": []} for number in range(12)]
    with pytest.raises(DataError, match="expected at least one label in training; check the column"):
        read_splits(TaskConfig(), {"train": rows})


def test_every_label_keeps_a_training_row_when_rows_are_held_out() -> None:
    examples = [
        Example((str(number),), labels=(f"rare {number % 20}", *(["common"] if number % 2 else [])))
        for number in range(24)
    ]
    for seed in range(20):
        train, validation = split_off(examples, 0.15, seed, by_class=False)
        assert {label for example in train for label in example.labels} == {
            label for example in examples for label in example.labels
        }
        assert len(train) + len(validation) == 24 and validation
    assert split_off(examples, 0.15, 0, by_class=False) == split_off(examples, 0.15, 0, by_class=False)


def test_few_shot_draws_plain_rows_and_shots_per_class_rows_of_each_label() -> None:
    splits = read_splits(TaskConfig(few_shot=5, validation_rows=4), {"train": ROWS})
    assert (len(splits.train), len(splits.validation)) == (5, 4)
    splits = read_splits(TaskConfig(shots_per_class=2, validation_rows=4), {"train": ROWS})
    counts = Counter(label for example in splits.train for label in example.labels or ("none",))
    assert set(counts) == {"a", "b", "c", "none"} and min(counts.values()) == 2
    assert len(splits.train) < 10
    with pytest.raises(ConfigurationError, match="expected at most 6, the distinct rows of the label 'c'; lower it"):
        read_splits(TaskConfig(shots_per_class=7), {"train": ROWS})
    with pytest.raises(ConfigurationError, match="expected a task with classes, not multi-label"):
        read_splits(TaskConfig(stratified=True, few_shot=4), {"train": ROWS})
    empty = [{"text": f"empty {number}", "label": []} for number in range(200)]
    with pytest.raises(ConfigurationError, match="expected a sample with at least one label"):
        read_splits(TaskConfig(few_shot=1, validation_rows=4), {"train": [*ROWS[:1], *empty]})


def test_shots_per_class_of_single_labels_draws_the_same_rows_as_before() -> None:
    examples = [Example((str(number),), "abc"[number % 3]) for number in range(30)]
    train, _ = few_shot(examples, 0, 5, seed=3, per_class=4)
    assert Counter(example.target for example in train) == {"a": 4, "b": 4, "c": 4}
