"""Other protocols than softcue's own: the Open Inference Protocol and OpenAI's API, also with their real clients."""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from pydantic import ValidationError
from serving_cues import LONG, STARS, TITLES, save_cue
from starlette.testclient import TestClient
from tiny import tiny
from tolerance import REORDERED_FLOAT32

from softcue.cue.cue import Cue
from softcue.serving.engine.engine import Engine
from softcue.serving.http import open_inference
from softcue.serving.http.error_responses import OPENAI_ROUTES
from softcue.serving.http.routes import create_app
from softcue.serving.http.service import Service
from softcue.serving.settings import ServerSettings
from softcue.tasks import Label, Task

Serve = Callable[..., TestClient]
KEY = {"Authorization": "Bearer the-key"}
TEXTS = ["My invoice is wrong.", "ok", "Where is it"]


@pytest.fixture(scope="module")
def client(serving: Serve) -> TestClient:
    return serving()


@pytest.fixture(scope="module")
def writing(serving: Serve, writing_cues: dict[str, dict[str, Cue]]) -> TestClient:
    """Cues that write text, on a decoder."""
    path = writing_cues["gpt2"]["titles"].path
    assert path is not None
    return serving(path.parent, "gpt2")


def tensor(name: str, texts: list[str], **more: Any) -> dict[str, Any]:
    return {"name": name, "shape": [len(texts)], "datatype": "BYTES", "data": texts, **more}


def infer(client: TestClient, name: str, *tensors: dict[str, Any], **more: Any) -> Any:
    return client.post(f"/v2/models/{name}/infer", json={"inputs": list(tensors), **more})


def outputs(response: Any) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    return {entry["name"]: entry for entry in response.json()["outputs"]}


# --- the Open Inference Protocol ---


def test_the_server_tells_what_it_is(client: TestClient) -> None:
    assert client.get("/v2").json()["name"] == "softcue"
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/health/ready").json() == {"ready": True}


def test_a_model_has_its_columns_as_inputs_and_parts_of_predictions_as_outputs(client: TestClient) -> None:
    def names(cue: str) -> tuple[list[str], dict[str, list[int]]]:
        content = client.get(f"/v2/models/{cue}").json()
        assert {entry["datatype"] for entry in content["inputs"]} == {"BYTES"}
        return [entry["name"] for entry in content["inputs"]], {
            entry["name"]: entry["shape"] for entry in content["outputs"]
        }

    assert names("topics") == (["text"], {"label": [-1], "scores": [-1, 3]})
    assert names("pairs") == (["first", "second"], {"label": [-1], "scores": [-1, 2]})
    assert names("stars") == (["text"], {"value": [-1]})
    assert names("questions")[1] == {"label": [-1], "spans": [-1]}
    assert names("names")[1] == {"spans": [-1]}
    assert names("subjects")[1] == {"labels": [-1], "scores": [-1, 3]}
    assert client.get("/v2/models/topics/ready").json() == {"name": "topics", "ready": True}


def test_labels_and_scores_are_those_of_the_cue(client: TestClient, cues: dict[str, Cue]) -> None:
    response = infer(client, "topics", tensor("text", TEXTS), id="42")
    content, wanted = outputs(response), cues["topics"].predict(TEXTS)
    assert response.json()["id"] == "42" and response.json()["model_name"] == "topics"
    assert content["label"]["data"] == [prediction.label for prediction in wanted]
    assert content["scores"]["shape"] == [3, 3] and content["scores"]["datatype"] == "FP32"
    flat = [score for prediction in wanted for score in (prediction.scores or {}).values()]
    assert content["scores"]["data"] == REORDERED_FLOAT32.approx(flat)


