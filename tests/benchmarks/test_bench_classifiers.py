from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy
import pytest
from fastapi.testclient import TestClient

from benchmarks import servers
from benchmarks.classifiers_speed import _requests, _tasks
from benchmarks.plan import Plan


class Vectors:
    """In place of sentence-transformers: two numbers of each text."""

    def __init__(self, folder: str, device: str) -> None:
        assert (folder, device) == ("models/mine", "cpu")

    def encode(self, texts: list[str], show_progress_bar: bool) -> Any:
        return numpy.array([[len(text), text.count("a")] for text in texts], dtype=float)


def test_each_text_gets_the_prediction_of_scikit_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.linear_model import LogisticRegression

    monkeypatch.setitem(sys.modules, "sentence_transformers", types.SimpleNamespace(SentenceTransformer=Vectors))
    source = types.SimpleNamespace(folder=Path("models/mine"))
    monkeypatch.setattr("softcue.backbones.loading.sources.find_source", lambda name: source)
    texts = ["a", "aa", "bbb", "bbbb", "ab", "aab", "banana", "cherry"]
    vectors = Vectors("models/mine", "cpu").encode(texts, False)
    heads = {}
    for task, labels in {"two": "xyxyxyxy", "three": "uvwuvwuv"}.items():
        heads[task] = LogisticRegression().fit(vectors, list(labels))
        (tmp_path / task).mkdir()
        head = heads[task]
        file = tmp_path / task / servers.HEAD_FILE
        numpy.savez(file, weights=head.coef_, biases=head.intercept_, labels=head.classes_)
    client = TestClient(servers.make_probe_app(tmp_path, "mine"))
    inputs = [{"task": task, "text": text} for text in texts for task in heads]
    results = client.post("/v1/predict", json={"inputs": inputs}).json()["results"]
    for item, result in zip(inputs, results, strict=True):
        head = heads[item["task"]]
        expected = head.predict_proba(vectors[[texts.index(item["text"])]])[0]
        assert result["task"] == item["task"] and result["label"] == head.classes_[expected.argmax()]
        assert list(result["scores"].values()) == pytest.approx(expected)


def test_requests_take_the_tasks_in_turn_and_repeat_no_text_at_once() -> None:
    tasks = _tasks(Plan(1))
    requests = _requests(tasks, 30)
    assert [request[0][0] for request in requests] == [task.name for task in tasks] * 10
    assert len({request[0] for request in requests}) == 30
