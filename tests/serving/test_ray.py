"""Two real replicas behind Ray Serve on this machine, and what the command line says without starting any."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from command import check_refused, run
from prometheus_client.parser import text_string_to_metric_families
from serving_cues import items
from tiny import tiny

from softcue.cue.cue import Cue
from softcue.errors import ConfigurationError
from softcue.serving import ray as ray
from softcue.serving.client import Client, ServerError
from softcue.serving.engine.engine import Engine
from softcue.serving.http.service import Metrics
from softcue.serving.settings import ServerSettings

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra ray is not installed")

# --- without Ray ---


def test_replicas_are_for_ray_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTCUE_CACHE_MB", "0")
    check_refused(run("serve", "--backbone", "minilm", folder, "--replicas", 2), "--replicas", "--engine ray")


def test_ray_server_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SOFTCUE_CACHE_MB", "RAY_AUTH_TOKEN", *ray.ENVIRONMENT):
        monkeypatch.setenv(name, "0")
    monkeypatch.setitem(sys.modules, "ray", None)
    check_refused(run("serve", "--engine", "ray", "--backbone", "minilm", folder), "package 'ray'", ".[ray]")


def test_ray_does_not_open_the_port_to_others_without_a_key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTCUE_CACHE_MB", "0")
    open_to_all = ("--host", "0.0.0.0", "--engine", "ray", "--replicas", 2)
    check_refused(run("serve", "--backbone", "minilm", folder, *open_to_all), "--host", "--without-key")


def test_port_in_use_is_told_before_ray_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=r"host and port.*a free port"):
            ray._free_port(ServerSettings(port=port))
    assert ray._free_port(ServerSettings(port=port)) == port
    assert ray._free_port(ServerSettings(port=0)) > 0


def test_folder_too_long_for_sockets_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(ray, "LONGEST_FOLDER", 10)
    with pytest.raises(ConfigurationError, match="TMPDIR"), ray._folder_with_log():
        pass
    assert list(tmp_path.iterdir()) == []


def test_metrics_of_replicas_are_told_apart_and_never_added_up() -> None:
    first, second = Metrics(), Metrics()
    for metrics, number in ((first, 2), (second, 3)):
        metrics.examples.inc(number)
        metrics.requests.labels("/v1/predict", "200").inc(number)
        metrics.request_seconds.labels("/v1/predict").observe(0.01)
    text = ray.merged({"b": second.text().decode(), "a": first.text().decode()}).decode()
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["softcue_replicas",] == 2
    assert (found["softcue_examples_total", "a"], found["softcue_examples_total", "b"]) == (2, 3)
    assert found["softcue_requests_total", "b", "/v1/predict", "200"] == 3
    assert text.count("# TYPE softcue_request_seconds histogram") == 1


# --- two replicas ---

# Found by every Python process that Ray starts: passes of the replicas take a second, so that signals come in between.
SLOW = """
import sys, threading, time
def patch():
    while not hasattr(engine := sys.modules.get("softcue.serving.engine.engine"), "Engine"):
        time.sleep(0.05)
    plain = engine.Engine._pass
    def slow(self, rows):
        time.sleep(1)
        return plain(self, rows)
    engine.Engine._pass = slow
