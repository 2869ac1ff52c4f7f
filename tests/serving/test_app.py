"""Every route, status and limit over HTTP, in this process."""

from __future__ import annotations

import json
import logging
import re
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from serving_cues import LONG, TITLES, TOPICS, items, save_cue
from starlette.testclient import TestClient
from tiny import tiny
from tolerance import REORDERED_FLOAT32

import softcue
from softcue.cue.cue import Cue
from softcue.serving.engine.batcher import Batcher
from softcue.serving.engine.engine import Engine
from softcue.serving.engine.registry import split_rows
from softcue.serving.http.error_responses import protocol_of
from softcue.serving.http.logs import JsonLines
from softcue.serving.http.routes import create_app
from softcue.serving.http.service import Service
from softcue.serving.settings import ServerSettings

ADMIN = {"Authorization": "Bearer admin-key"}
SECRET = "a secret of the client"
Serve = Callable[..., TestClient]


@pytest.fixture(scope="module")
def client(serving: Serve) -> TestClient:
    """One server for all tests that leave it as it is."""
    return serving()


def inputs(*pairs: tuple[Any, Any]) -> list[dict[str, Any]]:
    return [{"task": task, "text": text} for task, text in pairs]


def predict(client: TestClient, *pairs: tuple[Any, Any], **more: Any) -> Any:
    return client.post("/v1/predict", json={"inputs": inputs(*pairs), **more})


