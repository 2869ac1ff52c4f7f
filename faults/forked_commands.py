"""Commands of softcue in forked processes, which may kill themselves with SIGKILL at a chosen moment.

The parent has imported everything and computed nothing, so that a command starts in milliseconds. The moment is chosen
by what the main thread is doing, which a second thread sees on its stack.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

# (end of the file's name, function) -> phase; the innermost one counts
PHASES = {
    ("cue/cue.py", "save"): "cue writing",
    ("adaptation/run.py", "_write"): "cue writing",
    ("training/checkpoints.py", "save"): "checkpoint",
    ("training/loop.py", "_evaluate"): "evaluation",
    ("adaptation/loop.py", "_evaluate"): "evaluation",
    ("training/loop.py", "_step"): "steps",
    ("adaptation/loop.py", "_step"): "steps",
}
POLL_SECONDS = 0.0005
PATIENCE = 240.0  # seconds for a command


@dataclass(frozen=True)
class Kill:
    """The moment of a kill: so many seconds after the phase is entered for that time."""

    phase: str
    visit: int
    delay: float


@dataclass(frozen=True)
class Ended:
    """How a forked command ended."""

    code: int  # minus the signal, if one ended it
    phase: str  # in which it was killed; "" if it was not
    log: str


def draw_kill(draw: random.Random) -> Kill:
    """A random moment in a random phase.

    Example:
        >>> draw_kill(random.Random(1)).phase in PHASES.values()
        True
    """
    phase = draw.choice(["steps", "evaluation", "checkpoint", "cue writing"])
    visit = 1 if phase == "cue writing" else draw.randint(1, {"steps": 25, "evaluation": 5, "checkpoint": 25}[phase])
    return Kill(phase, visit, draw.uniform(0.0, 0.004))


def run_forked(
    words: Sequence[str], log: Path, kill: Kill | None = None, before: Callable[[], None] | None = None
) -> Ended:
    """Run `softcue WORDS` in a fork of this process, and wait for its end. `before` runs first, in the fork."""
    child = _Fork(words, log, kill, before)
    return child.wait(time.monotonic() + PATIENCE)


def run_forked_together(words: Sequence[str], folder: Path, environments: Sequence[dict[str, str]]) -> list[Ended]:
    """Run a command several times at once, each with some variables of the environment; logs go into the folder."""
    children = [
        _Fork(words, folder / f"log {number}.txt", None, partial(os.environ.update, environment))
        for number, environment in enumerate(environments)
    ]
    end = time.monotonic() + PATIENCE
    return [child.wait(end) for child in children]


class _Fork:
    """A command in a fork of this process."""

    def __init__(self, words: Sequence[str], log: Path, kill: Kill | None, before: Callable[[], None] | None) -> None:
        self._log = log
        self._reader, writer = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            _run_command(words, log, kill, before, writer)
        os.close(writer)

    def wait(self, end: float) -> Ended:
        """Wait for the end of the command, which is killed at a time of the monotonic clock."""
        while (waited := os.waitpid(self._child, os.WNOHANG)) == (0, 0):
            if time.monotonic() > end:
                os.kill(self._child, signal.SIGKILL)
                os.waitpid(self._child, 0)
                os.close(self._reader)
                return Ended(-9, "", f"no end in time: {self._log.read_text('utf-8', 'replace')[-1500:]}")
            time.sleep(0.005)
        with os.fdopen(self._reader, "rb") as pipe:
            phase = pipe.read().decode()
        return Ended(os.waitstatus_to_exitcode(waited[1]), phase, self._log.read_text("utf-8", "replace"))


def _run_command(
    words: Sequence[str], log: Path, kill: Kill | None, before: Callable[[], None] | None, writer: int
) -> None:
    """The life of the child: never returns."""
    code = 70
    try:
        descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        sys.argv = ["softcue", *words]
        if before is not None:
            before()
        if kill is not None:
            sys.setswitchinterval(0.0002)
            threading.Thread(target=_kill_self, args=(kill, writer, threading.main_thread().ident), daemon=True).start()
        from softcue.cli.app import main

        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _kill_self(kill: Kill, writer: int, main_thread: int) -> None:
    visits, was_inside = 0, False
    while visits < kill.visit:
        is_inside = phase_of(sys._current_frames().get(main_thread)) == kill.phase
        visits += is_inside and not was_inside
        was_inside = is_inside
        time.sleep(POLL_SECONDS)
    time.sleep(kill.delay)
    os.write(writer, (phase_of(sys._current_frames().get(main_thread)) or "between").encode())
    os.kill(os.getpid(), signal.SIGKILL)


def phase_of(frame: FrameType | None) -> str:
    """What a thread is doing, from its stack; "" if that is none of the phases.

    Example:
        >>> phase_of(sys._getframe())
        ''
    """
    while frame is not None:
        code = frame.f_code
        for (file, function), phase in PHASES.items():
            if code.co_name == function and code.co_filename.endswith(file):
                return phase
        frame = frame.f_back
    return ""
