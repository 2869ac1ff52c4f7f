"""The trackers of one run: started before the first step, and left out with a warning if they fail later.

trackers.json in the run folder keeps the identity of the run in each tracker, so that a resumed run goes on in the same
place. It also keeps the last steps that a run reported before it ended. A resumed run repeats the steps after its
checkpoint, and they are not reported twice. Only a killed process leaves no such steps: then they are reported again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from softcue.errors import MissingExtraError, RunError, first_line
from softcue.files import remove, write_json
from softcue.training.trackers.registry import make_tracker
from softcue.training.trackers.tracker import EndState, TrackedRun, Tracker

FILE = "trackers.json"


class Reports:
    """Reports a run to several trackers. Only the main process has one.

    Example:
        reports = Reports(run, ["tensorboard", "mlflow"])
        reports.start(step=0)
        reports.log("step", {"step": 1, "loss": 0.5})
        reports.finish({"validation/accuracy": 90.0}, "finished")
    """

    def __init__(self, run: TrackedRun, names: Sequence[str]) -> None:
        self.run = run
        self._names = names
        self._trackers: dict[str, Tracker] = {}  # those that have started and have not failed
        self._identities: dict[str, str] = {}
        self._last_steps: dict[str, dict[str, int]] = {}  # by tracker and kind of event
        self._step = 0

    def start(self, step: int) -> list[str]:
        """Start all trackers; returns a line about each. A run that goes on after a step continues its tracked run."""
        self._step = step
        records = self._read() if step else {}
        if not step:
            remove(self.run.folder / FILE)
        self._identities = {name: record["run"] for name, record in records.items()}
        self._last_steps = {name: record["last_steps"] for name, record in records.items()}
        for name in self._names:
            before = self._identities.get(name, "")
            tracker = make_tracker(name)
            self._identities[name] = self._start(tracker, name, before)
            self._trackers[name] = tracker
            if self._identities[name] != before:
                self._last_steps[name] = {}
        if self._names:
            self._write(are_running=True)
        return [f"reports to {name}: {tracker.place}" for name, tracker in self._trackers.items()]

    def _start(self, tracker: Tracker, name: str, identity: str) -> str:
        try:
            return tracker.start(self.run, identity)
        except ImportError as error:
            raise MissingExtraError(error.name or name, name) from error
        except Exception as error:  # any: these are other people's packages
            raise RunError(
                setting="report_to",
                got=name,
                expected="a tracker that can start",
                fix=f"leave it out, or see to it: {first_line(error)}",
            ) from error

    def log(self, kind: str, values: Mapping[str, Any]) -> list[str]:
        """Report the finite numbers of an event; returns warnings about trackers that failed."""
        step = self._step = int(values["step"])
        numbers = _finite({f"{kind}/{name}": value for name, value in values.items() if name != "step"})
        warnings = []
        for name, tracker in list(self._trackers.items()):
            last_steps = self._last_steps[name]
            if step <= last_steps.get(kind, -1) or not numbers:
                continue
            try:
                tracker.log(numbers, step)
            except Exception as error:
                warnings.append(self._leave_out(name, error))
            else:
                last_steps[kind] = step
        return warnings

    def finish(self, scores: Mapping[str, Any], state: EndState) -> list[str]:
        """End all trackers that are still running; returns warnings about those that failed."""
        warnings = []
        numbers = _finite({f"final/{name}": value for name, value in scores.items()})
        has_started = bool(self._trackers)
        for name, tracker in list(self._trackers.items()):
            try:
                tracker.finish(numbers, self._step, state)
            except Exception as error:
                warnings.append(self._leave_out(name, error))
        if has_started:
            try:
                self._write(are_running=False)
            except OSError as error:
                warnings.append(f"{FILE} cannot be written: {first_line(error)}")
        self._trackers = {}
        return warnings

    def _leave_out(self, name: str, error: Exception) -> str:
        del self._trackers[name]
        self._last_steps[name] = {}
        return f"{name} failed, and the run goes on without it: {first_line(error)}"

    def _read(self) -> dict[str, dict[str, Any]]:
        """The content of trackers.json by tracker; nothing if it is not there or damaged."""
        try:
            records = json.loads((self.run.folder / FILE).read_text("utf-8"))
            return {
                str(name): {
                    "run": str(record["run"]),
                    "last_steps": {str(kind): int(step) for kind, step in record["last_steps"].items()},
                }
                for name, record in records.items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def _write(self, are_running: bool) -> None:
        records = {}
        for name, identity in self._identities.items():
            is_open = are_running and name in self._trackers  # what of it will arrive is not certain yet
            records[name] = {"run": identity, "last_steps": {} if is_open else self._last_steps.get(name, {})}
        write_json(self.run.folder / FILE, records)


def _finite(values: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers among values."""
    numbers = {name: value for name, value in values.items() if isinstance(value, (int, float))}
    return {name: float(value) for name, value in numbers.items() if math.isfinite(value)}