def check_error(response: Any, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert len(response.content) < 1000
    assert SECRET not in response.text
    content: dict[str, Any] = response.json()
    assert content["error"]["code"] == code
    assert content["error"]["status"] == status
    assert content["error"]["message"] or code == "no_route"
    return content


# --- answers ---


def test_answers_are_the_offline_ones_in_order(client: TestClient, cues: dict[str, Cue]) -> None:
    pairs = items(cues, 27)
    response = predict(client, *pairs, return_scores=True, truncate=True)
    assert response.status_code == 200
    for (name, text), result in zip(pairs, response.json()["results"], strict=True):
        wanted = cues[name].predict([text])[0].as_dict()
        assert (result["task"], result["version"]) == (name, cues[name].cue_file.record_sha256[:12])
        assert {"queue_ms", "compute_ms"} == set(result["timings"])
        assert result["truncated"] is False
        for key in ("label", "spans"):
            assert result.get(key) == wanted.get(key)
        for key in ("value", "scores"):
            assert result.get(key) == REORDERED_FLOAT32.approx(wanted.get(key))


def test_scores_come_only_if_requested(client: TestClient) -> None:
    [result] = predict(client, ("topics", "ok")).json()["results"]
    assert "scores" not in result and "label" in result


def test_bad_items_have_their_own_error(client: TestClient) -> None:
    body = {
        "inputs": [
            *inputs(("topics", "ok"), ("nothing", "x"), ("topics", LONG), ("pairs", "one"), ("topics", 5)),
            {"task": "topics", SECRET: 1},
            SECRET,
            {"task": "topics"},
            *inputs(("stars", "ok")),
        ]
    }
    response = client.post("/v1/predict", json=body)
    assert response.status_code == 200
    assert SECRET not in response.text
    results = response.json()["results"]
    statuses = [result.get("error", {}).get("status", 200) for result in results]
    assert statuses == [200, 404, 422, 422, 422, 422, 422, 422, 200]


def test_long_texts_are_cut_if_requested(client: TestClient) -> None:
    check_error(predict(client, ("topics", LONG)), 422, "too_long")
    assert predict(client, ("topics", LONG), truncate=True).json()["results"][0]["truncated"] is True


def test_ensembles_say_who_answered(client: TestClient) -> None:
    [result] = predict(client, ("tone", "At last"), ensemble="mean", return_scores=True).json()["results"]
    assert set(result["versions"]) == {"tone-adapter", "tone-late", "tone-vip"}
    assert sum(result["votes"].values()) == 3
    assert sum(result["scores"].values()) == pytest.approx(1)
    check_error(predict(client, (["topics", "pairs"], "x"), ensemble="vote"), 422, "invalid")
    check_error(predict(client, (["topics"], "x")), 422, "invalid")


# --- refusals of a whole request ---


def post(client: TestClient, body: bytes, kind: str = "application/json", **headers: str) -> Any:
    return client.post("/v1/predict", content=body, headers={"Content-Type": kind, **headers})


@pytest.mark.parametrize(
    "body", [b"{", b"inputs", b'{"inputs": [NaN]}', b"\xff\xfe", b'{"inputs": "\\ud800"}', b"[" * 100_000]
)
def test_malformed_bodies_are_400(client: TestClient, body: bytes) -> None:
    check_error(post(client, body), 400, "malformed")


@pytest.mark.parametrize("body", [b"", b"  \n", b'{"inputs": []}'])
def test_empty_bodies_are_400(client: TestClient, body: bytes) -> None:
    check_error(post(client, body), 400, "empty")


@pytest.mark.parametrize(
    "body",
    [
        [],
        SECRET,
        5,
        {},
        {"inputs": SECRET},
        {"inputs": [1], SECRET: 1},
        {"inputs": [1], "truncate": SECRET},
        {"inputs": [1], "ensemble": SECRET},
        {"inputs": [SECRET] * 32},
        {"inputs": inputs(*[("topics", [SECRET] * 3)] * 32)},
    ],
)
def test_bodies_without_sense_are_422_small_and_quote_nothing(client: TestClient, body: Any) -> None:
    check_error(post(client, json.dumps(body).encode()), 422, "invalid")


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (
            "/v1/predict",
            {"inputs": [1], "return_score": True},
            "body: there is no field 'return_score'; did you mean 'return_scores'? known: ensemble, inputs, ",
        ),
        ("/v1/predict", {"inputs": [1], "max_new_tokens": 5}, "body: there is no field 'max_new_tokens'; known: "),
        ("/v1/generate", {"inputs": [1], "max_tokens": 5}, "body: there is no field 'max_tokens'; did you mean 'max_"),
        ("/v1/explain", {"inputs": [1], "truncate": True}, "body: there is no field 'truncate'; known: inputs"),
        (
            "/v1/predict",
            {"inputs": [{"task": "topics", "texts": "ok"}]},
            "input: there is no field 'texts'; did you mean 'text'? known: task, text",
        ),
        ("/v1/predict", {"inputs": [1], "a word of the client's text": 1}, "body: it has an unknown field; known: "),
        ("/v1/predict", {"input": [1]}, 'inputs: this field is missing; send {"inputs": [{"task": NAME, '),
        ("/v1/predict", {"inputs": "ok"}, "inputs: expected a list; send"),
        ("/v1/predict", [], "body: expected a JSON object; it has the fields inputs, "),
        ("/v1/predict", {"inputs": [{"task": "topics"}]}, "text: this field is missing; see /docs"),
        ("/v1/predict", {"inputs": inputs(("topics", 5))}, "text: expected a text, or a list of texts; see"),
        (
            "/v1/predict",
            {"inputs": inputs(("pairs", "one"))},
            "text: this task reads 2 texts (first, second); send them as a list in this order",
        ),
        ("/v1/predict", {"inputs": inputs(("topics", ["a", "b"]))}, "text: this task reads one text; send one text"),
        ("/v1/explain", {"inputs": inputs(("topics", ["a", "b"]))}, "text: this task reads one text; send one text"),
        ("/v1/explain", {"inputs": inputs((["topics"], "a"))}, "task: expected one name; send an input per cue"),
        ("/v1/predict", {"inputs": inputs(("topics", " "))}, "text: it is empty; send a text with words"),
        ("/v1/predict", {"inputs": inputs(("pairs", ["a", ""]))}, "text: text 2 (second) is empty; send a text"),
        ("/v1/generate", {"inputs": [1], "stop": [""]}, "stop: expected at least 1 character; see"),
        ("/v1/generate", {"inputs": [1], "stop": ["a"] * 5}, "stop: expected at most 4 items; see"),
        ("/v1/generate", {"inputs": [1], "max_new_tokens": "x"}, "max_new_tokens: expected a valid integer; see"),
        ("/v1/predict", {"inputs": [1], "truncate": "yes"}, "truncate: expected a valid boolean; see"),
        ("/v1/predict", {"inputs": [1], "ensemble": "all"}, "ensemble: expected 'vote' or 'mean'; see"),
    ],
)
def test_bodies_that_do_not_fit_say_which_field(client: TestClient, path: str, body: Any, message: str) -> None:
    told = check_error(client.post(path, json=body), 422, "invalid")["error"]["message"]
    assert told.startswith(message), told


