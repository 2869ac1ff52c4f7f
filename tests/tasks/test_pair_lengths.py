"""Lengths of the two texts of pairs, against counting by hand, and `softcue tasks lengths`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from command import check_error, run
from tiny import tiny

from softcue.errors import ConfigurationError
from softcue.inspection import length_page, length_picture
from softcue.tasks import Task, library_task
from softcue.tasks.pair_lengths import PairLengths, is_sentence_pair_task, measure_pairs, pair_lengths
from softcue.types import Example

PNG = b"\x89PNG\r\n\x1a\n"
ROWS = [
    {"a": "one two three four", "b": "one", "label": "x"},
    {"a": "one", "b": " one  two\tthree ", "label": "y"},
    {"a": "one two", "b": "one two", "label": "x"},
    {"a": "one two three four five six", "b": "one", "label": "y"},
]
TASK = Task(name="toy", text=("a", "b"))


def test_lengths_are_those_of_counting_words_row_by_row() -> None:
    lengths = pair_lengths(TASK, ROWS)
    first, second = (numpy.array([len(row[column].split()) for row in ROWS]) for column in ("a", "b"))
    differences = first - second  # 3, -2, 0, 5
    assert lengths.differences == differences.tolist() == [3, -2, 0, 5]
    printed = lengths.as_dict()
    assert printed["mean_difference"] == pytest.approx(differences.mean()) == 1.5
    assert printed["mean_first"] == pytest.approx(first.mean())
    assert printed["mean_second"] == pytest.approx(second.mean())
    assert printed["standard_deviation"] == pytest.approx(differences.std())
    assert printed["mean_absolute_difference"] == pytest.approx(numpy.abs(differences).mean()) == 2.5
    assert lengths.middle_half == pytest.approx(tuple(numpy.quantile(differences, [0.25, 0.75])))
    assert pair_lengths(TASK, ROWS[:1]).middle_half == (3.0, 3.0)


def test_the_texts_are_those_an_encoder_reads() -> None:
    task = Task(name="toy", text=("a", "b", "c"), sentences=("{a} or {b}", "{c}"))
    assert measure_pairs("toy", task, [Example(("x", "y z", "w"))]).differences == [3]
    with pytest.raises(ConfigurationError, match="two texts"):
        pair_lengths(Task(name="toy"), ROWS)


def test_rows_of_a_part_of_a_file_are_chosen_and_targets_may_be_missing(tmp_path: Path) -> None:
    (tmp_path / "toy.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    part = Task(name="toy", text=("a", "b"), files={"test": ("toy.jsonl",)}, where={"label": ("x",)})
    assert pair_lengths(part, tmp_path).differences == [3, 0]
    without_targets = [{"a": row["a"], "b": row["b"]} for row in ROWS]
    assert pair_lengths(TASK, without_targets).num_pairs == 4
    with pytest.raises(ConfigurationError, match="one of test"):
        pair_lengths(part, tmp_path, split="train")
    with pytest.raises(ConfigurationError, match="leave it out for a file"):
        pair_lengths(TASK, ROWS, split="train")


def test_validation_rows_come_first() -> None:
    lengths = pair_lengths(library_task("same-request"))
    assert (lengths.name, lengths.split, lengths.unit) == ("same-request", "validation", "words")
    assert pair_lengths(library_task("same-request"), split="train").num_pairs > lengths.num_pairs


def test_pair_tasks_are_those_with_two_plain_columns() -> None:
    glue = ("mnli", "mrpc", "qnli", "qqp", "rte", "stsb")
    assert all(is_sentence_pair_task(library_task(name)) for name in glue)
    assert not any(is_sentence_pair_task(library_task(name)) for name in ("squad", "copa", "wsc", "tickets"))


def test_the_page_and_the_picture_show_every_task() -> None:
    lengths = [PairLengths(f"<task {number}>", "test", "words", [number, 5], [1, 2]) for number in range(14)]
    page = length_page(lengths)
    assert "&lt;task 13&gt;" in page and "<task" not in page
    assert not re.search(r"(src|href)=[\"'](?!data:)", page)
    assert page.count("<svg") == 13  # all means in one chart, and twelve tasks in full
    assert length_picture(lengths).startswith(PNG)
    assert length_picture([PairLengths("one", "", "words", [3], [3])]).startswith(PNG)


def test_the_command_prints_writes_and_counts_tokens(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    file = tmp_path / "toy" / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    words = ["tasks", "lengths", "--data", file, "--text", "a,b"]
    shown = run(*words, "--output-dir", tmp_path / "page")
    assert shown.code == 0 and "+1.5" in shown.out
    assert sorted(path.name for path in (tmp_path / "page").iterdir()) == ["index.html", "lengths.png"]
    [printed] = run(*words, "--json").json["lengths"]
    assert printed["mean_difference"] == 1.5 and printed["name"] == str(file)
    tiny("bert").save(tmp_path / "backbone")
    [tokens] = run(*words, "--backbone", tmp_path / "backbone", "--json").json["lengths"]
    tokenizer = tiny("bert").tokenizer
    counts = [[len(tokenizer.tokenize(row[column])) for row in ROWS] for column in ("a", "b")]
    assert tokens["unit"] == "tokens"
    assert tokens["mean_difference"] == pytest.approx(numpy.mean(counts[0]) - numpy.mean(counts[1]))


def test_a_long_path_leaves_room_for_the_bars(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    words = ["tasks", "lengths", "--data", folder / "rows.jsonl", "--text", "a,b"]
    assert run(*words, "--output-dir", tmp_path / "page").code == 0  # matplotlib's warning would be an error here


def test_the_command_finds_the_pair_tasks_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "rte").mkdir()
    (tmp_path / "rte" / "dev.tsv").write_text("sentence1\tsentence2\tlabel\nA b c\tA\tentailment\n")
    (tmp_path / "squad").mkdir()
    printed = run("tasks", "lengths", "--data", tmp_path, "--json").json["lengths"]
    assert [(entry["name"], entry["mean_difference"]) for entry in printed] == [("rte", 2.0)]
    file = tmp_path / "rte" / "dev.tsv"
    assert run("tasks", "lengths", "rte", "--data", file, "--json").json["lengths"][0]["pairs"] == 1
    assert run("tasks", "lengths", "same-request", "--split", "test").code == 0


def test_wrong_words_about_lengths_are_errors_of_one_line(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("a,b\nx y,\n")
    check_error(run("tasks", "lengths"), "--data", "same-request")
    check_error(run("tasks", "lengths", "--data", tmp_path), "files of pair tasks")
    check_error(run("tasks", "lengths", "--data", file), "--text")
    check_error(run("tasks", "lengths", "--data", file, "--text", "a"), "two columns")
    check_error(run("tasks", "lengths", "--data", file, "--text", "a,c"), "column 'c'")
    check_error(run("tasks", "lengths", "--data", file, "--text", "a,b"), "line 2", "not empty")
    check_error(run("tasks", "lengths", "rte", "--data", file, "--text", "a,b"), "--text")
    check_error(run("tasks", "lengths", "tickets"), "two texts")
    check_error(run("tasks", "lengths", "rte", "--data", tmp_path / "none"), "none")


def test_lengths_in_the_terminal_need_no_torch() -> None:
    code = (
        "import sys; sys.argv = ['softcue', 'tasks', 'lengths', 'same-request']\n"
        "from softcue.cli.app import main\n"
        "try: main()\n"
        "except SystemExit: sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_every_bar_of_a_histogram_covers_as_many_whole_numbers() -> None:
    differences = [number for number in range(-10, 11) for _ in range(3)]
    page = length_page([PairLengths("toy", "", "words", [20 + number for number in differences], [20] * 63)])
    assert [int(count) for count in re.findall(r"to \S+: (\d+)<", page)] == [3] * 21
