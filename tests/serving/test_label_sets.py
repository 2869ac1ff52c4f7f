"""Sets of labels from the engine, over HTTP, from the client and on its command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import run
from serving_cues import SUBJECTS, TEXTS, TOPICS, save_cue
from starlette.testclient import TestClient
from tiny import tiny
from tolerance import REORDERED_PROBABILITIES

from softcue.serving import client as client_module
from softcue.serving.client import PredictionResult
from softcue.serving.engine.engine import Engine
from softcue.serving.engine.requests import ServedPrediction
from softcue.tasks import Label, Task

NUMBERS = Task(
    name="numbers", kind="multi-label", labels={str(n): Label(words=f"w{n}") for n in range(3)}, label_type="integer"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sets")
    for seed in range(3):
        save_cue(root / f"subjects{seed}", SUBJECTS, seed=seed)
    save_cue(root / "numbers", NUMBERS, "m-idpg-phm")
    save_cue(root / "topics", TOPICS)
    return root


@pytest.fixture(scope="module")
def client(serving: Callable[..., TestClient], folder: Path) -> TestClient:
    return serving(folder)


def ask(client: TestClient, task: Any, text: str, **options: Any) -> Any:
    response = client.post("/v1/predict", json={"inputs": [{"task": task, "text": text}], **options})
    assert response.status_code == 200, response.text
    return response.json()["results"][0]


def test_sets_share_batches_with_other_cues(folder: Path) -> None:
    names = ["subjects0", "topics", "numbers", "subjects1"]
    with Engine(tiny("bert"), folder) as engine:
        items = [(name, text) for text in TEXTS for name in names]
        for (name, text), result in zip(items, engine.predict(items), strict=True):
            assert isinstance(result, ServedPrediction)
            [alone] = engine.registry[name].cue.predict(text)
            assert result.prediction.scores == REORDERED_PROBABILITIES.approx(alone.scores)
            assert (result.prediction.labels is None) == (name == "topics")


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_sets_are_predicted_beside_cues_that_write(writing_cues: dict[str, Any], kind: str) -> None:
    folder = writing_cues[kind]["subjects"].path.parent
    with Engine(tiny(kind), folder) as engine:
        results = engine.predict([(name, text) for text in TEXTS for name in ("subjects", "titles", "topics")])
        for text, result in zip(TEXTS, results[::3], strict=True):
            assert isinstance(result, ServedPrediction)
            [alone] = engine.registry["subjects"].cue.predict(text)
            assert result.prediction.scores == REORDERED_PROBABILITIES.approx(alone.scores)


def test_json_has_a_list_of_labels(client: TestClient) -> None:
    seen = set()
    for text in TEXTS:
        result = ask(client, "subjects0", text, return_scores=True)
        assert "label" not in result
        assert result["labels"] == [label for label, score in result["scores"].items() if score >= 0.5]
        assert ask(client, "subjects0", text)["labels"] == result["labels"]
        seen.add(tuple(result["labels"]))
    assert len(seen) > 1
    numbers = ask(client, "numbers", TEXTS[0], return_scores=True)
    assert set(numbers["labels"]) <= {0, 1, 2} and set(numbers["scores"]) == {"0", "1", "2"}
    [task] = [task for task in client.get("/v1/tasks").json()["tasks"] if task["name"] == "numbers"]
    assert (task["kind"], task["labels"], task["metric"]) == ("multi-label", [0, 1, 2], "micro_f1")


def test_an_empty_set_is_an_empty_list(serve: Callable[..., TestClient], tmp_path: Path) -> None:
    cue = save_cue(tmp_path / "none", SUBJECTS)
    cue.cue_file = cue.cue_file.model_copy(
        update={"readout": cue.cue_file.readout.model_copy(update={"threshold": 0.999999})}
    )
    cue.save(tmp_path / "none")
    result = ask(serve(tmp_path), "none", "refund", return_scores=True)
    assert result["labels"] == [] and len(result["scores"]) == 3
    parsed = PredictionResult.of(result)
    assert (parsed.labels, parsed.label) == ((), None)
    assert parsed.scores is not None and set(parsed.scores) == {"a", "b", "c"}


@pytest.mark.parametrize("ensemble", ["vote", "mean"])
def test_ensembles_join_sets(client: TestClient, ensemble: str) -> None:
    names = [f"subjects{seed}" for seed in range(3)]
    for text in TEXTS:
        results = [ask(client, name, text, return_scores=True) for name in names]
        joined = ask(client, names, text, return_scores=True, ensemble=ensemble)
        means = {label: sum(result["scores"][label] for result in results) / 3 for label in "abc"}
        assert joined["scores"] == REORDERED_PROBABILITIES.approx(means)
        counts = {label: sum(label in result["labels"] for result in results) for label in "abc"}
        assert joined.get("votes", {}) == {label: count for label, count in counts.items() if count}
        by_vote = [label for label in "abc" if counts[label] >= 2]
        assert joined["labels"] == (
            by_vote if ensemble == "vote" else [label for label in "abc" if means[label] >= 0.5]
        )


def test_the_client_gives_typed_sets(client: TestClient) -> None:
    results = [PredictionResult.of(ask(client, "numbers", text, return_scores=True)) for text in TEXTS]
    chosen = [result for result in results if result.labels]
    assert chosen
    for result in chosen:
        assert result.scores is not None and list(result.scores) == [0, 1, 2]
        assert all(type(label) is int and result.scores[label] >= 0.5 for label in result.labels or ())


def test_the_command_of_the_client_prints_sets(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(_: object, method: str, path: str, body: object = None) -> Any:
        return client.request(method, path, json=body).json()

    monkeypatch.setattr(client_module.Client, "_call", call)
    for text in TEXTS:
        labels = ask(client, "subjects0", text)["labels"]
        ended = run("client", "predict", "--task", "subjects0", text)
        assert ended.code == 0 and (", ".join(labels) or "(none)") in ended.out
        printed = run("client", "predict", "--task", "subjects0", text, "--json").json
        assert printed["results"][0]["labels"] == labels
