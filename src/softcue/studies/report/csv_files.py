"""The csv files of a report. table.csv and differences.csv depend on scores alone, so equal scores give equal bytes."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from softcue.studies.report.differences import PairOfLines
from softcue.studies.report.record import AXES, StudyRecord
from softcue.studies.report.table import ResultTable

# of a run; they differ from machine to machine, and come last
COSTS = ("seconds", "run_seconds", "processor_seconds", "peak_megabytes")


def table_csv(tables: Sequence[ResultTable]) -> str:
    """The tables with mean, spread, number of runs and planned runs of each cell; one line per row and column.

    Example:
        Path("table.csv").write_text(table_csv(make_tables(record)))
    """
    lines: list[list[object]] = []
    for table in tables:
        for line in table.lines:
            for column, cell in zip(table.columns, line.cells, strict=True):
                counts = [cell.num_runs, cell.num_planned]
                lines.append(
                    [table.title, line.name, column.name, _number(cell.mean), _number(cell.spread), *counts, cell.mark]
                )
        for name, values in table.baselines.items():
            for column, value in zip(table.columns, values, strict=True):
                if value is not None:
                    lines.append([table.title, name, column.name, _number(value), "", "", "", "baseline"])
    return _csv(["table", "row", "column", "mean", "spread", "runs", "planned", "mark"], lines)


def scores_csv(record: StudyRecord) -> str:
    """A line per run and scored task: its place in the grid, scores and costs.

    Example:
        Path("scores.csv").write_text(scores_csv(record))
    """
    metrics = list(dict.fromkeys(name for score in record.all_scores for name in score.metrics))
    columns = [*AXES, "seed", "score", *metrics, "rows", "split", "trainable", "steps", "best_step", "run", *COSTS]
    lines: list[list[object]] = []
    for score in record.all_scores:
        result = score.result
        lines.append(
            [
                *(record.short_names.get(value, value) for value in (getattr(score.place, axis) for axis in AXES)),
                score.seed,
                _number(score.main),
                *(_number(score.metrics.get(name)) for name in metrics),
                score.rows,
                score.split,
                *(result.get(name, "") for name in ("trainable", "steps", "best_step")),
                score.run,
                *(result.get(name, "") for name in COSTS),
            ]
        )
    return _csv(columns, lines)


def differences_csv(pairs: Sequence[PairOfLines]) -> str:
    """A line per pair of methods, settings, backbones or regimes.

    Example:
        Path("differences.csv").write_text(differences_csv(compare_lines(record)))
    """
    columns = ["axis", "first", "second", "difference", "low", "high", "tasks", "tasks_won", "tasks_lost", "task_p"]
    columns += ["pairs_of_runs", "runs_won", "runs_lost", "run_p", "seeds", "conclusion"]
    lines: list[list[object]] = [
        [
            pair.axis,
            pair.first,
            pair.second,
            *map(_number, (pair.difference.value, pair.difference.low, pair.difference.high)),
            pair.num_tasks,
            *pair.wins,
            _number(pair.task_p),
            pair.num_runs,
            *pair.run_wins,
            _number(pair.run_p),
            pair.num_seeds,
            pair.conclusion,
        ]
        for pair in pairs
    ]
    return _csv(columns, lines)


def _csv(columns: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(lines)
    return buffer.getvalue()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
