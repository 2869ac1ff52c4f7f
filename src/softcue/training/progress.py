"""Reports of a running training: the progress bar, metrics.jsonl and trackers."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from softcue.files import write_atomically
from softcue.training.trackers import EndState, Reports

WIDE_TERMINAL = 80  # columns from which the bar has room for its title, itself and the speed
SECONDS_BETWEEN_LINES = 30.0  # in a file: a line of progress at least this often


class ProgressRecorder:
    """Records the steps and evaluations of a trainer. Text goes to standard error; standard output is for results.

    A terminal gets a progress bar. A file, a pipe or a log gets a line per evaluation, and one every 30 seconds
    between them. The loss is the mean of the steps since the last line or evaluation; metrics.jsonl has that of each
    step. `score_name` and `num_validation_rows` say what the scores of evaluations are. `reports` are the trackers, if
    there are any.
    """

    def __init__(
        self,
        folder: Path,
        num_steps: int,
        show_progress: bool,
        score_name: str = "score",
        num_validation_rows: int = 0,
        reports: Reports | None = None,
    ) -> None:
        self.folder, self.num_steps = folder, num_steps
        self.score_name, self.num_validation_rows = score_name, num_validation_rows
        self.show_progress = show_progress
        self.console = Console(stderr=True)
        self.has_bar = show_progress and (self.console.is_terminal or self.console.is_jupyter)
        self.bar = Progress(*_bar_columns(self.console.width), console=self.console, disable=not self.has_bar)
        self.title = escape(folder.name)
        self.reports = reports
        self.final_scores: dict[str, float] = {}  # for the trackers, once the run has them
        self._bar_task: TaskID | None = None
        self._first_step = 0
        self._started = self._last_line = time.monotonic()
        self._num_rows = 0
        self._loss = math.nan  # mean over these steps
        self._num_losses = 0

    def start(self, step: int) -> None:
        """Show progress from a step on. Lines in metrics.jsonl of later steps are removed: those steps run again."""
        if self.reports is not None:
            for line in self.reports.start(step):
                self.note(line)
        path = self.folder / "metrics.jsonl"
        kept: list[str] = []
        if step and path.is_file():
            kept = [line for line in path.read_text("utf-8").splitlines() if _step_of(line) <= step]
        write_atomically(path, "".join(line + "\n" for line in kept).encode())
        self._first_step = step
        self._started = self._last_line = time.monotonic()
        self._bar_task = self.bar.add_task(
            self.title, total=self.num_steps, completed=step, loss="-", score="-", speed="-"
        )

    def __call__(self, kind: str, values: dict[str, Any]) -> None:
        """Record one step or one evaluation."""
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as handle:
            handle.write(json.dumps({"kind": kind, **values}) + "\n")
        if self.reports is not None:
            self.warn(self.reports.log(kind, values))
        if self._bar_task is None:
            return
        if kind == "step":
            self._num_rows += values["rows"]
            self._add_loss(values["loss"])
            self.bar.update(
                self._bar_task,
                completed=values["step"],
                loss=f"{self._loss:.3f}",
                speed=f"{self._rows_per_second():.0f}",
            )
            is_line_due = time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES
        else:
            self.bar.update(self._bar_task, score=self._score_text(values, "rows"))
            self._num_losses = 0  # the next step begins another mean
            is_line_due = True
        if is_line_due and self.show_progress and not self.has_bar:
            self._print_line(values)

    def note(self, line: str) -> None:
        """Print a line above the bar."""
        if self.show_progress:
            self.console.print(escape(line), highlight=False, soft_wrap=True)

    def warn(self, messages: Sequence[str]) -> None:
        """Print warnings above the bar."""
        for message in messages:
            self.console.print(f"[yellow]warning:[/] {escape(message)}", highlight=False, soft_wrap=True)

    def _print_line(self, values: dict[str, Any]) -> None:
        """Print the progress as one line of plain text."""
        self._last_line = time.monotonic()
        self._num_losses = 0
        step = values["step"]
        parts = [f"{self.title}: step {step}/{self.num_steps}"]
        if not math.isnan(self._loss):
            parts.append(f"loss {self._loss:.3f}")
        if "score" in values:
            parts.append(f"{self.score_name} {self._score_text(values, 'validation rows')}")
        if step > self._first_step and self._num_rows:
            seconds = (self._last_line - self._started) / (step - self._first_step) * (self.num_steps - step)
            parts += [f"{self._rows_per_second():.0f} rows/s", f"{timedelta(seconds=round(seconds))} left"]
        self.console.print(", ".join(parts), highlight=False, soft_wrap=True)

    def _add_loss(self, loss: float) -> None:
        """Take the loss of a step into the mean."""
        self._num_losses += 1
        self._loss = loss if self._num_losses == 1 else self._loss + (loss - self._loss) / self._num_losses

    def _score_text(self, values: dict[str, Any], rows: str) -> str:
        count = f" on {self.num_validation_rows} {rows}" if self.num_validation_rows else ""
        return f"{values['score']:.1f}{count} (best {values['best_score']:.1f})"

    def _rows_per_second(self) -> float:
        return self._num_rows / max(1e-9, time.monotonic() - self._started)

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()
        if self.reports is not None:
            self.warn(self.reports.finish(self.final_scores, _end_state(kind)))


def _bar_columns(width: int) -> list[ProgressColumn]:
    """The columns of the progress bar that fit into a terminal of this width."""
    numbers = TextColumn("{task.completed}/{task.total} loss {task.fields[loss]} score {task.fields[score]}")
    if width < WIDE_TERMINAL:
        return [numbers]
    speed = [TextColumn("{task.fields[speed]} rows/s")] if width >= WIDE_TERMINAL + 30 else []
    return [TextColumn("{task.description}"), BarColumn(bar_width=8), numbers, *speed, TimeRemainingColumn()]


def _end_state(kind: type[BaseException] | None) -> EndState:
    """How a run ended, by the exception that ended it: a signal is no `Exception`."""
    if kind is None:
        return "finished"
    return "failed" if issubclass(kind, Exception) else "killed"


def _step_of(line: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return 1 << 62  # an incomplete last line is removed like a later step
