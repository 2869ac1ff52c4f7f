"""What `softcue train` and `predict` say about files that are wrong or may be."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import check_error, run


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write(tmp_path / "good.csv", "text,label", *(f"text {number},{'ab'[number % 2]}" for number in range(12)))


@pytest.mark.parametrize("option", ["--train", "--validation", "--test"])
def test_bad_rows_name_the_option_of_their_file_and_stand_on_a_line_each(
    tmp_path: Path, good: Path, option: str
) -> None:
    bad = write(tmp_path / "bad.csv", "text,label", "fine,a", ",a", "no label,", "fine,b")
    files = {"--train": good, option: bad}
    words = [str(word) for pair in files.items() for word in pair]
    ended = run("train", *words, "--text", "text", "--label", "label", "--output-dir", tmp_path / "cue")
    check_error(ended, f"error: {option}: got '{bad}'; expected no bad rows; 2 bad rows; fix them")
    assert ended.err.splitlines()[1:] == [
        f"  {bad}, line 3, column 'text': got ''; expected a text that is not empty",
        f"  {bad}, line 4, column 'label': got ''; expected a label",
    ]
    assert ("--multi-label allows rows without a label" in ended.err) == (option == "--train")


def test_a_column_that_a_file_does_not_have_is_reported_for_the_file(tmp_path: Path, good: Path) -> None:
    ended = run("train", "--train", good, "--text", "txt", "--label", "label", "--output-dir", tmp_path / "cue")
    check_error(ended, f"error: {good}, column 'txt': got 'no such column'", "did you mean 'text'? known: label, text")


def test_swapped_columns_name_the_options_the_right_way_round(tmp_path: Path, good: Path) -> None:
    ended = run("train", "--train", good, "--text", "label", "--label", "text", "--output-dir", tmp_path / "cue")
    check_error(ended, "the columns may be swapped: pass --text text and --label label")


def test_another_separator_is_named_as_it_is_typed(tmp_path: Path) -> None:
    cells = ("water|power", "power", "water|heat")
    file = write(tmp_path / "rows.csv", "text,label", *(f"text {number},{cells[number % 3]}" for number in range(12)))
    ended = run("train", "--train", file, "--multi-label", "--output-dir", tmp_path / "cue")
    check_error(ended, "8 of 12 cells have '|', none has ';'", "pass --separator '|', or --separator ';' if")
