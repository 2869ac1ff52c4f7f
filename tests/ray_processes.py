"""A Ray cluster of this machine and commands that use it, in processes of their own."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
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
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
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
        title = "ray::ServeReplica:softcue:softcue"  # with the name of a method while it runs
        return [process for process in self.head.family() if "".join(process.cmdline()[:1]).startswith(title)]

    def log(self) -> str:
        """All files that Ray has logged."""
        files = self.folder.glob("session_latest/logs/**/*")
        return "".join(file.read_text("utf-8", "replace") for file in files if file.is_file())


@contextmanager
def start_cluster(environment: dict[str, str]) -> Iterator[Cluster]:
    """Start a cluster; it ends with the block."""
    environment = {"RAY_USAGE_STATS_ENABLED": "0", **environment}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        words: list[object] = [sys.executable, "-m", "ray.scripts.scripts", *START_COMMAND.split()[1:], "--block"]
        words += ["--port", port, "--num-cpus", 2, "--temp-dir", folder, "--object-store-memory", 80 * 2**20]
        head = Process(words, environment)
        until_listening(port)
        family = head.family()
        try:
            yield Cluster(head, f"127.0.0.1:{port}", Path(folder), environment)
        finally:
            family += head.family()
            head.process.terminate()
            head.end()
            for process in psutil.wait_procs(set(family), 15)[1]:
                process.kill()


def until_listening(port: int) -> None:
    end = time.monotonic() + 60
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        assert time.monotonic() < end, "the cluster did not start"
        time.sleep(0.2)
