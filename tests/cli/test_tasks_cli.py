from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import check_error, run

from softcue.tasks import library_names


def axg_rows(num_rows: int) -> str:
    rows = [{"premise": "Ann won.", "hypothesis": "Ann ran.", "label": "entailment"}] * num_rows
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with AX-g's number of rows, written for this test."""
    (tmp_path / "AX-g").mkdir()
    (tmp_path / "AX-g/AX-g.jsonl").write_text(axg_rows(356))
    return tmp_path


def test_list_has_sizes_of_every_task() -> None:
    printed = {entry["name"]: entry for entry in run("tasks", "--json").json["tasks"]}
    assert sorted(printed) == library_names()
    assert printed["rte"]["rows"] == {"train": 2490, "validation": 277}
    assert min(printed["tickets"]["rows"].values()) >= 60
    table = run("tasks").out
    assert "2,490 / 277 / -" in table
    assert "42 labels" in table


@pytest.mark.parametrize("name", ["rte", "conll2003", "stsb", "wsc", "squad", "tickets"])
def test_show_tells_all_of_one_task(name: str) -> None:
    ended = run("tasks", "show", name)
    assert (ended.code, ended.err) == (0, "")
    for part in (f"## {name}", "**Text-to-text** reads", "**Encoders** read", "**Citation**", "**Licence**"):
        assert part in ended.out
    assert run("tasks", "show", name, "--json").json["wording"]["reads"]


def test_show_refuses_unknown_names_and_bad_files(tmp_path: Path) -> None:
    check_error(run("tasks", "show", "mrcp"), "task.name", "did you mean 'mrpc'?")
    (tmp_path / "own.yaml").write_text("kind: guess")
    check_error(run("tasks", "show", tmp_path / "own.yaml"), "own.yaml, key 'kind'", "'guess'")


def test_check_passes_on_published_rows(data: Path) -> None:
    printed = run("tasks", "check", "--data", data, "--json").json
    assert (printed["ok"], printed["unclaimed"]) == (True, [])
    status = {entry["task"]: entry["status"] for entry in printed["checked"]}
    assert (status["axg"], status["rte"]) == ("equal", "absent")
    table = run("tasks", "check", "--data", data)
    assert table.code == 0
    assert "AX-g/AX-g.jsonl" in table.out
    assert "not there: " in table.out


def test_check_fails_on_what_differs_or_cannot_be_read(data: Path) -> None:
    (data / "AX-g/AX-g.jsonl").write_text(axg_rows(355))
    ended = run("tasks", "check", "--data", data)
    assert ended.code == 1
    assert "355 rows instead of 356" in " ".join(ended.out.split())
    assert "1 splits differ" in ended.err
    (data / "AX-g/AX-g.jsonl").write_text("no json")
    ended = run("tasks", "check", "--data", data, "--json")
    assert ended.code == 1
    entry = next(entry for entry in json.loads(ended.out)["checked"] if entry["task"] == "axg")
    assert entry["status"] == "unreadable"
    assert "line 1" in entry["note"]


def test_check_tells_of_files_that_no_task_reads(data: Path) -> None:
    (data / "more.csv").write_text("text,label\nhello,a\n")
    ended = run("tasks", "check", "--data", data)
    assert ended.code == 0
    assert "files that no task has read: more.csv" in ended.out
    assert run("tasks", "check", "axg", "--data", data, "--json").json["unclaimed"] == []


def test_check_reads_a_task_of_ones_own(data: Path) -> None:
    (data / "more.csv").write_text("text,label\nhello,a\n")
    (data / "own.yaml").write_text("files: {test: [more.csv]}\npublished: {test: {rows: 2}}\n")
    ended = run("tasks", "check", data / "own.yaml", "--data", data)
    assert (ended.code, "1 rows instead of 2" in ended.out) == (1, True)


def test_check_refuses_wrong_folders_and_names(tmp_path: Path) -> None:
    check_error(run("tasks", "check", "--data", tmp_path / "none"), "data folder")
    check_error(run("tasks", "check", "--data", tmp_path), "--data", "a folder with files of the tasks")
    check_error(run("tasks", "check", "rtee", "--data", tmp_path), "did you mean 'rte'?")
    assert run("tasks", "check").code == 2


def test_docs_page_is_up_to_date(tmp_path: Path) -> None:
    printed = run("tasks", "docs")
    assert printed.out.startswith("# Tasks\n")
    page = tmp_path / "tasks.md"
    page.write_text(printed.out, "utf-8")
    assert run("tasks", "docs", "--check", page).code == 0
    page.write_text(printed.out + "more\n", "utf-8")
    ended = run("tasks", "docs", "--check", page)
    assert (ended.code, ended.out) == (1, "")
    assert "softcue tasks docs > " in ended.err
    check_error(run("tasks", "docs", "--check", tmp_path / "none.md"), "--check")
    assert run("tasks", "docs", "--check", Path(__file__).parents[2] / "docs/tasks.md").code == 0
