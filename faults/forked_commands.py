"""Commands of softcue in forked processes, which may kill themselves with SIGKILL at a chosen moment.

The parent has imported everything and computed nothing, so that a command starts in milliseconds. The moment is chosen
by what the main thread is doing, which a second thread sees on its stack.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
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


def run_forked(words: Sequence[str], log: Path, kill: Kill | None = None, limit_seconds: float = 240.0) -> Ended:
    """Run `softcue WORDS` in a fork of this process, and wait for its end."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _run_command(words, log, kill, writer)
    os.close(writer)
    end = time.monotonic() + limit_seconds
    status = 0
    while (waited := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reader)
            return Ended(-9, "", f"no end within {limit_seconds} s\n{log.read_text('utf-8', 'replace')[-1500:]}")
        time.sleep(0.002)
    status = waited[1]
    with os.fdopen(reader, "rb") as pipe:
        phase = pipe.read().decode()
    return Ended(os.waitstatus_to_exitcode(status), phase, log.read_text("utf-8", "replace"))


def _run_command(words: Sequence[str], log: Path, kill: Kill | None, writer: int) -> None:
    """The life of the child: never returns."""
    code = 70
    try:
        descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        sys.argv = ["softcue", *words]
        if kill is not None:
            sys.setswitchinterval(0.0002)
            threading.Thread(target=_kill_self, args=(kill, writer, threading.main_thread().ident), daemon=True).start()
        from softcue.cli.app import main

        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
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
