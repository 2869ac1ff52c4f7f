"""`softcue train --method auto`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import check_error, run

ROWS = [
    {"text": f"{word} number {number}", "label": label}
    for label, words in {"billing": ["invoice", "refund"], "shipping": ["parcel", "box"]}.items()
    for word in words
    for number in range(10)
]
SETTINGS = ["training.steps=4", "training.evaluate_every=2", "selection.methods=linear-probe,prompt-tuning,vip-c"]


@pytest.fixture
def rows(tmp_path: Path) -> list[object]:
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return ["--train", data, "--text", "text", "--label", "label", *SETTINGS]


@pytest.fixture
def words(tmp_path: Path, rows: list[object], model_folders: dict[str, Path]) -> list[object]:
    options = ["--method", "auto", "--backbone", model_folders["bert"], "--output-dir", tmp_path / "cue"]
    return ["train", *options, *rows]


def test_a_table_tells_what_was_tried(words: list[object], tmp_path: Path) -> None:
    result = run(*words)
    assert result.code == 0, result.err
    assert "methods tried: " in result.out
    for name in ("linear-probe", "prompt-tuning", "vip-c", "CPU seconds", "won", "(step 2)"):
        assert name in result.out
    assert "accuracy of 40 training and validation rows in 3 folds" in result.out
    assert "rung 1 of 2, vip-c: accuracy" in result.err  # on folds it ends half way
    predicted = run("predict", tmp_path / "cue", "where is my parcel", "--json").json
    assert predicted


def test_json_is_one_object_with_the_record(words: list[object]) -> None:
    printed = run(*words, "--json").json
    assert printed["method"] == printed["selection"]["winner"]
    assert [entry["method"] for entry in printed["selection"]["tried"]] == ["linear-probe", "prompt-tuning", "vip-c"]
    assert [entry["outcome"] for entry in printed["selection"]["tried"]].count("won") == 1


def test_settings_of_a_method_and_several_tasks_are_one_line_errors(words: list[object], tmp_path: Path) -> None:
    check_error(run(*words, "--prompt-length", "5"), "method.prompt_length", "method.name=auto")
    check_error(run(*words, "selection.methods=vip,nothing"), "selection.methods", "not 'nothing'")
    joint = ["train", "--method", "auto", "--tasks", "tickets,urgency", "--output-dir", tmp_path / "cue"]
    check_error(run(*joint), "methods are chosen for one task")


def test_auto_is_a_line_of_a_comparison_of_methods(
    rows: list[object], tmp_path: Path, model_folders: dict[str, Path]
) -> None:
    options = ["--backbones", model_folders["bert"], "--seeds", "2", "--output-dir", tmp_path / "runs", "--json"]
    printed = run("compare", "--methods", "auto,prompt-tuning", *options, *rows).json
    assert [line["method"] for line in printed["methods"]] == ["auto", "prompt-tuning"]
    again = run("compare", "--methods", "auto,prompt-tuning", *options, *rows).json  # what is finished is loaded
    assert again == printed
