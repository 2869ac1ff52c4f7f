"""Output of commands: tables, or one JSON object."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

FILE_WIDTH = 160  # of tables in a file or a pipe
# of a column in a narrow terminal; longer words, and longer names of columns, are broken
MIN_TEXT_WIDTH, MIN_NUMBER_WIDTH = 8, 4


def print_json(value: object) -> None:
    """Print one JSON object and nothing else on standard output."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], numbers_from: int | None = None
) -> None:
    """Print a table on standard output; numbers are aligned to the right, and so are columns from `numbers_from` on.

    Text is wrapped, numbers are not. If the terminal is too narrow for that, each row is printed as lines
    `column: value`. No value is ever cut.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table

    width = None if Console().is_terminal else FILE_WIDTH
    # Cells hold users' text: "[unused1]" is not markup and ":bug:" is not an emoji.
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    lines = [[format_cell(cell) for cell in row] for row in rows]
    is_number = [
        (bool(rows) and all(isinstance(row[index], (int, float)) for row in rows))
        or (numbers_from is not None and index >= numbers_from)
        for index in range(len(columns))
    ]
    longest = [max((cell_len(line[index]) for line in lines), default=0) for index in range(len(columns))]
    full_widths = [max(cell_len(column), cells) for column, cells in zip(columns, longest, strict=True)]
    min_widths = [
        max(MIN_NUMBER_WIDTH, cells) if number else min(MIN_TEXT_WIDTH, full)
        for number, cells, full in zip(is_number, longest, full_widths, strict=True)
    ]
    widths = fit_widths(min_widths, full_widths, console.width - 3 * len(columns) - 1)  # two spaces and a border each
    if widths is None:
        records = [_record(columns, line) for line in lines]
        console.print("\n\n".join([*([title] if title else []), *records]), soft_wrap=True)
        return
    table = Table(title=title or None, title_justify="left")
    for column, number, column_width in zip(columns, is_number, widths, strict=True):
        table.add_column(column, justify="right" if number else "left", width=column_width, overflow="fold")
    for line in lines:
        table.add_row(*line)
    console.print(table)


def fit_widths(min_widths: Sequence[int], full_widths: Sequence[int], room: int) -> list[int] | None:
    """Widths of columns that fit into a room, the narrowest columns full first; None if even the least do not fit.

    Example:
        >>> fit_widths([4, 8], [8, 50], room=100), fit_widths([4, 8], [8, 50], room=30), fit_widths([4, 8], [8, 50], 11)
        ([8, 50], [8, 22], None)
    """
    widths = [min(pair) for pair in zip(min_widths, full_widths, strict=True)]
    if sum(widths) > room:
        return None
    for _ in range(min(room, sum(full_widths)) - sum(widths)):
        growing = [index for index, width in enumerate(widths) if width < full_widths[index]]
        widths[min(growing, key=widths.__getitem__)] += 1
    return widths


def _record(columns: Sequence[str], line: Sequence[str]) -> str:
    return "\n".join(f"{column}: {cell}" for column, cell in zip(columns, line, strict=True))


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


def write_picture(path: Path, make: Callable[[], bytes], missing: str) -> None:
    """Write a picture into an --output-dir; without matplotlib, say what is missing and why.

    Example:
        write_picture(Path("page/words.png"), lambda: words_picture("tickets", clusters), "no words.png")
    """
    from softcue.errors import MissingExtraError
    from softcue.files import convert_write_errors, write_atomically

    try:
        picture = make()
    except MissingExtraError as error:
        sys.stderr.write(f"{missing}: {error}\n")
        return
    with convert_write_errors("output_dir", path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, picture)
