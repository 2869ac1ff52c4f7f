"""Engines that execute the runs of a study: worker processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Protocol

from softcue.machine import usable_cores
from softcue.studies.runs import StudyRun
from softcue.studies.worker import Outcome, serve_runs

END_SECONDS = 5.0  # a worker that is told to end gets so long


class StudyEngine(Protocol):
    """Executes runs, several at a time. The runner knows nothing else about where they are executed."""

    num_workers: int  # runs at a time

    @property
    def num_free(self) -> int:
        """How many more runs can be started now."""

    def start(self, run: StudyRun) -> None:
        """Start a run."""

    def wait(self, seconds: float) -> list[Outcome]:
        """The outcomes of runs that have ended; waits so long for the first."""

    def stop(self, run: str, reason: str) -> None:
        """End a run that takes too long; its outcome is `failed` with this reason."""

    def close(self) -> None:
        """End all workers."""


@dataclass
class _WorkerProcess:
    process: BaseProcess
    connection: Connection
    gpu: int | None = None
    run: str = ""  # empty: it waits for work


class LocalEngine:
    """Worker processes of this machine. A worker that dies is replaced, and its run has crashed.

    Example:
        engine = LocalEngine("studies/quick", num_workers=2)
        engine.start(run)
        engine.wait(60.0)
    """

    def __init__(self, place: str, num_workers: int, threads: int = 1) -> None:
        self.place, self.num_workers, self.threads = place, num_workers, threads
        # A new interpreter for each worker: a fork would copy the threads' locks of this process.
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[_WorkerProcess] = []
        self._stopped: dict[str, str] = {}  # run -> reason

    @property
    def num_free(self) -> int:
        """How many more runs can be started now."""
        return self.num_workers - sum(bool(worker.run) for worker in self._workers)

    def start(self, run: StudyRun) -> None:
        """Give a run to a worker that waits, or to a new one."""
        while True:
            worker = next((worker for worker in self._workers if not worker.run), None) or self._new_worker()
            try:
                worker.connection.send(run.as_dict())
            except OSError:  # it died while it waited
                self._bury(worker)
                continue
            worker.run = run.id
            return

    def wait(self, seconds: float) -> list[Outcome]:
        """The outcomes of runs that have ended; waits so long for the first."""
        busy = {worker.connection: worker for worker in self._workers if worker.run}
        if not busy:
            time.sleep(seconds)
            return []
        outcomes = []
        for connection in wait(list(busy), seconds):
            worker = busy[connection]  # type: ignore[index]
            try:
                outcome = worker.connection.recv()
            except (EOFError, OSError):
                outcome = self._bury(worker)
            self._stopped.pop(worker.run, None)  # it may have ended just before
            worker.run = ""
            outcomes.append(outcome)
        return outcomes

    def stop(self, run: str, reason: str) -> None:
        """End the worker of a run that takes too long."""
        for worker in self._workers:
            if worker.run == run:
                self._stopped[run] = reason
                worker.process.kill()

    def close(self) -> None:
        """End all workers: those that wait by closing their connection, those that work by a signal."""
        for worker in self._workers:
            worker.connection.close()
            if worker.run:
                worker.process.kill()
        deadline = time.monotonic() + END_SECONDS
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers = []

    def _new_worker(self) -> _WorkerProcess:
        here, there = self._context.Pipe()
        process = self._context.Process(target=serve_runs, args=(there, self.place, os.getpid()), daemon=True)
        used = {worker.gpu for worker in self._workers}
        gpu = next((number for number in range(num_gpus()) if number not in used), None)
        with _environment(thread_environment(self.threads), gpu):
            process.start()
        there.close()
        worker = _WorkerProcess(process, here, gpu)
        self._workers.append(worker)
        return worker

    def _bury(self, worker: _WorkerProcess) -> Outcome:
        """The outcome of a run whose worker is dead."""
        worker.process.join()
        worker.connection.close()
        self._workers.remove(worker)
        if worker.run in self._stopped:
            return Outcome(worker.run, "failed", self._stopped.pop(worker.run))
        return Outcome(worker.run, "crashed", describe_exit(worker.process.exitcode))


def describe_exit(code: int | None) -> str:
    """How a process ended, in words.

    Example:
        >>> describe_exit(-9), describe_exit(1)
        ('the worker was ended by SIGKILL: perhaps memory ran out', 'the worker ended with exit code 1')
    """
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return f"the worker was ended by {name}{': perhaps memory ran out' if name == 'SIGKILL' else ''}"
    return f"the worker ended with exit code {code}"


def default_workers(threads: int) -> int:
    """The number of runs at a time that this machine has room for: one per GPU, else one per `threads` cores.

    Example:
        >>> default_workers(threads=10_000)
        1
    """
    return num_gpus() or max(1, usable_cores() // threads)


def num_gpus() -> int:
    """The number of GPUs that torch sees."""
    import torch

    return torch.cuda.device_count()


def make_engine(
    name: str, place: str, num_workers: int | None = None, threads: int = 1, address: str | None = None
) -> StudyEngine:
    """Make an engine by its name, local or ray, for as many runs at a time as there is room for.

    Example:
        engine = make_engine("local", "studies/quick")
    """
    if name == "ray":
        from softcue.studies.ray_engine import RayEngine

        return RayEngine(place, num_workers, threads, address or "auto")
    return LocalEngine(place, num_workers or default_workers(threads), threads)


def thread_environment(threads: int) -> dict[str, str]:
    """Environment variables for the number of threads, whichever library counts them.

    Example:
        >>> thread_environment(2)["OMP_NUM_THREADS"]
        '2'
    """
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))


@contextmanager
def _environment(values: Mapping[str, str], gpu: int | None) -> Iterator[None]:
    """Set environment variables for a process that is started in the body."""
    changes = {**values, **({} if gpu is None else {"CUDA_VISIBLE_DEVICES": str(gpu)})}
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
