"""A cluster of two nodes: one is killed under load, replicas are replaced under load, cues come from a URL."""

from __future__ import annotations

import importlib.util
import re
import signal
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ray_nodes import Process, kill_with_family, running_cluster, second_node, until_nodes
from serving_cues import TONE, TOPICS, save_cue

from softcue.serving.client import Client, ServerError

NUM_CLIENTS = 4

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra ray is not installed"),
]


class Load:
    """Clients that ask without a pause."""

    def __init__(self, url: str) -> None:
        self._client = Client(url, timeout=120, attempts=20)
        self._has_ended = threading.Event()
        self.answers: Counter[str] = Counter()  # "ok", or the error of a request
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(NUM_CLIENTS)]

    def _ask(self, number: int) -> None:
        while not self._has_ended.is_set():
            try:
                [result] = self._client.predict([("topics", f"text {number}")])
                self.answers["ok" if result.label else result.message] += 1
            except ServerError as error:
                self.answers[str(error)] += 1

    @property
    def num_failures(self) -> int:
        return sum(count for answer, count in self.answers.items() if answer != "ok")

    def wait_for_answers(self, number: int, seconds: float = 300) -> None:
        wanted, end = self.answers["ok"] + number, time.monotonic() + seconds
        while self.answers["ok"] < wanted:
            assert time.monotonic() < end, self.answers
            time.sleep(0.2)

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._has_ended.set()
            for thread in self._threads:
                thread.join()


def replicas_of(url: str, number: int, seconds: float = 300) -> set[str]:
    """The names of the replicas, when so many report their metrics."""
    end = time.monotonic() + seconds
    while True:
        text = urllib.request.urlopen(f"{url}/metrics").read().decode()
        names = set(re.findall(r'softcue_cues_loaded\{replica="(\w+)"\}', text))
        if len(names) == number:
            return names
        assert time.monotonic() < end, names
        time.sleep(0.5)


def test_two_nodes_lose_one_and_replace_replicas_under_load(model_folders: dict[str, Path], tmp_path: Path) -> None:
    cues = tmp_path / "cues"
    save_cue(cues / "topics", TOPICS)
    with (
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        running_cluster(Path(folder), num_cpus=1, environment={}) as cluster,
        second_node(cluster, num_cpus=1) as second,
    ):
        until_nodes(cluster, 2)
        words = [sys.executable, "-m", "softcue", "serve", "--engine", "ray", "--ray-address", cluster.address]
        words += ["--replicas", "2", "--replica-cpus", "1", "--port", "0", "--backbone", str(model_folders["bert"])]
        server = Process([*words, f"file://{cues}"], {**cluster.environment, "SOFTCUE_ADMIN_KEY": "admin-key"})
        try:
            server.wait_for("all replicas ready")
            first = replicas_of(server.url, 2)
            load, admin = Load(server.url), Client(server.url, "admin-key", timeout=120)
            with load.running():
                load.wait_for_answers(20)
                # a cue that is put to the URL reaches the replicas of both nodes
                save_cue(cues / "tone", TONE)
                admin.load("tone")
                assert [result.label for result in admin.predict([("tone", "ok")] * 8)]
                for _ in range(20):  # whichever replica answers
                    assert admin.predict([("tone", "ok")])[0].label
                assert load.num_failures == 0
                # replicas are replaced, and no request is lost
                server.process.send_signal(signal.SIGHUP)
                server.wait_for("all replicas replaced", 600)
                replaced = replicas_of(server.url, 2)
                assert not first & replaced
                load.wait_for_answers(20)
                assert load.num_failures == 0, load.answers
                assert admin.predict([("tone", "ok")])[0].label
                # a machine is lost: at most the requests that were in it
                kill_with_family(second)
                load.wait_for_answers(20, 600)
                lost = load.num_failures
                assert lost <= NUM_CLIENTS * 5, load.answers
                with second_node(cluster, num_cpus=1):
                    again = replicas_of(server.url, 2, 600)
                    assert len(again & replaced) == 1
                    before = load.num_failures
                    load.wait_for_answers(20)
                    assert load.num_failures == before, load.answers
                    server.process.terminate()
                    load._has_ended.set()
                    assert server.end() == 0
        finally:
            if server.process.poll() is None:
                server.process.kill()
            server.end()


def test_the_number_of_replicas_follows_the_load_and_two_share_a_gpu(
    model_folders: dict[str, Path], tmp_path: Path
) -> None:
    save_cue(tmp_path / "cues" / "topics", TOPICS)
    with (
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        running_cluster(Path(folder), num_cpus=2, environment={}, num_gpus=1) as cluster,
    ):
        until_nodes(cluster, 1)
        words = [sys.executable, "-m", "softcue", "serve", "--engine", "ray", "--ray-address", cluster.address]
        words += ["--replicas", "1", "--max-replicas", "2", "--target-requests", "1", "--replica-gpus", "0.5"]
        words += ["--port", "0", "--backbone", str(model_folders["bert"]), str(tmp_path / "cues")]
        server = Process(words, cluster.environment)
        try:
            server.wait_for("all replicas ready")
            assert any('"num_gpus": 0.5' in line for line in server.lines)
            assert len(replicas_of(server.url, 1)) == 1
            load = Load(server.url)
            with load.running():
                replicas_of(server.url, 2, 600)
            assert load.num_failures == 0, load.answers
            server.process.terminate()
            assert server.end() == 0
        finally:
            if server.process.poll() is None:
                server.process.kill()
            server.end()
