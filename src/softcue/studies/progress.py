"""Progress of a study on standard error: a bar in a terminal, else a line for every run that ends."""

from __future__ import annotations

import time
from datetime import timedelta
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

from softcue.studies.runner import StudyStatus
from softcue.studies.worker import Outcome

SECONDS_BETWEEN_LINES = 60.0  # in a file: a line of progress at least this often, if a run takes long


class StudyProgress:
    """Shows how far a study is.

    Example:
        with StudyProgress("quick", num_workers=2) as progress:
            run_study(study, folder, engine, listener=progress)
    """

    def __init__(self, title: str, num_workers: int, is_quiet: bool = False) -> None:
        self.title, self.num_workers, self.is_quiet = title, num_workers, is_quiet
        self.console = Console(stderr=True)
        self.has_bar = self.console.is_terminal and not is_quiet
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[state]}"),
            console=self.console,
            disable=not self.has_bar,
        )
        self._bar_task = self.bar.add_task(escape(title), total=1, state="")
        self._last_line = time.monotonic()

    def __call__(self, status: StudyStatus, outcome: Outcome | None) -> None:
        """Show the state of the study, and a run that has ended."""
        state = describe_progress(status, self.num_workers)
        self.bar.update(self._bar_task, completed=len(status.done), total=status.plan.size, state=state)
        if outcome is not None and outcome.state != "busy":
            self._print(f"{self._describe(status, outcome)}" + ("" if self.has_bar else f" ({state})"))
        elif not self.has_bar and time.monotonic() - self._last_line > SECONDS_BETWEEN_LINES:
            self._print(f"{self.title}: {state}")

    def _describe(self, status: StudyStatus, outcome: Outcome) -> str:
        if outcome.state != "done":
            return f"{outcome.run}: {outcome.state}: {outcome.reason}"
        result = status.results[outcome.run]
        scores = ", ".join(f"{task} {score['main']:.1f}" for task, score in result["scores"].items())
        return f"{outcome.run}: {scores or 'done'}, {timedelta(seconds=round(result['run_seconds']))}"

    def _print(self, line: str) -> None:
        if not self.is_quiet:
            self._last_line = time.monotonic()
            self.console.print(escape(line), highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()


def describe_progress(status: StudyStatus, num_workers: int) -> str:
    """How far a study is, in a few words.

    Example:
        describe_progress(read_status(folder), num_workers=2)  # '12 of 24 done, 1 failed, 0:03:10 left'
    """
    parts = [f"{len(status.done)} of {status.plan.size} done"]
    if status.failed:
        parts.append(f"{len(status.failed)} failed")
    seconds = status.seconds_left(num_workers)
    if seconds is not None and len(status.done) + len(status.failed) < status.plan.size:
        parts.append(f"{timedelta(seconds=round(seconds))} left")
    return ", ".join(parts)
