"""Served answers are the offline ones, and what goes wrong with one item stays with it."""

from __future__ import annotations

import gc
import math
import os
import random
import shutil
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from serving_cues import CASES, LONG, TOPICS, items, save_cue
from tiny import tiny, tiny_model, tiny_tokenizer
from tolerance import REORDERED_FLOAT32, REORDERED_PROBABILITIES
from toy import make_model

from softcue.backbones import Backbone, BackboneConfig
from softcue.cue.cue import Cue
from softcue.errors import ConfigurationError
from softcue.evaluation import mean, vote
from softcue.inference import predict, predict_mixed
from softcue.serving.engine import engine as engine_module
from softcue.serving.engine.batcher import Batcher, Limits
from softcue.serving.engine.engine import Engine, choose_passes
from softcue.serving.engine.requests import BatchReport, Options, Result, ServedPrediction
from softcue.serving.errors import RequestError
from softcue.types import Example, Prediction


def same(result: Result, wanted: Prediction) -> None:
    """Equal but for what padding does to the last digits."""
    assert isinstance(result, ServedPrediction), result
    answer = result.prediction
    assert (answer.label, answer.spans, answer.is_illegal) == (wanted.label, wanted.spans, wanted.is_illegal)
    assert answer.value == (None if wanted.value is None else REORDERED_FLOAT32.approx(wanted.value))
    assert answer.scores == (None if wanted.scores is None else REORDERED_PROBABILITIES.approx(wanted.scores))


def offline(cues: dict[str, Cue], requests: list[tuple[str, Any]]) -> list[Prediction]:
    """What each cue itself answers, all of its texts at once."""
    predictions: list[Prediction | None] = [None] * len(requests)
    for name, cue in cues.items():
        places = [place for place, (cue_name, _) in enumerate(requests) if cue_name == name]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # texts that are cut
            answers = cue.predict([requests[place][1] for place in places]) if places else []
        for place, answer in zip(places, answers, strict=True):
            predictions[place] = answer
    return [answer for answer in predictions if answer is not None]


def codes(results: list[Result]) -> list[str]:
    return [result.code if isinstance(result, RequestError) else "" for result in results]


# --- equal answers ---


def test_cues_of_lora_and_prompts_are_served_together(tmp_path: Path) -> None:
    cases = {"updates": "lora", "prompt": "prompt-tuning"}
    cues = {name: save_cue(tmp_path / name, TOPICS, case) for name, case in cases.items()}
    requests = items(cues, 6)
    with Engine(tiny("bert"), tmp_path) as engine:
        results = engine.predict(requests)
    for result, wanted in zip(results, offline(cues, requests), strict=True):
        same(result, wanted)


