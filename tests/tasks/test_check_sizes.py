from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from softcue.errors import DataError
from softcue.tasks import Label, Task
from softcue.tasks.check_sizes import SplitCheck, check, unclaimed_files
from softcue.tasks.task import Published

TWO = Published(rows=2, labels={"a": 1, "b": 1})
THREE = Published(rows=3, labels={"a": 2, "b": 1})


def toy(part: Published | None = None) -> Task:
    return Task(
        name="toy",
        labels={"a": Label(words="a"), "b": Label(words="b")},
        files={"train": ("toy/train.csv", "toy/few.csv")},
        published={"train": THREE},
        parts={"toy/few.csv": part} if part else {},
    )


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, "utf-8")


def rows(*labels: str) -> str:
    return "text,label\n" + "".join(f"hello {number},{label}\n" for number, label in enumerate(labels))


def only(folder: Path, task: Task) -> SplitCheck:
    (result,) = check(folder, [task])
    return result


def test_published_rows_have_status_equal(tmp_path: Path) -> None:
    write(tmp_path, "toy/train.csv", rows("a", "b", "a"))
    assert only(tmp_path, toy()) == SplitCheck("toy", "equal", "train", ("toy/train.csv",), 3, {"a": 2, "b": 1})


def test_known_extract_has_status_part(tmp_path: Path) -> None:
    write(tmp_path, "toy/few.csv", rows("a", "b"))
    result = only(tmp_path, toy(TWO))
    assert (result.status, result.is_wrong, result.note) == ("part of 3", False, "")


def test_complete_split_under_the_name_of_an_extract_has_status_equal(tmp_path: Path) -> None:
    write(tmp_path, "toy/few.csv", rows("a", "b", "a"))
    assert only(tmp_path, toy(TWO)).status == "equal"


@pytest.mark.parametrize(
    ("labels", "note"),
    [
        (["a", "b"], "2 rows instead of 3, a: 1 instead of 2"),
        (["a", "b", "b"], "a: 1 instead of 2, b: 2 instead of 1"),
        (["a", "b", "a", "a"], "4 rows instead of 3, a: 3 instead of 2"),
    ],
)
def test_note_lists_the_differences(labels: list[str], note: str, tmp_path: Path) -> None:
    write(tmp_path, "toy/train.csv", rows(*labels))
    result = only(tmp_path, toy(TWO))
    assert (result.status, result.is_wrong, result.note) == ("differs", True, note)


def test_extract_with_other_sizes_differs(tmp_path: Path) -> None:
    write(tmp_path, "toy/few.csv", rows("b", "b"))
    assert only(tmp_path, toy(TWO)).note == "a: 0 instead of 1, b: 2 instead of 1"


def test_rows_without_text_are_not_counted_but_reported(tmp_path: Path) -> None:
    write(tmp_path, "toy/train.csv", rows("a", "b") + " ,a\n")
    result = only(tmp_path, toy())
    assert result.status == "differs"
    assert "2 rows instead of 3" in result.note
    assert "skipped 1 of 3 rows: toy/train.csv, line 4" in result.note
    write(tmp_path, "toy/few.csv", rows("a", "b") + " ,a\n")
    (tmp_path / "toy/train.csv").unlink()
    extract = only(tmp_path, toy(TWO))
    assert extract.status == "part of 3"
    assert "skipped 1 of 3" in extract.note


@pytest.mark.parametrize("text", ["", "text,label\n", "words,label\nhello,a\n", "text,label\nhello,c\n"])
def test_file_without_usable_rows_is_unreadable(text: str, tmp_path: Path) -> None:
    write(tmp_path, "toy/train.csv", text)
    result = only(tmp_path, toy())
    assert (result.status, result.is_wrong, result.rows) == ("unreadable", True, 0)
    assert "toy/train.csv" in result.note
    assert str(tmp_path) not in result.note


def test_damaged_archive_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(b'{"text": "hello", "label": "a"}\n' * 99)[:-12])
    task = Task(name="toy", files={"test": ("*.gz",)}, published={"test": Published(rows=99)})
    assert only(tmp_path, task).status == "unreadable"


def test_tasks_without_files_in_the_folder_are_absent(tmp_path: Path) -> None:
    assert check(tmp_path, [toy(), Task(name="no files")]) == [SplitCheck("toy", "absent")]


def test_task_without_published_sizes_is_read_but_not_compared(tmp_path: Path) -> None:
    write(tmp_path, "toy/train.csv", rows("a", "b"))
    result = only(tmp_path, toy().model_copy(update={"published": {}}))
    assert (result.status, result.rows, result.is_wrong) == ("uncounted", 2, False)


def test_files_of_one_pattern_are_counted_together(tmp_path: Path) -> None:
    write(tmp_path, "1.csv", rows("a", "b"))
    write(tmp_path, "2.csv", rows("a"))
    task = toy().model_copy(update={"files": {"train": ("?.csv",)}})
    assert (only(tmp_path, task).status, only(tmp_path, task).files) == ("equal", ("1.csv", "2.csv"))


def test_spans_are_counted_per_label(tmp_path: Path) -> None:
    write(tmp_path, "eng.train", "-DOCSTART- -X- O O\n\nAnn NN O I-PER\nwon VB O O\n\nOslo NN O I-LOC\n")
    labels = {"PER": Label(words="person"), "LOC": Label(words="place")}
    sizes = {"train": Published(rows=2, labels={"PER": 1, "LOC": 1})}
    task = Task(name="ner", kind="tags", format="conll", labels=labels, files={"train": ("eng.*",)}, published=sizes)
    assert only(tmp_path, task).status == "equal"
    more = task.model_copy(update={"published": {"train": Published(rows=2, labels={"PER": 2, "LOC": 1})}})
    assert only(tmp_path, more).note == "PER: 1 instead of 2"


def test_questions_are_counted_without_labels(tmp_path: Path) -> None:
    qas = [
        {"question": f"{word}?", "id": word, "answers": [{"text": "Ann", "answer_start": 0}]} for word in ("Who", "Wer")
    ]
    write(tmp_path, "dev.json", json.dumps({"data": [{"paragraphs": [{"context": "Ann won.", "qas": qas}]}]}))
    task = Task(
        name="qa",
        kind="span",
        format="squad",
        text=("question", "context"),
        label="answers",
        files={"validation": ("dev.json",)},
        published={"validation": Published(rows=2)},
    )
    result = only(tmp_path, task)
    assert (result.status, result.labels) == ("equal", {})


def test_data_files_of_no_task_are_unclaimed(tmp_path: Path) -> None:
    write(tmp_path, "toy/train.csv", rows("a", "b", "a"))
    write(tmp_path, "toy/few.csv", rows("a"))  # a later place of the same split: not read either
    for name in (
        "x/rows.tsv",
        "x/rows.JSONL",
        "eng.testb",
        "TEST.TXT",
        "x/rows.json.gz",
        "rows.parquet",
        "README.md",
        "README.json",
        "books.txt",
        "notes.md",
        ".cache/rows.csv",
    ):
        write(tmp_path, name, "x")
    assert unclaimed_files(tmp_path, check(tmp_path, [toy(TWO)])) == [
        "TEST.TXT",
        "eng.testb",
        "rows.parquet",
        "toy/few.csv",
        "x/rows.JSONL",
        "x/rows.json.gz",
        "x/rows.tsv",
    ]


def test_missing_data_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="data folder"):
        check(tmp_path / "none", [toy()])
