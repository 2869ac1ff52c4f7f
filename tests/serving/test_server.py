"""Real sockets and real signals: clients that leave, SIGTERM, the client and the command line."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from command import check_error, run
from tiny import tiny
from tolerance import REORDERED_FLOAT32, REORDERED_PROBABILITIES

from softcue.cue.cue import Cue
from softcue.errors import ConfigurationError
from softcue.serving.client import Client, ServerError
from softcue.serving.engine.engine import Engine
from softcue.serving.http import connections
from softcue.serving.http.routes import create_app
from softcue.serving.http.server import make_config
from softcue.serving.http.service import Service
from softcue.serving.settings import ServerSettings


@dataclass(frozen=True)
class Running:
    service: Service
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, key: str = "", **settings: Any) -> Client:
        return Client(self.url, key, timeout=20, **settings)


Start = Callable[..., Running]


@pytest.fixture
def start(folder: Path, until: Callable[..., None]) -> Iterator[Start]:
    """Servers on a port of this machine, in a thread each."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def listen(cues_folder: Path = folder, model_type: str = "bert", **settings: Any) -> Running:
        server_settings = ServerSettings(port=0, **settings)
        service = Service(
            server_settings,
            lambda on_batch: Engine(tiny(model_type), cues_folder, server_settings.limits, on_batch=on_batch),
        )
        server = uvicorn.Server(make_config(create_app(service), server_settings))
        thread = threading.Thread(target=server.run)
        thread.start()
        running.append((server, thread))
        until(lambda: server.started and service.state == "ready")
        return Running(service, server.servers[0].sockets[0].getsockname()[1])

    yield listen
    for server, thread in running:
        server.should_exit = True
        thread.join(20)


def sent(port: int, path: str, body: dict[str, Any]) -> socket.socket:
    """A request whose answer nobody has read yet."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    connection.sendall(head.encode() + data)
    return connection


# --- clients that leave ---


def test_rows_of_clients_that_left_are_never_run(start: Start, held: Any, until: Callable[..., None]) -> None:
    server = start()
    engine = server.service.engine
    first = sent(server.port, "/v1/predict", {"inputs": [{"task": "topics", "text": "first"}]})
    assert held.has_begun.wait(10)
    leaving = sent(server.port, "/v1/predict", {"inputs": [{"task": "topics", "text": f"x {n}"} for n in range(5)]})
    until(lambda: engine.num_in_flight == 6)
    leaving.close()
    metrics = server.client()
    until(lambda: 'reason="disconnected"} 1.0' in server.service.metrics.text().decode())
    held.go.set()
    assert b"200 OK" in first.recv(1000)
    first.close()
    until(lambda: engine.num_in_flight == 0)
    assert held.sizes == [1]
    assert metrics.predict([("topics", "still there")])[0].label
    counted = server.service.metrics.text().decode()
    assert 'status="499"' in counted
    assert 'reason="deadline"' not in counted


def test_streams_of_clients_that_left_are_never_run(
    start: Start, held: Any, until: Callable[..., None], writing_cues: dict[str, dict[str, Cue]]
) -> None:
    path = writing_cues["t5"]["titles"].path
    assert path is not None
    server = start(path.parent, "t5")
    engine = server.service.engine
    first = sent(server.port, "/v1/predict", {"inputs": [{"task": "titles", "text": "first"}]})
    assert held.has_begun.wait(10)
    body = {"inputs": [{"task": "titles", "text": f"x {number}"} for number in range(5)], "stream": True}
    leaving = sent(server.port, "/v1/generate", body)
    until(lambda: engine.num_in_flight == 6)
    assert b"200 OK" in leaving.recv(1000)
    leaving.close()
    until(lambda: 'reason="disconnected"} 1.0' in server.service.metrics.text().decode())
    held.go.set()
    assert b"200 OK" in first.recv(1000)
    first.close()
    until(lambda: engine.num_in_flight == 0)
    assert held.sizes == [1]


def test_too_large_is_answered_before_the_body_is_sent(start: Start) -> None:
    head = "POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9000000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", start().port), timeout=10) as connection:
        connection.sendall(head.encode())
        assert b"413" in connection.recv(1000).split(b"\r\n")[0]


def test_body_that_does_not_come_is_504(start: Start) -> None:
    server = start(deadline=0.2)
    head = "POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 90\r\n\r\n{"
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(head.encode())
        assert b"504" in connection.recv(1000).split(b"\r\n")[0]
    assert server.service.num_reading == 0


# --- limits of connections ---


def answer(port: int, *parts: bytes) -> bytes:
    """The response to what is sent, part by part; a reset while it is sent does not matter."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        for part in parts:
            try:
                connection.sendall(part)
            except OSError:
                break
        received = b""
        while chunk := connection.recv(4096):
            received += chunk
        return received


