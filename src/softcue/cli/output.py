"""Output of commands: tables, or one JSON object."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path


def print_json(value: object) -> None:
    """Print one JSON object and nothing else on standard output."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], numbers_from: int | None = None
) -> None:
    """Print a table on standard output; numbers are aligned to the right, and so are columns from `numbers_from` on."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title or None, title_justify="left")
    for index, column in enumerate(columns):
        is_number = bool(rows) and all(isinstance(row[index], (int, float)) for row in rows)
        is_number = is_number or (numbers_from is not None and index >= numbers_from)
        table.add_column(column, justify="right" if is_number else "left")
    for row in rows:
        table.add_row(*[format_cell(cell) for cell in row])
    width = None if Console().is_terminal else 160
    # Cells hold users' text: "[unused1]" is not markup and ":bug:" is not an emoji.
    Console(width=width, markup=False, emoji=False, highlight=False).print(table)


def compare_or_print(text: str, check_file: Path | None, command: str) -> None:
    """Print a generated page, or compare it with a file and exit with 1 if they differ; `command` prints the page."""
    import typer

    from softcue.errors import DataError

    if check_file is None:
        typer.echo(text, nl=False)
        return
    try:
        current = check_file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            setting="--check", got=check_file, expected="a text file that can be read", fix=str(error)
        ) from error
    if current != text:
        typer.echo(f"{check_file} is not up to date: {command} > {check_file}", err=True)
        raise typer.Exit(1)


def format_cell(cell: object) -> str:
    """Format a cell: numbers with thousands separators or one decimal.

    Example:
        >>> format_cell(7680), format_cell(84.127)
        ('7,680', '84.1')
    """
    if isinstance(cell, bool) or not isinstance(cell, (int, float)):
        return str(cell)
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:.1f}"
