"""Tables of tasks x methods x seeds: each run is trained once, and resumed if it was interrupted.

Two processes (each with OMP_NUM_THREADS=1, say) can share the work: a run belongs to the process that holds the lock of
its folder. A search run has no test rows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softcue.errors import RunError


@dataclass(frozen=True)
class TableRun:
    """One training run of a table: a method on a task with a seed."""

    task: str
    method: str
    seed: int
    folder: Path

    @property
    def is_done(self) -> bool:
        return (self.folder / "cue.json").is_file()

    @property
    def cue_file(self) -> dict[str, Any]:
        return self._read("cue.json")

    @property
    def metrics(self) -> dict[str, Any]:
        return self._read("metrics.json")

    def score(self, split: str) -> float:
        return round(float(self.cue_file["scores"][split]["accuracy"]), 1)

    def _read(self, name: str) -> dict[str, Any]:
        return json.loads((self.folder / name).read_text("utf-8"))  # type: ignore[no-any-return]


Column = Callable[[Sequence[TableRun]], str]  # the finished runs of a method -> a cell of the table


def make_parser(
    description: str | None, methods: Sequence[str], tasks: Sequence[str], output: str
) -> argparse.ArgumentParser:
    """The options that every table has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="section.key=value for every run")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", default=",".join(methods))
    parser.add_argument("--tasks", default=",".join(tasks))
    parser.add_argument("--search", default="", help="a method: validation scores of one setting, no test rows")
    parser.add_argument("--output", type=Path, default=Path(output))
    return parser


def list_runs(arguments: argparse.Namespace, suffix: str = "") -> list[TableRun]:
    """The runs of the table, or of the search for one setting; all methods of a seed before the next seed."""
    methods = [arguments.search] if arguments.search else arguments.methods.split(",")
    parent = arguments.output / ("search" if arguments.search else "table")
    runs = []
    for seed in range(arguments.seeds):
        for method in methods:
            for task in arguments.tasks.split(","):
                parts = [task, method, suffix, str(seed), *sorted(arguments.overrides)]
                folder = parent / "-".join(filter(None, parts)).replace("/", "_")
                runs.append(TableRun(task, method, seed, folder))
    return runs


def run_missing(runs: Sequence[TableRun], train: Callable[[TableRun], object]) -> None:
    """Train the runs that are not finished and that no other process trains."""
    for run in runs:
        if run.is_done:
            continue
        try:
            train(run)
            scores = {split: run.score(split) for split in run.cue_file["scores"]}
            print(f"{run.folder.name}: {scores}", file=sys.stderr, flush=True)
        except RunError as error:
            print(f"{run.folder.name}: not run here ({error})", file=sys.stderr, flush=True)


def print_search(arguments: argparse.Namespace, runs: Sequence[TableRun]) -> None:
    """Print one line with the validation scores of a setting."""
    if unfinished := [run.folder.name for run in runs if not run.is_done]:
        print(f"not finished: {', '.join(unfinished)}")
        return
    by_task: dict[str, list[float]] = {}
    for run in runs:
        by_task.setdefault(run.task, []).append(run.score("validation"))
    means = {task: statistics.mean(values) for task, values in by_task.items()}
    task_means = "  ".join(f"{task} {value:.1f}" for task, value in means.items())
    setting = f"{arguments.search} {' '.join(arguments.overrides)}"
    print(f"{setting}: mean {statistics.mean(means.values()):.2f}  {task_means}")


def print_table(
    runs: Sequence[TableRun], extra_columns: dict[str, Column], tasks: Sequence[str], num_seeds: int
) -> None:
    """Print test scores as mean and standard deviation over seeds, with further columns; missing runs are counted."""
    print_header("method", *tasks, "mean", *extra_columns)
    for method in dict.fromkeys(run.method for run in runs):
        finished = [run for run in runs if run.method == method and run.is_done]
        cells, means = [], []
        for task in tasks:
            scores = [run.score("test") for run in finished if run.task == task]
            if len(scores) < num_seeds:
                cells.append(f"{len(scores)} of {num_seeds} runs" if scores else "-")
                continue
            means.append(statistics.mean(scores))
            cells.append(format_mean(scores))
        cells.append(f"{statistics.mean(means):.1f}" if len(means) == len(tasks) else "-")
        cells += [column(finished) if finished else "-" for column in extra_columns.values()]
        print_row(method, *cells)


def print_header(*columns: str) -> None:
    """Print the first two lines of a Markdown table."""
    print_row(*columns)
    print("|---" * len(columns) + "|", flush=True)


def print_row(*cells: object) -> None:
    """Print a line of a Markdown table."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def format_mean(scores: Sequence[float]) -> str:
    """Mean and standard deviation.

    Example:
        >>> format_mean([80.0, 82.0]), format_mean([80.0])
        ('81.0 ± 1.4', '80.0')
    """
    deviation = f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
    return f"{statistics.mean(scores):.1f}{deviation}"
