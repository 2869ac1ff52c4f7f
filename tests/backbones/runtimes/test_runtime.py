"""The layers of an encoder as graphs: the states of any pass are torch's, and what no graph takes runs in torch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny
from tolerance import REORDERED_PROBABILITIES
from toy import EXAMPLES, make_model

from softcue.backbones import Backbone
from softcue.backbones.runtimes import Recorder, Runtime, RuntimeName, runtime, sessions
from softcue.backbones.runtimes.graph import BackboneGraph
from softcue.inference import TaskModel, predict
from softcue.types import Example, Prediction

CASES = [
    *("prompt-tuning", "p-tuning-v2", "p-tuning-v2 kv", "p-tuning-v2 parallel", "p-tuning-v2 replace"),
    *("m-idpg-phm", "m-idpg-phm kv", "m-idpg-phm first", "s-idpg-phm", "vip", "linear-probe"),
]
IN_TORCH = ["compacter", "lora", "prompt-tuning late", "fine-tuning", "p-tuning-v2 deeper"]
FLOAT32 = RuntimeName("onnx", "float32")


class EagerSession(sessions.Session):
    """Runs the module that would be exported, and counts."""

    num_runs = 0

    def __init__(self, graph: BackboneGraph) -> None:
        super().__init__(graph.input_names)
        self.graph = graph

    def _run(self, arrays: dict[str, Any]) -> Any:
        EagerSession.num_runs += 1
        with torch.no_grad():
            return self.graph(*(torch.from_numpy(array) for array in arrays.values())).numpy()


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(graph: BackboneGraph, *_: object) -> EagerSession:
        # A pass that stops at a layer goes on in an exported graph.
        monkeypatch.setattr("torch.compiler.is_exporting", lambda: True)
        return EagerSession(graph)

    EagerSession.num_runs = 0
    monkeypatch.setattr(runtime, "build_session", build)


def backbone_of(family: str) -> Backbone:
    return tiny(family)._new_view()  # of its own: a runtime would stay on the one that tests share


def answers(backbone: Backbone, models: Iterable[TaskModel], examples: Iterable[Example]) -> list[Prediction]:
    requests = [(model, example) for example in examples for model in models]
    return predict(backbone, requests, 8).predictions


def prepare(backbone: Backbone, models: list[TaskModel], name: RuntimeName, folder: Path) -> tuple[Runtime, Recorder]:
    prepared = Runtime(backbone, name, folder)
    for model in models:
        recorder = backbone.runtime = Recorder()
        answers(backbone, [model], EXAMPLES[:3])
        prepared.prepare(recorder)
    backbone.runtime = prepared
    return prepared, recorder


def assert_same(got: list[Prediction], expected: list[Prediction]) -> None:
    for one, other in zip(got, expected, strict=True):
        assert one.scores is not None and other.scores is not None
        REORDERED_PROBABILITIES.assert_close(
            torch.tensor(list(one.scores.values())), torch.tensor(list(other.scores.values()))
        )


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("family", ["bert", "mpnet", "modernbert"])
@pytest.mark.parametrize("case", CASES)
def test_prompts_of_every_kind_enter_a_graph_as_inputs(family: str, case: str, tmp_path: Path) -> None:
    backbone = backbone_of(family)
    model = make_model(backbone, case)
    expected = answers(backbone, [model], EXAMPLES)
    prepare(backbone, [model], FLOAT32, tmp_path)
    assert_same(answers(backbone, [model], EXAMPLES), expected)
    assert EagerSession.num_runs > 0
