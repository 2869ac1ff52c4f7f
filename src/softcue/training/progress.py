"""Reports of a running training: the progress bar, metrics.jsonl and tensorboard."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from softcue.errors import MissingExtraError
from softcue.files import write_atomically


class ProgressRecorder:
    """Records the steps and evaluations of a trainer. Text goes to standard error; standard output is for results."""

    def __init__(self, folder: Path, num_steps: int, show_bar: bool, use_tensorboard: bool) -> None:
        self.folder, self.num_steps = folder, num_steps
        self.console = Console(stderr=True)
        # narrow enough for 80 columns
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=8),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]} score {task.fields[score]} {task.fields[speed]} rows/s"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not show_bar,
        )
        self.title = escape(folder.name)
        self.board = _tensorboard(folder) if use_tensorboard else None
        self._bar_task: TaskID | None = None
        self._started = time.monotonic()
        self._num_rows = 0

    def start(self, step: int) -> None:
        """Show the bar from a step on. Lines in metrics.jsonl of later steps are removed: those steps run again."""
        path = self.folder / "metrics.jsonl"
        kept: list[str] = []
        if step and path.is_file():
            kept = [line for line in path.read_text("utf-8").splitlines() if _step_of(line) <= step]
        write_atomically(path, "".join(line + "\n" for line in kept).encode())
        self._started = time.monotonic()
        self._bar_task = self.bar.add_task(
            self.title, total=self.num_steps, completed=step, loss="-", score="-", speed="-"
        )

    def __call__(self, kind: str, values: dict[str, Any]) -> None:
        """Record one step or one evaluation."""
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as handle:
            handle.write(json.dumps({"kind": kind, **values}) + "\n")
        if self.board is not None:
            for name, value in values.items():
                if name != "step" and isinstance(value, (int, float)):
                    self.board.add_scalar(f"{kind}/{name}", value, values["step"])
        if self._bar_task is None:
            return
        if kind == "step":
            self._num_rows += values["rows"]
            speed = self._num_rows / max(1e-9, time.monotonic() - self._started)
            self.bar.update(
                self._bar_task, completed=values["step"], loss=f"{values['loss']:.3f}", speed=f"{speed:.0f}"
            )
        else:
            self.bar.update(self._bar_task, score=f"{values['score']:.1f} best {values['best_score']:.1f}")

    def warn(self, messages: Sequence[str]) -> None:
        """Print warnings above the bar."""
        for message in messages:
            self.console.print(f"[yellow]warning:[/] {escape(message)}", highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()
        if self.board is not None:
            self.board.close()


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtraError("tensorboard", "tensorboard") from error
    return SummaryWriter(folder / "tensorboard")


def _step_of(line: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return 1 << 62  # an incomplete last line is removed like a later step