threading.Thread(target=patch, daemon=True).start()
"""


class Command:
    """`softcue serve --engine ray` in a process of its own."""

    def __init__(self, words: list[object], environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "softcue", "serve", "--engine", "ray", "--replicas", 2, "--port", 0, *words]
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )
        self.lines: list[str] = []  # of its standard error
        self._everyone: set[psutil.Process] = set()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def wait_for(self, text: str, count: int = 1, seconds: float = 150) -> None:
        """Until so many lines say so."""
        end = time.monotonic() + seconds
        while sum(text in line for line in self.lines) < count:
            assert time.monotonic() < end and self.process.poll() is None, "".join(self.lines)
            self._everyone |= set(self.family())
            time.sleep(0.2)

    @property
    def url(self) -> str:
        return next(found[0] for line in self.lines if (found := re.search(r"http://127\.0\.0\.1:\d+", line)))

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def ended(self) -> int:
        """The exit code; nothing that it started may outlive it."""
        code = self.process.wait(90)
        self._reader.join(10)
        assert psutil.wait_procs(self._everyone, 10)[1] == []
        return code

    def _read(self) -> None:
        with self.process:
            self.lines.extend(self.process.stderr or ())


Begin = Callable[..., Command]


@pytest.fixture(scope="module")
def begin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begin]:
    begun: list[Command] = []
    patches = tmp_path_factory.mktemp("patches")
    (patches / "sitecustomize.py").write_text(SLOW)

    def start(*words: object, **environment: str) -> Command:
        begun.append(Command(list(words), {"PYTHONPATH": str(patches), **environment}))
        return begun[-1]

    yield start
    for one in begun:
        if one.process.poll() is None:
            one.process.terminate()
        one.ended()


@pytest.fixture(scope="module")
def server(
    begin: Begin, model_folders: dict[str, Path], folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Command:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("key-one\n")
    words = ("--backbone", model_folders["bert"], folder, "--api-key-file", keys)
    found = begin(*words, SOFTCUE_ADMIN_KEY="admin-key")
    found.wait_for("all replicas ready")
    return found


def asked(server: Command, path: str, body: Any = None, key: str = "key-one", method: str | None = None) -> Any:
    """Status, replica and body of an answer."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    try:
        answer = urllib.request.urlopen(urllib.request.Request(server.url + path, data, headers, method=method))
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        return answer.status, answer.headers["X-Softcue-Replica"], answer.read().decode()


@pytest.mark.slow
@needs_ray
def test_replicas_answer_as_the_engine_does_offline(server: Command, folder: Path, cues: dict[str, Cue]) -> None:
    pieces = [items(cues, 60)[first : first + 5] for first in range(0, 60, 5)]
    with Engine(tiny("bert"), folder) as engine:
        wanted = [[result.prediction for result in engine.predict(piece)] for piece in pieces]
    inputs = [[{"task": task, "text": text} for task, text in piece] for piece in pieces]
    bodies = [{"inputs": piece, "return_scores": True, "truncate": True} for piece in inputs]
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda body: asked(server, "/v1/predict", body), bodies))
    assert {status for status, _, _ in answers} == {200}
    assert len({replica for _, replica, _ in answers}) == 2
    for (_, _, text), predictions in zip(answers, wanted, strict=True):
        for found, prediction in zip(json.loads(text)["results"], predictions, strict=True):
            assert found.get("label") == prediction.label
            assert found.get("value") == pytest.approx(prediction.value, abs=1e-5)
            assert found.get("scores") == pytest.approx(prediction.scores, abs=1e-5)


@pytest.mark.slow
@needs_ray
def test_metrics_are_those_of_both_replicas(server: Command) -> None:
    before = counted(server)
    with ThreadPoolExecutor(8) as pool:
        body = {"inputs": [{"task": "topics", "text": "ok"}] * 3}
        replicas = Counter(found[1] for found in pool.map(lambda _: asked(server, "/v1/predict", body), range(8)))
    after = counted(server)
    assert {name: after[name] - before[name] for name in after} == {name: 3 * replicas[name] for name in after}
    assert len(after) == 2