def test_heads_beyond_the_limits_are_refused(start: Start) -> None:
    port = start().port
    line = b"GET /livez HTTP/1.1\r\nConnection: close\r\n"
    assert b"200 OK" in answer(port, line + b"a: b\r\n" * 90 + b"\r\n")
    assert b" 431 " in answer(port, line + b"a: b\r\n" * 200 + b"\r\n")
    assert b" 431 " in answer(port, line, b"a: " + b"x" * 40_000, b"x" * 30_000)
    assert b" 414 " in answer(port, b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n")
    assert b'"code":"large_head"' in answer(port, line + b"x" * 70_000)
    assert b'"code":"malformed"' in answer(port, b"nonsense\r\n\r\n")


def test_request_for_a_websocket_is_answered_as_any_other(start: Start) -> None:
    pytest.importorskip("websockets")  # uvicorn would hand the connection over to it
    upgrade = b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    upgrade += b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    server = start(deadline=0.5)
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(upgrade)
        assert connection.recv(1000).startswith(b"HTTP/1.1 4")


def test_heads_that_do_not_come_are_given_up(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.2)
    port = start().port
    assert b" 408 " in answer(port, b"GET /livez HTTP/1.1\r\nHost:")
    assert answer(port) == b""
    assert answer(port, b"\r\n") != b"200"


def test_connections_of_one_address_are_limited(start: Start) -> None:
    server = start(max_connections_per_client=3)
    head = b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 90\r\n\r\n{"
    slow = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(3)]
    for connection in slow:
        connection.sendall(head)
    assert b" 429 " in answer(server.port, b"GET /livez HTTP/1.1\r\n\r\n")
    slow.pop().close()
    end = time.monotonic() + 10
    while b"200 OK" not in answer(server.port, b"GET /livez HTTP/1.1\r\nConnection: close\r\n\r\n"):
        assert time.monotonic() < end
    for connection in slow:
        connection.close()


def test_slow_bodies_keep_nobody_out(start: Start, until: Callable[..., None]) -> None:
    server = start(max_in_flight=8)
    head = b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 90\r\n\r\n{"
    slow = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(12)]
    for connection in slow:
        connection.sendall(head)
    until(lambda: server.service.num_reading == 12)
    assert server.client(attempts=1).predict([("topics", "hello")])[0].label
    for connection in slow:
        connection.close()


@pytest.mark.parametrize("has_key", [True, False])
def test_large_body_gets_its_answer_while_it_is_sent(start: Start, has_key: bool) -> None:
    """As urllib sends it: all of the body first, on a connection that is to be closed."""
    server = start(max_body_bytes=1000, api_keys=("key",))
    data = b"x" * 5_000_000
    headers = {"Content-Type": "application/json", "Authorization": "Bearer key" if has_key else "Bearer other"}
    request = urllib.request.Request(f"{server.url}/v1/predict", data, headers)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=10)
    with caught.value as response:
        assert response.code == (413 if has_key else 401)
        assert json.load(response)["error"]["code"] == ("too_large" if has_key else "unauthorised")


# --- many at once ---


def test_concurrent_clients_get_their_own_answers(start: Start, cues: dict[str, Cue]) -> None:
    server = start(max_in_flight=8)  # so that some must come again
    names = ["topics", "tone-vip", "stars", "topics-idpg"]
    texts = [f"text {number} " * (1 + number % 4) for number in range(12)]
    wanted = {name: cues[name].predict(texts) for name in names}

    def ask(name: str) -> int:
        client = server.client(attempts=20)
        for first in range(0, 12, 3):
            replies = client.predict([(name, text) for text in texts[first : first + 3]], return_scores=True)
            for reply, answer in zip(replies, wanted[name][first : first + 3], strict=True):
                assert reply.label == answer.label
                assert reply.value == REORDERED_FLOAT32.approx(answer.value)
                assert reply.scores == REORDERED_PROBABILITIES.approx(answer.scores)
        return 1

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(ask, names * 2)) == 8
    assert server.service.engine.num_in_flight == 0


# --- the client and the command line ---


def test_client_reads_every_kind_of_reply(start: Start, cues: dict[str, Cue]) -> None:
    server = start(admin_keys=("admin-key",))
    client = server.client("admin-key")
    good, bad = client.predict([("tone", "At last"), ("nothing", "x")], ensemble="vote", return_scores=True)
    assert good.votes and good.scores and len(good.versions or {}) == 3 and not good.error
    assert (bad.error, bad.label) == ("unknown_task", None) and bad.message
    [pair] = client.predict([("pairs", ("a", "b"))])
    assert pair.label in ("same", "other") and pair.scores is None
    assert client.info()["cues"] == len(cues) == len(client.tasks())
    explanation, failed = client.explain([("topics", "At last"), ("nothing", "x")])
    assert len(explanation["vectors"]) == 4
    assert failed["error"]["code"] == "unknown_task"
    assert client.examples() == []
    assert client.unload("pairs")["name"] == "pairs"
    assert client.load("pairs")["name"] == "pairs"
    with pytest.raises(ServerError) as caught:
        client.predict([("nothing", "x")])
    assert (caught.value.status, caught.value.code) == (404, "unknown_task")
    with pytest.raises(ServerError, match="401 unauthorised"):
        server.client("wrong").unload("pairs")


