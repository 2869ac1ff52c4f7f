"""A worker of a study: takes runs from its engine and executes them, with the backbones it has loaded before."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO, Literal

from softcue.errors import FolderInUseError, SoftcueError, first_line
from softcue.machine import end_with_parent
from softcue.studies.execution import BackbonePool, execute, remove_large_cue
from softcue.studies.runs import StudyRun, is_result_of, run_from_dict
from softcue.studies.store import LOG, open_study

# failed: the same again would fail again. crashed: it may be worth another attempt. busy: another process has the run.
State = Literal["done", "failed", "crashed", "busy"]


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    run: str
    state: State
    reason: str = ""


class Worker:
    """Executes runs of a study in this process.

    Example:
        Worker("studies/quick").execute(run.as_dict()).state
    """

    def __init__(self, place: str) -> None:
        self.folder = open_study(place)
        self.backbones = BackbonePool()

    def execute(self, values: Mapping[str, Any]) -> Outcome:
        """Execute a run and write its result. An error of the run becomes its outcome."""
        import torch

        run = run_from_dict(values)
        torch.set_num_threads(run.threads)
        try:
            with self.folder.claim(run) as path:
                if self._is_done(run):  # by another process, in the meantime
                    return Outcome(run.id, "done")
                self._execute(run, path)
        except FolderInUseError:
            return Outcome(run.id, "busy")
        except MemoryError as error:
            return Outcome(run.id, "crashed", f"out of memory: {first_line(error)}")
        except SoftcueError as error:
            return Outcome(run.id, "failed", " ".join(str(error).split()))
        except Exception as error:
            return Outcome(run.id, "crashed", f"{type(error).__name__}: {first_line(error)}")
        return Outcome(run.id, "done")

    def _is_done(self, run: StudyRun) -> bool:
        return is_result_of(run, self.folder.result_of(run.id))

    def _execute(self, run: StudyRun, path: Path) -> None:
        with _log_to(path / LOG) as log:
            try:
                result = execute(run, path, self.folder.runs, self.backbones)
            except BaseException:
                log.write(traceback.format_exc().encode())
                raise
        self.folder.finish(run, result)
        remove_large_cue(run, path, result)


@contextmanager
def _log_to(path: Path) -> Iterator[BinaryIO]:
    """Write what this process prints into a file instead, also what libraries print."""
    sys.stdout.flush()
    sys.stderr.flush()
    before = os.dup(1), os.dup(2)
    with path.open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            yield log
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, descriptor in enumerate(before, start=1):
                os.dup2(descriptor, number)
                os.close(descriptor)


def serve_runs(connection: Connection, place: str, parent: int) -> None:
    """The main function of a worker process: execute the runs that arrive, until the other end is closed.

    `parent` is the process that has started it: without that process it ends too.

    Example:
        get_context("spawn").Process(target=serve_runs, args=(connection, "studies/quick", os.getpid()))
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes; the parent ends its workers
    end_with_parent(parent)
    worker = Worker(place)
    while True:
        try:
            values = connection.recv()
        except EOFError:
            return
        connection.send(worker.execute(values))
