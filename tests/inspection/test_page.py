"""The page of every method, `inspect --data`, and the files of `evaluate --output`."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from command import check_error, run
from tiny import tiny

import softcue
from softcue.inspection import AT_START, check_rows, cue_page

ROWS = [
    {"text": f"{text} {number}", "label": label, "stars": float(number), "answer": text}
    for number in range(4)
    for text, label in [
        ("The invoice is <wrong>", "billing"),
        ("I cannot sign in", "access"),
        ("Where is it", "parcel"),
    ]
]
METHODS = {
    "prompt-tuning": {"method.prompt_length": 3},
    "vip": {"method.prompt_length": 4, "method.width": 8},
    "m-idpg-phm": {"method.prompt_length": 2, "method.bottleneck": 16},
    "adapter": {},
    "prefix-tuning": {"method.prompt_length": 2},
    "linear-probe": {},
    "fine-tuning": {},
    "no-prompt": {},
    "warp": {"method.prompt_length": 4},
}
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A backbone folder, files of rows, a cue for classes and one for numbers."""
    folder = tmp_path_factory.mktemp("inspection")
    tiny("bert").save(folder / "backbone")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    few = {"training.steps": 2, "method.prompt_length": 3}
    given = {"backbone": str(folder / "backbone"), "train": ROWS, "validation": ROWS, "progress": False}
    given["method"] = "prompt-tuning"
    softcue.train(folder / "teams", overrides=few, **given)
    softcue.train(folder / "stars", label="stars", overrides={**few, "task.kind": "regression"}, **given)
    return {name: folder / name for name in ("backbone", "rows.jsonl", "teams", "stars")}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_page(method: str, tmp_path: Path) -> None:
    overrides = {"training.steps": 2, "training.evaluate_every": 1, **METHODS[method]}
    if method == "linear-probe":
        overrides = {}
    cue = softcue.train(
        tmp_path / "cue",
        backbone=tiny("bert"),
        method=method,
        train=ROWS,
        validation=ROWS,
        overrides=overrides,
        progress=False,
    )
    page = cue_page(cue, None, None, {}, top=3, checked=check_rows(cue, ROWS))
    for part in (method, "validation accuracy on", "Confusion matrix", "Scores of each label", "majority class"):
        assert part in page
    assert "<wrong>" not in page
    assert not re.search(r"(src|href)=[\"'](?!data:)", page)
    assert page.count("<svg") >= (1 if method == "linear-probe" else 2)


def test_inspect_shows_mistakes_in_the_terminal_and_in_json(folders: dict[str, Path], tmp_path: Path) -> None:
    words = ["inspect", folders["teams"], "--data", folders["rows.jsonl"]]
    shown = run(*words, "--output-dir", tmp_path / "page")
    assert shown.code == 0
    for part in (
        "training loss",
        "confusion matrix",
        "precision",
        "recall",
        "zero-shot",
        "12 (few)",
        "fewer than 30 rows",
    ):
        assert part in shown.out
    assert sorted(path.name for path in (tmp_path / "page").iterdir()) == ["index.html", "words.png"]
    printed = run(*words, "--json").json
    assert printed["rows"] == {"validation": 12}
    assert len(printed["curve"]["losses"]) == 2
    evaluation = printed["evaluation"]
    wrong = sum(sum(row) for row in evaluation["confusion"]["counts"]) - sum(
        evaluation["confusion"]["counts"][number][number] for number in range(3)
    )
    assert len(evaluation["wrong_rows"]) == min(5, wrong)
    confidences = [row["score"] for row in evaluation["wrong_rows"]]
    assert confidences == sorted(confidences, reverse=True)


def test_the_page_of_a_regression_draws_predicted_against_true(folders: dict[str, Path], tmp_path: Path) -> None:
    shown = run("inspect", folders["stars"], "--data", folders["rows.jsonl"], "--output-dir", tmp_path / "page")
    assert shown.code == 0
    assert "residuals (predicted minus true): mean" in shown.out
    page = (tmp_path / "page" / "index.html").read_text("utf-8")
    for part in ("predicted and true values", "residuals (predicted minus true)", "Largest errors", "mean target"):
        assert part in page
    assert "Confusion matrix" not in page


