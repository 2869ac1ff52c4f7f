"""What a check has done so far: counts, outcomes, faults and figures, in a JSON file that the next run continues."""

from __future__ import annotations

import datetime
import json
import os
import platform
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from softcue.files import write_json
from softcue.machine import package_version, read_memory

SAVE_SECONDS = 5.0  # between two writes of the file
MOST_FAULTS = 20  # described in the file; all are counted
PACKAGES = ("torch", "transformers")


class FaultError(Exception):
    """Something came out that must not: the description of a fault."""


@dataclass
class Record:
    """The state of one check. Trials are numbered, and a trial's number decides all that is drawn in it."""

    check: str
    count: int = 0
    trials: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    num_faults: int = 0
    faults: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    date: str = ""
    machine: str = ""
    command: str = ""
    path: Path | None = None

    def add(self, outcome: str, count: int = 1) -> None:
        """Count what came out of a trial, or of several."""
        self.count += count
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + count

    def add_fault(self, description: str) -> None:
        """Count a fault and keep its description."""
        self.num_faults += 1
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(description[:2000])

    def save(self) -> None:
        """Write the file, if the record has one."""
        if self.path is None:
            return
        self.date, self.machine = f"{datetime.date.today()}", describe_machine()
        values = asdict(self)
        values.pop("path")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path, values)


def read_record(check: str, path: Path | None) -> Record:
    """The record in a file, or a new one if there is no such file.

    Example:
        >>> read_record("kills", None).count
        0
    """
    if path is None or not path.exists():
        return Record(check, path=path)
    record = Record(**json.loads(path.read_text("utf-8")))
    if record.check != check:
        raise SystemExit(f"{path} is of the check '{record.check}': name another file")
    record.path = path
    return record


@dataclass
class Budget:
    """How much a run may do: up to so many in all, within so many seconds from its first trial."""

    count: int
    seconds: float
    started: float = field(default_factory=time.monotonic)

    @property
    def is_spent(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() - self.started >= self.seconds


def run_trials(record: Record, budget: Budget, trial: Callable[[int], tuple[str, int]]) -> None:
    """Run trials until the record has the budget's count or the time is over. A trial returns its outcome and count."""
    for number in numbered_trials(record, budget):
        try:
            record.add(*trial(number))
        except FaultError as fault:
            record.add_fault(f"trial {number}: {fault}")
            record.add("fault")
        except Exception:  # of softcue or of the check: a traceback is a bug in either
            record.add_fault(f"trial {number}: {traceback.format_exc(limit=-4)}")
            record.add("fault")


def numbered_trials(record: Record, budget: Budget) -> Iterator[int]:
    """The numbers of the trials that are left; the record is saved between them and at the end."""
    before, saved = record.seconds, time.monotonic()
    budget.started = saved  # what was prepared before does not count
    while record.count < budget.count and not budget.is_spent:
        yield record.trials
        record.trials += 1
        record.seconds = before + time.monotonic() - budget.started
        if time.monotonic() - saved > SAVE_SECONDS:
            record.save()
            saved = time.monotonic()
    record.seconds = round(before + time.monotonic() - budget.started, 1)
    record.save()


def describe_machine() -> str:
    """Cores, processor, memory and the versions of the main packages.

    Example:
        >>> "torch" in describe_machine()
        True
    """
    memory = read_memory().total
    size = f", {memory:.0f} GB" if memory else ""
    threads = os.environ.get("OMP_NUM_THREADS")
    versions = ", ".join(f"{package} {package_version(package)}" for package in PACKAGES)
    return f"{os.cpu_count()} cores ({_processor()}){size}, OMP_NUM_THREADS={threads or 'unset'}, {versions}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
