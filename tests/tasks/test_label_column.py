"""The label column of a user's rows: the type of its labels, and when its numbers make the task a regression."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy
import pandas
import pyarrow
import pyarrow.parquet
import pytest

from softcue.errors import ConfigurationError, DataError
from softcue.tasks import Label, Task, examples_from, splits
from softcue.tasks.label_column import LabelColumn
from softcue.tasks.splits import Splits, TaskConfig, read_splits

FRACTIONS = [number / 100 for number in range(7, 58)]  # 51 different numbers


def rows_of(labels: Sequence[object]) -> list[dict[str, object]]:
    return [{"text": f"text {number}", "label": label} for number, label in enumerate(labels)]


def split(labels: Sequence[object], **settings: Any) -> Splits:
    return read_splits(TaskConfig(**settings), {"train": rows_of(labels)})


def error_of(labels: Sequence[object], **settings: Any) -> str:
    with pytest.raises(DataError) as caught:
        split(labels, **settings)
    return str(caught.value)


# --- the type of the labels ---


@pytest.mark.parametrize(
    ("labels", "label_type", "values"),
    [
        (["b", "a"], "text", ["a", "b"]),
        (["1", "0"], "text", ["0", "1"]),  # as every csv cell
        ([1, 0], "integer", [0, 1]),
        ([10, 9, -1], "integer", [-1, 9, 10]),  # in the order of numbers
        ([2**63 + 1, 3], "integer", [3, 2**63 + 1]),
        ([numpy.int64(1), numpy.uint8(0)], "integer", [0, 1]),
        ([True, False], "boolean", [False, True]),
        ([numpy.True_, False], "boolean", [False, True]),
        ([1.0, 0.0], "float", [0.0, 1.0]),  # an integer column with gaps
        ([1, 2.0], "float", [1.0, 2.0]),
        ([2.5, 0.5], "float", [0.5, 2.5]),
        ([numpy.float64(2.5), 0.5], "float", [0.5, 2.5]),
        ([Decimal("1.50"), Decimal("2")], "float", [1.5, 2.0]),
    ],
)
def test_labels_get_the_type_of_the_rows(labels: list[object], label_type: str, values: list[object]) -> None:
    task = split(labels * 10).task
    assert task.label_type == label_type
    typed = [task.label_value(name) for name in task.label_names]
    assert typed == values
    assert [type(label) for label in typed] == [type(value) for value in values]


@pytest.mark.parametrize(
    "column", [pandas.Series([1, 0] * 9, dtype="Int8"), pandas.Series([1, 0] * 9, dtype="category")]
)
def test_integer_columns_of_pandas_are_integers(column: pandas.Series) -> None:
    frame = pandas.DataFrame({"text": [f"text {number}" for number in range(18)], "label": column})
    assert read_splits(TaskConfig(), {"train": frame}).task.label_type == "integer"


def test_files_keep_their_types(tmp_path: Path) -> None:
    rows = rows_of([True, False] * 9)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    (tmp_path / "rows.csv").write_text("text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in rows))
    types = [
        read_splits(TaskConfig(train=str(tmp_path / name)), {}).task.label_type
        for name in ("rows.jsonl", "rows.parquet", "rows.csv")
    ]
    assert types == ["boolean", "boolean", "text"]


@pytest.mark.parametrize(
    ("labels", "parts"),
    [
        ([1, "1"], ("integer (1 in row 1)", "text ('1' in row 2)")),
        ([True, 1], ("boolean (True in row 1)", "integer (1 in row 2)")),
        ([0, 1, "unknown"], ("integer (0 in row 1)", "text ('unknown' in row 3)")),
        ([True, "true"], ("boolean (True in row 1)", "text ('true' in row 2)")),
    ],
)
def test_labels_of_several_types_are_an_error_that_shows_them(labels: list[object], parts: tuple[str, str]) -> None:
    message = error_of(labels * 6)
    assert message.startswith("column 'label': got ")
    assert all(part in message for part in parts)
    assert "expected labels of one type" in message


def test_rows_that_are_left_out_have_no_type() -> None:
    with pytest.warns(UserWarning, match="skipped 1 of 21 rows"):
        task = split([1, 0] * 10 + [None], skip_bad_rows=True).task
    assert task.label_type == "integer"


def test_declared_labels_stay_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    labels = {"no": {"words": "no", "also": ["0"]}, "yes": {"words": "yes", "also": ["1"]}}
    path.write_text(json.dumps({"name": "mine", "labels": labels}))
    result = read_splits(TaskConfig(name=str(path)), {"train": rows_of([1, 0] * 9)})
    assert result.task.label_type == "text"
    assert {example.target for example in result.train} == {"no", "yes"}


def test_a_task_file_may_declare_the_type() -> None:
    task = Task(name="t", labels={"0": Label(words="bad"), "1": Label(words="good")}, label_type="integer")
    assert task.label_value("1") == 1
    with pytest.raises(ValueError, match="'bad' is no integer"):
        Task(name="t", labels={"bad": Label(words="bad")}, label_type="integer")


@pytest.mark.parametrize(
    ("label_type", "names", "value", "label"),
    [
        ("boolean", ("false", "true"), "True", "true"),  # as pandas writes a csv file
        ("boolean", ("false", "true"), "yes", None),
        ("integer", ("0", "1"), "1.0", "1"),
        ("integer", ("0", "1"), "1.5", None),
        ("integer", ("0", "1"), "inf", None),
        ("float", ("0.5", "1"), "1.0", "1"),
        ("text", ("0", "1"), "1.0", None),
    ],
)
def test_values_of_other_files_find_their_label(
    label_type: Any, names: tuple[str, ...], value: str, label: Any
) -> None:
    labels = {name: Label(words=name) for name in names}
    assert Task(name="t", labels=labels, label_type=label_type).label_of(value) == label


def test_a_frame_read_from_the_csv_file_of_training_has_its_labels(tmp_path: Path) -> None:
    for number, labels in enumerate([("True", "False"), ("0.0", "1.0"), ("0", "1")]):
        path = tmp_path / f"{number}.csv"
        path.write_text("text,label\n" + "".join(f"text {n},{labels[n % 2]}\n" for n in range(20)))
        task = read_splits(TaskConfig(train=str(path)), {}).task  # pandas gives other types to the same cells
        examples = examples_from(pandas.read_csv(path), task)
        assert [example.target for example in examples] == [*labels] * 10


@pytest.mark.parametrize("words", [{0: "bad", 1: "good"}, {"0": "bad", "1": "good"}, {0.0: "bad", 1.0: "good"}])
def test_label_words_may_be_given_by_number(words: dict[Any, str]) -> None:
    assert split([1, 0] * 9, label_words=words).task.label_words == ("bad", "good")


@pytest.mark.parametrize("words", [{False: "no", True: "yes"}, {"False": "no", "true": "yes"}])
def test_label_words_may_be_given_by_boolean(words: dict[Any, str]) -> None:
    assert split([True, False] * 9, label_words=words).task.label_words == ("no", "yes")


# --- numbers that are no classes ---


def column_of(labels: Sequence[object]) -> LabelColumn:
    column = LabelColumn("label")
    for number, label in enumerate(labels, start=1):
        column.add(f"row {number}", label)
    return column


@pytest.mark.parametrize(
    ("labels", "is_regression"),
    [
        (FRACTIONS, True),
        ([str(number) for number in FRACTIONS], True),  # cells of a csv file
        ([f" {number}e0" for number in FRACTIONS], True),
        (FRACTIONS[:21] * 50, True),  # more than 20 different numbers, however often
        (FRACTIONS[:20] * 50, False),
        (FRACTIONS[:6], True),  # each row its own number
        (FRACTIONS[:6] * 2, False),  # half as many numbers as rows
        ([0.5, 0.75], False),  # two numbers are two classes
        ([0.0, 1.0] * 20, False),
        ([1, 2, 3, 4, 5] * 20, False),  # stars
        ([1 + number / 2 for number in range(9)] * 10, False),  # half stars
        (list(range(60)), False),  # numbers without fractions, such as ids of intents
        ([float(number) for number in range(60)], False),
        ([*map(float, range(60)), 0.5], True),
        ([*FRACTIONS, "n/a"], True),  # the odd value is a bad row
        ([*FRACTIONS, "n/a", "low", "high"], False),
        ([*FRACTIONS, True, False, True], False),
        (["nan", "inf", *map(str, range(40))], False),
        ([f"1.{number}.0" for number in range(60)], False),  # versions
        ([f"label {number}" for number in range(60)], False),
    ],
)
def test_different_numbers_with_fractions_are_a_regression(labels: list[object], is_regression: bool) -> None:
    assert column_of(labels).holds_numbers() == is_regression


def test_a_regression_is_announced_and_its_targets_are_numbers() -> None:
    with pytest.warns(UserWarning, match="column 'label' has 51 different numbers, so this is a regression") as caught:
        result = split(FRACTIONS)
    [warning] = caught
    assert "task.kind=classification" in str(warning.message)
    assert "\n" not in str(warning.message)
    assert result.task.kind == "regression" and result.task.label_type == "text" and not result.task.labels
    assert sorted(example.target for example in [*result.train, *result.validation]) == FRACTIONS


def test_numbers_of_a_csv_file_are_a_regression(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("text,label\n" + "".join(f"text {number},{number}\n" for number in FRACTIONS))
    with pytest.warns(UserWarning, match="regression"):
        assert read_splits(TaskConfig(train=str(path)), {}).task.kind == "regression"


def test_rows_that_can_be_read_once_are_a_regression_too() -> None:
    with pytest.warns(UserWarning, match="regression"):
        result = read_splits(TaskConfig(), {"train": iter(rows_of(FRACTIONS))})
    assert len(result.train) + len(result.validation) == len(FRACTIONS)


def test_a_value_that_is_no_number_is_a_bad_row_of_a_regression() -> None:
    with pytest.warns(UserWarning, match="regression"):
        message = error_of([*FRACTIONS, "n/a"])
    assert message.startswith("row 52, column 'label': got 'n/a'; expected a finite number")


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "classification"},
        {"label_words": {"0.5": "half"}},
        {"metric": "accuracy"},
        {"stratified": True, "few_shot": 51},
    ],
)
def test_settings_that_mean_classes_overrule(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "FEW_SHOT_VALIDATION_ROWS", 51)
    rows = rows_of([*FRACTIONS, *FRACTIONS])
    task = read_splits(TaskConfig(**settings), {"train": rows}).task
    assert task.kind == "classification"
    assert len(task.labels) == 51 and task.label_type == "float"


def test_a_task_file_may_leave_its_kind_to_the_rows_or_declare_it(tmp_path: Path) -> None:
    rows = {"train": rows_of([*FRACTIONS, *FRACTIONS])}
    for name, values in {"open": {}, "closed": {"kind": "classification"}}.items():
        (tmp_path / f"{name}.yaml").write_text(json.dumps({"name": name, **values}))
    assert read_splits(TaskConfig(name=str(tmp_path / "closed.yaml")), rows).task.kind == "classification"
    with pytest.warns(UserWarning, match="regression"):
        assert read_splits(TaskConfig(name=str(tmp_path / "open.yaml")), rows).task.kind == "regression"


@pytest.mark.parametrize(
    ("labels", "kinds"),
    [([f"label {number}" for number in range(30)], "generation"), (list(range(30)), "regression or generation")],
    ids=["text", "ids"],
)
def test_labels_that_are_all_different_are_an_error(labels: list[object], kinds: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        split(labels)
    assert str(caught.value).endswith(
        "30 training rows have 30 different labels in the column 'label'; the columns may be swapped (text: text), "
        f"or set task.kind={kinds}"
    )