def test_each_kind_of_task_has_its_outputs(client: TestClient, cues: dict[str, Cue]) -> None:
    value = outputs(infer(client, "stars", tensor("text", TEXTS)))["value"]
    assert value["data"] == REORDERED_FLOAT32.approx([p.value for p in cues["stars"].predict(TEXTS)])
    pair = outputs(infer(client, "pairs", tensor("second", ["b"]), tensor("first", ["a"])))["label"]
    assert pair["data"] == [cues["pairs"].predict([("a", "b")])[0].label]
    labels = outputs(infer(client, "subjects", tensor("text", TEXTS)))["labels"]
    assert [tuple(json.loads(row)) for row in labels["data"]] == [p.labels for p in cues["subjects"].predict(TEXTS)]
    spans = outputs(infer(client, "names", tensor("text", TEXTS)))["spans"]
    assert [json.loads(row) for row in spans["data"]] == [
        p.as_dict().get("spans", []) for p in cues["names"].predict(TEXTS)
    ]


def test_a_number_that_the_cue_did_not_write_is_an_error(serve: Serve, tmp_path: Path) -> None:
    cue = save_cue(tmp_path / "stars", STARS, model_type="gpt2", readout={"decoding": "greedy", "max_new_tokens": 4})
    assert cue.predict(TEXTS[0])[0].value is None
    response = infer(serve(tmp_path, "gpt2"), "stars", tensor("text", TEXTS[:1]))
    assert response.status_code == 422 and "one of the rows is not a number" in response.json()["error"]


def test_only_requested_outputs_come_back(client: TestClient) -> None:
    assert set(outputs(infer(client, "topics", tensor("text", ["ok"]), outputs=[{"name": "label"}]))) == {"label"}


def test_tensors_may_be_columns_of_one_and_texts_may_be_cut(client: TestClient) -> None:
    column = {"name": "text", "shape": [2, 1], "datatype": "BYTES", "data": [["ok"], ["no"]]}
    assert outputs(infer(client, "topics", column))["label"]["shape"] == [2]
    assert infer(client, "topics", tensor("text", [LONG])).status_code == 422
    assert infer(client, "topics", tensor("text", [LONG]), parameters={"truncate": True}).status_code == 200


def test_the_loaded_version_can_be_asked_for_and_no_other(client: TestClient) -> None:
    [version] = client.get("/v2/models/topics").json()["versions"]
    assert client.get(f"/v2/models/topics/versions/{version}/ready").status_code == 200
    body = {"inputs": [tensor("text", ["ok"])]}
    assert client.post(f"/v2/models/topics/versions/{version}/infer", json=body).status_code == 200
    response = client.post("/v2/models/topics/versions/1/infer", json=body)
    assert response.status_code == 404 and f"ask for {version}" in response.json()["error"]


@pytest.mark.parametrize(
    ("tensors", "more", "message"),
    [
        ([tensor("words", ["ok"])], {}, "one tensor for each text column of the cue: text"),
        ([tensor("text", ["ok"]), tensor("text", ["ok"])], {}, "one tensor for each text column"),
        ([tensor("text", ["ok"]) | {"shape": [2]}], {}, r"texts, as many as `shape` says"),
        ([tensor("text", ["ok"]) | {"shape": [1, 2]}], {}, "texts, as many as `shape` says"),
        ([tensor("text", [])], {}, "send at least one text"),
        ([tensor("text", [1])], {}, "texts, as many as `shape` says"),
        ([tensor("text", ["ok"]) | {"datatype": "FP32"}], {}, "inputs: expected 'BYTES'"),
        ([tensor("text", ["ok"])], {"outputs": [{"name": "logits"}]}, "outputs of this cue: label, scores"),
        ([tensor("text", ["ok"])], {"colour": 1}, "there is no field 'colour'"),
        ([], {}, "inputs: expected at least 1 item"),
        ([tensor("text", ["ok"] * 33)], {}, "at most 32 in a request"),
        ([tensor("text", ["ok"])], {"parameters": {"truncate": None}}, "parameters: expected at most 16 numbers"),
        (
            [tensor("text", ["ok"])],
            {"parameters": dict.fromkeys(map(str, range(17)), 1)},
            "parameters: expected at most",
        ),
        ([tensor("text", ["ok"])], dict.fromkeys(map(str, range(100)), 1), "body: expected a JSON object"),
    ],
)
def test_a_bad_inference_says_what_is_wrong_in_the_protocols_form(
    client: TestClient, tensors: list[Any], more: dict[str, Any], message: str
) -> None:
    response = infer(client, "topics", *tensors, **more)
    assert response.status_code in (413, 422) and set(response.json()) == {"error"}
    assert message in response.json()["error"]


