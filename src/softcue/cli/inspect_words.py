"""What `softcue inspect` prints about the words near to prompt vectors, and the picture it writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from softcue.inspection.clusters import WordClusters
    from softcue.inspection.kept_labels import LabelPlace

MAX_LABELS = 30  # in a terminal


def print_clusters(clusters: WordClusters) -> None:
    """Print the prompt's clusters beside those of random vectors, and the clusters by name."""
    from softcue.cli.output import print_table
    from softcue.inspection.clusters import explain, named_rows, summary_rows

    columns, rows = summary_rows(clusters)
    print_table("clusters of nearest words", columns, rows, numbers_from=1)
    typer.echo(explain(clusters))
    columns, rows = named_rows(clusters)
    if rows:
        print_table("clusters by name", columns, rows)
    else:
        typer.echo("clusters by name: none")


def print_label_places(places: Sequence[LabelPlace]) -> None:
    """Print which prompt vectors are near to which label."""
    from softcue.cli.output import print_table
    from softcue.inspection.kept_labels import label_rows_of, summarise_labels

    shown = places if len(places) <= MAX_LABELS else [place for place in places if place.vectors][:MAX_LABELS]
    if shown:
        print_table("labels in the prompt", *label_rows_of(shown))
    typer.echo(summarise_labels(places))


def write_words_picture(title: str, clusters: WordClusters, folder: Path) -> None:
    """Write words.png; without matplotlib, say what is missing."""
    from softcue.cli.output import write_picture
    from softcue.inspection.word_pictures import words_picture

    write_picture(folder / "words.png", lambda: words_picture(title, clusters), "no words.png")
