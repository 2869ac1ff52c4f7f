"""Options that stand more than once in a command."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from command import check_error, run

from softcue.cli import repeated_options


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments with which the command line calls `softcue.train`, which trains nothing here."""
    seen: dict[str, Any] = {}

    def train(output_dir: Path, **arguments: Any) -> None:
        seen.update(arguments)
        raise SystemExit(0)

    monkeypatch.setattr("softcue.api.train", train)
    return seen


@pytest.mark.parametrize("words", [("--text", "left", "--text=right"), ("--text", "left,right")])
def test_repeated_columns_are_all_read(given: dict[str, Any], words: tuple[str, ...]) -> None:
    assert run("train", "--train", "pairs.csv", *words, "--label", "rel", "--output-dir", "cue").code == 0
    assert given["text"] == "left,right"


def test_repeated_tasks_are_all_trained(given: dict[str, Any]) -> None:
    assert run("train", "--tasks", "rte", "--tasks", "mrpc,qqp", "--output-dir", "cue").code == 0
    assert given["tasks"] == ["rte", "mrpc", "qqp"]


def test_a_column_that_is_named_twice_is_an_error_as_in_a_list(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text,label\nhello,a\n")
    words = ("train", "--train", tmp_path / "rows.csv", "--label", "label", "--output-dir", tmp_path / "cue")
    assert run(*words, "--text", "text", "--text", "text").err == run(*words, "--text", "text,text").err != ""


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("train", "--train", "a.csv", "--train", "b.csv", "--output-dir", "cue"), ("--train", "'a.csv and b.csv'")),
        (("train", "--label", "team", "--label", "topic"), ("--label", "'team and topic'")),
        (("train", "--epochs", "3", "--epochs", "5"), ("--epochs", "'3 and 5'")),
        (("study", "plan", "quick", "--text", "a", "--text", "b"), ("--text", "'a and b'")),
        (("tune", "--method", "vip", "--method", "lora"), ("--method", "'vip and lora'", "write A,B")),
    ],
)
def test_a_second_value_of_another_option_is_an_error(words: tuple[str, ...], parts: tuple[str, ...]) -> None:
    check_error(run(*words), *parts, "expected this option once")


def test_the_same_value_twice_and_repeatable_options_are_no_errors(given: dict[str, Any]) -> None:
    assert run("train", "--epochs", "3", "--json", "--epochs", "3", "--json", "--output-dir", "cue").code == 0
    assert given["epochs"] == 3
    columns = ("--column", "message=text", "--column", "team=label")
    check_error(run("predict", "no-such-cue", "--input", "rows.csv", *columns), "no-such-cue")


def test_lists_of_all_commands_may_be_repeated() -> None:
    from typer.main import get_command

    from softcue.cli.app import app

    listed = {
        (name, option.name)
        for name, command in get_command(app).commands.items()  # type: ignore[attr-defined]
        for option in command.params
        if re.search("A,B|COL,COL", getattr(option, "help", None) or "") and not getattr(option, "multiple", False)
    }
    assert {("train", "text"), ("compare", "methods"), ("tune", "text")} <= listed
    assert {name for _, name in listed} <= repeated_options.LISTS