def test_wrong_addresses_say_what_the_server_has(client: TestClient) -> None:
    assert "no such route; see /docs" in client.get("/v1/predictions").json()["error"]["message"]
    assert "this route takes POST only" in client.get("/v1/predict").json()["error"]["message"]


def test_unknown_names_say_which_are_loaded(client: TestClient) -> None:
    message = check_error(predict(client, ("topic", "x")), 404, "unknown_task")["error"]["message"]
    assert "did you mean 'topics'?" in message
    assert "and 5 more, see GET /v1/tasks" in message
    message = check_error(predict(client, ("ton", "x"), ensemble="vote"), 404, "unknown_task")["error"]["message"]
    assert "did you mean 'tone'?" in message


def test_backlog_longer_than_the_deadline_says_so(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "expected_seconds", 41.7)
    message = check_error(predict(client, ("topics", "x")), 429, "busy")["error"]["message"]
    assert message == (
        "server: the work it has accepted takes about 42 s, longer than the deadline of 30 s; try again in 10 s"
    )


def test_unknown_task_is_404(client: TestClient) -> None:
    check_error(predict(client, (SECRET, "x")), 404, "unknown_task")
    assert check_error(predict(client, ("no", "x"), ("no", "y")), 404, "unknown_task")["items"] == ["unknown_task"] * 2
    assert predict(client, ("no", "x"), ("topics", "")).status_code == 422  # the gravest


def test_more_than_32_inputs_are_413(client: TestClient) -> None:
    assert predict(client, *[("stars", "ok")] * 32).status_code == 200
    check_error(predict(client, *[("stars", "ok")] * 33), 413, "too_many")


MANY = b"1," * 900_000 + b"1"


@pytest.mark.parametrize("inputs_text", [MANY, b'{"task":"topics","text":[' + MANY + b"]}"])
def test_hostile_lists_are_rejected_quickly(client: TestClient, inputs_text: bytes) -> None:
    began = time.monotonic()
    response = post(client, b'{"inputs": [' + inputs_text + b"]}")
    assert response.status_code in (413, 422) and len(response.content) < 1000
    assert post(client, b'{"inputs": [1], "ensemble": [' + MANY + b"]}").status_code == 422
    many = client.post(
        "/v1/generate",
        content=b'{"inputs": [1], "stop": [' + MANY + b"]}",
        headers={"Content-Type": "application/json"},
    )
    check_error(many, 422, "invalid")
    assert time.monotonic() - began < 3


def test_bodies_over_two_megabytes_are_413(client: TestClient) -> None:
    whole = json.dumps({"inputs": inputs(("topics", "ok"))}).encode()
    assert post(client, whole.ljust(2_000_000)).status_code == 200
    check_error(post(client, whole.ljust(2_000_001)), 413, "too_large")
    pieces = iter([whole, *[b" " * 500_000] * 4])  # no Content-Length
    check_error(
        client.post("/v1/predict", content=pieces, headers={"Content-Type": "application/json"}), 413, "too_large"
    )


@pytest.mark.parametrize("kind", ["text/plain", "", "application/x-www-form-urlencoded", "application/jsonp"])
def test_other_media_types_are_415(client: TestClient, kind: str) -> None:
    check_error(post(client, b'{"inputs": []}', kind), 415, "media_type")


def test_media_type_may_name_a_charset(client: TestClient) -> None:
    body = json.dumps({"inputs": inputs(("topics", "ok"))}).encode()
    assert post(client, body, "Application/JSON; charset=utf-8").status_code == 200


