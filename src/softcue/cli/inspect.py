"""`softcue inspect`: what a prompt's vectors are near to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def inspect(
    cue: Annotated[Path, typer.Argument(help="A cue folder.")],
    top: Annotated[int, typer.Option(min=1, max=50, help="Neighbours per prompt vector.")] = 5,
    backbone: Annotated[str | None, typer.Option(help="Load the backbone from here instead.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the nearest words of every prompt vector."""
    from dataclasses import asdict

    from softcue.cli.output import print_json, print_table
    from softcue.cue import load
    from softcue.inspection import nearest_words

    loaded = load(cue, backbone)
    found = nearest_words(loaded, top)
    if as_json:
        print_json({"cue": str(cue), **asdict(found)})
        return
    rows = [
        [row.position, f"{row.norm:.2f}", ", ".join(f"{n.word} {n.cosine:.2f}" for n in row.neighbours)]
        for row in found.vectors
    ]
    print_table(f"{cue}: {found.num_vectors} prompt vectors", ["#", "norm", f"nearest {top} words (cosine)"], rows)
    typer.echo(f"labels still nearest to a vector: {', '.join(found.labels_kept) or 'none'}")
    typer.echo(f"words that are nearest to several vectors: {', '.join(found.repeated) or 'none'}")
