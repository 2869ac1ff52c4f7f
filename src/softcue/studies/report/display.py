"""The tables of a report as text in cells, for HTML, Markdown and LaTeX alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from softcue.drawing import MarkedCell
from softcue.drawing.charts import short_number
from softcue.studies.report.record import StudyRecord
from softcue.studies.report.table import DIGITS, SEPARATOR, ResultTable, ScoreCell, TableColumn, TableLine

MOST_BASELINES = 6  # rows of a table
DisplayRow = tuple[str, list[MarkedCell]]


@dataclass(frozen=True)
class DisplayTable:
    """A table of named rows. Quiet rows, such as baselines, come last."""

    title: str
    corner: str
    columns: list[MarkedCell]
    rows: list[DisplayRow]
    quiet_rows: list[DisplayRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    mark_scope: str = ""

    def all_notes(self, second: str = "Underlined") -> list[str]:
        """The notes, with the meaning of marks in the words of a format.

        Example:
            >>> DisplayTable("", "", [], [], mark_scope="column").all_notes("Italic")
            ['Bold: best of its column. Italic: second.']
        """
        marks = [f"Bold: best of its {self.mark_scope}. {second}: second."] if self.mark_scope else []
        return [*self.notes[:1], *marks, *self.notes[1:]]


def display_table(table: ResultTable) -> DisplayTable:
    """The table of a block as the layout of the study has it.

    Example:
        display_table(make_tables(record)[0]).rows[0]
    """
    if table.is_turned:
        return _turned(table)
    counts = [_trainable_text(line) for line in table.lines]
    has_counts = any(counts)
    columns = [MarkedCell("trainable", below="parameters")] if has_counts else []
    columns += [MarkedCell(column.name, below=_rows_text(column)) for column in table.columns]
    rows = [
        (line.name, [*([MarkedCell(count)] if has_counts else []), *map(_marked, line.cells)])
        for line, count in zip(table.lines, counts, strict=True)
    ]
    baselines, notes = _shown_baselines(table)
    quiet = [
        (name, [*([MarkedCell("")] if has_counts else []), *map(_baseline_cell, values)])
        for name, values in baselines.items()
    ]
    return DisplayTable(table.title, table.corner, columns, rows, quiet, [*table.notes, *notes], table.mark_scope)


def paper_table(record: StudyRecord, table: ResultTable) -> DisplayTable | None:
    """The numbers of the paper for a block, with ours behind them where row and column have the same names.

    Example:
        paper_table(record, make_tables(record)[0])
    """
    reference = record.study.reference
    if reference is None:
        return None
    scores: Mapping[str, Mapping[str, Any]] = reference.scores
    for name in (table.block, table.title):
        scores = reference.blocks.get(name, scores)
    if not scores:
        return None
    names = list(dict.fromkeys(column for line in scores.values() for column in line))
    rows = [
        (line, [_paper_cell(values.get(column), _ours(table, line, column)) for column in names])
        for line, values in scores.items()
    ]
    notes = [f"Source: {record.plain(reference.source)}."]
    if any(cell.small for _, cells in rows for cell in cells):
        notes.append("In brackets: ours. Backbone, rows and settings may differ from the paper's: see above.")
    return DisplayTable(table.title, table.corner, [MarkedCell(name) for name in names], rows, notes=notes)


def cell_text(cell: MarkedCell) -> str:
    """A cell in one piece of text.

    Example:
        >>> cell_text(MarkedCell("86.6", "± 1.4"))
        '86.6 ± 1.4'
    """
    return " ".join(part for part in (cell.text, cell.small, cell.below) if part)


def heading_text(cell: MarkedCell) -> str:
    """The heading of a column in one piece of text.

    Example:
        >>> heading_text(MarkedCell("tickets", below="126 rows")), heading_text(MarkedCell("mean"))
        ('tickets (126 rows)', 'mean')
    """
    return f"{cell.text} ({cell.below})" if cell.below else cell.text


def range_text(limits: tuple[int, int]) -> str:
    """Two numbers as a range, or one number if they are the same.

    Example:
        >>> range_text((8835, 9990)), range_text((9990, 9990)), range_text((118422, 24_000_000))
        ('8.8K to 10K', '9,990', '118K to 24M')
    """
    low, high = limits
    return f"{low:,}" if low == high else f"{short_number(low)} to {short_number(high)}"


def _shown_baselines(table: ResultTable) -> tuple[dict[str, list[float | None]], list[str]]:
    """The baselines to show, and a note about those of very many backbones."""
    if len(table.baselines) <= MOST_BASELINES:
        return table.baselines, []
    shared = {name: values for name, values in table.baselines.items() if "," not in name}
    num_hidden = len(table.baselines) - len(shared)
    return shared, [f"{num_hidden} baselines of single backbones are in table.csv."]


def _turned(table: ResultTable) -> DisplayTable:
    columns = [
        MarkedCell(line.name, below=f"{text} trainable" if (text := _trainable_text(line)) else "")
        for line in table.lines
    ]
    baselines, notes = _shown_baselines(table)
    columns += [MarkedCell(name) for name in baselines]
    rows = []
    for number, column in enumerate(table.columns):
        rows_text = _rows_text(column)
        name = f"{column.name} ({rows_text})" if rows_text else column.name
        cells = [_marked(line.cells[number]) for line in table.lines]
        rows.append((name, [*cells, *(_baseline_cell(values[number]) for values in baselines.values())]))
    return DisplayTable(table.title, "", columns, rows, notes=[*table.notes, *notes], mark_scope=table.mark_scope)


def _marked(cell: ScoreCell) -> MarkedCell:
    return MarkedCell(cell.text, cell.spread_text, cell.mark, cell.count_text)


def _baseline_cell(value: float | None) -> MarkedCell:
    return MarkedCell("" if value is None else f"{value:.{DIGITS}f}")


def _rows_text(column: TableColumn) -> str:
    if column.rows is None:
        return ""
    low, high = column.rows
    return f"{low:,} rows" if low == high else f"{low:,} to {high:,} rows"


def _trainable_text(line: TableLine) -> str:
    return "" if line.trainable is None else range_text(line.trainable)


def _paper_cell(value: object, ours: ScoreCell) -> MarkedCell:
    small = "" if ours.mean is None or value is None else f"({ours.text})"
    return MarkedCell("" if value is None else str(value), small)


def _ours(table: ResultTable, line: str, column: str) -> ScoreCell:
    if table.is_turned:
        return table.cell(column, line)
    # The paper's line may name what all our rows share, such as the only training task.
    shorter = SEPARATOR.join(part for part in line.split(SEPARATOR) if part not in table.implied)
    cell = table.cell(line, column)
    return cell if cell.mean is not None else table.cell(shorter, column)


def with_notes_once(tables: Sequence[DisplayTable]) -> list[DisplayTable]:
    """Tables that follow each other with the same notes keep those of the last one only.

    Example:
        >>> tables = [DisplayTable(name, "", [], [], notes=["Scores: accuracy."]) for name in ("K = 100", "K = 500")]
        >>> [table.all_notes() for table in with_notes_once(tables)]
        [[], ['Scores: accuracy.']]
    """
    shown = list(tables)
    for number, (table, following) in enumerate(pairwise(tables)):
        if table.all_notes() == following.all_notes():
            shown[number] = replace(table, notes=[], mark_scope="")
    return shown


def text_rows(table: DisplayTable) -> Sequence[DisplayRow]:
    """All rows, the quiet ones last.

    Example:
        text_rows(display_table(make_tables(record)[0]))
    """
    return [*table.rows, *table.quiet_rows]


def counted(number: int, noun: str) -> str:
    """A number of things, in words.

    Example:
        >>> counted(1, "run"), counted(3, "run")
        ('1 run', '3 runs')
    """
    return f"{number} {noun}{'s' * (number != 1)}"