MANY: dict[str, Any] = dict.fromkeys(map(str, range(3000)))


@pytest.mark.parametrize("extra", [{"parameters": MANY}, MANY])
def test_many_wrong_entries_are_one_error(extra: dict[str, Any]) -> None:
    body = {"inputs": [tensor("text", ["ok"])], **extra}
    with pytest.raises(ValidationError) as caught:
        open_inference.InferBody.model_validate(body)
    assert caught.value.error_count() == 1


def test_rows_are_counted_before_anything_is_made_of_them(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_inference, "Input", None)
    assert infer(client, "topics", tensor("text", ["a"] * 3000)).status_code == 413


def test_columns_of_different_lengths_are_an_error(client: TestClient) -> None:
    response = infer(client, "pairs", tensor("first", ["a"]), tensor("second", ["b", "c"]))
    assert "tensors of equally many rows" in response.json()["error"]


def test_unknown_models_routes_and_empty_bodies_are_errors_in_the_protocols_form(client: TestClient) -> None:
    assert "no loaded cue has this name" in client.get("/v2/models/nothing").json()["error"]
    assert "no such route" in client.get("/v2/nothing").json()["error"]
    assert "takes POST only" in client.get("/v2/models/topics/infer").json()["error"]
    assert '"datatype": "BYTES"' in client.post("/v2/models/topics/infer").json()["error"]


def binary_body(
    texts: list[str], size: int | None = None, length: int | str | None = None
) -> tuple[bytes, dict[str, str]]:
    data = b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)
    entry = {"name": "text", "shape": [len(texts)], "datatype": "BYTES"}
    entry |= {"parameters": {"binary_data_size": len(data) if size is None else size}}
    header = json.dumps({"inputs": [entry]}).encode()
    return header + data, {"Inference-Header-Content-Length": str(len(header) if length is None else length)}


def test_texts_may_come_as_binary_tensors_without_a_media_type(client: TestClient, cues: dict[str, Cue]) -> None:
    body, headers = binary_body([*TEXTS, "grün"])
    response = client.post("/v2/models/topics/infer", content=body, headers=headers)
    assert outputs(response)["label"]["data"] == [p.label for p in cues["topics"].predict([*TEXTS, "grün"])]


@pytest.mark.parametrize("way", ["an output", "all outputs"])
def test_predictions_go_back_as_binary_tensors_where_asked(client: TestClient, way: str) -> None:
    wanted: dict[str, Any] = {"parameters": {"binary_data_output": True}}
    if way == "an output":
        wanted = {"outputs": [{"name": "label"}, {"name": "scores", "parameters": {"binary_data": True}}]}
    response = infer(client, "topics", tensor("text", TEXTS), **wanted)
    assert response.status_code == 200, response.text
    length = int(response.headers["inference-header-content-length"])
    label, scores = json.loads(response.content[:length])["outputs"]
    data = response.content[length:]
    plain = infer(client, "topics", tensor("text", TEXTS)).json()["outputs"]
    if way == "an output":
        assert label["data"] == plain[0]["data"]
    else:
        size = label["parameters"]["binary_data_size"]
        written = b"".join(struct.pack("<I", len(text)) + text.encode() for text in plain[0]["data"])
        assert data[:size] == written and "data" not in label
        data = data[size:]
    assert scores["parameters"] == {"binary_data_size": len(data)} and "data" not in scores
    assert list(struct.unpack(f"<{len(data) // 4}f", data)) == REORDERED_FLOAT32.approx(plain[1]["data"])


# A size of 24 is the first text alone: bytes are left over.
@pytest.mark.parametrize(
    ("size", "length"),
    [(3, None), (24, None), (10**9, None), (-1, None), (None, 10**6), (None, 5), (None, "9" * 5000), (None, "1e2")],
)
def test_binary_tensors_that_do_not_fit_are_an_error(
    client: TestClient, size: int | None, length: int | str | None
) -> None:
    body, headers = binary_body(TEXTS, size, length)
    response = client.post("/v2/models/topics/infer", content=body, headers=headers)
    assert response.status_code == 400 and "do not fit inference-header-content-length" in response.json()["error"]


