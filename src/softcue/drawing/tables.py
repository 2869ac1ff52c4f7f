"""Tables: as plain text, as HTML, and matrices of counts with shaded cells."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

HIT, MISS = "59, 130, 196", "217, 130, 43"  # blue and orange: people with colour blindness can tell them apart
MANY_COLUMNS = 6  # from here on the names of a matrix's columns are written from top to bottom
_VALUE_STYLE = "text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap"
_HEAD_STYLE = "text-align: right; min-width: 4rem"
_NAME_STYLE = "text-align: left; position: sticky; left: 0; background: Canvas; min-width: 7.5rem; max-width: 45vw"
_NUMBER = re.compile(r"[-+]?[\d,]*\.?\d+(e[-+]?\d+)?( \(few\))?|-")


def html_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table; columns of numbers are aligned to the right, fractions have two decimals.

    Example:
        >>> html_table(["label", "rows"], [["a<b", 3]]).count("a&lt;b")
        1
    """
    lines = [[_text(cell) for cell in row] for row in rows]
    alignments = ["right" if is_number else "left" for is_number in _number_columns(len(columns), lines)]
    head = "".join(_cell("th", name, align) for name, align in zip(columns, alignments, strict=True))
    body = "".join(
        f"<tr>{''.join(_cell('td', text, align) for text, align in zip(line, alignments, strict=True))}</tr>"
        for line in lines
    )
    return _wide(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in plain text; columns of numbers are aligned to the right.

    Example:
        >>> print(text_table(["label", "rows"], [["billing", "3"], ["it", "12"]]))
        label    rows
        billing     3
        it         12
    """
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    aligned = list(zip(widths, _number_columns(len(columns), rows), strict=True))
    return "\n".join(
        "  ".join(
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, (width, is_number) in zip(row, aligned, strict=True)
        ).rstrip()
        for row in (columns, *rows)
    )


@dataclass(frozen=True)
class MarkedCell:
    """A cell of a table of scores: a value, what stands behind and below it in small letters, and its rank."""

    text: str
    small: str = ""
    mark: Literal["", "best", "second"] = ""
    below: str = ""


def marked_table(
    columns: Sequence[MarkedCell],
    rows: Sequence[tuple[str, Sequence[MarkedCell]]],
    quiet_rows: Sequence[tuple[str, Sequence[MarkedCell]]] = (),
    corner: str = "",
) -> str:
    """A table of named rows whose best cells are bold and whose second are underlined.

    Quiet rows come last, in a lighter colour. The names of the rows stay in sight when the table is moved sideways.

    Example:
        >>> marked_table([MarkedCell("tickets")], [("vip", [MarkedCell("90.1", "± 0.4", "best")])]).count("<b ")
        1
    """
    head = f'<th style="{_NAME_STYLE}">{escape(corner)}</th>' + "".join(
        f'<th scope="col" style="{_HEAD_STYLE}">{_marked_text(column)}</th>' for column in columns
    )
    lines = []
    for name, cells in rows:
        lines.append(f"<tr>{_marked_row(name, cells, 'font-weight: 600')}</tr>")
    for name, cells in quiet_rows:
        lines.append(f'<tr style="font-style: italic">{_marked_row(name, cells, "font-weight: 400")}</tr>')
    return _wide(f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>")


def _marked_row(name: str, cells: Sequence[MarkedCell], style: str) -> str:
    values = "".join(f'<td style="{_VALUE_STYLE}">{_marked_text(cell)}</td>' for cell in cells)
    return f'<th scope="row" style="{_NAME_STYLE}; {style}">{escape(name)}</th>{values}'


def _marked_text(cell: MarkedCell) -> str:
    text = escape(cell.text)
    if cell.mark == "best":
        text = f'<b title="best">{text}</b>'
    elif cell.mark == "second":
        text = f'<u title="second">{text}</u>'
    for gap, words in ((" ", cell.small), ("<br/>", cell.below)):
        text += f'{gap}<small style="opacity: .75; white-space: nowrap">{escape(words)}</small>' if words else ""
    return text


def heat_table(corner: str, rows: Sequence[str], columns: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """A matrix of counts. Cells are shaded by their share of the row: blue where row and column are the same.

    Example:
        >>> heat_table("true", ["a"], ["a", "b"], [[3, 1]]).count("rgba(59, 130, 196")
        1
    """
    is_upright = len(columns) > MANY_COLUMNS
    turned = "writing-mode: vertical-rl; transform: rotate(180deg); text-align: left; " if is_upright else ""
    names = "".join(f'<th scope="col" style="{turned}font-weight: 600">{escape(name)}</th>' for name in columns)
    lines = []
    for row, (name, row_counts) in enumerate(zip(rows, counts, strict=True)):
        total = sum(row_counts)
        cells = []
        for column, count in enumerate(row_counts):
            share = count / total if total else 0.0
            colour = f"rgba({HIT if row == column else MISS}, {0.12 + 0.68 * share:.2f})" if count else "transparent"
            title = f"true {name}, predicted {columns[column]}: {count:,} of {total:,}"
            text = f"{count:,}" if count else '<span style="opacity: .35">0</span>'
            cells.append(
                f'<td title="{escape(title)}" style="text-align: center; font-variant-numeric: tabular-nums; '
                f'background: {colour}">{text}</td>'
            )
        lines.append(f'<tr><th scope="row" style="text-align: right">{escape(name)}</th>{"".join(cells)}</tr>')
    head = f'<th style="font-weight: 400; opacity: .75; text-align: right">{escape(corner)}</th>{names}'
    table = f'<table style="width: auto"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'
    return _wide(table)


def value_table(names: Sequence[str], values: Sequence[Sequence[float | None]], limits: tuple[float, float]) -> str:
    """A heat map of the values between all pairs of names; cells are shaded between the limits, None is a dash.

    Example:
        >>> value_table(["a", "b"], [[1.0, 0.25], [0.25, None]], (0.0, 1.0)).count("rgba")
        3
    """
    low, high = limits
    turned = "writing-mode: vertical-rl; transform: rotate(180deg); text-align: left; "
    style = f"{turned if len(names) > MANY_COLUMNS else 'text-align: center; '}font-weight: 600"
    head = "".join(f'<th scope="col" style="{style}">{escape(name)}</th>' for name in names)
    lines = []
    for name, row in zip(names, values, strict=True):
        cells = []
        for other, value in zip(names, row, strict=True):
            share = 0.0 if value is None else min(1.0, max(0.0, (value - low) / (high - low)))
            colour = "transparent" if value is None else f"rgba({HIT}, {0.04 + 0.7 * share:.2f})"
            text = '<span style="opacity: .5">-</span>' if value is None else f"{value:.2f}"
            title = f"{name} and {other}: {'not compared' if value is None else f'{value:.3f}'}"
            cells.append(
                f'<td title="{escape(title)}" style="text-align: center; font-variant-numeric: tabular-nums; '
                f'background: {colour}">{text}</td>'
            )
        lines.append(f'<tr><th scope="row" style="text-align: right">{escape(name)}</th>{"".join(cells)}</tr>')
    body = f"<thead><tr><th></th>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return _wide(f'<table style="width: auto">{body}</table>')


def _number_columns(num_columns: int, lines: Sequence[Sequence[str]]) -> list[bool]:
    """Whether each column holds numbers only."""
    return [bool(lines) and all(_NUMBER.fullmatch(line[column]) for line in lines) for column in range(num_columns)]


def _wide(table: str) -> str:
    """A table that scrolls sideways on a narrow screen."""
    return f'<div style="overflow-x: auto">{table}</div>'


def _cell(tag: str, text: str, align: str) -> str:
    digits = " font-variant-numeric: tabular-nums;" if align == "right" else ""
    return f'<{tag} style="text-align: {align};{digits}">{escape(text)}</{tag}>'


def _text(cell: object) -> str:
    if isinstance(cell, bool) or not isinstance(cell, (int, float)):
        return str(cell)
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:.2f}"
