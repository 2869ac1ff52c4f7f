"""Labels come back in the type of the training labels: from `predict`, a loaded cue, ensembles and the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pandas
import pytest
from command import run
from serving_cues import save_cue
from sklearn.metrics import accuracy_score
from tiny import tiny

import softcue
from softcue.evaluation import Evaluation, mean, score, vote, votes
from softcue.tasks import Label, Task
from softcue.types import Example, Prediction

TEXTS = [f"{text} {number}" for number in range(8) for text in ("please refund invoice", "badge reader is dead")]
QUICK = {"training.steps": 1, "method.prompt_length": 2}
BINARY = {"0": Label(words="no"), "1": Label(words="yes")}
CASES: dict[str, list[Any]] = {  # type -> labels of the texts
    "text": ["0", "1"] * 8,
    "integer": [0, 1] * 8,
    "boolean": [False, True] * 8,
    "float": [0.5, 2.0] * 8,
}


def quick(folder: Path, **arguments: Any) -> Any:
    given = {"backbone": tiny("bert"), "overrides": QUICK, "progress": False, **arguments}
    return softcue.train(folder, **given)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, model_folders: dict[str, Path]) -> Path:
    """A cue for each type of label."""
    root = tmp_path_factory.mktemp("typed")
    for label_type, labels in CASES.items():
        frame = pandas.DataFrame({"text": TEXTS, "label": labels})
        quick(root / label_type, train=frame, backbone=str(model_folders["bert"]))
    return root


@pytest.mark.parametrize("label_type", CASES)
def test_predicted_labels_compare_with_the_table(folder: Path, label_type: str) -> None:
    labels = CASES[label_type]
    cue = softcue.load(folder / label_type)
    predictions = cue.predict(pandas.DataFrame({"text": TEXTS, "label": labels}))
    assert {type(prediction.label) for prediction in predictions} == {type(labels[0])}
    assert all(set(prediction.scores or ()) == set(labels) for prediction in predictions)
    evaluation = cue.evaluate(pandas.DataFrame({"text": TEXTS, "label": labels}))
    as_text = [str(label) for label in labels], [str(prediction.label) for prediction in predictions]
    assert 100 * accuracy_score(*as_text) == evaluation.scores["accuracy"]
    if label_type != "float":  # scikit-learn takes floats with a fraction for a regression
        assert 100 * accuracy_score(labels, [prediction.label for prediction in predictions]) == evaluation.main


def test_a_trained_cue_predicts_as_the_loaded_one(tmp_path: Path) -> None:
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, [3, 12] * 8, strict=True)]
    cue = quick(tmp_path / "cue", train=rows)
    assert cue.task.label_names == ("3", "12")
    assert cue.predict(TEXTS) == softcue.load(tmp_path / "cue", tiny("bert")).predict(TEXTS)


def test_cues_of_older_versions_have_text_labels(tmp_path: Path) -> None:
    from softcue.cue.cue_file import cue_file_digest

    save_cue(tmp_path / "old", Task(name="old", labels=BINARY))
    file = tmp_path / "old" / "cue.json"
    values = json.loads(file.read_text())
    del values["task"]["label_type"]
    file.write_text(json.dumps(values | {"record_sha256": cue_file_digest(values)}))
    assert softcue.load(tmp_path / "old", tiny("bert")).predict("hello")[0].label in ("0", "1")


def test_generated_text_that_is_no_label_stays_text() -> None:
    task = Task(name="t", labels=BINARY, label_type="integer")
    assert task.with_label_values(Prediction("7")).label == "7"
    assert task.with_label_values(Prediction("no idea", is_illegal=True)).label == "no idea"


# --- evaluation ---


@pytest.mark.parametrize(("label_type", "names"), [("integer", ("0", "1")), ("boolean", ("false", "true"))])
def test_typed_predictions_score_as_text(label_type: Any, names: tuple[str, str]) -> None:
    task = Task(name="t", labels={name: Label(words=name) for name in names}, label_type=label_type)
    examples = [Example(("x",), names[0]), Example(("y",), names[1]), Example(("z",), names[1])]
    predictions = [Prediction(name) for name in (names[0], names[0], names[1])]

    def evaluate(rows: list[Prediction]) -> Evaluation:
        return score(task, rows, examples)

    typed = evaluate([task.with_label_values(prediction) for prediction in predictions])
    assert typed == evaluate(predictions)
    assert typed.num_illegal == 0 and typed.predicted_labels == {names[0]: 2, names[1]: 1}


# --- ensembles ---


@pytest.mark.parametrize("join", [vote, mean])
def test_an_ensemble_predicts_typed_labels(join: Any) -> None:
    joined = join([Prediction(1, scores={0: 0.25, 1: 0.75}), Prediction(1, scores={0: 0.125, 1: 0.875})])
    assert joined.label == 1 and type(joined.label) is int
    assert joined.scores == {0: 0.1875, 1: 0.8125}


def test_votes_for_a_number_and_for_its_text_are_votes_for_one_label() -> None:
    predictions = [
        Prediction("1", scores={"0": 0.25, "1": 0.75}),
        Prediction(0, scores={0: 0.75, 1: 0.25}),
        Prediction(1, scores={0: 0.25, 1: 0.75}),
    ]
    assert votes(predictions) == {1: 2, 0: 1}
    assert vote(predictions).label == 1
    assert mean(predictions).scores == pytest.approx({0: 1.25 / 3, 1: 1.75 / 3})


# --- the command line ---


def write_rows(path: Path) -> Path:
    path.write_text("text\nplease refund\nbadge reader\n")
    return path


@pytest.mark.parametrize("label_type", CASES)
def test_predicted_lines_have_typed_labels(folder: Path, tmp_path: Path, label_type: str) -> None:
    rows = write_rows(tmp_path / "rows.csv")
    ended = run("predict", folder / label_type, "--input", rows, "--json")
    for line in ended.json["rows"]:
        assert line["label"] in CASES[label_type] and type(line["label"]) is type(CASES[label_type][0])
        assert set(line["scores"]) <= {"0", "1", "false", "true", "0.5", "2"}


def test_csv_cells_hold_the_text_of_a_label(folder: Path, tmp_path: Path) -> None:
    rows, output = write_rows(tmp_path / "rows.csv"), tmp_path / "predicted.csv"
    assert run("predict", folder / "boolean", folder / "float", "--input", rows, "--output", output).code == 0
    with output.open(newline="") as handle:
        lines = list(csv.DictReader(handle))
    assert {line["boolean.label"] for line in lines} <= {"false", "true"}
    assert {line["float.label"] for line in lines} <= {"0.5", "2"}
    assert all(0.5 <= float(line["boolean.score"]) <= 1 for line in lines)


@pytest.mark.parametrize("option", ["--vote", "--mean"])
def test_an_ensemble_of_text_and_numbers_predicts_numbers(folder: Path, tmp_path: Path, option: str) -> None:
    rows = write_rows(tmp_path / "rows.csv")
    ended = run("predict", folder / "text", folder / "integer", option, "--input", rows, "--json")
    for line in ended.json["rows"]:
        assert line["label"] in (0, 1) and type(line["label"]) is int
        assert sum(line["votes"].values()) == 2 and set(line["votes"]) <= {"0", "1"}


# --- regression and data sets, from rows to predictions ---


def test_floats_train_a_regression(tmp_path: Path) -> None:
    rows = [{"text": text, "label": number / 7} for number, text in enumerate(TEXTS)]
    with pytest.warns(UserWarning, match="so this is a regression"):
        cue = quick(tmp_path / "cue", train=rows)
    assert cue.task.kind == "regression"
    assert all(isinstance(prediction.value, float) for prediction in cue.predict(TEXTS))


def test_a_task_file_without_a_kind_is_evaluated_as_it_was_trained(tmp_path: Path) -> None:
    rows = [{"text": text, "label": number / 7} for number, text in enumerate(TEXTS)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.yaml").write_text("name: mine\ntrain: rows.jsonl\n")
    with pytest.warns(UserWarning, match="so this is a regression"):
        cue = quick(tmp_path / "cue", task=str(tmp_path / "mine.yaml"))
    assert "pearson" in cue.evaluate(task=str(tmp_path / "mine.yaml"), split="train").scores


def test_a_dataset_dict_trains_predicts_and_evaluates(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    rows = datasets.Dataset.from_dict({"text": TEXTS, "label": [0, 1] * 8}, features=features)
    splits = datasets.DatasetDict(train=rows.select(range(10)), test=rows.select(range(10, 16)))
    cue = quick(tmp_path / "cue", train=splits)
    assert set(cue.scores) == {"validation", "test"}
    predicted = [prediction.label for prediction in cue.predict(splits["test"])]
    assert [prediction.label for prediction in cue.predict(splits["test"]["text"])] == predicted
    evaluation = cue.evaluate(splits)  # its test rows
    assert evaluation.main == pytest.approx(100 * accuracy_score(splits["test"]["label"], predicted))
    assert evaluation.scores == cue.scores["test"]
    assert cue.evaluate(splits, split="train").num_rows == 10
    assert cue.evaluate(splits["test"].to_iterable_dataset()).main == evaluation.main
    with pytest.raises(softcue.errors.DataError, match="the rows of one split"):
        cue.predict(splits)
    with pytest.raises(softcue.errors.ConfigurationError, match="one of the DatasetDict: train, test"):
        cue.evaluate(splits, split="validation")
