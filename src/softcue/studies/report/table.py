"""The table of a report: cells with mean and spread in the layout of the study, with marks, averages and baselines."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Literal

from softcue.evaluation import BASELINES, FEW_ROWS
from softcue.studies.report.record import AXES, Place, StudyRecord, spread_of
from softcue.studies.study import Axis

Mark = Literal["", "best", "second"]
SEPARATOR = " / "  # between the names of a row's axes, as `reference` of a study has them
AVERAGE = "mean"  # its column there
DIGITS = 1  # of a score in a table; scores that look the same share a mark


@dataclass(frozen=True)
class ScoreCell:
    """The runs of a cell: their mean, their spread, and how many there should be."""

    mean: float | None
    spread: float | None
    num_runs: int
    num_planned: int
    mark: Mark = ""

    @property
    def is_complete(self) -> bool:
        """Whether all its runs are finished.

        Example:
            >>> ScoreCell(80.0, None, 1, 3).is_complete
            False
        """
        return self.num_runs == self.num_planned > 0

    @property
    def spread_text(self) -> str:
        """The spread, if there are several runs."""
        return "" if self.spread is None else f"± {self.spread:.{DIGITS}f}"

    @property
    def count_text(self) -> str:
        """The number of runs, if some are missing.

        Example:
            >>> ScoreCell(80.0, 1.25, 2, 3).count_text, ScoreCell(80.0, 1.25, 3, 3).count_text
            ('(2 of 3 runs)', '')
        """
        return "" if self.is_complete or not self.num_runs else f"({self.num_runs} of {self.num_planned} runs)"

    @property
    def text(self) -> str:
        """The mean; a dash if no run is finished, nothing if none is planned."""
        if self.mean is None:
            return "-" if self.num_planned else ""
        return f"{self.mean:.{DIGITS}f}"


NO_CELL = ScoreCell(None, None, 0, 0)


@dataclass(frozen=True)
class TableLine:
    """A row of the table."""

    name: str
    cells: list[ScoreCell]
    trainable: tuple[int, int] | None  # fewest and most parameters over its runs


@dataclass(frozen=True)
class TableColumn:
    """A column of the table."""

    name: str
    rows: tuple[int, int] | None  # fewest and most scored rows; None for averages
    is_average: bool = False


@dataclass(frozen=True)
class ResultTable:
    """The table of a block. Rows hold what is compared; `is_turned` swaps rows and columns when it is shown."""

    title: str
    block: str  # the plain name of the block, as `reference` of a study has it
    corner: str
    columns: list[TableColumn]
    lines: list[TableLine]
    baselines: dict[str, list[float | None]]
    is_turned: bool = False
    implied: frozenset[str] = frozenset()  # names that all rows would share, and which are left out
    mark_scope: str = ""  # among which cells the marks are given; empty if there are none
    notes: list[str] = field(default_factory=list)

    def cell(self, line: str, column: str) -> ScoreCell:
        """The cell of a row and a column by their names; an empty one if there is none."""
        numbers = [number for number, entry in enumerate(self.columns) if entry.name == column]
        cells = [entry.cells[numbers[0]] for entry in self.lines if entry.name == line and numbers]
        return cells[0] if cells else NO_CELL


def make_tables(record: StudyRecord) -> list[ResultTable]:
    """The tables of a study, one for each block of its layout.

    Example:
        make_tables(record)[0].cell("prompt-tuning", "tickets").mean
    """
    arrangement = _arrange(record)
    places = list(record.planned)
    blocks = _unique(record, places, arrangement.blocks)
    return [
        _make_table(record, arrangement, block, [place for place in places if arrangement.block(place) == block])
        for block in blocks
    ]


@dataclass(frozen=True)
class _Arrangement:
    """The axes of rows, columns and blocks. Tasks are in columns here, whatever the layout says."""

    record: StudyRecord
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    blocks: tuple[Axis, ...]
    is_turned: bool
    arrows: frozenset[tuple[str, str]]  # trained on, scored on: named together in a column

    def row(self, place: Place) -> tuple[str, ...]:
        return _values(place, self.rows)

    def block(self, place: Place) -> tuple[str, ...]:
        return _values(place, self.blocks)

    def column(self, place: Place) -> tuple[str, ...]:
        source = place.trained_on if (place.trained_on, place.task) in self.arrows else ""
        return (*_values(place, self.columns), source)

    def name(self, axes: Sequence[Axis], values: Sequence[str]) -> str:
        return SEPARATOR.join(self.record.label(axis, value) for axis, value in zip(axes, values, strict=True) if value)

    def column_name(self, values: Sequence[str]) -> str:
        *plain, source = values
        name = self.name(self.columns, plain)
        return f"{self.record.label('task', source)} → {name}" if source else name


def _arrange(record: StudyRecord) -> _Arrangement:
    layout = record.study.layout
    mentioned = {*layout.rows, *layout.columns, *layout.blocks}
    varying = {axis for axis in AXES if len(record.values_of(axis)) > 1}
    rows = _with_some(layout.rows, varying, "method")
    columns = _with_some(layout.columns, varying, "task")
    is_turned = "task" in rows
    if is_turned:
        rows, columns = columns, rows
    if "task" in varying - mentioned:
        columns = (*columns, "task")
    blocks = tuple(axis for axis in layout.blocks if axis in varying)
    joining: list[Axis] = []
    for axis in AXES:
        shown = (*rows, *joining, *columns, *blocks, "trained_on", "task")
        if axis in varying - mentioned and axis not in shown and not _is_determined(record, axis, shown):
            joining.append(axis)
    sources: dict[str, set[str]] = {}
    for place in record.planned:
        sources.setdefault(place.task, set()).add(place.task if record.is_in_domain(place) else place.trained_on)
    arrows = frozenset(
        (source, task)
        for task, names in sources.items()
        for source in names
        if source != task and len(names) > 1 and "trained_on" not in mentioned
    )
    # The method of a row comes first, then what tells rows of a method apart.
    return _Arrangement(record, tuple(dict.fromkeys((*rows, *joining))), columns, blocks, is_turned, arrows)


def _is_determined(record: StudyRecord, axis: Axis, by: Sequence[Axis]) -> bool:
    """Whether the values of some axes leave no choice for another, as each method may have a regime of its own."""
    values: dict[tuple[str, ...], set[str]] = {}
    for place in record.planned:
        # Joint training has another name for what was trained on, which would tell its regime.
        key = _values(replace(place, trained_on=record.source_of(place)), by)
        values.setdefault(key, set()).add(getattr(place, axis))
    return all(len(choices) == 1 for choices in values.values())


def _with_some(axes: tuple[Axis, ...], varying: set[Axis], fallback: Axis) -> tuple[Axis, ...]:
    """The axes with several values; if none has, the first, so that a row or column has a name."""
    return tuple(axis for axis in axes if axis in varying) or axes[:1] or (fallback,)


def _values(place: Place, axes: Sequence[Axis]) -> tuple[str, ...]:
    return tuple(getattr(place, axis) for axis in axes)


def _unique(record: StudyRecord, places: Sequence[Place], axes: Sequence[Axis]) -> list[tuple[str, ...]]:
    """The different values of these axes, in the order of the study."""
    positions = [AXES.index(axis) for axis in axes]
    ranked = sorted(places, key=lambda place: [record.rank(place)[position] for position in positions])
    return list(dict.fromkeys(_values(place, axes) for place in ranked))


def _make_table(
    record: StudyRecord, arrangement: _Arrangement, block: tuple[str, ...], places: Sequence[Place]
) -> ResultTable:
    rows = _unique(record, places, arrangement.rows)
    ordered = {values: number for number, values in enumerate(_unique(record, places, arrangement.columns))}
    columns = sorted(
        dict.fromkeys(arrangement.column(place) for place in places),
        key=lambda values: (bool(values[-1]), ordered[values[:-1]], values[-1]),
    )
    by_cell: dict[tuple[tuple[str, ...], tuple[str, ...]], list[Place]] = {}
    for place in places:
        by_cell.setdefault((arrangement.row(place), arrangement.column(place)), []).append(place)
    grid = [[_cell(record, by_cell.get((row, column), [])) for column in columns] for row in rows]
    columns_shown = [
        TableColumn(arrangement.column_name(column), _row_counts(record, arrangement, places, column))
        for column in columns
    ]
    for name, numbers in _average_groups(arrangement, places, columns):
        columns_shown.append(TableColumn(name, None, is_average=True))
        for row, cells in zip(rows, grid, strict=True):
            cells.append(
                _average(record, [by_cell.get((row, columns[number]), []) for number in numbers], cells, numbers)
            )
    groups = [_mark_group(record, arrangement, row, places) for row in rows]
    _mark(grid, groups)
    lines = [
        TableLine(arrangement.name(arrangement.rows, row), cells, _trainable(record, arrangement, places, row))
        for row, cells in zip(rows, grid, strict=True)
    ]
    baselines = _baselines(record, arrangement, places, columns)
    table = ResultTable(
        arrangement.name(arrangement.blocks, block),
        SEPARATOR.join(_values(places[0], record.study.layout.blocks)),
        SEPARATOR.join(_axis_name(axis) for axis in arrangement.rows),
        columns_shown,
        lines,
        {name: [*values, *[None] * (len(columns_shown) - len(columns))] for name, values in baselines.items()},
        arrangement.is_turned,
        frozenset(
            record.label(axis, value)
            for axis in record.study.layout.rows
            if len(record.values_of(axis)) == 1
            for value in record.values_of(axis)
        ),
    )
    scope = ""
    if any(cell.mark for line in lines for cell in line.cells):
        alike = " of the same backbone, training task and number of training rows, ensembles apart"
        scope = f"{'row' if table.is_turned else 'column'}, among complete cells{alike if len(set(groups)) > 1 else ''}"
    return replace(table, mark_scope=scope, notes=_notes(record, arrangement, table, places))


def _cell(record: StudyRecord, places: Sequence[Place]) -> ScoreCell:
    scores = [score.main for place in places for score in record.by_place[place]]
    num_planned = sum(record.planned.get(place, 0) for place in places)
    if not scores:
        return ScoreCell(None, None, 0, num_planned)
    return ScoreCell(fmean(scores), spread_of(scores), len(scores), num_planned)


def _average_groups(
    arrangement: _Arrangement, places: Sequence[Place], columns: Sequence[tuple[str, ...]]
) -> list[tuple[str, list[int]]]:
    """The columns that are averaged: those of all tasks in which nothing else differs; out of domain apart."""
    if "task" not in arrangement.columns:
        return []
    record = arrangement.record
    outside = {arrangement.column(place) for place in places if not record.is_in_domain(place)}
    others = [axis for axis in arrangement.columns if axis not in ("task", "trained_on")]
    groups: dict[tuple[bool, tuple[str, ...]], list[int]] = {}
    for number, column in enumerate(columns):
        by_axis = dict(zip(arrangement.columns, column[:-1], strict=True))
        key = (column in outside, tuple(by_axis[axis] for axis in others))
        groups.setdefault(key, []).append(number)
    result = []
    for (is_outside, values), numbers in groups.items():
        name = SEPARATOR.join(part for part in (arrangement.name(others, values), AVERAGE) if part)
        has_both = len({side for side, _ in groups}) > 1
        if len(numbers) > 1:
            result.append((f"{name} out of domain" if is_outside and has_both else name, numbers))
    return result


def _average(
    record: StudyRecord, places: Sequence[Sequence[Place]], cells: Sequence[ScoreCell], numbers: Sequence[int]
) -> ScoreCell:
    """The mean over columns; its spread is that of the averages of each seed, if all columns have the same seeds."""
    averaged = [cells[number] for number in numbers]
    means = [cell.mean for cell in averaged if cell.mean is not None]
    num_planned = max(cell.num_planned for cell in averaged)
    if len(means) < len(averaged):
        has_gap = any(not cell.num_planned for cell in averaged)
        return ScoreCell(None, None, 0, 0 if has_gap else num_planned)
    by_seed: list[dict[int, float]] = [
        {score.seed: score.main for place in group for score in record.by_place[place]} for group in places
    ]
    spread = None
    if all(scores.keys() == by_seed[0].keys() for scores in by_seed):
        spread = spread_of([fmean(scores[seed] for scores in by_seed) for seed in by_seed[0]])
    num_runs = num_planned if all(cell.is_complete for cell in averaged) else min(cell.num_runs for cell in averaged)
    return ScoreCell(fmean(means), spread, num_runs, num_planned)


def _mark_group(
    record: StudyRecord, arrangement: _Arrangement, row: tuple[str, ...], places: Sequence[Place]
) -> tuple[object, ...]:
    """Rows of a group are compared with each other: those with the same backbone, training task and number of rows.

    Ensembles are compared with ensembles. If rows are all of one method, they are all compared.
    """
    members = [place for place in places if arrangement.row(place) == row]
    if len({place.method for place in places}) == 1 or "method" not in arrangement.rows:
        return ()
    backbone = members[0].backbone if "backbone" in arrangement.rows else ""
    few_shot = record.few_shot_of(members[0]) if "regime" in arrangement.rows else 0
    source = members[0].trained_on if "trained_on" in arrangement.rows else ""
    return backbone, source, few_shot, record.is_ensemble(members[0])


def _mark(grid: list[list[ScoreCell]], groups: Sequence[tuple[object, ...]]) -> None:
    """Mark the best and the second of each column and group, among complete cells. Equals share a mark."""
    for group in dict.fromkeys(groups):
        rows = [cells for cells, name in zip(grid, groups, strict=True) if name == group]
        for column in range(len(grid[0])):
            values = {
                round(cells[column].mean or 0.0, DIGITS)
                for cells in rows
                if cells[column].is_complete and cells[column].mean is not None
            }
            num_complete = sum(cells[column].is_complete for cells in rows)
            if num_complete < 2:
                continue
            names: tuple[Mark, ...] = ("best", "second")
            marks = dict(zip(sorted(values, reverse=True), names, strict=False))
            for cells in rows:
                cell = cells[column]
                if cell.is_complete and cell.mean is not None:
                    cells[column] = replace(cell, mark=marks.get(round(cell.mean, DIGITS), ""))


def _row_counts(
    record: StudyRecord, arrangement: _Arrangement, places: Sequence[Place], column: tuple[str, ...]
) -> tuple[int, int] | None:
    counts = [
        score.rows
        for place in places
        if arrangement.column(place) == column
        for score in record.by_place[place]
        if score.rows
    ]
    return (min(counts), max(counts)) if counts else None


def _trainable(
    record: StudyRecord, arrangement: _Arrangement, places: Sequence[Place], row: tuple[str, ...]
) -> tuple[int, int] | None:
    counts = [
        int(score.result["trainable"])
        for place in places
        if arrangement.row(place) == row
        for score in record.by_place[place]
        if "trainable" in score.result
    ]
    return (min(counts), max(counts)) if counts else None


def _baselines(
    record: StudyRecord, arrangement: _Arrangement, places: Sequence[Place], columns: Sequence[tuple[str, ...]]
) -> dict[str, list[float | None]]:
    """The baselines of each column. Those of the backbone have a row for each backbone that shares the table."""
    values: dict[str, dict[tuple[str, ...], list[float]]] = {}
    backbones = {place.backbone for place in places}
    has_several = len(backbones) > 1 and "backbone" not in arrangement.columns
    for place in places:
        for score in record.by_place[place]:
            for baseline, value in score.baselines.items():
                name = BASELINES.get(baseline, baseline)
                if has_several and baseline == "zero_shot":
                    name = f"{name}, {record.label('backbone', place.backbone)}"
                values.setdefault(name, {}).setdefault(arrangement.column(place), []).append(value)
    order = sorted(values, key=lambda name: list(BASELINES.values()).index(name.partition(",")[0]))
    return {
        name: [fmean(values[name][column]) if column in values[name] else None for column in columns] for name in order
    }


def _notes(
    record: StudyRecord,
    arrangement: _Arrangement,
    table: ResultTable,
    places: Sequence[Place],
) -> list[str]:
    scores = [score for place in places for score in record.by_place[place]]
    metrics = sorted({_metric_of(score.metrics, score.main) for score in scores})
    what = ", ".join(metrics) if "" not in metrics and len(metrics) < 4 else "the task's main metric"
    notes = [f"Scores: {what}, higher is better. Mean ± sample standard deviation over seeds."]
    if all(cell.spread is None for line in table.lines for cell in line.cells):
        notes[0] = f"Scores: {what}, higher is better. One run of each cell: there is no spread."
    cells = list(itertools.chain.from_iterable(line.cells for line in table.lines))
    if any(cell.num_runs and not cell.is_complete for cell in cells):
        notes.append("(2 of 3 runs): some runs of this cell are missing or have failed.")
    if any(cell.mean is None and cell.num_planned for cell in cells):
        notes.append("-: no finished run.")
    if any(not cell.num_planned for cell in cells) and any(column.is_average for column in table.columns):
        notes.append("Rows without all columns have no average.")
    outside = dict.fromkeys((place.trained_on, place.task) for place in places if not record.is_in_domain(place))
    plain = [pair for pair in outside if pair not in arrangement.arrows]
    if plain and not {"trained_on"} & {*arrangement.rows, *arrangement.columns, *arrangement.blocks}:
        words = ", ".join(
            f"{record.label('task', task)} (trained on {record.label('task', source)})" for source, task in plain
        )
        notes.append(f"Out of domain: {words}.")
    on_validation = sorted({record.label("task", score.place.task) for score in scores if score.split != "test"})
    if on_validation:
        notes.append(
            f"Validation rows, which also chose the best step: {', '.join(on_validation)}. These scores are too high."
        )
    if any(column.rows and column.rows[0] < FEW_ROWS for column in table.columns):
        notes.append(
            f"Some scores are of fewer than {FEW_ROWS} rows: with other rows they may be many points higher or lower."
        )
    if table.baselines:
        side = "columns" if table.is_turned else "rows"
        notes.append(f"The last {side} are baselines: nothing is trained, and they take no part in the marks.")
    return notes


def _metric_of(metrics: dict[str, float], main: float) -> str:
    """The name of the metric that is the main score, if one has its value; the first of equals."""
    return next((name for name, value in metrics.items() if abs(value - main) < 1e-9), "")


def _axis_name(axis: Axis) -> str:
    return {"trained_on": "trained on", "variant": "setting"}.get(axis, axis)
