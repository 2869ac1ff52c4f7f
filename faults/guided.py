"""Damaged files that atheris chooses by the lines of code they reach: each is read, or refused with an error for users.

Each kind of file is read in a process of its own (`python -m faults.guided_reader`), whose import of softcue is
instrumented. Inputs that reached new lines are kept for the next mutation, below one folder for all processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from faults.mutations import make_targets, memory_folder
from faults.record import Budget, Record, numbered_trials
from softcue.errors import MissingExtraError

ROUND_SECONDS = 60.0  # for one kind of file, before the next one has its turn
START_SECONDS = 900.0  # more than an instrumented import takes on a busy machine


def run(record: Record, budget: Budget) -> None:
    """Give each kind of file its turn until the count is reached; the count is of files."""
    if find_spec("atheris") is None:
        raise MissingExtraError("atheris", "faults")
    reached = record.figures.setdefault("read", {})
    lines = record.figures.setdefault("inputs kept because they reached new lines", {})
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        (examples := Path(folder) / "examples").mkdir()
        names = [target.name for target in make_targets(examples)]
        seconds = min(ROUND_SECONDS, max(1.0, budget.seconds / len(names)))
        for number in numbered_trials(record, budget):
            name = names[number % len(names)]
            outcome = read_guided(name, Path(folder), seconds, budget.count - record.count)
            for key in ("accepted", "refused"):
                record.add(key, outcome[key])
            reached[name] = reached.get(name, 0) + outcome["accepted"] + outcome["refused"]
            lines[name] = outcome["kept"]
            for fault in outcome["faults"]:
                record.add_fault(f"{name}: {fault}")


def read_guided(name: str, folder: Path, seconds: float, most: int) -> dict[str, Any]:
    """Read files of one kind in a process of its own; returns counts and faults. A process that dies is a fault."""
    corpus, report = folder / f"corpus {name}", folder / "report.json"
    corpus.mkdir(exist_ok=True)
    report.unlink(missing_ok=True)
    words = [sys.executable, "-m", "faults.guided_reader", name, str(corpus), str(report), str(seconds), str(most)]
    try:
        ended = subprocess.run(words, capture_output=True, timeout=seconds + START_SECONDS)
        log = ended.stderr.decode("utf-8", "replace")[-1500:]
    except subprocess.TimeoutExpired:
        log = f"no end {START_SECONDS:.0f} s after its time"
    outcome: dict[str, Any] = {"accepted": 0, "refused": 0, "faults": []}
    if report.exists():
        outcome = json.loads(report.read_text("utf-8"))
    if not outcome.get("is_complete"):
        outcome["faults"].append(f"the process of the reader did not end in order: {log}")
    return {**outcome, "kept": sum(1 for _ in corpus.iterdir())}
