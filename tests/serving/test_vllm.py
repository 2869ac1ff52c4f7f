"""Decoders that vLLM runs: the protocol against a small server, and the same predictions as those of this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fake_vllm import FakeVllm, running
from serving_cues import STARS, TEXTS, TITLES, TONE, TOPICS, save_cue
from tiny import tiny
from tolerance import REORDERED_FLOAT32
from toy import SETS

from softcue.cue.cue import Cue, load
from softcue.errors import BackboneError, ConfigurationError, CueError, RunError
from softcue.serving.engine.engine import Engine
from softcue.serving.engine.requests import Options, ServedPrediction
from softcue.serving.errors import RequestError
from softcue.serving.vllm import client as vllm_client
from softcue.serving.vllm.client import VllmClient, VllmError, check_is_private
from softcue.serving.vllm.connect import VllmSettings, check_cue, on_vllm
from softcue.serving.vllm.process import VllmProcess

FAMILY = "llama"
WORDS = {"name": "label-words"}
CASES = {  # cue -> task, method, readout
    "ranked": (TOPICS, "prompt-tuning", {}),
    "ranked-vip": (TOPICS, "vip", {}),
    "ranked-numbers": (STARS, "vip-c", {}),
    "words": (TONE, "prompt-tuning", WORDS),
    "words-idpg": (TONE, "s-idpg-phm", WORDS),
    "by-hand": (TOPICS, "manual-prompt", {}),
    "titles": (TITLES, "prompt-tuning", {}),
    "titles-idpg": (TITLES, "s-idpg-phm", {}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cues")
    for name, (task, method, readout) in CASES.items():
        save_cue(path / name, task, method, FAMILY, readout=readout)
    return path


@pytest.fixture
def vllm() -> Iterator[FakeVllm]:
    with running(tiny(FAMILY)) as server:
        yield server


def served(vllm: FakeVllm) -> VllmSettings:
    return VllmSettings(url=vllm.url)


def predictions(results: list[ServedPrediction | RequestError]) -> list[ServedPrediction]:
    assert all(isinstance(result, ServedPrediction) for result in results), results
    return [result for result in results if isinstance(result, ServedPrediction)]


def test_mixed_cues_predict_as_in_this_process(folder: Path, vllm: FakeVllm) -> None:
    items = [(name, text) for text in TEXTS for name in CASES]
    with Engine(tiny(FAMILY), folder) as local:
        expected = predictions(local.predict(items))
    with Engine(on_vllm(tiny(FAMILY), served(vllm)), folder) as engine:
        assert engine.registry.broken() == {}
        results = predictions(engine.predict(items))
    for wanted, got in zip(expected, results, strict=True):
        assert (got.prediction.label, got.prediction.value) == (wanted.prediction.label, wanted.prediction.value)
        assert got.is_truncated == wanted.is_truncated and got.is_ended == wanted.is_ended
        for label, score in (wanted.prediction.scores or {}).items():
            assert abs((got.prediction.scores or {})[label] - score) < 1e-5


def test_rows_of_a_cue_are_one_request_and_those_behind_a_beginning_another(folder: Path, vllm: FakeVllm) -> None:
    backbone = on_vllm(tiny(FAMILY), served(vllm))
    vllm.bodies.clear()
    with Engine(backbone, {"ranked": load(folder / "ranked", backbone)}) as engine:
        predictions(engine.predict([("ranked", text) for text in TEXTS]))
    first, second = vllm.bodies
    candidates = [tuple(ids.tolist()) for ids in load(folder / "ranked", backbone).model.readout.candidates]
    beginnings = {ids[:length] for ids in candidates for length in range(1, len(ids))}
    assert len(first["prompt_embeds"]) == len(TEXTS)
    assert sorted(first["logprob_token_ids"]) == sorted({ids[0] for ids in candidates})
    assert len(second["prompt_embeds"]) == len(TEXTS) * len(beginnings)


def test_large_requests_are_split(folder: Path, vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch) -> None:
    client = VllmClient(vllm.url)
    inputs = [torch.randn(3 + row, 32) for row in range(5)]
    whole = client.log_probabilities(inputs, list(range(6)))
    vllm.bodies.clear()
    monkeypatch.setattr(vllm_client, "REQUEST_BYTES", 2 * 7 * 32 * 4)
    monkeypatch.setattr(vllm_client, "TOKENS_OF_REQUEST", 4)
    REORDERED_FLOAT32.assert_close(client.log_probabilities(inputs, list(range(6))), whole)
    assert sorted(len(body["prompt_embeds"]) for body in vllm.bodies) == [1, 1, 2, 2, 2, 2]


def test_text_is_streamed_and_ends_at_a_stop_word(folder: Path, vllm: FakeVllm) -> None:
    parts: list[str] = []
    with Engine(on_vllm(tiny(FAMILY), served(vllm)), folder) as engine:
        [request] = engine.submit([("titles", TEXTS[0])], Options(), on_text=lambda _, part: parts.append(part))
        text = predictions([request.result.result(30)])[0].prediction.label_text
        assert text and "".join(parts) == text and len(parts) > 1
        num_bodies = len(vllm.bodies)
        [request] = engine.submit([("titles", TEXTS[0])], Options(stop=(text[0],)))
        assert predictions([request.result.result(30)])[0].prediction.label == ""
        assert len(vllm.bodies) > num_bodies


@pytest.mark.parametrize(
    ("last_event", "message"), [(b"", "ends too early"), (b'data: {"error": "out of memory"}\n\n', "out of memory")]
)
def test_a_text_that_breaks_off_is_an_error(vllm: FakeVllm, last_event: bytes, message: str) -> None:
    vllm.last_event = last_event
    with pytest.raises(VllmError, match=message):
        VllmClient(vllm.url).generate([torch.randn(4, 32)], 3, 1, [None])


def test_texts_are_cut_to_what_vllm_takes(folder: Path, vllm: FakeVllm) -> None:
    vllm.max_model_len = 40
    with Engine(on_vllm(tiny(FAMILY), served(vllm)), folder) as engine:
        [result] = predictions(engine.predict([("words", "so long " * 60)]))
    assert result.is_truncated


@pytest.mark.parametrize(
    ("case", "readout", "message"),
    [
        ("m-idpg-phm", {}, r"method\.name: got 'm-idpg-phm'.*deeper layers, or are keys and values"),
        ("prefix-tuning", {}, r"method\.name: got 'prefix-tuning'.*--engine local"),
        ("prompt-tuning late", {}, r"method\.insert_layer: got 1"),
        ("lora", {}, r"method\.name: got 'lora'.*changes what layers compute"),
        ("prompt-tuning tuned", {}, r"method\.name.*own weights of the backbone"),
        ("prompt-tuning", {"decoding": "beam"}, r"readout\.decoding: got 'beam'"),
        ("prompt-tuning", {"decoding": "sample"}, r"readout\.decoding: got 'sample'"),
    ],
)
def test_what_is_not_in_the_input_is_refused(tmp_path: Path, case: str, readout: dict[str, str], message: str) -> None:
    cue = save_cue(tmp_path / "cue", TOPICS, case, FAMILY, readout=readout)
    with pytest.raises(CueError, match=message):
        check_cue("cue", cue.model, cue.backbone)


def test_a_head_is_refused(tmp_path: Path) -> None:
    cue = save_cue(tmp_path / "cue", SETS, "prompt-tuning", FAMILY)
    with pytest.raises(CueError, match=r"readout\.name: got 'classifier'.*hidden states"):
        check_cue("cue", cue.model, cue.backbone)


def test_a_server_reports_a_cue_that_vllm_cannot_run_and_serves_the_others(tmp_path: Path, vllm: FakeVllm) -> None:
    save_cue(tmp_path / "deep", TOPICS, "m-idpg-phm", FAMILY)
    save_cue(tmp_path / "good", TOPICS, "prompt-tuning", FAMILY)
    with Engine(on_vllm(tiny(FAMILY), served(vllm)), tmp_path) as engine:
        assert list(engine.registry.broken()) == ["deep"]
        assert "--engine local" in engine.registry.broken()["deep"].message
        predictions(engine.predict([("good", "ok")]))


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_other_kinds_of_backbone_are_refused(vllm: FakeVllm, family: str) -> None:
    with pytest.raises(BackboneError, match=r"expected a decoder.*--engine local"):
        on_vllm(tiny(family), served(vllm))


def test_another_model_is_noticed(vllm: FakeVllm) -> None:
    with pytest.raises(BackboneError, match=r"differ by .*start it on the files of tiny-qwen2.*--dtype float32"):
        on_vllm(tiny("qwen2"), served(vllm))


def test_a_pass_that_fails_once_is_run_again_and_its_rows_have_predictions(folder: Path, vllm: FakeVllm) -> None:
    with Engine(on_vllm(tiny(FAMILY), served(vllm)), folder) as engine:
        vllm.num_failures = 1
        predictions(engine.predict([("words", text) for text in TEXTS]))
        vllm.num_failures = 100
        [result] = engine.predict([("words", "ok")])
        assert isinstance(result, RequestError) and result.code == "failed"
        vllm.num_failures = 0
        predictions(engine.predict([("words", "ok")]))


def test_an_ended_process_ends_the_engine(folder: Path, vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(on_vllm(tiny(FAMILY), served(vllm)), folder)
    monkeypatch.setattr(VllmClient, "is_alive", False)
    vllm.num_failures = 100
    with pytest.raises(RequestError, match="inference thread has ended"):
        engine.predict([("words", "ok")])
    engine.close()


@pytest.mark.parametrize(
    ("answer", "message"),
    [(b"<html>", "check which server this is"), (b'{"data": []}', "IndexError")],
)
def test_an_answer_of_another_server_is_one_line(vllm: FakeVllm, answer: bytes, message: str) -> None:
    vllm.answer = answer
    with pytest.raises(VllmError, match=message):
        VllmClient(vllm.url)


def test_the_key_is_sent_and_a_wrong_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tiny(FAMILY), key="secret") as server:
        monkeypatch.setenv("SOFTCUE_VLLM_KEY", "secret")
        assert on_vllm(tiny(FAMILY), served(server)).max_length == 96
        monkeypatch.delenv("SOFTCUE_VLLM_KEY")
        with pytest.raises(VllmError, match="SOFTCUE_VLLM_KEY"):
            on_vllm(tiny(FAMILY), served(server))


def test_no_server_is_one_line() -> None:
    with running(tiny(FAMILY)) as server:
        url = server.url
    with pytest.raises(VllmError, match=r"vLLM: got 'ConnectionRefused.*is it running"):
        VllmClient(url)


@pytest.mark.parametrize("url", ["http://8.8.8.8:8100", "http://[2001:4860:4860::8888]:80"])
def test_an_address_that_everyone_can_reach_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"vllm_url: .*private network; let vLLM listen at 127\.0\.0\.1"):
        check_is_private(url)


@pytest.mark.parametrize("url", ["ftp://127.0.0.1:1", "http://127.0.0.1", "127.0.0.1:80", "http://127.0.0.1:x"])
def test_an_address_needs_scheme_and_port(url: str) -> None:
    with pytest.raises(ConfigurationError, match="such as http://127"):
        check_is_private(url)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://localhost:1", "http://10.1.2.3:1", "http://[::1]:1"])
def test_loopback_and_private_addresses_are_taken(url: str) -> None:
    check_is_private(url)


def test_a_missing_python_is_one_line() -> None:
    with pytest.raises(RunError, match=r"vllm_python: got 'no-such-python'.*environment of its own"):
        VllmProcess(tiny(FAMILY), "no-such-python", [])


def test_a_vllm_that_ends_at_once_shows_the_end_of_its_log(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'ValueError: no such option'\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(RunError, match=r"vLLM: got 'exit code 3'.*ValueError: no such option"):
        VllmProcess(tiny(FAMILY), str(program), [])


def test_predict_of_the_command_line_takes_a_running_vllm(
    folder: Path, vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from softcue.cli import predict as command

    def load_tiny(paths: list[Path], *_: object) -> list[Cue]:
        return [load(path, tiny(FAMILY)) for path in paths]

    monkeypatch.setattr(command, "load_together", load_tiny)
    command.predict(
        [str(folder / "ranked"), str(folder / "words-idpg"), "Where is it"],
        engine=command.PredictionEngine.VLLM,
        vllm_url=vllm.url,
        as_json=True,
    )
    assert {"ranked", "words-idpg"} <= set(capsys.readouterr().out.replace('"', " ").split())
    assert vllm.bodies
