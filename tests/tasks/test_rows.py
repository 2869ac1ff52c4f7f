from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest

from softcue.errors import DataError
from softcue.tasks import Label, Task, examples_from, sample, split_off, with_labels
from softcue.types import Example

OPEN = Task(name="open")  # its labels are still to be seen
CLOSED = Task(name="closed", labels={"spam": Label(words="spam"), "ham": Label(words="ham")})
SCORES = Task(name="scores", kind="regression", label="score")
PAIRS = Task(name="pairs", text=("first", "second"))
WRITING = Task(name="writing", kind="generation")


def message_of(source: Any, task: Task, needs_target: bool = True) -> str:
    with pytest.raises(DataError) as caught:
        examples_from(source, task, needs_target)
    return str(caught.value)


def test_texts_and_targets_come_from_the_task_s_columns() -> None:
    rows = [{"second": "b", "first": "a", "label": " x ", "other": 3}]
    assert examples_from(rows, PAIRS) == [Example(("a", "b"), "x")]


def test_prediction_rows_need_no_label_column() -> None:
    assert examples_from([{"text": "hi"}], CLOSED, needs_target=False) == [Example(("hi",), None)]


@pytest.mark.parametrize(
    ("value", "label"),
    [
        ("a", "a"), (3, "3"), (2.0, "2"), (2.5, "2.5"), (True, "true"), (numpy.bool_(False), "false"),
        (numpy.int64(7), "7"), (numpy.float32(4), "4"), (2**60 + 1, str(2**60 + 1)), ("nan", "nan"),
    ],
)  # fmt: skip
def test_labels_of_any_plain_type_become_text(value: object, label: str) -> None:
    assert examples_from([{"text": "hi", "label": value}], OPEN)[0].target == label


def test_class_numbers_survive_a_frame_with_gaps() -> None:
    frame = pandas.DataFrame({"text": ["a", "b", "c"], "label": [0, 1, None]}).dropna()
    assert [row.target for row in examples_from(frame, OPEN)] == ["0", "1"]


@pytest.mark.parametrize("value", [2, 2.0, "2", " 2e0 "])
def test_scores_are_read_as_numbers(value: object) -> None:
    assert examples_from([{"text": "hi", "score": value}], SCORES) == [Example(("hi",), 2.0)]


@pytest.mark.parametrize("content", ["", "\n\n", "text,label\n", "text,label\r\n\r\n"])
def test_file_without_rows_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(content)
    assert message_of(path, OPEN) == (f"data: got '{path}'; expected at least one row below the header; check the file")


def test_no_rows_in_memory_are_refused() -> None:
    for rows in ([], pandas.DataFrame({"text": [], "label": []})):
        assert message_of(rows, OPEN).startswith("data: got 'the rows given'; expected at least one row")


def test_missing_column_suggests_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("texts,label,extra\nhi,a,b\n")
    assert message_of(path, OPEN) == (
        f"{path}, line 2, column: got 'text'; expected a column of the data; "
        "did you mean 'texts'? known: extra, label, texts"
    )


@pytest.mark.parametrize("value", ["", "   ", "\n", None, 3, float("nan"), pandas.NA, ["hi"]])
def test_text_that_is_empty_or_no_text_is_refused(value: object) -> None:
    message = message_of([{"text": "fine", "label": "a"}, {"text": value, "label": "a"}], OPEN)
    assert message.startswith("row 2, column 'text': got ")
    assert message.endswith("expected a text that is not empty; fill it in or remove the row")


@pytest.mark.parametrize("value", ["", " ", None, float("nan"), pandas.NA, pandas.NaT, ["a"], {"a": 1}])
@pytest.mark.parametrize("task", [OPEN, CLOSED, WRITING])
def test_label_that_is_missing_or_no_label_is_refused(task: Task, value: object) -> None:
    message = message_of([{"text": "hi", "label": value}], task)
    assert message.startswith("row 1, column 'label': got ")
    assert message.endswith("expected a label; fill it in or remove the row")


def test_null_label_in_json_lines_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "hi", "label": "a"}\n{"text": "hi", "label": null}\n')
    assert message_of(path, OPEN).startswith(f"{path}, line 2, column 'label': got None; expected a label;")


@pytest.mark.parametrize("column", ["text", "label"])
def test_lone_surrogate_is_refused_before_anything_is_trained(tmp_path: Path, column: str) -> None:
    path = tmp_path / "rows.jsonl"
    row = '{"text": "hi", "label": "a"}'
    path.write_text(row.replace('"hi"' if column == "text" else '"a"', '"half \\ud83d"'))
    message = message_of(path, OPEN)
    assert message.startswith(f"{path}, line 1, column '{column}': got ")
    assert "ud83d" in message
    assert message.endswith("expected text without lone surrogates; repair the escape sequence")
    message.encode("utf-8")


