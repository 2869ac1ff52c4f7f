"""Tables in memory: of `datasets` (also with several splits), pyarrow and polars."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow
import pytest

from softcue.errors import ConfigurationError, DataError
from softcue.tasks import Label, Task, examples_from
from softcue.tasks.readers import is_table, read_rows
from softcue.tasks.splits import TaskConfig, read_splits

datasets = pytest.importorskip("datasets")
NAMES = ["negative", "positive"]


def dataset(num_rows: int = 20, labels: list[int] | None = None, names: list[str] = NAMES, start: int = 0) -> Any:
    values = {
        "text": [f"text {number}" for number in range(start, start + num_rows)],
        "label": labels or [number % 2 for number in range(num_rows)],
    }
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=names)})
    return datasets.Dataset.from_dict(values, features=features)


def test_a_dataset_is_read_row_by_row() -> None:
    rows = list(read_rows(dataset(2)))
    assert rows == [("row 1", {"text": "text 0", "label": 0}), ("row 2", {"text": "text 1", "label": 1})]


@pytest.mark.parametrize(
    "source",
    [dataset(), dataset().with_format("numpy"), dataset().with_format("torch"), dataset().to_iterable_dataset()],
    ids=["plain", "numpy", "torch", "iterable"],
)
def test_class_labels_are_integers_with_names_as_words(source: Any) -> None:
    task = read_splits(TaskConfig(), {"train": source}).task
    assert task.label_type == "integer"
    assert task.label_names == ("0", "1") and task.label_words == ("negative", "positive")


def test_words_of_the_user_replace_the_names_of_classes() -> None:
    words = {"0": "bad", "positive": "good"}  # by number or by name
    assert read_splits(TaskConfig(label_words=words), {"train": dataset()}).task.label_words == ("bad", "good")


def test_other_files_may_name_the_classes() -> None:
    task = read_splits(TaskConfig(), {"train": dataset()}).task
    rows = [{"text": "a", "label": "positive"}, {"text": "b", "label": "0"}, {"text": "c", "label": 1}]
    assert [example.target for example in examples_from(rows, task)] == ["1", "0", "1"]


def test_names_that_are_numbers_never_stand_for_another_class() -> None:
    task = read_splits(TaskConfig(), {"train": dataset(names=["1", "0"])}).task
    assert task.label_words == ("1", "0")
    assert [example.target for example in examples_from(dataset(2, names=["1", "0"]), task)] == ["0", "1"]


def test_a_task_with_text_labels_takes_the_names_of_classes() -> None:
    labels = {name: Label(words=name) for name in reversed(NAMES)}
    assert [row.target for row in examples_from(dataset(2), Task(name="t", labels=labels))] == NAMES
    numbered = {"no": Label(words="no", also=("0",)), "yes": Label(words="yes", also=("1",))}
    assert [row.target for row in examples_from(dataset(2), Task(name="t", labels=numbered))] == ["no", "yes"]


def test_a_dataset_without_class_names_has_plain_labels() -> None:
    plain = datasets.Dataset.from_dict(
        {"text": [f"text {number}" for number in range(9)], "label": ["a", "b", "c"] * 3}
    )
    assert read_splits(TaskConfig(), {"train": plain}).task.label_names == ("a", "b", "c")


@pytest.mark.parametrize("name", ["validation", "valid", "val", "dev"])
def test_a_dataset_dict_gives_all_its_splits(name: str) -> None:
    source = datasets.DatasetDict({"train": dataset(), name: dataset(6, start=50), "test": dataset(4, start=80)})
    splits = read_splits(TaskConfig(), {"train": source})
    assert [len(rows) for rows in (splits.train, splits.validation, splits.test)] == [20, 6, 4]


def test_splits_that_are_given_come_first() -> None:
    source = datasets.DatasetDict(train=dataset(), validation=dataset(6, start=50), test=dataset(4, start=80))
    splits = read_splits(TaskConfig(), {"train": source, "validation": dataset(3, start=90), "test": source})
    assert [len(rows) for rows in (splits.train, splits.validation, splits.test)] == [20, 3, 4]


def test_test_rows_without_targets_are_left_out() -> None:
    hidden = dataset(4, [-1] * 4, start=80)
    splits = read_splits(TaskConfig(), {"train": datasets.DatasetDict(train=dataset(), test=hidden)})
    assert splits.test == [] and len(splits.validation) == 4  # held out of training
    unlabelled = datasets.DatasetDict(train=dataset(), test=dataset(4).remove_columns("label"))
    assert read_splits(TaskConfig(), {"train": unlabelled}).test == []


def test_splits_of_tasks_without_a_label_column_are_read() -> None:
    def answered(start: int) -> Any:
        texts = [f"text {number}" for number in range(start, start + 5)]
        return datasets.Dataset.from_dict({"text": texts, "answers": [["a", "b"]] * 5})

    source = datasets.DatasetDict(train=answered(0), validation=answered(10), test=answered(20))
    splits = read_splits(TaskConfig(kind="generation"), {"train": source})
    assert [len(rows) for rows in (splits.train, splits.validation, splits.test)] == [5, 5, 5]


def test_a_dataset_dict_without_the_split_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"train: got 'a DatasetDict with test'.*data\['test'\]"):
        read_splits(TaskConfig(), {"train": datasets.DatasetDict(test=dataset())})


def test_several_splits_are_no_rows_of_one_table() -> None:
    assert len(list(read_rows(datasets.DatasetDict(test=dataset(3))))) == 3
    with pytest.raises(DataError, match=r"a DatasetDict with train, test.*the rows of one split.*data\['test'\]"):
        read_rows(datasets.DatasetDict(train=dataset(), test=dataset()))


def test_tables_of_pyarrow_are_read() -> None:
    table = pyarrow.table({"text": ["a", "b"], "label": [True, False]})
    assert list(read_rows(table)) == [("row 1", {"text": "a", "label": True}), ("row 2", {"text": "b", "label": False})]


def test_tables_of_polars_are_read() -> None:
    # As in polars, `to_dict` takes another argument than in pandas.
    members = {"columns": ["text"], "to_dicts": lambda self: [{"text": "a"}], "to_dict": lambda self, *, as_series: {}}
    frame = type("DataFrame", (), {"__module__": "polars.dataframe.frame", **members})()
    assert is_table(frame)
    assert list(read_rows(frame)) == [("row 1", {"text": "a"})]


def test_tables_are_told_apart_without_their_packages() -> None:
    code = (
        "import sys; from softcue.tasks.readers import is_table; is_table([]); "
        "print([name for name in ('datasets', 'pandas', 'polars', 'pyarrow') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
