"""`softcue inspect CUE CUE ...`: scores side by side, validation curves, and the similarity of prompts."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from softcue.inspection.comparison import CueComparison
    from softcue.inspection.similarity import PromptSimilarity

MAX_COLUMNS = 12  # of a matrix in a terminal


def parse_data_columns(columns: Sequence[str], data: Path | None) -> dict[str, str]:
    """The columns named by --column, which need --data."""
    from softcue.errors import ConfigurationError
    from softcue.tasks.columns import parse_columns

    if columns and data is None:
        raise ConfigurationError(
            setting="column", got=columns[0], expected="a file with rows in --data or --pairs", fix="pass --data FILE"
        )
    return parse_columns(columns)


def compare(
    paths: list[Path],
    data: Path | None,
    columns: Mapping[str, str],
    skip_bad_rows: bool,
    output_dir: Path | None,
    backbone: str | None,
    as_json: bool,
    allow_pickle: bool = False,
) -> None:
    """Compare several cues, print the result, and write the page and the pictures."""
    from softcue.cli.output import print_json, print_table
    from softcue.inspection.comparison import compare_cues

    comparison = compare_cues(paths, data, columns, backbone, skip_bad_rows, allow_pickle)
    if output_dir is not None:
        _write(comparison, output_dir)
    if as_json:
        print_json(comparison.as_dict())
        return
    print_table(f"{len(comparison.cues)} cues", *comparison.score_rows(), numbers_from=7)
    for note in comparison.notes:
        typer.echo(note)
    _print_curves(comparison)
    _print_similarity(comparison.similarity)
    if output_dir is not None:
        typer.echo(f"page: {output_dir / 'index.html'}")


def _print_curves(comparison: CueComparison) -> None:
    """Print a line of text for each cue's validation scores."""
    from softcue.drawing.sparkline import BARS, PLAIN_BARS, sparkline

    try:
        BARS.encode(sys.stdout.encoding or "utf-8")
        bars = BARS
    except (UnicodeEncodeError, LookupError):
        bars = PLAIN_BARS
    padding = max(len(cue.name) for cue in comparison.cues)
    typer.echo("validation score by step")
    for cue in comparison.cues:
        scores = [score for _, score in cue.curve.scores]
        line = f"{scores[0]:.4g} -> {scores[-1]:.4g}  {sparkline(scores, bars=bars)}" if scores else "not recorded"
        best = f"  best {cue.curve.best[1]:.4g} at step {cue.curve.best[0]}" if cue.curve.best else ""
        typer.echo(f"  {cue.name:{padding}}  {line}{best}")


def _print_similarity(similarity: PromptSimilarity) -> None:
    """Print the similarity of prompts as a table, and why some are not compared."""
    from softcue.cli.output import print_table
    from softcue.inspection.comparison_page import EXPLAINED

    if similarity.is_empty:
        typer.echo("similarity of prompts: no two prompts can be compared")
    elif len(similarity.names) > MAX_COLUMNS:
        typer.echo(f"similarity of {len(similarity.names)} prompts: see it on a page, with --output-dir")
    else:
        rows = [
            [name, *("-" if value is None else f"{value:.2f}" for value in values)]
            for name, values in zip(similarity.names, similarity.best_match, strict=True)
        ]
        print_table("similarity of prompts", ["", *similarity.names], rows, numbers_from=1)
        typer.echo(EXPLAINED)
        pairs = [value for number, row in enumerate(similarity.random) for value in row[:number] if value is not None]
        if pairs:
            typer.echo(f"with random vectors in place of one prompt: {min(pairs):.2f} to {max(pairs):.2f}")
    for note in similarity.notes:
        typer.echo(note)


def _write(comparison: CueComparison, folder: Path) -> None:
    """Write index.html, similarity.png and curves.png; without matplotlib, the page only."""
    from softcue.errors import MissingExtraError
    from softcue.files import convert_write_errors, write_atomically
    from softcue.inspection.comparison_page import comparison_page
    from softcue.inspection.comparison_pictures import curves_picture, similarity_picture

    pictures = {}
    try:
        if not comparison.similarity.is_empty:
            pictures["similarity.png"] = similarity_picture(comparison.similarity)
        if comparison.validation_curves:
            pictures["curves.png"] = curves_picture(comparison)
    except MissingExtraError as error:
        typer.echo(f"no pictures: {error}", err=True)
    page = comparison_page(comparison)
    with convert_write_errors("output_dir", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, picture in pictures.items():
            write_atomically(folder / name, picture)
        write_atomically(folder / "index.html", page.encode())
