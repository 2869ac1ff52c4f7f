"""Labels in the type of the training labels: from the engine, over HTTP and from the client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from serving_cues import TITLES, save_cue
from starlette.testclient import TestClient
from tiny import tiny

from softcue.serving.client import PredictionResult
from softcue.serving.engine.engine import Engine
from softcue.serving.engine.requests import ServedPrediction
from softcue.tasks import Label, Task

TYPES: dict[str, tuple[Any, tuple[str, str], list[Any]]] = {  # cue -> type, names, values
    "words": ("text", ("0", "1"), ["0", "1"]),
    "numbers": ("integer", ("0", "1"), [0, 1]),
    "flags": ("boolean", ("false", "true"), [False, True]),
    "halves": ("float", ("0.5", "1"), [0.5, 1.0]),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("typed")
    for name, (label_type, names, _) in TYPES.items():
        labels = {label: Label(words=label) for label in names}
        task = Task(name="binary" if names == ("0", "1") else name, labels=labels, label_type=label_type)
        save_cue(root / name, task, seed=len(name))
    return root


@pytest.fixture
def engine(folder: Path) -> Iterator[Engine]:
    with Engine(tiny("bert"), folder) as running:
        yield running


@pytest.fixture(scope="module")
def client(serving: Callable[..., TestClient], folder: Path) -> TestClient:
    return serving(folder)


def has_type(label: object, values: list[Any]) -> bool:
    return label in values and type(label) is type(values[0])


def test_a_mixed_batch_gives_each_cue_its_type(engine: Engine) -> None:
    results = engine.predict([(name, "refund") for name in TYPES])
    for name, result in zip(TYPES, results, strict=True):
        values = TYPES[name][2]
        assert isinstance(result, ServedPrediction)
        assert has_type(result.prediction.label, values)
        assert list(result.prediction.scores or ()) == values
        assert result.prediction.label == engine.registry[name].cue.predict("refund")[0].label


@pytest.mark.parametrize("ensemble", ["vote", "mean"])
def test_an_ensemble_of_text_and_numbers_gives_numbers(engine: Engine, ensemble: Any) -> None:
    [result] = engine.predict([(["words", "numbers"], "refund")], ensemble=ensemble)
    assert isinstance(result, ServedPrediction)
    assert has_type(result.prediction.label, [0, 1])
    assert sum(result.votes.values()) == 2 and all(type(label) is int for label in result.votes)
    assert set(result.as_dict()["votes"]) <= {"0", "1"}  # type: ignore[call-overload]


@pytest.mark.parametrize("name", TYPES)
def test_json_has_typed_labels(client: TestClient, name: str) -> None:
    _, names, values = TYPES[name]
    response = client.post("/v1/predict", json={"inputs": [{"task": name, "text": "refund"}], "return_scores": True})
    [result] = response.json()["results"]
    assert has_type(result["label"], values)
    assert tuple(result["scores"]) == names
    [task] = [task for task in client.get("/v1/tasks").json()["tasks"] if task["name"] == name]
    assert task["labels"] == values and all(has_type(label, values) for label in task["labels"])


@pytest.mark.parametrize("name", TYPES)
def test_the_client_gives_scores_by_label(client: TestClient, name: str) -> None:
    body = {"inputs": [{"task": name, "text": "refund"}], "return_scores": True}
    result = PredictionResult.of(client.post("/v1/predict", json=body).json()["results"][0])
    assert list(result.scores or ()) == TYPES[name][2]
    assert result.scores is not None and result.scores[result.label] == max(result.scores.values())


def test_the_client_gives_votes_by_label(client: TestClient) -> None:
    body = {"inputs": [{"task": "binary", "text": "refund"}], "ensemble": "vote"}
    result = PredictionResult.of(client.post("/v1/predict", json=body).json()["results"][0])
    assert has_type(result.label, [0, 1])
    assert result.votes is not None and result.votes[result.label] >= 1


def test_generated_text_is_text(serve: Callable[..., TestClient], tmp_path: Path) -> None:
    save_cue(tmp_path / "titles", TITLES, model_type="gpt2")
    client = serve(tmp_path, "gpt2")
    response = client.post("/v1/generate", json={"inputs": [{"task": "titles", "text": "refund"}], "stream": True})
    assert response.status_code == 200
    assert '"label":"' in response.text