def test_full_server_is_429_before_the_body_is_parsed(serve: Serve, held: Any, until: Callable[..., None]) -> None:
    client = serve(max_in_flight=4)
    service = client.app.state.service  # type: ignore[attr-defined]
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(predict, client, *[("topics", "ok")] * 3)
        until(lambda: service.engine.num_in_flight == 3)
        response = predict(client, ("topics", "a"), ("topics", "b"))  # read, but there is no room for both
        assert response.headers["Retry-After"] == "1"
        check_error(response, 429, "busy")
        fourth = threading.Thread(target=predict, args=(client, ("topics", "c")))
        fourth.start()
        until(lambda: service.engine.num_in_flight == 4)
        check_error(post(client, b"{ no json"), 429, "busy")
        held.go.set()
        assert running.result(10).status_code == 200
        fourth.join(10)
    until(lambda: service.engine.num_in_flight == 0)
    assert predict(client, ("topics", "a")).status_code == 200


def test_late_answers_are_504(serve: Serve, held: Any, until: Callable[..., None]) -> None:
    client = serve(deadline=0.2)
    check_error(predict(client, ("topics", "ok"), ("nothing", "x")), 504, "deadline")
    held.go.set()
    service = client.app.state.service  # type: ignore[attr-defined]
    until(lambda: service.engine.num_in_flight == 0)
    assert predict(client, ("topics", "ok")).status_code == 200