def test_unknown_label_in_validation_suggests_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "validation.csv"
    path.write_text("text,label\nhi,ham\nhi,spma\n")
    assert message_of(path, CLOSED) == (
        f"{path}, line 3, column 'label': got 'spma'; expected a label of the task or its training rows; "
        "did you mean 'spam'? known: ham, spam"
    )


@pytest.mark.parametrize("value", ["high", "", None, "nan", "inf", float("nan"), [1], 10**400])
def test_score_that_is_no_finite_number_is_refused(value: object) -> None:
    message = message_of([{"text": "hi", "score": value}], SCORES)
    assert message.startswith("row 1, column 'score': got ")
    assert message.endswith("expected a finite number; fix the row, or set task.kind=classification")


def test_labels_are_taken_from_training_rows_in_sorted_order() -> None:
    rows = [Example(("x",), label) for label in "bca"]
    task = with_labels(OPEN, rows, {"b": "bee"})
    assert (task.label_names, task.label_words) == (("a", "b", "c"), ("a", "bee", "c"))


def test_declared_labels_keep_their_order_and_description() -> None:
    task = Task(name="t", labels={"z": Label(words="zed", description="last"), "a": Label(words="ay")})
    found = with_labels(task, [Example(("x",), "a"), Example(("x",), "z")], {"z": "zulu"})
    assert found.labels == {"z": Label(words="zulu", description="last"), "a": Label(words="ay")}


def test_words_for_an_unknown_label_are_refused() -> None:
    rows = [Example(("x",), "spam"), Example(("x",), "ham")]
    with pytest.raises(DataError, match=r"task.label_words: got 'spm'; .*did you mean 'spam'\? known: ham, spam"):
        with_labels(OPEN, rows, {"spm": "junk"})


@pytest.mark.parametrize("task", [OPEN, CLOSED])
def test_single_class_is_refused(task: Task) -> None:
    with pytest.raises(DataError) as caught:
        with_labels(task, [Example(("x",), "spam")] * 3, {})
    assert str(caught.value) == (
        "label column 'label': got 'spam'; expected at least two classes in training; "
        "check the column, or set task.kind=regression or generation"
    )


ROWS = [Example((str(number),), "ab"[number % 2]) for number in range(30)]


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.99])
def test_every_class_is_held_out_and_kept(share: float) -> None:
    rows = [Example((str(number),), "ab"[number % 5 == 0]) for number in range(20)]
    kept, held = split_off(rows, share, seed=3)
    assert sorted(kept + held, key=rows.index) == rows
    assert {row.target for row in kept} == {row.target for row in held} == {"a", "b"}


def test_class_with_one_row_stays_in_training() -> None:
    rows = [*(Example((str(number),), "many") for number in range(9)), Example(("x",), "one")]
    kept, held = split_off(rows, 0.3, seed=0)
    assert rows[-1] in kept
    assert len(held) == 3


def test_split_depends_on_the_seed_alone() -> None:
    assert split_off(ROWS, 0.3, seed=1) == split_off(ROWS, 0.3, seed=1)
    assert split_off(ROWS, 0.3, seed=1) != split_off(ROWS, 0.3, seed=2)


def test_scores_and_free_texts_are_split_as_one_class() -> None:
    scores = [Example((str(number),), float(number)) for number in range(10)]
    texts = [Example((str(number),), f"answer {number}") for number in range(10)]
    assert [len(part) for part in split_off(scores, 0.2, seed=0)] == [8, 2]
    assert [len(part) for part in split_off(texts, 0.2, seed=0, by_class=False)] == [8, 2]


def test_sample_is_seeded_ordered_and_without_repeats() -> None:
    found = sample(ROWS, 10, seed=4)
    assert found == sample(ROWS, 10, seed=4) != sample(ROWS, 10, seed=5)
    assert len(found) == len(set(found)) == 10
    assert found == sorted(found, key=ROWS.index)
    assert sample(ROWS, 99, seed=4) == ROWS


def test_copies_of_a_text_are_never_on_both_sides_of_a_split() -> None:
    rows = [Example((f"text {number % 7}",), "ab"[number % 7 % 2]) for number in range(70)]
    kept, held = split_off(rows, 0.3, seed=1)
    assert held and len(kept) + len(held) == 70
    assert not {row.texts for row in kept} & {row.texts for row in held}