def test_mixed_batches_answer_as_each_cue_does_offline(folder: Path, cues: dict[str, Cue]) -> None:
    requests = items(cues, 10 * len(cues))
    requests += [("names", LONG), ("questions", ["Who?", LONG]), ("topics", LONG), ("stars", LONG)]  # windows, cuts
    reports: list[BatchReport] = []
    with Engine(tiny("bert"), folder, on_batch=reports.append) as engine:
        results = engine.predict(requests)
    for result, wanted, (name, _) in zip(results, offline(cues, requests), requests, strict=True):
        same(result, wanted)
        assert isinstance(result, ServedPrediction)
        assert result.versions == {name: cues[name].cue_file.record_sha256[:12]}
    assert max(report.num_tasks for report in reports) == len(CASES)
    assert [result.is_truncated for result in results[-4:] if isinstance(result, ServedPrediction)] == [
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_written_answers_are_those_written_offline(kind: str, writing_cues: dict[str, dict[str, Cue]]) -> None:
    cues = writing_cues[kind]
    requests = items(cues, 4 * len(cues))
    path = cues["titles"].path
    assert path is not None
    with Engine(tiny(kind), path.parent) as engine:
        results = engine.predict(requests)
    for result, wanted in zip(results, offline(cues, requests), strict=True):
        same(result, wanted)


def test_small_batches_and_budgets_change_no_answer(folder: Path, cues: dict[str, Cue]) -> None:
    requests = items(cues, 30)
    reports: list[BatchReport] = []
    limits = Limits(max_in_flight=7, token_budget=120, max_rows=3)
    with Engine(tiny("bert"), folder, limits, on_batch=reports.append) as engine:
        results = engine.predict(requests)
    for result, wanted in zip(results, offline(cues, requests), strict=True):
        same(result, wanted)
    assert max(report.num_rows for report in reports) <= 3
    assert all(report.num_tokens + report.num_padding <= 120 or report.num_rows == 1 for report in reports)


# --- several passes at a time ---


@pytest.fixture
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def test_passes_run_side_by_side_and_answer_as_one_does(
    folder: Path, cues: dict[str, Cue], four_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [*items(cues, 10 * len(cues)), ("names", LONG), ("questions", ["Who?", LONG])]  # several windows each
    both = threading.Barrier(2)
    threads: list[tuple[int, int]] = []
    first_passes = iter(range(2))

    def predict_beside_another(*args: Any) -> list[Prediction]:
        if next(first_passes, None) is not None:
            both.wait(20)  # a pass alone would wait in vain
        threads.append((threading.get_ident(), torch.get_num_threads()))
        return predict_mixed(*args)

    monkeypatch.setattr(engine_module, "predict_mixed", predict_beside_another)
    with Engine(tiny("bert"), folder, Limits(max_rows=3, passes_at_once=2)) as engine:
        results = engine.predict(requests)
        assert (engine.num_in_flight, engine.num_waiting, engine.is_alive) == (0, 0, True)
    for result, wanted in zip(results, offline(cues, requests), strict=True):
        same(result, wanted)
    assert len({thread for thread, _ in threads}) == 2 and {number for _, number in threads} == {2}
    assert torch.get_num_threads() == 4  # as before the engine


def test_an_ensemble_may_be_predicted_by_several_passes(folder: Path, cues: dict[str, Cue]) -> None:
    names = [name for name in cues if cues[name].task.name == cues["topics"].task.name]
    wanted = vote([cues[name].predict(["My invoice is wrong."])[0] for name in names])
    with Engine(tiny("bert"), folder, Limits(max_rows=1, passes_at_once=3)) as engine:
        results = engine.predict([(names, "My invoice is wrong.")] * 20, ensemble="vote")
    assert len(names) > 1
    for result in results:
        assert isinstance(result, ServedPrediction) and result.prediction.label == wanted.label


def test_the_end_of_one_thread_ends_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[BaseException] = []

    def fail(*_: Any) -> Any:
        raise SystemError("boom")

    monkeypatch.setattr(Batcher, "exchange", fail)
    with Engine(tiny("bert"), folder, Limits(passes_at_once=3)) as engine:
        engine.on_failure(errors.append)
        with pytest.raises(RequestError, match="inference thread has ended"):
            engine.predict([("topics", "first")])
    assert [str(error) for error in errors] == ["boom"]


@pytest.mark.parametrize(
    ("kind", "num_threads", "expected"), [("bert", 4, 2), ("bert", 1, 1), ("t5", 4, 1), ("gpt2", 4, 1)]
)
def test_encoders_on_a_processor_run_two_passes_at_a_time(kind: str, num_threads: int, expected: int) -> None:
    assert choose_passes(tiny(kind), num_threads, Limits(passes_at_once=None)) == expected


def test_passes_that_change_the_model_run_one_at_a_time() -> None:
    factors = {"long_factor": [9.0] * 4, "short_factor": [1.0] * 4, "original_max_position_embeddings": 32}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, **factors}
    model = tiny_model("phi3", original_max_position_embeddings=32, rope_parameters=rope)
    backbone = Backbone(model, tiny_tokenizer("phi3"), "longrope")
    assert choose_passes(backbone, 4, Limits(passes_at_once=None)) == 1
    assert choose_passes(backbone, 4, Limits()) == 1
    with pytest.raises(ConfigurationError, match="passes_at_once: got 2; expected 1 with longrope"):
        choose_passes(backbone, 4, Limits(passes_at_once=2))


def test_engines_that_are_built_side_by_side_leave_torchs_threads_to_others(
    folder: Path, four_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One build stands where its threads have taken their shares and the common number is not restored yet."""
    numbers: list[int] = []  # the common number that each build found
    has_shares, may_go_on = threading.Event(), threading.Event()
    set_number = torch.set_num_threads

    def set_and_wait(number: int) -> None:
        set_number(number)
        if threading.current_thread().name.startswith("softcue-inference") and not has_shares.is_set():
            has_shares.set()
            may_go_on.wait(20)

    def choose(*_: Any) -> int:
        numbers.append(torch.get_num_threads())
        return 2

    monkeypatch.setattr(torch, "set_num_threads", set_and_wait)
    monkeypatch.setattr(engine_module, "choose_passes", choose)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(Engine, tiny("bert"), folder, Limits(passes_at_once=2))
        assert has_shares.wait(20)
        second = pool.submit(Engine, tiny("bert"), folder, Limits(passes_at_once=2))
        time.sleep(0.5)  # it could begin now
        assert numbers == [4]
        may_go_on.set()
        engines = [first.result(20), second.result(20)]
        assert pool.submit(torch.get_num_threads).result() == 4
    for engine in engines:
        engine.close()
    assert numbers == [4, 4]


def test_an_engine_whose_cost_of_a_pass_cannot_be_measured_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Backbone, "pass_tokens", property(lambda _: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        Engine(tiny("bert"), folder, Limits(passes_at_once=2))


def test_a_thread_that_does_not_start_ends_the_others_and_leaves_torchs_threads_as_they_were(
    folder: Path, four_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = threading.Thread.start, []

    def start_one(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    with pytest.raises(RuntimeError, match="can't start"):
        Engine(tiny("bert"), folder, Limits(passes_at_once=2))
    monkeypatch.undo()
    started[0].join(20)
    assert not started[0].is_alive()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == 4


def test_passes_that_fail_do_not_count_as_slow_predictions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def predict_slowly(backbone: Backbone, rows: Any, *rest: Any) -> list[Prediction]:
        if any(model.task.name == "tone" for model, _ in rows):
            time.sleep(0.2)
            raise RuntimeError("broken cue")
        return predict_mixed(backbone, rows, *rest)

    with Engine(tiny("bert"), folder, Limits(max_rows=1)) as engine:
        engine.predict([("topics", "first")])
        monkeypatch.setattr(engine_module, "predict_mixed", predict_slowly)
        engine.predict([("tone-vip", "first")] * 10)  # 4 seconds
        engine.predict([("topics", "first")])
        assert engine._batcher.prediction_seconds < 0.2


def test_backbone_may_be_given_by_name(model_folders: dict[str, Path], folder: Path, cues: dict[str, Cue]) -> None:
    with Engine(str(model_folders["bert"]), folder) as engine:
        same(engine.predict([("topics", "ok")])[0], cues["topics"].predict(["ok"])[0])


@pytest.mark.parametrize("use_disk_cache", [True, False])
def test_sentence_vectors_go_to_disk_only_with_the_disk_cache(
    use_disk_cache: bool, folder: Path, cues: dict[str, Cue], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOFTCUE_HOME", str(tmp_path))
    monkeypatch.setenv("SOFTCUE_CACHE_MB", "16")
    with Engine(tiny("bert"), folder, use_disk_cache=use_disk_cache) as engine:
        [result] = engine.predict([("topics-idpg", "a text that no other test has")])
    assert any(path.suffix == ".sqlite" for path in tmp_path.rglob("*")) is use_disk_cache
    same(result, cues["topics-idpg"].predict(["a text that no other test has"])[0])


# --- items with an error ---


def test_bad_items_do_not_fail_their_neighbours(engine: Engine, cues: dict[str, Cue]) -> None:
    requests: list[tuple[Any, Any]] = [
        ("topics", "My invoice is wrong."),
        ("nothing", "x"),
        ("topics", " "),
        ("pairs", "one text"),
        ("topics", "\ud800"),
        (["topics"], "x"),
        ("topics", ["a", "b"]),
        ("topics", "x" * 20_001),
        ("topics", None),
        (None, "x"),
        ("tone-vip", "ok"),
    ]
    results = engine.predict(requests)
    assert codes(results) == ["", "unknown_task", *["invalid"] * 5, "too_long", "invalid", "invalid", ""]
    same(results[0], cues["topics"].predict(["My invoice is wrong."])[0])
    same(results[-1], cues["tone-vip"].predict(["ok"])[0])


def test_long_texts_are_cut_only_if_requested(engine: Engine) -> None:
    requests = [("topics", LONG), ("names", LONG), ("topics", "ok")]
    assert codes(engine.predict(requests, truncate=False)) == ["too_long", "", ""]
    assert codes(engine.predict(requests)) == ["", "", ""]


def test_example_that_cannot_be_read_gets_its_own_error(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    model = engine.registry["topics"].cue.model
    plain = model.rows

    def rows(backbone: Any, examples: Any, **more: Any) -> Any:
        if any("poison" in example.texts[0] for example in examples):
            raise KeyError("poison")
        return plain(backbone, examples, **more)

    monkeypatch.setattr(model, "rows", rows)
    assert codes(engine.predict([("topics", "a"), ("topics", "poison"), ("topics", "b")])) == ["", "failed", ""]


# --- ensembles ---


@pytest.mark.parametrize(("ensemble", "join"), [("vote", vote), ("mean", mean)])
def test_ensembles_are_one_batch_and_equal_offline_ones(
    ensemble: Any, join: Callable[..., Prediction], folder: Path, cues: dict[str, Cue]
) -> None:
    reports: list[BatchReport] = []
    with Engine(tiny("bert"), folder, on_batch=reports.append) as engine:
        result = engine.predict([("tone", "At last it came")], ensemble=ensemble)[0]
    names = ["tone-adapter", "tone-late", "tone-vip"]
    same(result, join([cues[name].predict(["At last it came"])[0] for name in names]))
    assert isinstance(result, ServedPrediction)
    assert list(result.versions) == names
    assert sum(result.votes.values()) == 3
    assert [report.num_tasks for report in reports] == [3]
    assert "versions" in result.as_dict()


def test_ensembles_of_named_cues(engine: Engine, cues: dict[str, Cue]) -> None:
    pair = ["topics", "topics-idpg", "topics"]
    requests = [(pair, "Where is it"), (["topics", "pairs"], "x"), ("nothing", "x"), (["topics", "no"], "x")]
    results = engine.predict(requests, ensemble="vote")
    assert codes(results) == ["", "invalid", "unknown_task", "unknown_task"]
    same(results[0], vote([cues[name].predict(["Where is it"])[0] for name in pair[:2]]))


def test_mean_of_answers_without_scores_is_an_error(engine: Engine) -> None:
    assert codes(engine.predict([(["names"], "Ann")], ensemble="mean")) == ["invalid"]


def test_ensemble_larger_than_the_queue_gets_its_own_error(folder: Path) -> None:
    with Engine(tiny("bert"), folder, Limits(max_in_flight=2)) as engine:
        results = [engine.predict([("tone", "x")], ensemble="vote")[0], engine.predict([("stars", "x")])[0]]
    assert codes(results) == ["too_many", ""]


# --- generation ---


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_text_is_generated_to_the_requested_length(kind: str, writing_cues: dict[str, dict[str, Cue]]) -> None:
    path = writing_cues[kind]["titles"].path
    assert path is not None
    with Engine(tiny(kind), path.parent, max_new_tokens=9) as engine:

        def written(**options: Any) -> Result:
            [pending] = engine.submit([("titles", "My invoice is wrong.")], Options(must_generate=True, **options))
            return pending.result.result(10)

        whole, short = written(), written(max_new_tokens=2)
        assert isinstance(whole, ServedPrediction) and isinstance(short, ServedPrediction)
        text = whole.prediction.label or ""
        assert text.startswith((short.prediction.label or "").rstrip("�"))
        assert len(short.prediction.label or "") < len(text)
        same(written(max_new_tokens=6), whole.prediction)
        same(written(stop=(text[2:4],)), replace(whole.prediction, label=text[: text.find(text[2:4])].rstrip()))
        same(written(stop=("nowhere",)), whole.prediction)
        for wrong in ({"max_new_tokens": 10}, {"max_new_tokens": 0}):
            assert codes([written(**wrong)]) == ["invalid"]
        [rejected] = engine.submit([("topics", "x")], Options(must_generate=True))
        assert codes([rejected.result.result()]) == ["invalid"]


# --- errors in a pass ---


def failing(monkeypatch: pytest.MonkeyPatch, is_bad: Callable[[int, list[Any]], bool], error: Exception) -> list[int]:
    """Passes that fail where told; returns the sizes of all, as they come."""
    sizes: list[int] = []
    plain = engine_module.predict_mixed

    def run(backbone: Any, rows: Any, *more: Any) -> Any:
        sizes.append(len(rows))
        if is_bad(len(sizes), rows):
            raise error
        return plain(backbone, rows, *more)

    monkeypatch.setattr(engine_module, "predict_mixed", run)
    return sizes


@pytest.mark.parametrize("error", [RuntimeError("boom"), MemoryError()])
def test_failed_batch_is_split_once_and_answered(
    error: Exception, folder: Path, cues: dict[str, Cue], monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [("topics", f"text {number}") for number in range(8)]
    with Engine(tiny("bert"), folder) as engine:
        sizes = failing(monkeypatch, lambda _, rows: len(rows) > 4, error)
        results = engine.predict(requests)
        assert sizes == [8, 4, 4]
        for result, wanted in zip(results, offline(cues, requests), strict=True):
            same(result, wanted)


def test_rows_that_fail_twice_get_an_error_and_the_engine_lives(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine(tiny("bert"), folder) as engine:
        sizes = failing(monkeypatch, lambda number, _: number in (1, 3), RuntimeError("boom"))
        results = engine.predict([("topics", f"text {number}") for number in range(8)])
        assert sorted(codes(results)) == [""] * 4 + ["failed"] * 4
        assert sizes == [8, 4, 4]
        assert codes(engine.predict([("topics", "again")])) == [""]
        assert (engine.num_in_flight, engine.num_waiting, engine.is_alive) == (0, 0, True)


def test_nobody_waits_for_an_inference_thread_that_has_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go, errors = threading.Event(), []

    def end(*_: Any) -> Any:
        assert go.wait(20)
        raise SystemError("boom")

    monkeypatch.setattr(Batcher, "exchange", end)
    with Engine(tiny("bert"), folder, Limits(max_in_flight=3)) as engine:
        engine.on_failure(errors.append)
        pending = engine.submit([("topics", "first"), ("topics", "second")], Options())
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(engine.predict, [("topics", "third")] * size) for size in (1, 3)]
            time.sleep(0.05)
            go.set()
            for future in waiting:
                with pytest.raises(RequestError, match="inference thread has ended"):
                    future.result(20)
        assert codes([request.result.result(20) for request in pending]) == ["failed"] * 2
        with pytest.raises(RequestError, match="inference thread has ended"):
            engine.submit([("topics", "late")], Options())
        with pytest.raises(RequestError, match="inference thread has ended"):
            engine.predict([("topics", "late")])
        engine.on_failure(errors.append)
    assert [str(error) for error in errors] == ["boom"] * 2


def test_deterministic_engine_computes_in_float32(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dtypes: list[str] = []

    def load(config: BackboneConfig) -> Backbone:
        dtypes.append(config.dtype)
        return tiny("bert")

    monkeypatch.setattr(engine_module, "recorded_settings", lambda *_: {"dtype": "auto"})
    monkeypatch.setattr(engine_module, "load_backbone", load)
    for deterministic in (False, True):
        Engine("tiny-bert", folder, deterministic=deterministic).close()
    assert dtypes == ["auto", "float32"]


def test_the_operator_says_how_the_backbone_is_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configs: list[BackboneConfig] = []

    def load(config: BackboneConfig) -> Backbone:
        configs.append(config)
        return tiny("bert")

    monkeypatch.setattr(engine_module, "load_backbone", load)
    Engine("tiny-bert", folder, device="cpu", dtype="bfloat16", attention="eager", quantization="int4").close()
    [config] = configs
    assert (config.device, config.dtype, config.attention, config.quantization) == ("cpu", "bfloat16", "eager", "int4")


def test_settings_that_cannot_hold_are_errors(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="dtype: got 'bfloat16'; expected float32, as deterministic says"):
        Engine("tiny-bert", folder, deterministic=True, dtype="bfloat16")
    with pytest.raises(ConfigurationError, match="quantization: got 'int8'; expected no such setting beside"):
        Engine(tiny("bert"), folder, quantization="int8")
    with pytest.raises(ConfigurationError, match=r"backbone.dtype: got 'int3'; expected 'auto'"):
        Engine("tiny-bert", folder, dtype="int3")  # type: ignore[arg-type]


def test_neighbours_change_a_probability_in_bfloat16_by_little() -> None:
    backbone = Backbone(tiny_model("bert").to(torch.bfloat16), tiny_tokenizer("bert"), "tiny-bert")
    model = make_model(backbone, readout={"name": "classifier"})
    examples = [Example((f"the parcel {number} " * (1 + number % 7),)) for number in range(24)]
    together = predict(backbone, [(model, example) for example in examples]).predictions
    for example, answer in zip(examples, together, strict=True):
        [alone] = predict(backbone, [(model, example)]).predictions
        assert answer.scores == pytest.approx(alone.scores, abs=0.02)
        best, second, *_ = sorted((alone.scores or {}).values(), reverse=True)
        assert answer.label == alone.label or best - second < 0.04


def test_failed_window_fails_its_text_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine(tiny("bert"), folder, Limits(max_rows=1)) as engine:
        failing(monkeypatch, lambda number, _: number < 3, RuntimeError("boom"))
        assert codes(engine.predict([("names", LONG), ("topics", "ok")])) == ["failed", ""]
        assert engine.num_in_flight == 0


def test_answers_that_are_no_numbers_are_not_sent(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = Prediction(None, value=math.nan)
    monkeypatch.setattr(engine_module, "predict_mixed", lambda _, rows, *more: [nothing] * len(rows))
    assert codes(engine.predict([("stars", "ok")])) == ["failed"]


# --- waiting, leaving, ending ---


def test_dropped_items_are_never_run(engine: Engine, held: Any, until: Callable[..., None]) -> None:
    first = engine.submit([("topics", "first")], Options())
    assert held.has_begun.wait(10)
    others = engine.submit([("topics", f"text {number}") for number in range(5)], Options())
    for pending in others[1:]:
        pending.drop()
    held.go.set()
    assert codes([pending.result.result(10) for pending in (*first, *others)]) == ["", "", *["deadline"] * 4]
    assert held.sizes == [1, 1]
    until(lambda: engine.num_in_flight == 0)


def test_items_that_wait_too_long_get_an_error(engine: Engine, held: Any) -> None:
    first = engine.submit([("topics", "first")], Options())
    assert held.has_begun.wait(10)
    late = engine.submit([("topics", "late"), ("names", LONG)], Options(), seconds=0.01)
    time.sleep(0.02)
    held.go.set()
    assert codes([pending.result.result(10) for pending in (*first, *late)]) == ["", "deadline", "deadline"]
    assert held.sizes == [1]


def test_room_is_bounded_for_those_who_submit(folder: Path, held: Any, until: Callable[..., None]) -> None:
    with Engine(tiny("bert"), folder, Limits(max_in_flight=3)) as engine:
        taken = engine.submit([("topics", "a"), ("topics", "b")], Options())
        with pytest.raises(RequestError, match="busy"):
            engine.submit([("topics", "c"), ("topics", "d")], Options())
        held.go.set()
        assert codes([pending.result.result(10) for pending in taken]) == ["", ""]
        until(lambda: engine.num_in_flight == 0)
        assert codes(engine.predict([("topics", f"text {number}") for number in range(20)])) == [""] * 20


def test_closing_answers_what_was_taken(folder: Path, held: Any) -> None:
    engine = Engine(tiny("bert"), folder, Limits(max_rows=2))
    taken = engine.submit([("topics", f"text {number}") for number in range(7)], Options())
    engine.drain()
    assert engine.is_draining
    with pytest.raises(RequestError, match="draining"):
        engine.submit([("topics", "late")], Options())
    assert codes(engine.predict([("topics", "late"), ("nothing", "x")])) == ["draining", "unknown_task"]
    held.go.set()
    engine.close()
    assert not engine.is_alive
    assert codes([pending.result.result(0) for pending in taken]) == [""] * 7


def test_replaced_cue_finishes_its_rows_on_the_old_version(tmp_path: Path, held: Any) -> None:
    old = save_cue(tmp_path / "topics", TOPICS, seed=1)
    with Engine(tiny("bert"), tmp_path) as engine:
        first = engine.submit([("topics", "first")], Options())
        assert held.has_begun.wait(10)
        waiting = engine.submit([("topics", "second")], Options())
        new = save_cue(tmp_path / "topics", TOPICS, seed=2)
        engine.registry.load("topics")
        later = engine.submit([("topics", "second")], Options())
        engine.registry.unload("topics")
        held.go.set()
        same(first[0].result.result(10), old.predict(["first"])[0])
        same(waiting[0].result.result(10), old.predict(["second"])[0])
        same(later[0].result.result(10), new.predict(["second"])[0])


def test_replaced_cues_leave_the_memory_at_once(tmp_path: Path, until: Callable[..., None]) -> None:
    save_cue(tmp_path / "topics", TOPICS, seed=1)
    with Engine(tiny("bert"), tmp_path) as engine:
        old = weakref.ref(engine.registry["topics"].cue)
        engine.predict([("topics", "ok"), ("topics", "x y z")])
        gc.disable()
        try:
            engine.registry.load("topics")
            until(lambda: old() is None, 5)
        finally:
            gc.enable()


def test_many_threads_while_cues_come_and_go(tmp_path: Path) -> None:
    """No answer is wrong, lost or of another row, whatever is replaced or unloaded meanwhile."""
    versions: dict[str, Cue] = {}
    stock = tmp_path / "stock"
    for seed in range(3):
        cue = save_cue(stock / f"topics{seed}", TOPICS, seed=seed)
        versions[cue.cue_file.record_sha256[:12]] = cue
    root = tmp_path / "cues"
    for name in ("fixed", "swapped", "leaving"):
        shutil.copytree(stock / "topics0", root / name)
    texts = [f"{word} {number}" for number in range(8) for word in ("order", "my invoice is wrong and late", "ok")]
    wanted = {version: dict(zip(texts, cue.predict(texts), strict=True)) for version, cue in versions.items()}
    is_over = threading.Event()

    def swap(engine: Engine) -> int:
        count = 0
        while not is_over.is_set():
            fresh = shutil.copytree(stock / f"topics{count % 3}", tmp_path / f"fresh{count}")
            os.rename(root / "swapped", tmp_path / f"old{count}")
            os.rename(fresh, root / "swapped")
            engine.registry.load("swapped")
            engine.registry.unload("leaving")
            engine.registry.load("leaving")
            count += 1
        return count

    def ask(engine: Engine, seed: int) -> int:
        draw, num_errors = random.Random(seed), 0
        for _ in range(25):
            requests = [(draw.choice(["fixed", "swapped", "leaving"]), draw.choice(texts)) for _ in range(6)]
            results = engine.predict(requests)
            assert len(results) == len(requests)
            for (name, text), result in zip(requests, results, strict=True):
                if isinstance(result, RequestError):
                    assert (name, result.code) == ("leaving", "unknown_task")
                    num_errors += 1
                    continue
                assert list(result.versions) == [name]
                same(result, wanted[result.versions[name]][text])
        return num_errors

    with Engine(tiny("bert"), root) as engine, ThreadPoolExecutor(5) as pool:
        swapping = pool.submit(swap, engine)
        asking = [pool.submit(ask, engine, seed) for seed in range(4)]
        try:
            assert sum(future.result(60) for future in asking) < 4 * 25 * 6 / 3
        finally:
            is_over.set()
        assert swapping.result(10) > 2
        assert engine.num_in_flight == 0


def test_what_waits_is_expected_to_take_its_time(folder: Path, held: Any, until: Callable[..., None]) -> None:
    with Engine(tiny("bert"), folder) as engine:
        assert engine.expected_seconds == 0
        held.go.set()
        engine.predict([("topics", "ok")])
        assert engine.expected_seconds == 0  # nothing waits
        until(lambda: engine._batcher.prediction_seconds > 0)  # it is measured after the result is there
        held.go.clear()
        results = engine.submit([("topics", "ok")] * 4, Options())
        several = engine.expected_seconds
        assert several == pytest.approx(4 * engine._batcher.prediction_seconds) and several > 0
        held.go.set()
        for pending in results:
            pending.result.result(20)


def test_requests_that_would_outlast_the_deadline_are_rejected_at_once(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serve(deadline=2.0)
    body = {"inputs": [{"task": "topics", "text": "ok"}]}
    assert client.post("/v1/predict", json=body).status_code == 200
    monkeypatch.setattr(Engine, "expected_seconds", property(lambda _: 3.0))
    response = client.post("/v1/predict", json=body)
    assert response.status_code == 429 and response.headers["Retry-After"] == "2"  # when half of three seconds are over
