"""Commands that are killed with SIGKILL and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

PATIENCE = 240  # seconds for a whole command


def steps_done(folder: Path) -> int:
    """The steps of all runs below a folder."""
    # os.walk, because folders of checkpoints may vanish meanwhile, which is an error of Path.rglob
    files = [Path(parent, name) for parent, _, names in os.walk(folder) for name in names if name == "metrics.jsonl"]
    return sum(path.read_text().count('"kind": "step"') for path in files)


def train_whole_and_killed(
    folder: Path, words_of: Callable[..., list[str]], kill_after: Sequence[int]
) -> tuple[Path, Path]:
    """Train once undisturbed, and once killed after each of these numbers of steps; returns both output folders.

    `words_of(output_dir, *more)` are the words of the command after `python`. Each life but the first goes on from the
    checkpoints of the one before.
    """
    messages = folder / "stderr.txt"

    def start(output: Path, *more: str) -> subprocess.Popen[bytes]:
        with messages.open("wb") as errors:
            words = [sys.executable, *words_of(output, *more)]
            return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=errors)

    whole, broken = folder / "whole", folder / "broken"
    assert start(whole).wait(PATIENCE) == 0, messages.read_text()
    for num_steps in kill_after:
        process = start(broken, "--resume")
        while steps_done(broken) < num_steps and process.poll() is None:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not (broken / "cue.json").exists()
    assert start(broken, "--resume").wait(PATIENCE) == 0, messages.read_text()
    return whole, broken