def test_client_generates_and_streams(start: Start, writing_cues: dict[str, dict[str, Cue]]) -> None:
    cue = writing_cues["t5"]["titles"]
    assert cue.path is not None
    client = start(cue.path.parent, "t5").client()
    wanted = cue.predict(["ok", "Where is it"])
    inputs = [("titles", "ok"), ("titles", "Where is it")]
    assert [reply.label for reply in client.generate(inputs, max_new_tokens=6)] == [
        prediction.label for prediction in wanted
    ]
    pieces, replies = ["", ""], {}
    for place, part in client.stream(inputs):
        if isinstance(part, str):
            assert place not in replies
            pieces[place] += part
        else:
            replies[place] = part.label
    assert pieces == [prediction.label for prediction in wanted] == [replies[0], replies[1]]


def test_client_tries_again_when_told_to(start: Start, held: Any, until: Callable[..., None]) -> None:
    server = start(max_in_flight=1)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(server.client().predict, [("topics", "ok")])
        assert held.has_begun.wait(10)
        with pytest.raises(ServerError, match="429 busy"):
            server.client(attempts=1).predict([("topics", "ok")])
        second = pool.submit(server.client().predict, [("topics", "ok")])
        time.sleep(0.2)
        held.go.set()
        assert first.result(10)[0].label == second.result(10)[0].label


def test_client_says_what_is_wrong_with_the_address() -> None:
    for url in ("127.0.0.1:8000", "ftp://x", "http://"):
        with pytest.raises(ConfigurationError, match="an address such as"):
            Client(url)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ServerError, match="is the server running"):
        Client(f"http://127.0.0.1:{port}").tasks()


class Odd(BaseHTTPRequestHandler):
    """Another kind of server: what it answers is in the path."""

    protocol_version = "HTTP/1.0"

    def do_POST(self) -> None:
        answers = {
            "cut": (200, [], b'event: text\ndata: {"index":0,"text":"half a "}\n\n'),
            "page": (200, [], b"<html>"),
            "short": (200, [("Content-Length", "900")], b"{"),
            "moved": (302, [("Location", "http://127.0.0.1:9/")], b""),
        }
        status, headers, body = answers[self.path.split("/")[1]]
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_client_says_so_where_an_answer_is_cut_off_or_no_answer() -> None:
    with HTTPServer(("127.0.0.1", 0), Odd) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        parts: list[Any] = []
        with pytest.raises(ServerError, match="cut_off"):
            parts += Client(f"{url}/cut").stream([("titles", "x")])
        for path, message in (
            ("page", "JSONDecodeError"),
            ("short", "IncompleteRead|JSONDecodeError"),
            ("moved", "302"),
        ):
            with pytest.raises(ServerError, match=message):
                Client(f"{url}/{path}").predict([("topics", "x")])
        server.shutdown()


def test_tabs_belong_to_the_text_of_cues_that_read_one(start: Start) -> None:
    options = ["--url", start().url, "--json"]
    [result] = run("client", "predict", "--task", "topics", *options, "one\ttwo").json["results"]
    assert result["label"]


