"""Sets of labels from rows to predictions: training, cue folders, evaluation, the command line, inspection."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import pandas
import pytest
from command import EVALUATED, Ended, check_error, run
from tiny import ONE_OF_EACH_KIND, tiny

import softcue
from softcue.cue.model_card import model_card
from softcue.errors import ConfigurationError, DataError
from softcue.inspection import codes_by_label
from softcue.tasks import examples_from

PHRASES = {"billing": "refund invoice", "shipping": "parcel order", "account": "sign account"}
QUICK = {"training.steps": 2, "method.prompt_length": 8}
UNSOLVED = {"readout.head_start": "random", "readout.refit": False}  # a head that has hardly learned


def make_rows(num_rows: int, seed: int) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    rows = []
    for number in range(num_rows):
        labels = [label for label in PHRASES if draw.random() < 0.45]
        text = " ".join([*(PHRASES[label] for label in labels), "please", f"{number}"])
        rows.append({"text": text, "topics": labels})
    return rows


TRAIN, VALIDATION, TEST = make_rows(48, 0), make_rows(16, 1), make_rows(16, 2)
ROWS: dict[str, Any] = {"train": TRAIN, "validation": VALIDATION, "test": TEST, "label": "topics"}


def write_csv(file: Path, rows: list[dict[str, Any]], separator: str = ";") -> Path:
    with file.open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(["text", "topics"])
        writer.writerows([row["text"], separator.join(row["topics"])] for row in rows)
    return file


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("rows")
    return {name: write_csv(folder / f"{name}.csv", ROWS[name]) for name in ("train", "validation", "test")}


@pytest.fixture(scope="module")
def cue(tmp_path_factory: pytest.TempPathFactory, model_folders: dict[str, Path]) -> softcue.Cue:
    """A linear probe, which learns these rows without training steps."""
    folder = tmp_path_factory.mktemp("cues") / "topics"
    return softcue.train(folder, **ROWS, method="linear-probe", backbone=str(model_folders["bert"]), progress=False)


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
@pytest.mark.parametrize("method", ["prompt-tuning", "linear-probe", "fine-tuning", "vip"])
def test_every_kind_of_backbone_trains_and_loads(family: str, method: str, tmp_path: Path) -> None:
    overrides = {"training.steps": 2} | ({"method.prompt_length": 8} if method in ("prompt-tuning", "vip") else {})
    trained = softcue.train(
        tmp_path / "cue", **ROWS, backbone=tiny(family), method=method, overrides=overrides, progress=False
    )
    assert trained.task.kind == "multi-label"
    assert trained.cue_file.readout.name == "classifier"
    texts = [row["text"] for row in TEST]
    predictions = trained.predict(texts)
    assert softcue.load(tmp_path / "cue", tiny(family)).predict(texts) == predictions
    for prediction in predictions:
        assert prediction.scores is not None and list(prediction.scores) == sorted(PHRASES)
        assert prediction.labels == tuple(name for name, value in prediction.scores.items() if value >= 0.5)
    assert set(trained.cue_file.scores["test"]) == {
        *("micro_f1", "macro_f1", "samples_f1", "subset_accuracy", "average_precision")
    }
    assert set(trained.cue_file.baselines["test"]) == {"majority_set", "all_labels"}


def test_a_probe_learns_the_sets(cue: softcue.Cue) -> None:
    evaluation = cue.evaluate(TEST)
    baselines = evaluation.baselines
    assert evaluation.main > max(baselines["all_labels"]["micro_f1"], baselines["majority_set"]["micro_f1"]) + 10
    assert evaluation.scores["subset_accuracy"] == pytest.approx(
        100
        * sum(
            set(prediction.labels or ()) == set(row["topics"])
            for prediction, row in zip(cue.predict([row["text"] for row in TEST]), TEST, strict=True)
        )
        / len(TEST)
    )


def test_prompts_learn_the_sets(tmp_path: Path) -> None:
    overrides = {"training.steps": 60, "training.learning_rate": 0.02, "training.evaluate_every": 60}
    trained = softcue.train(
        tmp_path / "cue",
        **{**ROWS, "validation": TRAIN[:24], "test": None},
        backbone=tiny("bert"),
        overrides={**overrides, "training.network_learning_rate": 0.02, "readout.dropout": 0.0},
        progress=False,
    )
    scores = trained.cue_file.scores["validation"]
    assert scores["micro_f1"] > trained.cue_file.baselines["validation"]["all_labels"]["micro_f1"] + 10


def test_the_threshold_is_kept_in_the_cue(tmp_path: Path) -> None:
    overrides = {**QUICK, "readout.threshold": 0.01, **UNSOLVED}
    softcue.train(tmp_path / "cue", **ROWS, backbone=tiny("bert"), overrides=overrides, progress=False)
    loaded = softcue.load(tmp_path / "cue", tiny("bert"))
    assert loaded.cue_file.readout.threshold == 0.01
    assert loaded.predict("hello")[0].labels == ("account", "billing", "shipping")
    assert "probability is at least 0.01" in (tmp_path / "cue" / "README.md").read_text()


def test_a_solved_head_and_a_refit_work(tmp_path: Path) -> None:
    overrides = {**QUICK, "readout.head_start": "solved", "readout.refit": True}
    trained = softcue.train(tmp_path / "cue", **ROWS, backbone=tiny("bert"), overrides=overrides, progress=False)
    assert trained.cue_file.scores["validation"]["micro_f1"] > 50


def test_numbers_come_back_as_numbers(tmp_path: Path) -> None:
    numbers = {label: number for number, label in enumerate(PHRASES)}
    frame = pandas.DataFrame(
        {"text": [row["text"] for row in TRAIN], "label": [[numbers[name] for name in row["topics"]] for row in TRAIN]}
    )
    trained = softcue.train(tmp_path / "cue", train=frame, backbone=tiny("bert"), method="linear-probe", progress=False)
    for prediction in trained.predict([row["text"] for row in TEST]):
        assert all(type(label) is int for label in (*(prediction.labels or ()), *(prediction.scores or ())))
    assert trained.evaluate(frame).num_illegal == 0


def test_a_collapse_causes_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = {**QUICK, "readout.threshold": 0.99, **UNSOLVED}
    softcue.train(tmp_path / "cue", **ROWS, backbone=tiny("bert"), overrides=overrides)
    shown = capsys.readouterr()
    assert "validation rows is predicted as '(none)': nothing was learned" in shown.out + shown.err
    assert "a lower readout.threshold (now 0.99)" in shown.out + shown.err


def test_a_separated_column_needs_the_argument(files: dict[str, Path], tmp_path: Path) -> None:
    given: dict[str, Any] = {"train": files["train"], "label": "topics", "backbone": tiny("bert"), "progress": False}
    trained = softcue.train(tmp_path / "sets", **given, overrides=QUICK, multi_label=True)
    assert trained.task.label_names == ("account", "billing", "shipping")
    with pytest.raises(DataError, match="expected a label"):  # an empty cell is no class
        softcue.train(tmp_path / "classes", **given, overrides=QUICK)
    with pytest.raises(ConfigurationError, match="the argument `multi_label` says multi-label"):
        softcue.train(tmp_path / "both", **given, multi_label=True, overrides={"task.kind": "regression"})
    piped = write_csv(tmp_path / "piped.csv", TRAIN, "|")
    trained = softcue.train(tmp_path / "piped", **{**given, "train": piped}, overrides=QUICK, separator="|")
    assert (trained.task.label_names, trained.task.separator) == (("account", "billing", "shipping"), "|")
    with pytest.raises(ConfigurationError, match=r"task.separator"):
        softcue.train(tmp_path / "empty", **given, separator="")


def test_tasks_with_sets_and_classes_share_a_prompt(files: dict[str, Path], tmp_path: Path) -> None:
    for name, kind, label in (("topics", "multi-label", "topics"), ("length", "classification", "length")):
        rows = [{**row, "length": "long" if len(row["text"]) > 20 else "short"} for row in TRAIN]
        (tmp_path / f"{name}.json").write_text(json.dumps(rows))
        (tmp_path / f"{name}.yaml").write_text(
            f"kind: {kind}\nlabel: {label}\ntrain: {name}.json\nvalidation: {name}.json\n"
        )
    cues = softcue.train(
        tmp_path / "cues",
        tasks=[str(tmp_path / "topics.yaml"), str(tmp_path / "length.yaml")],
        backbone=tiny("bert"),
        overrides=QUICK,
        progress=False,
    )
    assert cues["topics"].predict("refund")[0].labels is not None
    assert cues["length"].predict("refund")[0].label in ("long", "short")


def test_codes_count_a_row_for_each_of_its_labels(tmp_path: Path) -> None:
    trained = softcue.train(
        tmp_path / "cue", **ROWS, backbone=tiny("bert"), method="vip", overrides=QUICK, progress=False
    )
    codes = codes_by_label(trained, examples_from(TEST, trained.task))
    assert codes.rows == {label: sum(label in row["topics"] for row in TEST) for label in sorted(PHRASES)}


def test_the_model_card_says_what_is_predicted(cue: softcue.Cue) -> None:
    card = model_card(cue.cue_file, "topics")
    assert "any of 3 labels: none, one or several" in card
    assert "A label is predicted if its probability is at least 0.5." in card
    assert "| test | 16 (few) | most frequent set |" in card and "all labels" in card
    assert "micro_f1" in repr(cue) and "(multi-label)" in repr(cue)


# --- the command line ---


def train(folder: Path, backbone: Path, *words: object) -> Ended:
    return run(
        *("train", "--text", "text", "--label", "topics", "--backbone", backbone, "--output-dir", folder),
        *("training.steps=2", "method.prompt_length=8", *words),
    )


def test_the_command_line_trains_predicts_and_evaluates(
    files: dict[str, Path], tmp_path: Path, model_folders: dict[str, Path]
) -> None:
    folder = tmp_path / "topics"
    words = ["--train", files["train"], "--validation", files["validation"], "--multi-label", "readout.threshold=0.4"]
    ended = train(folder, model_folders["bert"], *words, "--json")
    assert set(ended.json["scores"]["validation"]) >= {"micro_f1", "subset_accuracy"}
    loaded = softcue.load(folder)
    expected = loaded.predict([row["text"] for row in TEST])

    printed = run("predict", folder, TEST[0]["text"], "--json").json["rows"][0]
    assert printed["labels"] == list(expected[0].labels or ())
    assert "label" not in printed and list(printed["scores"]) == sorted(PHRASES)
    table = run("predict", folder, TEST[0]["text"])
    assert (", ".join(map(str, expected[0].labels or ())) or "(none)") in table.out

    assert run("predict", folder, "--input", files["test"], "--output", tmp_path / "out.csv", "--scores").code == 0
    with (tmp_path / "out.csv").open(newline="") as handle:
        lines = list(csv.DictReader(handle))
    assert list(lines[0]) == ["text", "labels", "score.account", "score.billing", "score.shipping"]
    assert [line["labels"] for line in lines] == [";".join(map(str, p.labels or ())) for p in expected]
    again = examples_from(tmp_path / "out.csv", loaded.task.model_copy(update={"label": "labels"}))
    assert [example.labels for example in again] == [
        prediction.labels for prediction in expected
    ]  # it reads its output

    evaluated = run("evaluate", folder, "--data", files["test"], "--json").json
    assert set(evaluated) == EVALUATED
    assert evaluated["confusion"] is None and set(evaluated["by_label"]) == set(PHRASES)
    assert set(evaluated["baselines"]) == {"majority_set", "all_labels"}
    shown = run("evaluate", folder, "--data", files["test"], "--output", tmp_path / "labels.csv")
    assert "scores of each label" in shown.out and "most frequent set" in shown.out
    assert (tmp_path / "labels.csv").read_text().startswith("label,precision,recall,f1,rows,predicted\naccount,")
    assert run("evaluate", folder, "--data", files["test"], "--output", tmp_path / "page.html").code == 0
    check_error(run("evaluate", folder, "--data", files["test"], "--output", tmp_path / "matrix.png"), "multi-label")


def test_several_cues_on_the_command_line(
    cue: softcue.Cue, files: dict[str, Path], tmp_path: Path, model_folders: dict[str, Path]
) -> None:
    assert cue.path is not None
    second = tmp_path / "second"
    assert train(second, model_folders["bert"], "--train", files["train"], "--multi-label").code == 0
    rows = run("predict", cue.path, second, "refund invoice", "--json").json["rows"]
    assert set(rows[0]["cues"]) == {"topics", "second"} and "labels" in rows[0]["cues"]["second"]
    for how in ("--vote", "--mean"):
        words = ("predict", cue.path, second, "--input", files["test"], "--output", tmp_path / "joined.csv", how)
        assert run(*words).code == 0
        assert (tmp_path / "joined.csv").read_text().startswith("text,labels,votes\n")
        joined = run("evaluate", cue.path, second, "--data", files["test"], how, "--json").json
        assert "micro_f1" in joined[how.removeprefix("--")]["scores"]
    compared = run("compare", cue.path, second, "--data", files["test"])
    assert compared.code == 0 and "difference of micro_f1" in compared.out


def test_methods_are_compared_on_sets(files: dict[str, Path], tmp_path: Path, model_folders: dict[str, Path]) -> None:
    words = ["--methods", "linear-probe,no-prompt", "--seeds", 1, "--backbones", model_folders["bert"]]
    words += ["--train", files["train"], "--test", files["test"], "--label", "topics", "--text", "text"]
    ended = run("compare", *words, "task.kind=multi-label", "training.steps=2", "--output-dir", tmp_path / "out")
    assert ended.code == 0, ended.err
    assert "micro_f1" in ended.out and "linear-probe" in ended.out


def test_inspection_shows_sets(cue: softcue.Cue, files: dict[str, Path], tmp_path: Path) -> None:
    assert cue.path is not None
    ended = run("inspect", cue.path, "--data", files["test"], "--output-dir", tmp_path / "page")
    assert ended.code == 0 and "scores of each label" in ended.out
    [page] = (tmp_path / "page").glob("*.html")
    text = page.read_text()
    assert "Scores of each label" in text and "Confusion matrix" not in text and "most frequent set" in text


def test_errors_say_what_is_wrong(files: dict[str, Path], tmp_path: Path, model_folders: dict[str, Path]) -> None:
    bert, t5 = model_folders["bert"], model_folders["t5"]
    given = ("--train", files["train"], "--multi-label")
    copies = tmp_path / "copies.csv"
    copies.write_text("text,topics\nhi,a;b;a\nyou,b\n")
    check_error(train(tmp_path / "x", bert, "--train", copies, "--multi-label"), "line 2", "'a' once")
    unknown = tmp_path / "unknown.csv"
    unknown.write_text("text,topics\nhi,billing;bulling\n")
    check_error(train(tmp_path / "x", bert, *given, "--validation", unknown), "'bulling'", "did you mean 'billing'")
    check_error(train(tmp_path / "x", t5, *given, "readout.name=generation"), "fits multi-label: classifier")
    check_error(train(tmp_path / "x", bert, *given, "--method", "efl", "method.prompt_length=8"), "method")
    check_error(train(tmp_path / "x", bert, *given, "task.metric=accuracy"), "a metric for multi-label")
    check_error(train(tmp_path / "x", bert, *given, "task.separator=|"), "task.separator", "at least 1 character")
    check_error(train(tmp_path / "x", bert, *given, "readout.threshold=1.5"), "readout.threshold")
    check_error(train(tmp_path / "x", bert, *given, "task.stratified=true", "--few-shot", "8"), "multi-label")
    check_error(
        run(
            "train",
            "--task",
            "tickets",
            "--method",
            "efl",
            *given,
            "--label",
            "topics",
            "--text",
            "text",
            "--backbone",
            bert,
            "--output-dir",
            tmp_path / "x",
        )
    )
