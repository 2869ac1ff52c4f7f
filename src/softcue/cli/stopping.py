"""How a command ends when it is stopped: Ctrl-C (SIGINT) and SIGTERM alike, with how to go on."""

from __future__ import annotations

import os
import shlex
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

STOPPED_BY_CTRL_C = 128 + signal.SIGINT  # 130
STOPPED_BY_SIGTERM = 128 + signal.SIGTERM  # 143


class StoppedBySignal(BaseException):
    """SIGTERM has arrived. As KeyboardInterrupt, it is no Exception: only cleaning up may catch it."""


@contextmanager
def raise_on_sigterm() -> Iterator[None]:
    """Raise StoppedBySignal in the main thread when SIGTERM arrives, so that files and locks are cleaned up.

    A second SIGTERM ends the process at once. `softcue serve` replaces this by its own handler.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise StoppedBySignal

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def stopped_message(arguments: Sequence[str]) -> str:
    """The line on standard error after a stop. For training and adapting it is the command that goes on.

    Example:
        >>> stopped_message(["softcue", "train", "--task", "tickets", "--output-dir", "my cues"])
        "stopped; go on with: softcue train --task tickets --output-dir 'my cues' --resume"
        >>> stopped_message(["softcue", "adapt", "books", "--new", "tiny", "--output-dir", "models/tiny"])
        'stopped; go on with: softcue adapt books --new tiny --output-dir models/tiny --resume'
        >>> stopped_message(["softcue", "tune", "--task", "tickets", "--output-dir", "cues/best", "--overwrite"])
        'stopped; go on with: softcue tune --task tickets --output-dir cues/best'
        >>> stopped_message(["softcue", "evaluate", "cues/tickets"])
        'stopped'
    """
    program, *words = arguments
    command = next((word for word in words if not word.startswith("-")), "")
    if command in ("train", "adapt"):
        if "RANK" in os.environ:  # torchrun's own words are not known here
            return "stopped; go on with the same command and --resume"
        return f"stopped; go on with: {_program(program)} {shlex.join(_with_resume(_without_overwrite(words)))}"
    if command in ("demo", "study", "tune"):  # they continue by themselves
        words = _without_overwrite(words)
        return f"stopped; go on with: {_program(program)} {shlex.join(words)}"
    return "stopped"


def _without_overwrite(words: Sequence[str]) -> list[str]:
    return [word for word in words if word != "--overwrite"]


def _with_resume(words: Sequence[str]) -> list[str]:
    return [*words] if "--resume" in words else [*words, "--resume"]


def _program(path: str) -> str:
    return "python -m softcue" if path.endswith("__main__.py") else "softcue"
