"""Two replicas on Ray, one of which is killed again and again: a client that tries again loses nothing."""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from pathlib import Path

from faults.load import STEADY, ServedCues
from faults.record import Budget, Record, numbered_trials
from softcue.serving.client import Client, ServerError

KILL_SECONDS = 60.0
NUM_REPLICAS = CLIENTS = 2
PAUSE_SECONDS = 0.05  # of a client between two requests: the load is the same on every machine
ATTEMPTS = 30


def run(record: Record, budget: Budget) -> None:
    """Constant load of two clients, and a kill a minute; the count is of kills."""
    from ray_nodes import Process, running_cluster

    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as ray_folder,
        running_cluster(Path(ray_folder), num_cpus=2, environment={}) as cluster,
    ):
        served = ServedCues(Path(folder), use_minilm=False)
        words: list[object] = [
            sys.executable,
            "-m",
            "softcue",
            "serve",
            "--engine",
            "ray",
            "--ray-address",
            cluster.address,
        ]
        words += ["--replicas", NUM_REPLICAS, "--port", 0, "--backbone", served.backbone_name, served.folder]
        process = Process(words, cluster.environment)
        try:
            process.wait_for("all replicas ready")
            clients = [RetryingClient(process.url, served, seed) for seed in range(CLIENTS)]
            for client in clients:
                client.start()
            for number in numbered_trials(record, budget):
                ready = cluster.ready_replicas()
                if len(ready) == NUM_REPLICAS:  # else the last one killed has no successor yet
                    random.Random(number).choice(ready).kill()
                    record.add("killed")
                time.sleep(KILL_SECONDS)
            for client in clients:
                client.stop()
                for name, count in client.counts.items():
                    record.figures[name] = record.figures.get(name, 0) + count
                for failure in client.failures:
                    record.add_fault(failure)
        finally:
            process.process.terminate()
            process.end()


class RetryingClient(threading.Thread):
    """Sends one request after another; what fails is sent again."""

    def __init__(self, url: str, served: ServedCues, seed: int) -> None:
        super().__init__(daemon=True)
        self._client = Client(url, attempts=1, timeout=20)
        self._served, self._draw = served, random.Random(seed)
        self._end = threading.Event()
        self.counts = {"requests": 0, "requests sent again": 0, "lost": 0}
        self.failures: list[str] = []

    def stop(self) -> None:
        """End after the current request."""
        self._end.set()
        self.join(300)

    def run(self) -> None:
        """Send requests until it is stopped."""
        while not self._end.is_set():
            name, text = self._draw.choice(STEADY), self._draw.choice(self._served.texts)
            self.counts["requests"] += 1
            self._send(name, text)
            time.sleep(PAUSE_SECONDS)

    def _send(self, name: str, text: str) -> None:
        reason = ""
        for attempt in range(ATTEMPTS):
            self.counts["requests sent again"] += attempt == 1
            try:
                [result] = self._client.predict([(name, text)], return_scores=True, truncate=True)
            except (ServerError, OSError, ValueError) as error:
                reason = str(error)
                if isinstance(error, ServerError) and 400 <= error.status < 500 and error.status != 429:
                    break  # no other replica would answer it
                time.sleep(0.5)
                continue
            [version] = (result.versions or {}).values()
            expected = self._served.expected[version, text]
            scores = {str(label): score for label, score in (result.scores or {}).items()}
            if max(abs(scores[label] - score) for label, score in expected.items()) > self._served.tolerance:
                self.failures.append(f"wrong: {name}, {text[:40]!r}")
            return
        self.counts["lost"] += 1
        self.failures.append(f"lost after {attempt + 1} attempts: {reason}")
