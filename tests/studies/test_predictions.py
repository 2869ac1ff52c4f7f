from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest
from command import check_error, run
from tiny import tiny

import softcue
from softcue.evaluation import read_evaluation_set
from softcue.studies import compare_predictions
from softcue.studies.cue_loading import load_cues_of_one_task
from softcue.types import Prediction

ROWS = [
    {"text": text, "team": team}
    for text, team in (
        ("The invoice is wrong", "billing"),
        ("Charged twice", "billing"),
        ("Refund my last payment", "billing"),
        ("The parcel never came", "shipping"),
        ("Where is my order", "shipping"),
        ("The box is late", "shipping"),
    )
    for _ in range(2)
]
SMALL: dict[str, Any] = {
    "train": ROWS,
    "validation": ROWS[:4],
    "test": ROWS,
    "text": "text",
    "label": "team",
    "epochs": 1,
    "progress": False,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("compared")
    tiny("bert").save(folder / "bert")
    tiny("gpt2").save(folder / "gpt2")
    for number in range(2):
        softcue.train(folder / f"seed{number}", backbone=str(folder / "bert"), seed=number, prompt_length=3, **SMALL)
    softcue.train(folder / "decoder", backbone=str(folder / "gpt2"), prompt_length=3, **SMALL)
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["text", "team"])
        writer.writeheader()
        writer.writerows(ROWS)
    return {path.name: path for path in folder.iterdir()}


def test_agreement_and_counts_are_those_of_the_predictions(folders: dict[str, Path]) -> None:
    cues = load_cues_of_one_task([folders["seed0"], folders["seed1"]])
    rows = read_evaluation_set(cues["seed0"].task, ROWS)
    right = [str(row["team"]) for row in ROWS]
    wrong = ["shipping" if label == "billing" else "billing" for label in right]
    predictions = {
        "seed0": [Prediction(label) for label in [*right[:8], *wrong[8:]]],  # 8 of 12 right
        "seed1": [Prediction(label) for label in [*wrong[:1], *right[1:]]],  # 11 of 12 right
    }
    comparison = compare_predictions(cues, rows, predictions)
    [pair] = comparison.differences
    assert (pair.only_first, pair.only_second) == (1, 4)
    assert pair.agreement == pytest.approx(100 * 7 / 12)
    assert pair.difference.value == pytest.approx(100 * 3 / 12)
    assert pair.p_value == pytest.approx(12 / 32)  # splits 0, 1, 4 and 5 of five: 2 * (1 + 5) / 32
    assert not pair.is_told_apart
    assert pair.sentence.startswith("seed0 and seed1 cannot be told apart: +25.0")
    assert [row.number for row in comparison.different_rows] == [1, 9, 10, 11, 12]
    assert comparison.different_rows[0].right == ("seed0",)
    assert comparison.different_rows[0].predictions == {"seed0": "billing", "seed1": "shipping"}


def test_cues_on_different_backbones_are_compared(folders: dict[str, Path], tmp_path: Path) -> None:
    words = ["compare", *(folders[name] for name in ("seed0", "seed1", "decoder")), "--data", folders["rows.csv"]]
    shown = run(*words, "--output-dir", tmp_path / "page")
    assert shown.code == 0, shown.err
    for part in ("3 cues on", "seed0", "decoder", "McNemar", "the cues differ on", "95 % interval"):
        assert part in shown.out
    page = (tmp_path / "page" / "index.html").read_text("utf-8")
    for part in (page, shown.out):
        assert part.index("decoder") < part.index("majority class") < part.index("zero-shot")
    assert page.count("<table") == (3 if "differ on 0" not in shown.out else 2)
    assert not re.search(r"(src|href)=[\"'](?!data:)", page)
    printed = run(*words, "--json").json
    assert list(printed["cues"]) == ["seed0", "seed1", "decoder"]
    assert len(printed["pairs"]) == 3
    baselines = softcue.load(folders["decoder"]).evaluate(ROWS).baselines
    majority, *_, zero_shot = printed["baselines"]  # the last line is that of the last cue
    assert (majority["baseline"], majority["main"]) == ("majority_class", 50.0)
    assert zero_shot["baseline"] == "zero_shot"
    assert zero_shot["accuracy"] == zero_shot["main"] == pytest.approx(baselines["zero_shot"]["accuracy"])
    with (tmp_path / "page" / "different-rows.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(printed["different_rows"])
    for name, cue in printed["cues"].items():
        assert cue["main"] == pytest.approx(softcue.load(folders[name]).evaluate(ROWS, baselines=False).main), name


def test_baselines_of_the_same_scores_are_one_line(folders: dict[str, Path]) -> None:
    comparison = softcue.compare([folders["seed0"], folders["seed1"]], data=ROWS)
    assert comparison.baselines["cue"] == ["majority class", "zero-shot"]
    assert len(comparison) == 2 and "zero-shot" in repr(comparison)
    cues = load_cues_of_one_task([folders["seed0"], folders["seed1"]])
    rows = read_evaluation_set(cues["seed0"].task, ROWS)
    predictions = {name: cue.evaluate_set(rows, baselines=False)[1] for name, cue in cues.items()}
    assert len(compare_predictions(cues, rows, predictions).baselines) == 0


def test_other_column_names_are_read(folders: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "mail.csv"
    file.write_text("message,team\nThe box is late,shipping\nCharged twice,billing\n")
    ended = run("compare", folders["seed0"], folders["seed1"], "--data", file, "--column", "message=text", "--json")
    assert ended.json["rows"] == 2


def test_one_cue_a_copy_and_another_task_are_errors(folders: dict[str, Path], tmp_path: Path) -> None:
    rows = ["--data", folders["rows.csv"]]
    check_error(run("compare", folders["seed0"], *rows), "at least two cues")
    check_error(run("compare", folders["seed0"], folders["seed0"], *rows), "every cue once")
    other = tmp_path / "other"
    changed = [{**row, "team": "x" + str(row["team"])} for row in ROWS]
    softcue.train(
        other,
        backbone=str(folders["bert"]),
        prompt_length=2,
        **{**SMALL, "train": changed, "validation": changed, "test": changed},
    )
    check_error(run("compare", folders["seed0"], other, *rows), "other")


def test_folders_of_the_same_name_are_told_apart(folders: dict[str, Path], tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cue").symlink_to(folders["seed0" if name == "one" else "seed1"])
    assert list(load_cues_of_one_task([tmp_path / "one" / "cue", tmp_path / "two" / "cue"])) == ["one/cue", "two/cue"]