def test_evaluate_saves_the_matrix_in_the_format_of_the_suffix(folders: dict[str, Path], tmp_path: Path) -> None:
    words = ["evaluate", folders["teams"], "--data", folders["rows.jsonl"]]
    printed = run(*words, "--output", tmp_path / "matrix.csv", "--json").json
    with (tmp_path / "matrix.csv").open(newline="", encoding="utf-8") as handle:
        [head, *lines] = list(csv.reader(handle))
    assert head == ["true", *printed["confusion"]["predicted"]]
    assert [[int(count) for count in line[1:]] for line in lines] == printed["confusion"]["counts"]
    assert run(*words, "--output", tmp_path / "new" / "all.json").code == 0
    assert json.loads((tmp_path / "new" / "all.json").read_text("utf-8")) == printed
    shown = run(*words, "--output", tmp_path / "matrix.PNG")
    assert (tmp_path / "matrix.PNG").read_bytes().startswith(PNG)
    assert "precision" in shown.out and "majority class" in shown.out and "saved: " in shown.out
    run(*words, "--output", tmp_path / "page.html")
    assert "Confusion matrix" in (tmp_path / "page.html").read_text("utf-8")


def test_a_regression_saves_true_and_predicted_values(folders: dict[str, Path], tmp_path: Path) -> None:
    words = ["evaluate", folders["stars"], "--data", folders["rows.jsonl"]]
    for name in ("values.csv", "values.png", "values.html", "values.json"):
        assert run(*words, "--output", tmp_path / name).code == 0
    with (tmp_path / "values.csv").open(newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    assert [float(row["true"]) for row in rows] == [row["stars"] for row in ROWS]


@pytest.mark.parametrize("name", ["matrix.xls", "matrix", "folder.csv"])
def test_an_output_that_cannot_be_written_is_an_error(folders: dict[str, Path], tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.csv").mkdir()
    words = ["evaluate", folders["teams"], "--data", folders["rows.jsonl"]]
    check_error(run(*words, "--output", tmp_path / name), "--output", name)


def test_evaluate_without_baselines_leaves_them_out(folders: dict[str, Path]) -> None:
    words = ["evaluate", folders["teams"], "--data", folders["rows.jsonl"]]
    assert run(*words, "--no-baselines", "--json").json["baselines"] == {}
    assert "zero-shot" not in run(*words, "--no-baselines").out


def test_a_page_without_matplotlib_lacks_only_the_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny("bert").save(tmp_path / "backbone")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    softcue.train(
        tmp_path / "vip",
        backbone=str(tmp_path / "backbone"),
        method="vip",
        train=ROWS,
        validation=ROWS,
        overrides={"training.steps": 4, **METHODS["vip"]},  # codes are drawn from the third step on
        progress=False,
    )
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    words = ["inspect", tmp_path / "vip", "--data", tmp_path / "rows.jsonl"]
    shown = run(*words, "--output-dir", tmp_path / "page")
    assert shown.code == 0
    assert "no map of the codes" in shown.err and "plots" in shown.err
    assert "perplexity of the codes" in (tmp_path / "page" / "index.html").read_text("utf-8")
    check_error(run("evaluate", *words[1:], "--output", tmp_path / "matrix.png"), "plots")


def test_vectors_that_kept_their_start_are_not_explained_by_their_words(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    moved = run("inspect", folders["teams"])
    assert "clusters of nearest words" in moved.out and AT_START not in moved.out
    kept = tmp_path / "kept"
    softcue.train(
        kept,
        backbone=str(folders["backbone"]),
        method="prompt-tuning",
        train=ROWS,
        validation=ROWS,
        overrides={
            "training.steps": 2,
            "training.learning_rate": 1000.0,
            "training.network_learning_rate": 1000.0,
            "readout.head_start": "solved",
            "method.prompt_length": 3,
        },
        progress=False,
    )
    shown = run("inspect", kept, "--output-dir", tmp_path / "page")
    assert AT_START in shown.out
    assert "prompt-tuning is as it began" in shown.out
    assert "clusters of nearest words" not in shown.out and "labels in the prompt" not in shown.out
    assert AT_START in (tmp_path / "page" / "index.html").read_text("utf-8")
    assert run("inspect", kept, "--json").json["clusters"] is None
