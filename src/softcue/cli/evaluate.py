"""`softcue evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    cue: Annotated[Path, typer.Argument(help="A cue folder.")],
    data: Annotated[str | None, typer.Option(help="Rows with answers; a bundled task has its own test rows.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Load the backbone from here instead.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Score a cue on rows with known answers."""
    from softcue.cli.output import print_json, print_table
    from softcue.cue import load
    from softcue.errors import ConfigurationError
    from softcue.record import read_record
    from softcue.tasks import library_names, library_task

    name = read_record(cue).task.name
    if data is None and name in library_names():
        data = library_task(name).test
    if not data:
        raise ConfigurationError("--data", data, "a file with answers", "pass --data FILE")
    loaded = load(cue, backbone)
    found = loaded.evaluate(data)
    if as_json:
        print_json({"cue": str(cue), "data": data, "rows": found.num_rows, "scores": found.scores,
                    "truncated": found.num_truncated, "illegal": found.num_illegal,
                    "predicted_labels": found.predicted_labels})  # fmt: skip
        return
    print_table(f"{cue} on {data}", ["rows", *found.scores], [[found.num_rows, *found.scores.values()]])
    if found.num_truncated:
        typer.echo(f"{found.num_truncated} texts were cut to {loaded.model.wording.limit} tokens", err=True)
    if found.num_illegal:
        typer.echo(f"{found.num_illegal} answers are no label and count as wrong", err=True)
    if found.has_collapsed:
        typer.echo("every row got the same label: this cue has learned nothing", err=True)
