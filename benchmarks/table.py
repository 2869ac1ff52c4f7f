"""What the tables of docs/results.md have in common: tasks x methods x seeds, each run once, resumed if interrupted.

Started twice (each with OMP_NUM_THREADS=1, say) two processes share the work: a run belongs to whoever holds its
folder's lock. A search run is given no test rows at all.
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
class Run:
    """One cell's share: a method on a task with a seed."""

    task: str
    method: str
    seed: int
    folder: Path

    @property
    def is_done(self) -> bool:
        return (self.folder / "cue.json").is_file()

    @property
    def record(self) -> dict[str, Any]:
        return self._read("cue.json")

    @property
    def metrics(self) -> dict[str, Any]:
        return self._read("metrics.json")

    def score(self, split: str) -> float:
        return round(float(self.record["scores"][split]["accuracy"]), 1)

    def _read(self, name: str) -> dict[str, Any]:
        return json.loads((self.folder / name).read_text("utf-8"))  # type: ignore[no-any-return]


def make_parser(description: str | None, methods: Sequence[str], tasks: Sequence[str], output: str) -> Any:
    """The options every table has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="section.key=value for every run")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", default=",".join(methods))
    parser.add_argument("--tasks", default=",".join(tasks))
    parser.add_argument("--search", default="", help="a method: validation scores of one setting, no test rows")
    parser.add_argument("--output", type=Path, default=Path(output))
    return parser


def runs_of(arguments: argparse.Namespace, mark: str = "") -> list[Run]:
    """The runs of the table, or of one setting's search; all methods of a seed before the next seed."""
    methods = [arguments.search] if arguments.search else arguments.methods.split(",")
    parent = arguments.output / ("search" if arguments.search else "table")
    found = []
    for seed in range(arguments.seeds):
        for method in methods:
            for task in arguments.tasks.split(","):
                parts = [task, method, mark, str(seed), *sorted(arguments.words)]
                found.append(Run(task, method, seed, parent / "-".join(filter(None, parts)).replace("/", "_")))
    return found


def run_missing(runs: Sequence[Run], train: Callable[[Run], object]) -> None:
    """Train what is not there yet and not in another process' hands."""
    for run in runs:
        if run.is_done:
            continue
        try:
            train(run)
            scores = {split: run.score(split) for split in run.record["scores"]}
            print(f"{run.folder.name}: {scores}", file=sys.stderr, flush=True)
        except RunError as error:
            print(f"{run.folder.name}: not run here ({error})", file=sys.stderr, flush=True)


def print_search(arguments: argparse.Namespace, runs: Sequence[Run]) -> None:
    """One line: validation scores of a setting."""
    if missing := [run.folder.name for run in runs if not run.is_done]:
        print(f"not finished: {', '.join(missing)}")
        return
    by_task: dict[str, list[float]] = {}
    for run in runs:
        by_task.setdefault(run.task, []).append(run.score("validation"))
    means = {task: statistics.mean(values) for task, values in by_task.items()}
    shown = "  ".join(f"{task} {value:.1f}" for task, value in means.items())
    print(f"{arguments.search} {' '.join(arguments.words)}: mean {statistics.mean(means.values()):.2f}  {shown}")


def print_table(
    runs: Sequence[Run], extra: dict[str, Callable[[Sequence[Run]], str]], tasks: Sequence[str], seeds: int
) -> None:
    """Mean and standard deviation over seeds on test rows, and columns of the caller; missing runs are said."""
    print(f"| method | {' | '.join([*tasks, 'mean', *extra])} |")
    print("|---" * (len(tasks) + len(extra) + 2) + "|")
    for method in dict.fromkeys(run.method for run in runs):
        done = [run for run in runs if run.method == method and run.is_done]
        cells, means = [], []
        for task in tasks:
            values = [run.score("test") for run in done if run.task == task]
            if len(values) < seeds:
                cells.append(f"{len(values)} of {seeds} runs" if values else "-")
                continue
            means.append(statistics.mean(values))
            spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
            cells.append(f"{means[-1]:.1f}{spread}")
        cells.append(f"{statistics.mean(means):.1f}" if len(means) == len(tasks) else "-")
        print(f"| {method} | {' | '.join([*cells, *(column(done) if done else '-' for column in extra.values())])} |")