def test_client_commands(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start(api_keys=("key-one",))
    options = ["--url", server.url]
    check_error(run("client", "tasks", *options), "401")
    monkeypatch.setenv("SOFTCUE_API_KEY", "key-one")
    assert {task["name"] for task in run("client", "tasks", *options, "--json").json["tasks"]} >= {"topics", "pairs"}
    assert "prompt-tuning" in run("client", "tasks", *options).out
    results = run("client", "predict", "--task", "pairs", *options, "one\ttwo", "three", "--json").json["results"]
    assert results[0]["label"] in ("same", "other") and results[1]["error"] == "invalid"
    assert "two" in run("client", "predict", "--task", "pairs", *options, "one\ttwo").out
    two_cues = ["--task", "topics", "--task", "topics-idpg"]
    assert run("client", "predict", *two_cues, "--ensemble", "mean", *options, "x", "--json").json["results"][0][
        "votes"
    ]
    check_error(run("client", "predict", *two_cues, *options, "x"), "--ensemble")
    check_error(run("client", "predict", "--task", "no", *options, "x"), "404 unknown_task")


def test_client_prints_text_that_is_written(start: Start, writing_cues: dict[str, dict[str, Cue]]) -> None:
    cue = writing_cues["gpt2"]["titles"]
    assert cue.path is not None
    options = ["--url", start(cue.path.parent, "gpt2").url, "ok"]
    assert run("client", "generate", "--task", "titles", *options).out == f"{cue.predict('ok')[0].label}\n"
    short = run("client", "generate", "--task", "titles", "--max-new-tokens", 2, *options).out
    assert len(short) < len(run("client", "generate", "--task", "titles", *options).out)
    check_error(run("client", "generate", "--task", "topics", *options), "invalid")
    check_error(run("client", "generate", "--task", "no", *options), "unknown_task")


def test_help_and_client_need_neither_torch_nor_fastapi() -> None:
    code = (
        "import sys, softcue.cli.app, softcue.serving.client; sys.exit(bool({'torch', 'fastapi'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_serve_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "softcue.serving.http.server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    check_error(run("serve", "--backbone", "minilm", folder), "package 'uvicorn'", ".[serve]")


def test_serve_checks_its_options_before_anything_is_loaded(folder: Path, tmp_path: Path) -> None:
    check_error(run("serve", "--backbone", "minilm", tmp_path / "none"), "a folder with a folder per cue")
    check_error(run("serve", "--backbone", "minilm", folder, "--host", "0.0.0.0"), "--host", "--without-key")
    check_error(run("serve", "--backbone", "minilm", folder, "--api-key-file", tmp_path / "none"), "key file")


# --- a process of its own ---

SLOW = """
import sys, time
from softcue.serving.engine import engine
plain = engine.predict_mixed
def slow(*rows):
    time.sleep(1.0)
    return plain(*rows)
engine.predict_mixed = slow
from softcue.cli.app import main
main()
"""


# A server whose inference thread ends at its first batch.
DYING = """
from softcue.serving.engine.engine import Engine
def die(engine, batch):
    raise MemoryError("the device is gone")
Engine._run_batch = die
from softcue.cli.app import main
main()
"""


def served(
    folder: Path, backbone: Path, *words: object, script: str = SLOW, **environment: str
) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, "serve", "--backbone", backbone, folder, "--port", "0", *words]
    return subprocess.Popen(
        [str(word) for word in command],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def url_of(process: subprocess.Popen[str]) -> str:
    """The address of a server, once it is ready."""
    assert process.stderr is not None
    lines: list[dict[str, Any]] = []
    while not {"ready", "running"} <= {word for line in lines for word in line["event"].split()}:
        lines.append(json.loads(process.stderr.readline()))
    [url] = [match[0] for line in lines if (match := re.search(r"http://127\.0\.0\.1:\d+", line["event"]))]
    return url


def test_a_server_whose_inference_thread_ends_says_503_and_ends_with_an_error(
    folder: Path, model_folders: dict[str, Path]
) -> None:
    with served(folder, model_folders["bert"], script=DYING) as process:
        client = Client(url_of(process), attempts=1)
        with pytest.raises(ServerError, match="503"):
            client.predict([("topics", "Where is it")])
        assert process.stderr is not None
        rest = process.stderr.read()
        assert process.wait(20) != 0
    assert "an inference thread has ended" in rest


def test_sigterm_answers_what_was_taken_then_ends(
    folder: Path, model_folders: dict[str, Path], tmp_path: Path, cues: dict[str, Cue]
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("key-one\nkey-two\n")
    with served(folder, model_folders["bert"], "--api-key-file", keys, SOFTCUE_ADMIN_KEY="admin-key") as process:
        assert process.stderr is not None
        client = Client(url_of(process), "key-two", attempts=1)
        assert client.info()["backbone"]["dtype"] == "float32"
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(client.predict, [("topics", "a secret text"), ("stars", "ok")])
            while client.info()["in_flight"] == 0:
                time.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            replies = future.result(20)
        rest = process.stderr.read()
        assert process.wait(20) == 0
    assert replies[0].label == cues["topics"].predict(["a secret text"])[0].label
    assert replies[1].value == REORDERED_FLOAT32.approx(cues["stars"].predict(["ok"])[0].value)
    assert "a secret text" not in rest
    events = [json.loads(line) for line in rest.splitlines()]
    assert [line["status"] for line in events if line.get("route") == "/v1/predict"] == [200]
    with pytest.raises(ServerError, match="is the server running"):
        client.tasks()


def test_server_that_cannot_load_ends_with_one_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "softcue.serving.http.server.log_to_stderr", lambda _: None
    )  # the log of this process is pytest's
    before = signal.getsignal(signal.SIGTERM)
    try:
        outcome = run("serve", "--backbone", tmp_path / "no-model", folder, "--port", 0)
    finally:
        signal.signal(signal.SIGTERM, before)
    check_error(outcome, "backbone.name", "no-model")
