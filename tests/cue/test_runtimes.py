"""Cues in another runtime: the fastest that agrees is taken, and a cue whose answers differ runs in torch."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from eager_runtime import EagerSession, use_eager_sessions
from serving_cues import STARS, TOPICS, save_cue
from toy import TASK

import softcue
from softcue.backbones import Backbone
from softcue.backbones.loading import autotune
from softcue.backbones.runtimes import LayerRuntime, RuntimeChoice, runtime
from softcue.backbones.runtimes.runtime import RuntimeName
from softcue.cli.predict import load_together
from softcue.cue import Cue, runtimes
from softcue.cue.rows_to_compare import RowsToCompare
from softcue.cue.runtimes import admit, start_runtime
from softcue.errors import ConfigurationError, MissingExtraError
from softcue.serving.engine.engine import Engine
from softcue.tasks import Task
from softcue.types import Example, Prediction

ROWS = [Example((f"where is order {number} and who is asking",)) for number in range(12)]
OPENVINO = RuntimeChoice("openvino", "int8")


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runtimes, "read_rows_to_compare", lambda *_: RowsToCompare(ROWS, "rows"))
    monkeypatch.setattr(autotune, "cache_folder", lambda: tmp_path)  # what is found is kept there
    use_eager_sessions(monkeypatch)


def cues_of(tmp_path: Path, *cases: str, task: Task = TASK) -> tuple[Backbone, list[Cue]]:
    """Cues on a backbone of their own: a runtime would stay on the one that tests share."""
    saved = [save_cue(tmp_path / case.replace(" ", "-"), task, case, seed=seed) for seed, case in enumerate(cases)]
    backbone = saved[0].backbone._new_view()
    assert all(cue.path is not None for cue in saved)
    return backbone, [softcue.load(str(cue.path), backbone) for cue in saved]


def test_cues_that_agree_run_in_the_runtime(tmp_path: Path) -> None:
    backbone, cues = cues_of(tmp_path, "prompt-tuning", "p-tuning-v2 kv")
    expected = [cue.predict("where is it")[0].scores for cue in cues]
    report = start_runtime(backbone, cues, OPENVINO)
    assert report.runtime == "openvino int8" and not report.in_torch
    assert report.compared == {cue.name: "12 rows of rows" for cue in cues}
    before = EagerSession.num_runs
    got = [cue.predict("where is it")[0].scores for cue in cues]
    assert EagerSession.num_runs == before + 2
    for one, other in zip(got, expected, strict=True):
        assert one is not None and other is not None
        assert all(abs(one[label] - other[label]) < 1e-4 for label in other)


def test_a_cue_whose_answers_differ_runs_in_torch_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, [cue] = cues_of(tmp_path, "prompt-tuning")
    expected = cue.predict("where is it")[0].scores
    monkeypatch.setattr(EagerSession, "error", 30.0)
    with pytest.warns(UserWarning, match=r"cue prompt-tuning runs in torch: other answers for \d+ of 12 rows"):
        report = start_runtime(backbone, [cue], OPENVINO)
    assert list(report.in_torch) == ["prompt-tuning"]
    before = EagerSession.num_runs
    assert cue.predict("where is it")[0].scores == expected
    assert EagerSession.num_runs == before


def many_rows() -> list[Example]:
    """Rows enough to find the margin below which answers differ."""
    return [
        Example((f"{'where' if number % 3 else 'who'} is parcel {number * 7919 % 1000} {'asking ' * (number % 9)}",))
        for number in range(200)
    ]


@pytest.mark.parametrize("allowed_share", [runtimes.LABELS, 1.0])
def test_rows_close_to_another_answer_run_again_in_torch(
    allowed_share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtimes, "LABELS", allowed_share)  # 1: also where few enough answers differ
    rows = many_rows()
    monkeypatch.setattr(runtimes, "read_rows_to_compare", lambda *_: RowsToCompare(rows, "rows"))
    backbone, [cue] = cues_of(tmp_path, "p-tuning-v2 kv")
    in_torch = runtimes._predict(cue, backbone, rows)
    monkeypatch.setattr(EagerSession, "error", 0.3)
    report = start_runtime(backbone, [cue], OPENVINO)
    margin = cue.model.recheck_margin
    assert margin > 0 and not report.in_torch
    assert report.compared[cue.name].endswith("of them run again in torch")
    got = runtimes._predict(cue, backbone, rows)
    assert [one.label for one in got] == [one.label for one in in_torch]
    cue.model.recheck_margin = 0.0
    plain = runtimes._predict(cue, backbone, rows)
    assert [one.label for one in plain] != [one.label for one in in_torch]
    unsure = [number for number, one in enumerate(plain) if one.margin is not None and one.margin < margin]
    assert 0 < len(unsure) <= len(rows) * runtimes.MOST_RECHECKED
    for number in range(len(rows)):  # rows that run again have torch's scores, the others those of the runtime
        expected = (in_torch if number in unsure else plain)[number].scores
        assert got[number].scores == pytest.approx(expected, abs=1e-5)
    # The next start finds what was measured.
    monkeypatch.setattr(runtimes, "_compare_answers", lambda *_: pytest.fail("it was compared again"))
    assert start_runtime(backbone, [cue], OPENVINO).compared == report.compared and cue.model.recheck_margin == margin


def test_a_margin_is_only_found_on_rows_enough() -> None:
    def answers(*scores: float) -> list[Prediction]:
        return [Prediction("a" if score > 0.5 else "b", scores={"a": score, "b": 1 - score}) for score in scores]

    in_torch = answers(*[0.9] * 199, 0.4)
    margin = runtimes._find_recheck_margin(answers(*[0.9] * 199, 0.6), in_torch)
    assert margin is not None and margin == pytest.approx(0.2)
    assert runtimes._find_recheck_margin(answers(*[0.9] * 49, 0.6), in_torch[-50:]) is None
    spans = [Prediction("x", spans=()), *in_torch[1:]]
    assert runtimes._find_recheck_margin(spans, in_torch) is None  # without scores there is no margin


def test_auto_counts_the_rows_that_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    trials: Any = [SimpleNamespace(why_uncompared=lambda runtime: "")]
    candidates: Any = [SimpleNamespace(name="openvino int8"), SimpleNamespace(name="onnx int8")]
    shares = {"openvino int8": 0.2, "onnx int8": 0.0}
    monkeypatch.setattr(
        runtimes, "_recall_comparison", lambda _, runtime: runtimes._Comparison("", 0.1, shares[runtime.name])
    )
    assert runtimes._choose({"openvino int8": 3.0, "onnx int8": 1.7}, candidates, trials) == "openvino int8"  # 1.9
    assert runtimes._choose({"openvino int8": 3.0, "onnx int8": 2.0}, candidates, trials) == "onnx int8"


def test_a_number_may_differ_by_a_tenth_of_a_deviation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, [cue] = cues_of(tmp_path, "prompt-tuning", task=STARS)
    assert not start_runtime(backbone, [cue], OPENVINO).in_torch
    monkeypatch.setattr(EagerSession, "error", 30.0)
    with pytest.warns(UserWarning, match="standard deviations"):
        start_runtime(backbone, [cue], RuntimeChoice("onnx", "int8"))


def test_what_was_found_is_kept_for_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, [cue] = cues_of(tmp_path, "prompt-tuning")
    start_runtime(backbone, [cue], OPENVINO)
    monkeypatch.setattr(runtimes, "_compare_answers", lambda *_: pytest.fail("it was compared again"))
    assert start_runtime(backbone, [cue], OPENVINO).compared == {"prompt-tuning": "12 rows of rows"}


def test_a_library_that_cannot_run_the_model_leaves_its_cues_in_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no such operation")

    monkeypatch.setattr(runtime, "build_session", fail)
    backbone, [cue] = cues_of(tmp_path, "prompt-tuning")
    with pytest.warns(UserWarning, match="openvino int8 cannot run this backbone: no such operation"):
        report = start_runtime(backbone, [cue], OPENVINO)
    assert report.runtime == "torch" and backbone.runtime is None


def test_prompts_that_read_states_of_shared_layers_run_in_torch(tmp_path: Path) -> None:
    saved = save_cue(tmp_path / "cue", TASK, "m-idpg-phm kv", "albert")
    backbone = saved.backbone._new_view()
    cue = softcue.load(str(saved.path), backbone)
    with pytest.warns(UserWarning, match="its layers share weights"):
        assert "cue" in start_runtime(backbone, [cue], OPENVINO).in_torch


def test_a_cue_that_changes_layers_or_enters_deeper_runs_in_torch_beside_the_others(tmp_path: Path) -> None:
    backbone, cues = cues_of(tmp_path, "prompt-tuning", "lora", "prompt-tuning late")
    with pytest.warns(UserWarning, match="runs in torch"):
        report = start_runtime(backbone, cues, OPENVINO)
    assert report.runtime == "openvino int8" and list(report.compared) == ["prompt-tuning"]
    assert report.in_torch["lora"] == "its method changes the layers themselves"
    assert report.in_torch["prompt-tuning-late"] == "its prompts enter at a deeper layer"


def test_without_rows_only_float32_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "read_rows_to_compare", lambda *_: RowsToCompare([], ""))
    backbone, [cue] = cues_of(tmp_path, "prompt-tuning")
    assert not start_runtime(backbone, [cue], RuntimeChoice("onnx", "float32")).in_torch
    with pytest.warns(UserWarning, match="no rows of its task"):
        start_runtime(backbone, [cue], OPENVINO)


def test_auto_takes_the_fastest_that_agrees_and_measures_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, cues = cues_of(tmp_path, "prompt-tuning")
    slower = {"openvino float32": 1.2, "openvino int8": 1.9, "onnx float32": 0.9, "onnx int8": 1.5}
    speeds = iter([{"torch": 1.0, "openvino bfloat16": 2.0, **slower}])
    monkeypatch.setattr(runtimes, "_measure_speeds", lambda *_: next(speeds))
    assert start_runtime(backbone, cues, RuntimeChoice("auto")).runtime == "openvino bfloat16"
    assert start_runtime(backbone, cues, RuntimeChoice("auto")).runtime == "openvino bfloat16"  # kept


def test_auto_compares_from_the_fastest_on_and_leaves_out_what_cannot_be_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone, [cue] = cues_of(tmp_path, "prompt-tuning")
    trial = runtimes._make_trial(cue, backbone, None)
    start_runtime(backbone, [cue], OPENVINO)
    running = backbone.runtime
    assert isinstance(running, LayerRuntime)
    views = {"torch": backbone.in_torch, "fast": backbone.with_runtime(running)}
    assert set(runtimes._measure_speeds(views, [trial])) == {"torch", "fast"}
    names = {"slow": RuntimeName("onnx", "float32"), "fast": RuntimeName("onnx", "int8"), "faster": running.name}
    candidates = []
    for name in names.values():
        candidate = copy.copy(running)
        candidate.name = name
        candidates.append(candidate)
    speeds = {"onnx float32": 0.5, "onnx int8": 1.5, "openvino int8": 2.0}
    num_passes = -(-len(trial.rows) // runtimes.ROWS_AT_ONCE)
    monkeypatch.setattr(runtimes, "recall_entry", lambda _, name, is_valid, measure: measure()[name])  # keep nothing
    before = EagerSession.num_runs
    assert runtimes._choose(speeds, candidates, [trial]) == "openvino int8"
    assert EagerSession.num_runs - before == num_passes  # the first agrees, so no other is compared
    assert runtimes._choose(speeds | {"openvino int8": 0.9, "onnx int8": 1.0}, candidates, [trial]) == "torch"
    monkeypatch.setattr(EagerSession, "error", 30.0)
    before = EagerSession.num_runs
    assert runtimes._choose(speeds, candidates, [trial]) == "torch"
    assert EagerSession.num_runs - before == 2 * num_passes  # not those of the one that is slower than torch


@pytest.mark.parametrize(
    ("in_torch", "chosen"),
    [
        ({"openvino int8": [], "onnx int8": []}, "openvino int8"),
        ({"openvino int8": [1], "onnx int8": []}, "openvino int8"),  # three of four cues 3 times as fast: 2.0 in all
        ({"openvino int8": [1, 2], "onnx int8": []}, "onnx int8"),  # half of them: 1.5 in all
        ({"openvino int8": [0, 1, 2, 3], "onnx int8": [0, 1, 2, 3]}, "torch"),
    ],
)
def test_auto_weighs_speed_against_cues_that_stay_in_torch(
    in_torch: dict[str, list[int]], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials: Any = [SimpleNamespace(cue=number, why_uncompared=lambda runtime: "") for number in range(4)]
    candidates: Any = [SimpleNamespace(name=name) for name in in_torch]
    monkeypatch.setattr(
        runtimes,
        "_recall_comparison",
        lambda trial, runtime: runtimes._Comparison("differs" if trial.cue in in_torch[runtime.name] else ""),
    )
    assert runtimes._choose({"openvino int8": 3.0, "onnx int8": 1.7}, candidates, trials) == chosen


def test_auto_takes_float32_where_no_rows_are_there_to_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "read_rows_to_compare", lambda *_: RowsToCompare([], ""))
    backbone, cues = cues_of(tmp_path, "prompt-tuning")
    speeds = {"torch": 1.0, "openvino float32": 1.2, "openvino bfloat16": 2.0, "openvino int8": 3.0}
    monkeypatch.setattr(runtimes, "_measure_speeds", lambda *_: speeds)
    report = start_runtime(backbone, cues, RuntimeChoice("openvino"))
    assert (report.runtime, report.in_torch) == ("openvino float32", {})


def test_a_cue_that_is_loaded_later_is_compared_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, [first] = cues_of(tmp_path, "prompt-tuning")
    start_runtime(backbone, [first], OPENVINO)
    saved = save_cue(tmp_path / "second", TASK, "p-tuning-v2 kv")
    before = EagerSession.num_runs
    second = softcue.load(str(saved.path), backbone)
    assert EagerSession.num_runs > before and not second.model.runs_in_torch
    assert admit(second).compared == {"second": "12 rows of rows"}
    third = save_cue(tmp_path / "third", TASK, "p-tuning-v2 kv", seed=1)
    monkeypatch.setattr(EagerSession, "error", 30.0)
    with pytest.warns(UserWarning, match="cue third runs in torch"):
        assert softcue.load(str(third.path), backbone).model.runs_in_torch


def test_a_backbone_that_is_no_float32_encoder_has_no_other_runtime(tmp_path: Path) -> None:
    saved = save_cue(tmp_path / "writer", TOPICS, "prompt-tuning", "t5")
    with pytest.raises(ConfigurationError, match="kind encoder-decoder"):
        start_runtime(saved.backbone, [saved], OPENVINO)
    assert start_runtime(saved.backbone, [saved], RuntimeChoice("auto")).runtime == "torch"
    backbone, [cue] = cues_of(tmp_path, "prompt-tuning")
    half = replace_dtype(backbone)
    with pytest.raises(ConfigurationError, match="compared with float32"):
        start_runtime(half, [cue], OPENVINO)


def replace_dtype(backbone: Backbone) -> Backbone:
    weights = {name: torch.nn.Parameter(value.bfloat16(), False) for name, value in backbone.weights().items()}
    return backbone.with_weights(weights)


def test_a_library_that_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softcue.backbones.runtimes.sessions.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="onnx"):
        RuntimeChoice("onnx").candidates()


def test_an_engine_gives_all_its_cues_a_runtime(tmp_path: Path) -> None:
    backbone, cues = cues_of(tmp_path, "prompt-tuning", "p-tuning-v2 parallel")
    named = {cue.name: cue for cue in cues}
    items = [(name, text) for text in ("where is it", "ok") for name in named]
    with Engine(backbone, named) as engine:
        expected = [result.prediction.label for result in engine.predict(items)]  # type: ignore[union-attr]
    with Engine(backbone, named, runtime="onnx", runtime_dtype="float32") as engine:
        before = EagerSession.num_runs
        assert [result.prediction.label for result in engine.predict(items)] == expected  # type: ignore[union-attr]
        assert EagerSession.num_runs > before


def test_the_command_line_gives_all_named_cues_a_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, cues = cues_of(tmp_path, "prompt-tuning", "p-tuning-v2 kv")
    monkeypatch.setattr("softcue.backbones.load_backbone", lambda config: backbone)
    paths = [cue.path for cue in cues if cue.path is not None]
    loaded = load_together(paths, None, False, runtime=("onnx", "float32", None))
    assert [cue.model.runs_in_torch for cue in loaded] == [False, False]
    assert isinstance(backbone.runtime, LayerRuntime)
    with pytest.raises(ConfigurationError, match="one of torch, openvino, onnx, auto"):
        load_together(paths, None, False, runtime=("tensorrt", "auto", None))
    with pytest.raises(ConfigurationError, match="a file of rows, or a folder of published files"):
        load_together(paths, None, False, runtime=("onnx", "auto", tmp_path / "nothing.csv"))
