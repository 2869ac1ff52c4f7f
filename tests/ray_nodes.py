"""Nodes of a Ray cluster on this machine, as an operator would start them, and commands whose output is read."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from softcue.ray_cluster import START_COMMAND


class Process:
    """A process whose standard error is read line by line."""

    def __init__(self, words: list[object], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [str(word) for word in words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self.lines: list[str] = []  # of its standard error
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def wait_for(self, text: str, seconds: float = 240) -> None:
        """Wait until a line has the text."""
        end = time.monotonic() + seconds
        while not any(text in line for line in self.lines):
            assert time.monotonic() < end and self.process.poll() is None, "".join(self.lines)
            time.sleep(0.2)

    @property
    def url(self) -> str:
        return next(match[0] for line in self.lines if (match := re.search(r"http://127\.0\.0\.1:\d+", line)))

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def end(self) -> int:
        """The exit code."""
        code = self.process.wait(90)
        self._reader.join(10)
        return code

    def _read(self) -> None:
        with self.process:
            self.lines.extend(self.process.stderr or ())


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster of one machine, as an operator would start it."""

    head: Process
    address: str
    folder: Path
    environment: dict[str, str]

    def replicas(self) -> list[psutil.Process]:
        """The processes of the replicas; a process that ends meanwhile is none of them."""
        title = "ray::ServeReplica:softcue:softcue"  # with the name of a method while it runs
        found = []
        for process in self.head.family():
            with suppress(psutil.NoSuchProcess):  # zombies too
                if "".join(process.cmdline()[:1]).startswith(title):
                    found.append(process)
        return found

    def ready_replicas(self) -> list[psutil.Process]:
        """The replicas that are not starting any more."""
        return [process for process in self.replicas() if "initialize" not in "".join(process.cmdline()[:1])]

    def log(self) -> str:
        """All files that Ray has logged."""
        files = self.folder.glob("session_latest/logs/**/*")
        return "".join(file.read_text("utf-8", "replace") for file in files if file.is_file())


@contextmanager
def running_cluster(folder: Path, num_cpus: int, environment: dict[str, str], num_gpus: int = 0) -> Iterator[Cluster]:
    """A cluster of one node; `folder` gets its files. Ray counts GPUs that it is told of, whether they exist or not."""
    port = free_port()
    environment = {"RAY_USAGE_STATS_ENABLED": "0", **environment}
    words: list[object] = [sys.executable, "-m", "ray.scripts.scripts", *START_COMMAND.split()[1:], "--block"]
    words += ["--port", port, "--num-cpus", num_cpus, "--temp-dir", folder, "--object-store-memory", 80 * 2**20]
    words += ["--num-gpus", num_gpus]
    head = Process(words, environment)
    until_listening(port)
    try:
        yield Cluster(head, f"127.0.0.1:{port}", folder, environment)
    finally:
        end_with_family(head)


@contextmanager
def second_node(cluster: Cluster, num_cpus: int) -> Iterator[Process]:
    """Another node of the cluster, also on this machine."""
    words: list[object] = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--address",
        cluster.address,
        "--block",
    ]
    words += ["--num-cpus", num_cpus, "--object-store-memory", 80 * 2**20]
    words += ["--node-ip-address", "127.0.0.1", "--node-name", f"second-{free_port()}"]
    node = Process(words, cluster.environment)
    try:
        yield node
    finally:
        end_with_family(node)


def end_with_family(process: Process) -> None:
    """End a node and all it has started."""
    family: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        family = process.family()
        process.process.send_signal(signal.SIGTERM)
    process.end()
    for member in psutil.wait_procs(family, 15)[1]:
        member.kill()


def kill_with_family(process: Process) -> None:
    """Kill a node and all it has started, as a machine that loses its power."""
    for member in [psutil.Process(process.process.pid), *process.family()]:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    process.end()


def until_nodes(cluster: Cluster, number: int, seconds: float = 240) -> None:
    """Wait until the cluster has so many nodes that live."""
    script = "import ray, sys; ray.init(address=sys.argv[1]); print(sum(node['Alive'] for node in ray.nodes()))"
    end = time.monotonic() + seconds
    while True:
        words = [sys.executable, "-c", script, cluster.address]
        asked = subprocess.run(words, env={**os.environ, **cluster.environment}, capture_output=True, text=True)
        if asked.stdout.strip() == str(number):
            return
        assert time.monotonic() < end, asked.stderr
        time.sleep(1)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def until_listening(port: int) -> None:
    end = time.monotonic() + 60
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        assert time.monotonic() < end, "the cluster did not start"
        time.sleep(0.2)