def counted(server: Command) -> dict[str, float]:
    """Examples answered by each replica."""
    status, _, text = asked(server, "/metrics")
    assert status == 200 and "softcue_replicas 2.0" in text
    return {
        sample.labels["replica"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "softcue_examples_total"
    }


@pytest.mark.slow
@needs_ray
def test_text_is_streamed_through_the_replicas(
    begin: Begin, model_folders: dict[str, Path], writing_cues: dict[str, dict[str, Cue]]
) -> None:
    cue = writing_cues["gpt2"]["titles"]
    assert cue.path is not None
    writing = begin("--backbone", model_folders["gpt2"], cue.path.parent)
    writing.wait_for("all replicas ready")
    wanted = cue.predict("Where is it")[0].label
    found = [one for _, one in Client(writing.url).stream([("titles", "Where is it")])]
    assert "".join(one for one in found if isinstance(one, str)) == wanted
    assert len(found) > 2 and not isinstance(found[-1], str) and found[-1].label == wanted
    writing.process.terminate()
    assert writing.ended() == 0


@pytest.mark.slow
@needs_ray
def test_keys_and_page_are_those_of_one_server(server: Command) -> None:
    for path in ("/v1/tasks", "/v1/info", "/metrics", "/openapi.json"):
        assert asked(server, path, key="wrong")[0] == 401
        assert asked(server, path)[0] == 200
    for path in ("/livez", "/readyz", "/"):
        assert asked(server, path, key="wrong")[0] == 200
    with pytest.raises(ServerError, match="404 unknown_task"):
        Client(server.url, "key-one").predict([("nothing", "x")])


@pytest.mark.slow
@needs_ray
def test_cues_of_replicas_cannot_be_changed_one_by_one(server: Command) -> None:
    for method in ("PUT", "DELETE"):
        status, _, text = asked(server, "/v1/tasks/topics", key="admin-key", method=method)
        assert status == 405 and "restart the server" in text
        assert asked(server, "/v1/tasks/topics", method=method)[0] == 401
    paths = json.loads(asked(server, "/openapi.json")[2])["paths"]
    assert set(paths["/v1/tasks/{name}"]) == {"get"} and "/metrics" in paths


@pytest.mark.slow
@needs_ray
def test_nothing_listens_to_other_machines(server: Command) -> None:
    everyone = [psutil.Process(server.process.pid), *server.family()]
    listening = [where.laddr for one in everyone for where in one.net_connections("inet") if where.status == "LISTEN"]
    assert len(listening) > 5
    assert {where.ip for where in listening} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


@pytest.mark.slow
@needs_ray
def test_dead_replica_is_replaced_and_no_request_fails_meanwhile(server: Command) -> None:
    replicas = [one for one in server.family() if one.cmdline()[:1] == ["ray::ServeReplica:softcue:softcue"]]
    assert len(replicas) == 2
    replicas[0].kill()
    replicas[0].wait(10)
    time.sleep(1)  # a request that comes before anyone knows fails
    body = {"inputs": [{"task": "topics", "text": "ok"}]}
    statuses = set()
    while sum('"event": "ready"' in line for line in server.lines) < 3:
        statuses.add(asked(server, "/v1/predict", body)[0])
    statuses |= {asked(server, "/v1/predict", body)[0] for _ in range(6)}
    assert statuses == {200}
    server.wait_for('"event": "ready"', 3)


@pytest.mark.slow
@needs_ray
def test_sigterm_answers_what_was_taken_then_ends_everything(server: Command, cues: dict[str, Cue]) -> None:
    body = {"inputs": [{"task": "topics", "text": "a secret text"}]}
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(asked, server, "/v1/predict", body) for _ in range(4)]
        time.sleep(0.5)
        server.process.send_signal(signal.SIGTERM)
        found = [answer.result(30) for answer in answers]
    assert server.ended() == 0
    assert {status for status, _, _ in found} == {200}
    [label] = {json.loads(text)["results"][0]["label"] for _, _, text in found}
    assert label == cues["topics"].predict(["a secret text"])[0].label
    lines = [json.loads(line) for line in server.lines]  # one JSON object each
    assert "a secret text" not in "".join(server.lines)
    assert len({line["replica"] for line in lines if line.get("route") == "/v1/predict"}) >= 2
    with pytest.raises(ServerError, match="is the server running"):
        Client(server.url, "key-one").tasks()


@pytest.mark.slow
@needs_ray
def test_replicas_that_cannot_load_end_the_command_with_one_line(begin: Begin, folder: Path, tmp_path: Path) -> None:
    command = begin("--backbone", tmp_path / "no-model", folder)
    assert command.ended() == 2
    [error] = [line for line in command.lines if not line.startswith("{")]
    assert error.startswith("error: backbone.name: got ") and "no-model" in error
