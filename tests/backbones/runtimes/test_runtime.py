"""The layers of an encoder as graphs: the states of any pass are torch's, and what no graph takes runs in torch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from eager_runtime import EagerSession, use_eager_sessions
from tiny import tiny
from tolerance import REORDERED_PROBABILITIES
from toy import EXAMPLES, make_model

from softcue.backbones import Backbone
from softcue.backbones.runtimes import LayerRuntime, Recorder, RuntimeChoice, RuntimeName, sessions
from softcue.errors import ConfigurationError, MissingExtraError
from softcue.inference import TaskModel, predict
from softcue.inputs.collate import collate
from softcue.types import Example, Prediction

CASES = [
    *("prompt-tuning", "p-tuning-v2", "p-tuning-v2 kv", "p-tuning-v2 parallel", "p-tuning-v2 replace"),
    *("m-idpg-phm", "m-idpg-phm kv", "m-idpg-phm first", "s-idpg-phm", "vip", "linear-probe"),
]
IN_TORCH = ["compacter", "lora", "prompt-tuning late", "fine-tuning"]
FLOAT32 = RuntimeName("onnx", "float32")


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    use_eager_sessions(monkeypatch)


def answers(backbone: Backbone, models: Iterable[TaskModel], examples: Iterable[Example]) -> list[Prediction]:
    requests = [(model, example) for example in examples for model in models]
    return predict(backbone, requests, 8).predictions


def start(backbone: Backbone, models: list[TaskModel], name: RuntimeName, folder: Path) -> Backbone:
    prepared = LayerRuntime(backbone, name, folder)
    for model in models:
        recorder = Recorder()
        answers(backbone.with_runtime(recorder), [model], EXAMPLES[:3])
        prepared.prepare(recorder)
    return backbone.with_runtime(prepared)


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
    backbone = tiny(family)
    model = make_model(backbone, case)
    expected = answers(backbone, [model], EXAMPLES)
    running = start(backbone, [model], FLOAT32, tmp_path)
    assert_same(answers(running, [model], EXAMPLES), expected)
    assert EagerSession.num_runs > 0 or case == "linear-probe"  # whose vectors may be stored


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_rows_of_cues_with_different_prompts_share_a_graph(family: str, tmp_path: Path) -> None:
    backbone = tiny(family)
    cases = ["prompt-tuning", "p-tuning-v2 kv", "p-tuning-v2 parallel", "p-tuning-v2", "m-idpg-phm kv"]
    models = [make_model(backbone, case, seed=seed) for seed, case in enumerate(cases)]
    for together in (models[:4], models):  # the last one reads the states of each layer
        expected = answers(backbone, together, EXAMPLES)
        running = start(backbone, together, FLOAT32, tmp_path)
        before = EagerSession.num_runs
        assert_same(answers(running, together, EXAMPLES), expected)
        num_graphs = 1 if together is not models else backbone.num_layers
        num_batches = -(-len(EXAMPLES) * len(together) // 8)
        assert EagerSession.num_runs - before <= num_graphs * num_batches + len(EXAMPLES)  # and passes for M(x)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("case", IN_TORCH)
def test_what_no_graph_takes_runs_in_torch(case: str, tmp_path: Path) -> None:
    backbone = tiny("bert")
    model = make_model(backbone, case)
    expected = answers(backbone, [model], EXAMPLES)
    running = start(backbone, [make_model(backbone), model], FLOAT32, tmp_path)
    before = EagerSession.num_runs
    assert_same(answers(running, [model], EXAMPLES), expected)
    assert EagerSession.num_runs == before


@pytest.mark.usefixtures("eager")
def test_a_pass_with_gradients_runs_in_torch(tmp_path: Path) -> None:
    backbone = tiny("bert")
    model = make_model(backbone)
    running = start(backbone, [model], FLOAT32, tmp_path)
    batch = collate(model.rows(running, EXAMPLES, with_target=True), 0)
    before = EagerSession.num_runs
    assert model(running, batch).losses.requires_grad
    assert EagerSession.num_runs == before


@pytest.mark.usefixtures("eager")
def test_sentence_vectors_of_a_runtime_are_stored_apart(tmp_path: Path) -> None:
    backbone = tiny("bert")
    running = start(backbone, [make_model(backbone)], FLOAT32, tmp_path)
    assert backbone.numbers != running.numbers


def test_a_format_that_a_library_does_not_have_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="float32 or int8 with runtime=onnx"):
        sessions.require_library("onnx", "bfloat16")


def test_a_library_that_is_not_installed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="openvino"):
        sessions.require_library("openvino", "float32")
    assert RuntimeChoice("auto").candidates() == []


def test_bfloat16_is_left_out_on_a_processor_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "find_spec", lambda name: object())
    monkeypatch.setattr(sessions, "has_bfloat16", lambda: False)
    assert [str(name) for name in RuntimeChoice("openvino").candidates()] == ["openvino float32", "openvino int8"]
    assert RuntimeChoice("auto", "bfloat16").candidates() == []
    with pytest.raises(ConfigurationError, match="this processor, which has no bfloat16"):
        RuntimeChoice("openvino", "bfloat16").candidates()


def test_a_runtime_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="one of torch, openvino, onnx, auto"):
        RuntimeChoice.of("tensorrt", "auto")
    with pytest.raises(ConfigurationError, match="one of auto, float32, bfloat16, int8"):
        RuntimeChoice.of("auto", "int4")


@pytest.mark.slow
@pytest.mark.parametrize("library", ["openvino", "onnx"])
@pytest.mark.parametrize("case", ["prompt-tuning", "p-tuning-v2 kv", "p-tuning-v2 parallel", "m-idpg-phm"])
def test_libraries_compute_what_torch_computes(library: Any, case: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip({"onnx": "onnxruntime"}.get(library, library))
    backbone = tiny("bert")
    model = make_model(backbone, case)
    expected = answers(backbone, [model], EXAMPLES)
    running = start(backbone, [model], RuntimeName(library, "float32"), tmp_path)
    assert_same(answers(running, [model], EXAMPLES), expected)
    files = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.is_file()}
    again = start(backbone, [model], RuntimeName(library, "float32"), tmp_path)  # from the files
    assert_same(answers(again, [model], EXAMPLES), expected)
    assert files and files == {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "number_format"), [("openvino", "bfloat16"), ("openvino", "int8"), ("onnx", "int8")]
)
def test_fewer_bits_give_nearly_the_same(library: Any, number_format: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip({"onnx": "onnxruntime"}.get(library, "nncf"))
    backbone = tiny("bert")
    model = make_model(backbone, "p-tuning-v2 kv")
    expected = answers(backbone, [model], EXAMPLES)
    running = start(backbone, [model], RuntimeName(library, number_format), tmp_path)
    for one, other in zip(answers(running, [model], EXAMPLES), expected, strict=True):
        assert one.scores is not None and other.scores is not None
        assert all(abs(one.scores[label] - other.scores[label]) < 0.1 for label in other.scores)