def test_failed_pass_is_503_and_the_server_lives(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("softcue.serving.engine.engine.predict_mixed", lambda *_: 1 / 0)
        response = predict(client, ("topics", SECRET))
    check_error(response, 503, "failed")
    assert response.headers["Retry-After"] == "1"
    assert predict(client, ("topics", "ok")).status_code == 200


def test_bug_is_a_small_500(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softcue.serving.http.submitted_inputs.format_result", lambda *_: 1 / 0)
    check_error(predict(client, ("topics", SECRET)), 500, "bug")


def test_unknown_routes_and_methods(client: TestClient) -> None:
    check_error(client.get("/nothing"), 404, "no_route")
    assert client.get("/v1/predict").headers["Allow"] == "POST"
    check_error(client.get("/v1/predict"), 405, "no_route")
    assert client.post("/v1/tasks/topics").headers["Allow"] == "DELETE, GET, PUT"


def test_no_redirect_repeats_the_host_of_the_client(client: TestClient) -> None:
    response = client.get("/v1/tasks/", headers={"Host": "elsewhere.example"}, follow_redirects=False)
    check_error(response, 404, "no_route")
    assert "elsewhere" not in f"{response.headers}{response.text}"


def test_statuses_and_media_types_are_documented(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert "text/plain" in paths["/metrics"]["get"]["responses"]["200"]["content"]
    assert {"201", "404", "408", "414", "431", "504"} <= set(paths["/v1/tasks/{name}"]["put"]["responses"])
    assert "503" in paths["/readyz"]["get"]["responses"]
    assert "401" in paths["/metrics"]["get"]["responses"]


# --- loading, draining ---


def test_server_answers_probes_while_it_loads(folder: Path, until: Callable[..., None]) -> None:
    go = threading.Event()

    def make(on_batch: Any) -> Engine:
        assert go.wait(10)
        return Engine(tiny("bert"), folder, on_batch=on_batch)

    service = Service(ServerSettings(), make)
    with TestClient(create_app(service)) as client:
        assert client.get("/livez").json() == {"state": "loading"}
        assert client.get("/readyz").status_code == 503
        check_error(predict(client, ("topics", "ok")), 503, "loading")
        check_error(client.get("/v1/tasks"), 503, "loading")
        assert client.get("/metrics").status_code == 200
        go.set()
        until(lambda: service.state == "ready")
        assert client.get("/readyz").status_code == 200
        assert predict(client, ("topics", "ok")).status_code == 200
        service.drain()
        assert (client.get("/livez").status_code, client.get("/readyz").status_code) == (200, 503)
        response = predict(client, ("topics", "ok"))
        assert response.headers["Retry-After"] == "2"
        check_error(response, 503, "draining")


def test_engine_that_cannot_be_loaded_is_reported(until: Callable[..., None]) -> None:
    stopped = threading.Event()
    service = Service(ServerSettings(), lambda _: Engine(tiny("bert"), "no-such-folder"))
    service.on_failure = stopped.set
    with TestClient(create_app(service)) as client:
        assert stopped.wait(10)
        assert (client.get("/livez").status_code, client.get("/readyz").status_code) == (503, 503)
        message = check_error(predict(client, ("topics", "ok")), 503, "failed")["error"]["message"]
        assert "could not load its cues" in message
    assert "no-such-folder" in str(service.failure)


def test_inference_thread_that_ends_ends_the_server(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    client = serve()
    service, stopped = client.app.state.service, threading.Event()  # type: ignore[attr-defined]
    service.on_failure = stopped.set
    monkeypatch.setattr(Batcher, "exchange", lambda *_: 1 / 0)
    check_error(predict(client, ("topics", "first")), 503, "failed")  # at once, not at its deadline
    assert stopped.wait(10)
    assert client.get("/livez").status_code == 503
    check_error(predict(client, ("topics", "second")), 503, "failed")
    assert isinstance(service.failure.__cause__, ZeroDivisionError)


# --- keys ---


ROUTES = ["/v1/tasks", "/v1/tasks/topics", "/v1/info", "/metrics", "/nothing", "/docs/x", "/docs-assets"]
OPEN_ROUTES = ["/livez", "/readyz", "/", "/docs", "/openapi.json", "/docs-assets/swagger-ui-bundle.js"]


def test_all_routes_but_probes_and_pages_need_a_key(serve: Serve) -> None:
    client = serve(api_keys=("key-one", "key-two"), admin_keys=("admin-key",))
    for route in ROUTES:
        response = client.get(route)
        assert response.headers["WWW-Authenticate"] == "Bearer"
        check_error(response, 401, "unauthorised")
        for key in ("key-one", "key-two", "admin-key"):
            assert client.get(route, headers={"Authorization": f"Bearer {key}"}).status_code in (200, 404)
    for wrong in ("Bearer key", "Bearer key-one2", "Bearer ", "key-one", "Basic key-one", "Bearer kéy"):
        check_error(client.get("/v1/tasks", headers={"Authorization": wrong.encode()}), 401, "unauthorised")
    check_error(predict(client, ("topics", "ok")), 401, "unauthorised")
    check_error(post(client, b"{ no json"), 401, "unauthorised")  # before anything is read
    check_error(client.post("/v1/explain", json={"inputs": inputs(("topics", "ok"))}), 401, "unauthorised")
    assert [client.get(route).status_code for route in OPEN_ROUTES] == [200] * len(OPEN_ROUTES)


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_changes_need_the_admin_key(serve: Serve, method: str) -> None:
    def change(client: TestClient, key: str = "") -> Any:
        return client.request(method, "/v1/tasks/topics", headers={"Authorization": f"Bearer {key}"} if key else {})

    both = serve(api_keys=("key-one",), admin_keys=("admin-key",))
    for key, reason in (("", "is missing"), ("wrong", "the key is not a key of"), ("key-one", "not an admin key")):
        assert reason in check_error(change(both, key), 401, "unauthorised")["error"]["message"]
    admin_only = serve(admin_keys=("admin-key",))
    assert "admin key" in check_error(change(admin_only), 401, "unauthorised")["error"]["message"]
    assert change(admin_only, "admin-key").status_code == 200


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_changes_without_a_configured_admin_key_say_so(serve: Serve, method: str) -> None:
    for settings, key in (({}, ""), ({}, "any"), ({"api_keys": ("key-one",)}, "key-one")):
        response = serve(**settings).request(method, "/v1/tasks/topics", headers={"Authorization": f"Bearer {key}"})
        message = check_error(response, 403, "no_admin_key")["error"]["message"]
        assert "no admin key is configured" in message
        assert "SOFTCUE_ADMIN_KEY" in message
        assert "--admin-key-file" in message
    with_keys = serve(api_keys=("key-one",))  # a stranger does not learn it
    check_error(with_keys.request(method, "/v1/tasks/topics"), 401, "unauthorised")


# --- tasks ---


@pytest.fixture
def own_folder(folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(folder / "topics", tmp_path / "topics")
    return tmp_path


def test_tasks_are_listed_loaded_replaced_and_unloaded(serve: Serve, own_folder: Path) -> None:
    save_cue(own_folder / "titles", TITLES, model_type="t5")
    client = serve(own_folder, admin_keys=("admin-key",))
    listed = client.get("/v1/tasks").json()
    assert [task["name"] for task in listed["tasks"]] == ["topics"]
    assert [(cue["name"], cue["error"]["status"]) for cue in listed["broken"]] == [("titles", 409)]
    old = client.get("/v1/tasks/topics").json()
    assert old["labels"] == ["a", "b", "c"]
    assert (old["metric"], old["scores"], old["rows"]) == ("accuracy", {}, {})
    new = save_cue(own_folder / "topics", TOPICS, seed=3)
    response = client.put("/v1/tasks/topics", headers=ADMIN)
    assert response.status_code == 200
    assert response.json()["version"] == new.cue_file.record_sha256[:12] != old["version"]
    assert predict(client, ("topics", "ok")).json()["results"][0]["version"] == response.json()["version"]
    assert client.delete("/v1/tasks/topics", headers=ADMIN).status_code == 200
    check_error(predict(client, ("topics", "ok")), 404, "unknown_task")
    check_error(client.get("/v1/tasks/topics"), 404, "unknown_task")
    check_error(client.delete("/v1/tasks/topics", headers=ADMIN), 404, "unknown_task")
    assert client.put("/v1/tasks/topics", headers=ADMIN).status_code == 201


def test_scores_come_with_the_number_of_rows(cues: dict[str, Cue]) -> None:
    cue_file = cues["topics"].cue_file
    scores = {"validation": {"accuracy": 80.0}, "test": {"accuracy": 75.0}}
    trained = cue_file.model_copy(update={"scores": scores, "rows": {"train": 252, "validation": 66, "test": 126}})
    assert split_rows(trained) == {"validation": 66, "test": 126}
    old = cue_file.model_copy(update={"scores": scores, "training": {"validation_rows": 66, "seed": 0}})
    assert split_rows(old) == {"validation": 66}  # a cue of version 0.1 does not say how many test rows there were
    assert split_rows(cue_file) == {}


def test_cues_that_cannot_be_loaded_say_why(serve: Serve, own_folder: Path) -> None:
    client = serve(own_folder, admin_keys=("admin-key",))
    save_cue(own_folder / "titles", TITLES, model_type="t5")
    shutil.copytree(own_folder / "topics", own_folder / "cut")
    (own_folder / "cut" / "cue.json").write_text("{")
    check_error(client.put("/v1/tasks/titles", headers=ADMIN), 409, "wrong_backbone")
    check_error(predict(client, ("titles", "ok")), 409, "wrong_backbone")
    check_error(client.put("/v1/tasks/cut", headers=ADMIN), 422, "broken_cue")
    message = check_error(client.put("/v1/tasks/topic", headers=ADMIN), 404, "unknown_task")["error"]["message"]
    assert str(own_folder) in message
    assert "did you mean 'topics'?" in message
    (own_folder / "unfinished").mkdir()
    message = check_error(client.put("/v1/tasks/unfinished", headers=ADMIN), 422, "broken_cue")["error"]["message"]
    assert "unfinished/ has no cue.json" in message
    check_error(client.put("/v1/tasks/..%2Ftopics", headers=ADMIN), 404, "no_route")
    check_error(client.put("/v1/tasks/%2e%2e", headers=ADMIN), 422, "invalid")
    check_error(client.put("/v1/tasks/a%00b", headers=ADMIN), 422, "invalid")
    assert predict(client, ("topics", "ok")).status_code == 200


# --- generation ---


@pytest.fixture(scope="module")
def writer(serving: Serve, writing_cues: dict[str, dict[str, Cue]]) -> TestClient:
    path = writing_cues["t5"]["titles"].path
    assert path is not None
    return serving(path.parent, "t5")


def generate(client: TestClient, *pairs: tuple[Any, Any], **more: Any) -> Any:
    return client.post("/v1/generate", json={"inputs": inputs(*pairs), **more})


def test_generated_text_stops_at_stop_words(writer: TestClient, writing_cues: dict[str, dict[str, Cue]]) -> None:
    wanted = writing_cues["t5"]["titles"].predict(["My invoice is wrong."])[0].label or ""
    pair = ("titles", "My invoice is wrong.")
    assert generate(writer, pair).json()["results"][0]["label"] == wanted
    assert generate(writer, pair, stop=[wanted[1:3]]).json()["results"][0]["label"] == wanted.split(wanted[1:3])[0]
    short = generate(writer, pair, max_new_tokens=2).json()["results"][0]["label"]
    assert len(short) < len(wanted)
    for wrong in ({"max_new_tokens": 0}, {"max_new_tokens": 257}, {"stop": [""]}, {"stop": ["a"] * 5}, {"stop": "a"}):
        check_error(generate(writer, pair, **wrong), 422, "invalid")
    check_error(generate(writer, ("topics", "ok")), 422, "invalid")
    assert predict(writer, pair, ("topics", "ok")).status_code == 200


def test_streams_send_each_answer_then_done(writer: TestClient, writing_cues: dict[str, dict[str, Cue]]) -> None:
    response = generate(writer, ("titles", "ok"), ("nothing", "x"), ("titles-idpg", "Where is it"), stream=True)
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith("text/event-stream")
    *events, last = [
        dict(line.split(": ", 1) for line in event.splitlines()) for event in response.text.split("\n\n")[:-1]
    ]
    assert last == {"event": "done", "data": "{}"}
    assert {event["event"] for event in events} == {"text", "answer"}
    results = {data["index"]: data for event in events if "text" not in (data := json.loads(event["data"]))}
    assert sorted(results) == [0, 1, 2]
    assert results[0]["label"] == writing_cues["t5"]["titles"].predict(["ok"])[0].label
    assert results[1]["error"]["status"] == 404
    assert results[2]["label"] == writing_cues["t5"]["titles-idpg"].predict(["Where is it"])[0].label


def test_late_streams_end_with_an_error(serve: Serve, writing_cues: dict[str, dict[str, Cue]], held: Any) -> None:
    path = writing_cues["t5"]["titles"].path
    assert path is not None
    response = generate(serve(path.parent, "t5", deadline=0.2), ("titles", "ok"), stream=True)
    assert '"code":"deadline"' in response.text
    assert response.text.endswith("event: done\ndata: {}\n\n")


# --- what it tells of itself ---


def test_two_passes_at_a_time_answer_every_client_as_offline(serve: Serve, cues: dict[str, Cue]) -> None:
    client = serve(passes_at_once=2, max_rows=3)
    texts = [f"Where is my order {number}?" for number in range(12)]

    def ask(text: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = predict(client, ("topics", text), ("tone-vip", text), return_scores=True).json()[
            "results"
        ]
        return found

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, texts))
    for text, found in zip(texts, answers, strict=True):
        assert [answer["task"] for answer in found] == ["topics", "tone-vip"]
        for answer in found:
            [expected] = cues[answer["task"]].predict([text])
            assert answer["label"] == expected.label
            assert answer["scores"] == REORDERED_FLOAT32.approx(expected.scores)
    assert "softcue_examples_total 24.0" in client.get("/metrics").text


def test_metrics_count_what_happened(serve: Serve) -> None:
    client = serve()
    predict(client, ("topics", "ok"), ("stars", "ok"), ("nothing", "x"))
    post(client, b"{")
    client.get("/nothing")
    text = client.get("/metrics").text
    for line in (
        'softcue_requests_total{route="/v1/predict",status="200"} 1.0',
        'softcue_requests_total{route="/v1/predict",status="400"} 1.0',
        'softcue_requests_total{route="other",status="404"} 1.0',
        'softcue_failures_total{reason="unknown_task"} 1.0',
        'softcue_failures_total{reason="malformed"} 1.0',
        "softcue_examples_total 2.0",
        "softcue_batch_rows_count 1.0",
        "softcue_batch_tasks_sum 2.0",
        "softcue_queue_seconds_count 2.0",
        "softcue_cues_loaded 10.0",
        "softcue_examples_in_flight 0.0",
        "softcue_queue_rows 0.0",
        f'softcue_build_info{{backbone="tiny-bert",version="{softcue.__version__}"}} 1.0',
    ):
        assert line in text, line
    for name in (
        "softcue_tokens_total",
        "softcue_padding_tokens_total",
        "softcue_batch_seconds_sum",
        "softcue_request_seconds_bucket",
    ):
        assert name in text


def test_info_names_backbone_and_limits(client: TestClient) -> None:
    info = client.get("/v1/info").json()
    assert info["backbone"]["name"] == "tiny-bert"
    assert info["limits"] == {
        "max_body_bytes": 2_000_000,
        "max_inputs": 32,
        "max_in_flight": 512,
        "deadline": 30.0,
        "max_characters": 20_000,
        "max_new_tokens": 256,
    }
    assert info["cues"] == 10


def test_openapi_names_routes_bodies_and_statuses(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    assert {
        "/v1/predict",
        "/v1/generate",
        "/v1/explain",
        "/v1/examples",
        "/v1/tasks",
        "/v1/tasks/{name}",
        "/livez",
        "/readyz",
        "/metrics",
        "/v1/info",
    } == {path for path in document["paths"] if protocol_of(path) == "softcue"}
    assert {"Input", "PredictBody", "GenerateBody", "ExplainBody"} <= set(document["components"]["schemas"])
    assert {"400", "401", "404", "409", "413", "415", "422", "429", "503", "504"} <= set(
        document["paths"]["/v1/predict"]["post"]["responses"]
    )


def test_docs_page_loads_everything_from_this_server(client: TestClient) -> None:
    page = client.get("/docs").text
    sources = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(sources) >= 3
    for source in sources:
        assert source.startswith("/"), source
        assert client.get(source).status_code == 200
    assert "/openapi.json" in page


def test_inputs_and_results_have_schemas(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    assert schemas["PredictBody"]["properties"]["inputs"]["items"] == {"$ref": "#/components/schemas/Input"}
    operation = document["paths"]["/v1/predict"]["post"]
    for content, name in (
        (operation["requestBody"]["content"], "PredictBody"),
        (operation["responses"]["200"]["content"], "PredictResponse"),
        (operation["responses"]["422"]["content"], "ErrorResponse"),
    ):
        assert content["application/json"]["schema"] == {"$ref": f"#/components/schemas/{name}"}
    assert operation["security"] == [{"HTTPBearer": []}]
    assert "text/event-stream" in document["paths"]["/v1/generate"]["post"]["responses"]["200"]["content"]


def test_first_page_is_there(client: TestClient) -> None:
    response = client.get("/")
    assert response.status_code == 200
    assert "softcue" in response.text


def test_logs_have_texts_only_if_enabled(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    for log_texts in (False, True):
        caplog.clear()
        with caplog.at_level(logging.INFO, "softcue.serving"):
            assert predict(serve(log_texts=log_texts), ("topics", SECRET), ("no", "x")).status_code == 200
        lines = [JsonLines(log_texts).format(record) for record in caplog.records if record.name == "softcue.serving"]
        [line] = [entry for entry in map(json.loads, lines) if entry["event"] == "request"]
        assert {
            "method": "POST",
            "route": "/v1/predict",
            "status": 200,
            "inputs": 2,
            "failed": 1,
        }.items() <= line.items()
        assert (SECRET in "".join(lines)) is log_texts


def test_logged_errors_quote_no_text() -> None:
    try:
        raise ValueError(SECRET)
    except ValueError as error:
        record = logging.LogRecord("softcue", logging.ERROR, "", 0, "failed", None, (type(error), error, None))
    assert json.loads(JsonLines(log_texts=False).format(record))["error"] == "ValueError"
    assert SECRET not in JsonLines(log_texts=False).format(record)
    assert SECRET in JsonLines(log_texts=True).format(record)