def test_a_content_length_of_thousands_of_digits_is_too_large(client: TestClient) -> None:
    headers = {"Content-Length": "9" * 5000, "Content-Type": "application/json"}
    response = client.post("/v2/models/topics/infer", content=b"{}", headers=headers)
    assert response.status_code == 413 and "at most" in response.json()["error"]


# --- OpenAI's API ---


def test_cues_are_models(client: TestClient, cues: dict[str, Cue]) -> None:
    content = client.get("/v1/models").json()
    assert content["object"] == "list" and {entry["id"] for entry in content["data"]} == set(cues)
    assert client.get("/v1/models/topics").json()["owned_by"] == "softcue"


@pytest.mark.parametrize("name", ["titles", "titles-idpg"])
def test_a_completion_is_the_text_that_the_cue_generates(
    writing: TestClient, writing_cues: dict[str, dict[str, Cue]], name: str
) -> None:
    wanted = [prediction.label for prediction in writing_cues["gpt2"][name].predict(TEXTS)]
    content = writing.post("/v1/completions", json={"model": name, "prompt": TEXTS}).json()
    assert content["object"] == "text_completion" and content["model"] == name
    assert [choice["text"] for choice in content["choices"]] == wanted
    chat = {"model": name, "messages": [{"role": "user", "content": TEXTS[0]}]}
    content = writing.post("/v1/chat/completions", json=chat).json()
    assert content["object"] == "chat.completion"
    assert content["choices"][0]["message"] == {"role": "assistant", "content": wanted[0]}


def test_a_completion_says_whether_it_reached_the_limit_of_tokens(
    writing: TestClient, writing_cues: dict[str, dict[str, Cue]]
) -> None:
    body = {"model": "titles", "prompt": TEXTS[0]}
    text = writing_cues["gpt2"]["titles"].predict(TEXTS[0])[0].label
    assert isinstance(text, str) and len(text) > 2

    def choice(**more: Any) -> dict[str, Any]:
        response: dict[str, Any] = writing.post("/v1/completions", json={**body, **more}).json()["choices"][0]
        return response

    assert choice(max_tokens=1)["finish_reason"] == "length"
    stopped = choice(stop=text[1])
    assert stopped["finish_reason"] == "stop" and stopped["text"] == text.partition(text[1])[0].rstrip()


def test_a_label_is_the_completion_of_a_cue_that_predicts_one(client: TestClient, cues: dict[str, Cue]) -> None:
    wanted = [prediction.label for prediction in cues["topics"].predict(TEXTS)]
    content = client.post("/v1/completions", json={"model": "topics", "prompt": TEXTS, "temperature": 0}).json()
    assert [choice["text"] for choice in content["choices"]] == wanted
    assert {choice["finish_reason"] for choice in content["choices"]} == {"stop"}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    chat = {"model": "pairs", "messages": [{"role": "user", "content": parts}]}
    content = client.post("/v1/chat/completions", json=chat).json()
    assert content["choices"][0]["message"]["content"] == cues["pairs"].predict([("a", "b")])[0].label


def events(response: Any) -> list[dict[str, Any]]:
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_a_stream_has_the_parts_of_the_text(writing: TestClient) -> None:
    body = {"model": "titles", "prompt": TEXTS}
    whole = [choice["text"] for choice in writing.post("/v1/completions", json=body).json()["choices"]]
    chunks = events(writing.post("/v1/completions", json={**body, "stream": True}))
    texts = ["", "", ""]
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == whole
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks].count(None) == len(chunks) - 3
    chat = {"model": "titles", "messages": [{"role": "user", "content": TEXTS[0]}], "stream": True}
    deltas = [chunk["choices"][0]["delta"] for chunk in events(writing.post("/v1/chat/completions", json=chat))]
    assert deltas[0]["role"] == "assistant" and "".join(delta["content"] for delta in deltas) == whole[0]


