"""`softcue study report`: tables, comparisons and charts of a study, from the results in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[str, typer.Argument(help="The folder of a study, or its fsspec URL.")],
    output_dir: Annotated[
        Path | None,
        typer.Option("--output-dir", help="A folder for the files; otherwise `report` in that of the study."),
    ] = None,
    with_paper: Annotated[
        bool, typer.Option("--with-paper", help="Also show the numbers of the paper, with their source.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write index.html, report.md, report.tex and csv files about the finished runs of a study."""
    from softcue.cli.output import print_json, print_table
    from softcue.errors import ConfigurationError
    from softcue.studies.report import make_report
    from softcue.studies.store import open_study

    if output_dir is None and "://" in folder:
        raise ConfigurationError(
            setting="output_dir", got=None, expected="a folder of this machine", fix="pass `--output-dir report`"
        )
    made = make_report(open_study(folder), with_paper=with_paper)
    paths = made.save(output_dir or Path(folder) / "report")
    if as_json:
        print_json({**made.as_dict(), "files": [str(path) for path in paths]})
        return
    for title, columns, rows in made.text_tables():
        print_table(title or made.content.title, columns, rows, numbers_from=1)
    content = made.content
    notes = [content.scale_note] if content.scale_note else []
    for line in [*notes, *content.count_notes, *content.sentences, *content.difference_notes]:
        typer.echo(line)
    for failed in content.failed:
        typer.echo(f"failed: {failed.run}: {failed.reason}", err=True)
    typer.echo(f"saved: {', '.join(str(path) for path in paths)}")
