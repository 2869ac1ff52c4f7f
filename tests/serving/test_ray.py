"""Two real replicas on a Ray cluster of this machine, and the messages of the command line without a cluster."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
import types
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from command import check_error, run
from prometheus_client.parser import text_string_to_metric_families
from ray_nodes import Cluster, Process, running_cluster
from serving_cues import CASES, items
from tiny import tiny
from tolerance import REORDERED_FLOAT32, REORDERED_PROBABILITIES

from softcue.cue.cue import Cue
from softcue.errors import ConfigurationError, RunError
from softcue.ray_cluster import START_COMMAND
from softcue.serving import ray
from softcue.serving.client import Client, ServerError
from softcue.serving.engine.engine import Engine
from softcue.serving.http.service import Metrics
from softcue.serving.settings import ServerSettings

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra ray is not installed")

# --- without Ray ---


@pytest.mark.parametrize("option", [("--replicas", 2), ("--ray-address", "auto")])
def test_options_of_ray_need_its_engine(folder: Path, option: tuple[str, object]) -> None:
    check_error(run("serve", "--backbone", "minilm", folder, *option), option[0], "--engine ray")


def watch_silent_replicas(monkeypatch: pytest.MonkeyPatch, starting: Iterator[bool]) -> None:
    """Watch replicas that never respond; `starting` says for each further look whether Ray starts others."""
    monkeypatch.setattr(ray, "SILENT_SECONDS", 0.02)
    monkeypatch.setattr(ray, "WATCH_SECONDS", 0.005)
    monkeypatch.setattr(ray, "_call_replicas", lambda handle: [])
    monkeypatch.setattr(ray, "_are_starting", lambda: next(starting))
    ray._watch(None, threading.Event())


def test_silent_replicas_end_the_command_once_ray_starts_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    starting = iter([True, True, True, False])
    with pytest.raises(RunError, match="no response"):
        watch_silent_replicas(monkeypatch, starting)
    assert next(starting, None) is None  # it had waited as long as others were starting


def test_replicas_that_start_for_ever_end_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "STARTING_SECONDS", 0.2)
    with pytest.raises(RunError, match="no response"):
        watch_silent_replicas(monkeypatch, itertools.repeat(True))


def start_slow_proxy(monkeypatch: pytest.MonkeyPatch, num_failures: int) -> list[dict[str, Any]]:
    """Start a proxy whose first attempts fail; returns the options of every attempt."""
    attempts: list[dict[str, Any]] = []

    class RayError(Exception):
        pass

    def start(**options: Any) -> None:
        attempts.append(options)
        if len(attempts) <= num_failures:
            raise RayError("The actor died.\nclass_name: ProxyActor")

    modules = types.SimpleNamespace(exceptions=types.SimpleNamespace(RayError=RayError))
    modules.serve = types.SimpleNamespace(start=start)
    monkeypatch.setitem(sys.modules, "ray", modules)
    ray._start_proxy({"port": 8000})
    return attempts


def test_a_proxy_that_starts_slowly_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = start_slow_proxy(monkeypatch, 2)
    assert len(attempts) == 3 and all(attempt["http_options"] == {"port": 8000} for attempt in attempts)


def test_a_proxy_that_never_starts_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match=r"ray_address: got 'The actor died\.'; expected a cluster that starts"):
        start_slow_proxy(monkeypatch, 3)


def test_ray_server_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    check_error(run("serve", "--engine", "ray", "--backbone", "minilm", folder), "package 'ray'", ".[ray]")


def test_ray_does_not_open_the_port_to_others_without_a_key(folder: Path) -> None:
    open_to_all = ("--host", "0.0.0.0", "--engine", "ray", "--replicas", 2)
    check_error(run("serve", "--backbone", "minilm", folder, *open_to_all), "--host", "--without-key")


def test_port_in_use_is_an_error_before_ray_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=r"host and port.*a free port"):
            ray._free_port(ServerSettings(port=port))
    assert ray._free_port(ServerSettings(port=port)) == port
    assert ray._free_port(ServerSettings(port=0)) > 0


def test_metrics_of_replicas_are_told_apart_and_never_added_up() -> None:
    first, second = Metrics(), Metrics()
    for metrics, number in ((first, 2), (second, 3)):
        metrics.examples.inc(number)
        metrics.requests.labels("/v1/predict", "200").inc(number)
        metrics.request_seconds.labels("/v1/predict").observe(0.01)
    text = ray.merge_metrics({"b": second.text().decode(), "a": first.text().decode()}).decode()
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["softcue_replicas",] == 2
    assert (samples["softcue_examples_total", "a"], samples["softcue_examples_total", "b"]) == (2, 3)
    assert samples["softcue_requests_total", "b", "/v1/predict", "200"] == 3
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


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    patches = tmp_path_factory.mktemp("patches")
    (patches / "sitecustomize.py").write_text(SLOW)
    paths = [str(patches), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"PYTHONPATH": os.pathsep.join(paths)}
    with (
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        running_cluster(Path(folder), num_cpus=2, environment=environment) as running,
    ):
        yield running


Begin = Callable[..., Process]


@pytest.fixture(scope="module")
def begin(cluster: Cluster) -> Iterator[Begin]:
    """`softcue serve --engine ray` in a process of its own."""
    processes: list[Process] = []

    def start(*words: object, **environment: str) -> Process:
        command = [sys.executable, "-m", "softcue", "serve", "--engine", "ray", "--ray-address", cluster.address]
        process = Process([*command, "--replicas", 2, "--port", 0, *words], {**cluster.environment, **environment})
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.process.poll() is None:
            process.process.terminate()
        process.end()


@pytest.fixture(scope="module")
def server(
    begin: Begin, model_folders: dict[str, Path], folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Process:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("key-one\n")
    words = ("--backbone", model_folders["bert"], folder, "--api-key-file", keys)
    process = begin(*words, SOFTCUE_ADMIN_KEY="admin-key")
    process.wait_for("all replicas ready")
    return process


def call(server: Process, path: str, body: Any = None, key: str = "key-one", method: str | None = None) -> Any:
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
def test_replicas_answer_as_the_engine_does_offline(server: Process, folder: Path, cues: dict[str, Cue]) -> None:
    pieces = [items(cues, 60)[first : first + 5] for first in range(0, 60, 5)]
    with Engine(tiny("bert"), folder) as engine:
        wanted = [[result.prediction for result in engine.predict(piece)] for piece in pieces]
    inputs = [[{"task": task, "text": text} for task, text in piece] for piece in pieces]
    bodies = [{"inputs": piece, "return_scores": True, "truncate": True} for piece in inputs]
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda body: call(server, "/v1/predict", body), bodies))
    assert {status for status, _, _ in answers} == {200}
    assert len({replica for _, replica, _ in answers}) == 2
    for (_, _, text), predictions in zip(answers, wanted, strict=True):
        for result, prediction in zip(json.loads(text)["results"], predictions, strict=True):
            assert result.get("label") == prediction.label
            assert result.get("value") == REORDERED_FLOAT32.approx(prediction.value)
            assert result.get("scores") == REORDERED_PROBABILITIES.approx(prediction.scores)


@pytest.mark.slow
@needs_ray
def test_metrics_are_those_of_both_replicas(server: Process) -> None:
    before = counted(server)
    with ThreadPoolExecutor(8) as pool:
        body = {"inputs": [{"task": "topics", "text": "ok"}] * 3}
        replicas = Counter(response[1] for response in pool.map(lambda _: call(server, "/v1/predict", body), range(8)))
    after = counted(server)
    assert {name: after[name] - before[name] for name in after} == {name: 3 * replicas[name] for name in after}
    assert len(after) == 2


def counted(server: Process) -> dict[str, float]:
    """Examples answered by each replica."""
    status, _, text = call(server, "/metrics")
    assert status == 200 and "softcue_replicas 2.0" in text
    return {
        sample.labels["replica"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "softcue_examples_total"
    }


@pytest.mark.slow
@needs_ray
def test_keys_and_page_are_those_of_one_server(server: Process) -> None:
    for path in ("/v1/tasks", "/v1/info", "/metrics"):
        assert call(server, path, key="wrong")[0] == 401
        assert call(server, path)[0] == 200
    for path in ("/livez", "/readyz", "/", "/docs", "/openapi.json"):
        assert call(server, path, key="wrong")[0] == 200
    with pytest.raises(ServerError, match="404 unknown_task"):
        Client(server.url, "key-one").predict([("nothing", "x")])


@pytest.mark.slow
@needs_ray
def test_a_change_of_cues_reaches_both_replicas(server: Process, folder: Path) -> None:
    for method in ("PUT", "DELETE"):
        assert call(server, "/v1/tasks/stars", method=method)[0] == 401
    assert call(server, "/v1/tasks/stars", key="admin-key", method="DELETE")[0] == 200
    assert answers_of_both(server, "/v1/tasks/stars") == {404}
    assert call(server, "/v1/tasks/stars", key="admin-key", method="PUT")[0] == 201
    assert answers_of_both(server, "/v1/tasks/stars") == {200}
    (folder / "served.json").unlink()  # other tests count the cues of the folder
    (folder / ".served.lock").unlink()


def answers_of_both(server: Process, path: str) -> set[int]:
    """The statuses of a route, asked until both replicas have answered."""
    statuses, replicas = set(), set()
    end = time.monotonic() + 60
    while len(replicas) < 2:
        assert time.monotonic() < end
        status, replica, _ = call(server, path)
        statuses.add(status)
        replicas.add(replica)
    return statuses


@pytest.mark.slow
@needs_ray
def test_http_port_listens_at_the_address_of_the_settings(server: Process, cluster: Cluster) -> None:
    port = int(server.url.rpartition(":")[2])
    connections = [where for process in cluster.head.family() for where in process.net_connections("inet")]
    addresses = {where.laddr.ip for where in connections if where.status == "LISTEN" and where.laddr.port == port}
    assert addresses == {"127.0.0.1"}


@pytest.mark.slow
@needs_ray
def test_second_server_on_a_cluster_is_an_error(begin: Begin, server: Process, folder: Path) -> None:
    second = begin("--backbone", "minilm", folder)
    assert second.end() == 2
    [error] = [line for line in second.lines if line.startswith("error")]
    assert error.startswith("error: --ray-address: got ") and "serve shutdown" in error
    assert call(server, "/v1/tasks")[0] == 200


@pytest.mark.slow
@needs_ray
def test_dead_replica_is_replaced_and_no_request_fails_meanwhile(server: Process, cluster: Cluster) -> None:
    replicas = cluster.replicas()
    assert len(replicas) == 2
    names = set(counted(server))
    replicas[0].kill()
    replicas[0].wait(10)
    time.sleep(1)  # a request that comes before anyone knows fails
    body = {"inputs": [{"task": "topics", "text": "ok"}]}
    statuses, responding = set(), set[str]()
    end = time.monotonic() + 120
    while len(responding) < 2 or responding == names:
        assert time.monotonic() < end
        statuses.add(call(server, "/v1/predict", body)[0])
        text = call(server, "/metrics")[2]
        responding = set(re.findall(rf'softcue_cues_loaded\{{replica="(\w+)"\}} {len(CASES)}', text))
    statuses |= {call(server, "/v1/predict", body)[0] for _ in range(6)}
    assert statuses == {200}


@pytest.mark.slow
@needs_ray
def test_sigterm_answers_accepted_requests_then_ends_the_replicas(
    server: Process, cluster: Cluster, cues: dict[str, Cue]
) -> None:
    body = {"inputs": [{"task": "topics", "text": "a secret text"}]}
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(call, server, "/v1/predict", body) for _ in range(4)]
        time.sleep(0.5)
        server.process.send_signal(signal.SIGTERM)
        responses = [answer.result(30) for answer in answers]
    assert server.end() == 0
    assert cluster.replicas() == []
    assert {status for status, _, _ in responses} == {200}
    [label] = {json.loads(text)["results"][0]["label"] for _, _, text in responses}
    assert label == cues["topics"].predict(["a secret text"])[0].label
    for line in server.lines:
        assert "(raylet)" in line or json.loads(line)  # one JSON object each, but for lines that Ray prints itself
    log = cluster.log()
    assert "a secret text" not in "".join(server.lines) + log
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{") and '"route": "/v1/predict"' in line]
    assert len({line["replica"] for line in lines}) >= 2
    with pytest.raises(ServerError, match="is the server running"):
        Client(server.url, "key-one").tasks()


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
    parts = [part for _, part in Client(writing.url).stream([("titles", "Where is it")])]
    assert "".join(part for part in parts if isinstance(part, str)) == wanted
    assert len(parts) > 2 and not isinstance(parts[-1], str) and parts[-1].label == wanted
    writing.process.terminate()
    assert writing.end() == 0


@pytest.mark.slow
@needs_ray
def test_replicas_that_cannot_load_end_the_command_with_one_line(begin: Begin, folder: Path, tmp_path: Path) -> None:
    command = begin("--backbone", tmp_path / "no-model", folder)
    assert command.end() == 2
    [error] = [line for line in command.lines if line.startswith("error")]
    assert error.startswith("error: backbone.name: got ") and "no-model" in error


@pytest.mark.slow
@needs_ray
def test_missing_cluster_is_one_line_that_says_how_to_start_one(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    words = [sys.executable, "-m", "softcue", "serve", "--engine", "ray", "--ray-address", address]
    process = Process([*words, "--backbone", "minilm", folder], {})
    assert process.end() == 2
    [error] = [line for line in process.lines if line.startswith("error")]
    assert "--ray-address" in error and START_COMMAND in error