def test_a_stream_of_a_label_is_one_part(client: TestClient, cues: dict[str, Cue]) -> None:
    body = {"model": "topics", "prompt": "ok", "stream": True}
    [chunk] = events(client.post("/v1/completions", json=body))
    assert chunk["choices"][0]["text"] == cues["topics"].predict("ok")[0].label
    assert chunk["choices"][0]["finish_reason"] == "stop"


def test_a_stream_of_a_generated_label_is_the_label(serve: Serve, tmp_path: Path) -> None:
    readout = {"decoding": "greedy", "max_new_tokens": 4}

    def save(words: str) -> Cue:
        labels = {"a": Label(words=words), "b": Label(words="billing")}
        return save_cue(
            tmp_path / words[:1] / "tone", Task(name="tone", labels=labels), "prefix-tuning", "gpt2", 0, readout
        )

    written = save("account").predict("ok")[0].label
    cue = save(str(written))
    assert cue.predict("ok")[0].label == "a" and cue.path is not None
    client = serve(cue.path.parent, "gpt2")
    [chunk] = events(client.post("/v1/completions", json={"model": "tone", "prompt": "ok", "stream": True}))
    assert chunk["choices"][0]["text"] == "a"


def test_a_stream_ends_at_the_stop_word_of_the_cue(serve: Serve, tmp_path: Path) -> None:
    whole = save_cue(tmp_path / "whole", TITLES, "prompt-tuning", "gpt2").predict("ok")[0].label
    assert isinstance(whole, str) and len(whole) > 2
    readout = {"stop": whole[1]}
    cue = save_cue(tmp_path / "cues" / "titles", TITLES, "prompt-tuning", "gpt2", readout=readout)
    client, body = serve(tmp_path / "cues", "gpt2"), {"model": "titles", "prompt": "ok"}
    [choice] = client.post("/v1/completions", json=body).json()["choices"]
    choices = [chunk["choices"][0] for chunk in events(client.post("/v1/completions", json={**body, "stream": True}))]
    streamed = "".join(part["text"] for part in choices)
    assert streamed == choice["text"] == cue.predict("ok")[0].label == whole.partition(whole[1])[0].strip()
    assert choice["finish_reason"] == choices[-1]["finish_reason"] == "stop"


def test_an_error_in_a_stream_is_an_event(client: TestClient) -> None:
    response = client.post("/v1/completions", json={"model": "topics", "prompt": LONG, "stream": True})
    [line] = [line for line in response.text.split("\n\n") if line]
    assert json.loads(line.removeprefix("data: "))["error"]["code"] == "too_long"


def test_an_error_that_ends_a_stream_is_no_client_that_left(serve: Serve) -> None:
    client = serve()
    client.post("/v1/completions", json={"model": "topics", "prompt": [LONG, LONG, "ok"], "stream": True})
    metrics = client.get("/metrics").text
    assert 'reason="too_long"' in metrics and 'reason="disconnected"' not in metrics


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/v1/completions", {"prompt": "ok"}, 422, "model: this field is missing"),
        ("/v1/completions", {"model": "nothing", "prompt": "ok"}, 404, "no loaded cue has this name"),
        ("/v1/completions", {"model": "stars", "prompt": "ok"}, 422, "the task of this one is regression"),
        ("/v1/completions", {"model": "subjects", "prompt": "ok"}, 422, "the task of this one is multi-label"),
        (
            "/v1/completions",
            {"model": "topics", "prompt": [[1, 2]]},
            422,
            "prompt: expected a text, or a list of texts",
        ),
        ("/v1/completions", {"model": "topics", "prompt": []}, 422, "1 to 1024 texts"),
        ("/v1/completions", {"model": "topics", "prompt": ["a"] * 33}, 413, "at most 32 in a request"),
        ("/v1/completions", {"model": "topics", "prompt": "ok", "max_tokens": 5}, 422, "use POST /v1/predict"),
        ("/v1/completions", {"model": "topics", "prompt": "ok", "temperature": 0.7}, 422, "temperature: expected less"),
        ("/v1/completions", {"model": "topics", "prompt": "ok", "n": 2}, 422, "n: expected less"),
        ("/v1/completions", {"model": "topics", "prompt": "ok", "logit_bias": {}}, 422, "no field 'logit_bias'"),
        ("/v1/completions", {"model": "topics", "prompt": "ok", "max_tokens": 10**9}, 422, "max_tokens: expected 1 to"),
        (
            "/v1/chat/completions",
            {"model": "topics", "messages": [{"role": "user", "content": "a", "messages": 1}]},
            422,
            "messages: it takes no field 'messages'; see /docs",
        ),
        (
            "/v1/chat/completions",
            {"model": "topics", "messages": [{"role": "user"}]},
            422,
            "messages: its field 'content' is missing",
        ),
        ("/v1/chat/completions", {"model": "topics", "messages": []}, 422, "messages: expected at least 1 item"),
        (
            "/v1/chat/completions",
            {"model": "topics", "messages": [{"role": "system", "content": "Be brief."}]},
            422,
            "messages: expected 'user'",
        ),
        (
            "/v1/chat/completions",
            {"model": "topics", "messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]},
            422,
            "messages: expected at most 1 item",
        ),
    ],
)
def test_a_bad_completion_says_what_is_wrong_in_the_form_of_openai(
    client: TestClient, path: str, body: dict[str, Any], status: int, message: str
) -> None:
    response = client.post(path, json=body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
    assert message in error["message"]


def test_an_empty_body_says_what_a_completion_needs(client: TestClient) -> None:
    response = client.post("/v1/completions", headers={"Content-Type": "application/json"})
    assert response.status_code == 400 and '"prompt": TEXT' in response.json()["error"]["message"]


# --- what both have in common with the other routes ---


def test_keys_are_needed_as_everywhere(serve: Serve) -> None:
    client = serve(api_keys=["the-key"])
    body = {"inputs": [tensor("text", ["ok"])]}
    assert client.get("/v2/health/ready").status_code == 200
    assert client.get("/v2/models/topics").status_code == 401
    refused = client.post("/v2/models/topics/infer", json=body)
    assert refused.status_code == 401 and isinstance(refused.json()["error"], str)
    assert client.post("/v2/models/topics/infer", json=body, headers=KEY).status_code == 200
    refused = client.get("/v1/models")
    assert refused.status_code == 401 and refused.json()["error"]["code"] == "unauthorised"
    assert client.get("/v1/models", headers=KEY).status_code == 200


def test_requests_and_examples_are_counted(serve: Serve) -> None:
    client = serve()
    infer(client, "topics", tensor("text", TEXTS))
    infer(client, "topics", tensor("text", [LONG]))
    client.post("/v1/completions", json={"model": "topics", "prompt": "ok"})
    metrics = client.get("/metrics").text
    assert "softcue_examples_total 4.0" in metrics
    assert 'softcue_failures_total{reason="too_long"}' in metrics
    assert 'softcue_requests_total{route="/v2/models/{name}/infer",status="200"} 1.0' in metrics
    assert 'softcue_requests_total{route="/v1/completions",status="200"} 1.0' in metrics


def test_deadlines_hold_for_every_protocol(serve: Serve, held: Any) -> None:
    client = serve(deadline=0.3)
    assert infer(client, "topics", tensor("text", ["ok"])).status_code == 504
    response = client.post("/v1/completions", json={"model": "topics", "prompt": "ok"})
    assert response.status_code in (429, 504) and response.json()["error"]["type"] == "server_error"


def test_the_openapi_document_has_the_routes_with_their_errors(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    paths = document["paths"]
    assert set(OPENAI_ROUTES) | {"/v2", "/v2/models/{name}/infer", "/v2/health/live"} <= set(paths)
    post = paths["/v2/models/{name}/infer"]["post"]
    assert {"name"} == {parameter["name"] for parameter in post["parameters"] if parameter["in"] == "path"}
    assert post["responses"]["422"]["content"]["application/json"]["schema"]["$ref"].endswith("/ProtocolError")
    schema = paths["/v1/completions"]["post"]["responses"]["404"]["content"]["application/json"]["schema"]
    assert schema["$ref"].endswith("/OpenAIError")


# --- real clients ---


@pytest.fixture(scope="module")
def address(writing_cues: dict[str, dict[str, Cue]]) -> Iterator[str]:
    """A server at a port of this machine, with a key."""
    path = writing_cues["gpt2"]["titles"].path
    assert path is not None
    folder: Path = path.parent
    settings = ServerSettings(api_keys=["the-key"])
    service = Service(settings, lambda on_batch: Engine(tiny("gpt2"), folder, settings.limits, on_batch=on_batch))
    server = uvicorn.Server(uvicorn.Config(create_app(service), port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    end = time.monotonic() + 20
    while not (server.started and service.state == "ready"):
        assert time.monotonic() < end
        time.sleep(0.01)
    yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(20)


def test_tritons_client_gets_predictions(address: str, writing_cues: dict[str, dict[str, Cue]]) -> None:
    http = pytest.importorskip("tritonclient.http")
    numpy = pytest.importorskip("numpy")
    utils = pytest.importorskip("tritonclient.utils")
    cue = writing_cues["gpt2"]["topics"]
    wanted = cue.predict(TEXTS)
    client = http.InferenceServerClient(address)
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("topics", headers=KEY)
    assert client.get_server_metadata(headers=KEY)["name"] == "softcue"
    metadata = client.get_model_metadata("topics", headers=KEY)
    assert metadata["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    for is_binary in (False, True):
        texts = http.InferInput("text", [len(TEXTS)], "BYTES")
        texts.set_data_from_numpy(numpy.array(TEXTS, dtype=object), binary_data=is_binary)
        for requested in (None, [http.InferRequestedOutput(name, is_binary) for name in ("label", "scores")]):
            result = client.infer("topics", [texts], headers=KEY, outputs=requested, request_id="7")
            labels = result.as_numpy("label").tolist()
            labels = [label.decode() if isinstance(label, bytes) else label for label in labels]
            assert labels == [prediction.label for prediction in wanted]
            scores = result.as_numpy("scores")
            assert scores.shape == (len(TEXTS), 3) and scores.dtype == numpy.float32
            flat = [score for prediction in wanted for score in (prediction.scores or {}).values()]
            assert scores.ravel().tolist() == REORDERED_FLOAT32.approx(flat)
    with pytest.raises(utils.InferenceServerException, match="no loaded cue has this name"):
        client.infer("nothing", [texts], headers=KEY)
    client.close()


def test_openais_client_gets_completions_and_streams(address: str, writing_cues: dict[str, dict[str, Cue]]) -> None:
    openai = pytest.importorskip("openai")
    wanted = writing_cues["gpt2"]["titles"].predict(TEXTS[0])[0].label
    with openai.OpenAI(base_url=f"http://{address}/v1", api_key="the-key", max_retries=0) as client:
        assert {model.id for model in client.models.list()} == set(writing_cues["gpt2"])
        assert client.models.retrieve("titles").id == "titles"
        assert client.completions.create(model="titles", prompt=TEXTS[0]).choices[0].text == wanted
        messages = [{"role": "user", "content": TEXTS[0]}]
        chat = client.chat.completions.create(model="titles", messages=messages)
        assert chat.choices[0].message.content == wanted
        stream = client.chat.completions.create(model="titles", messages=messages, stream=True)
        assert "".join(chunk.choices[0].delta.content for chunk in stream) == wanted
        stream = client.completions.create(model="titles", prompt=TEXTS[0], stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream) == wanted
        with pytest.raises(openai.NotFoundError, match="no loaded cue has this name"):
            client.completions.create(model="nothing", prompt="ok")
        with pytest.raises(openai.UnprocessableEntityError, match="temperature"):
            client.completions.create(model="titles", prompt="ok", temperature=1)
        with pytest.raises(openai.APIError, match="text"):
            list(client.completions.create(model="topics", prompt=LONG * 5, stream=True))
    with (
        openai.OpenAI(base_url=f"http://{address}/v1", api_key="another", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError, match="the key is not a key of this server"),
    ):
        client.models.list()
