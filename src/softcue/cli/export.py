"""`softcue export`: a cue in the format of other software."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softcue.cli.options import AllowPickle


def export(
    cue: Annotated[Path, typer.Argument(help="A cue folder or hub:OWNER/NAME.")],
    folder: Annotated[Path, typer.Argument(help="A new folder for the export.")],
    to: Annotated[str, typer.Option(help="The format: peft, prompt-embeds, onnx, openvino or mlflow.")],
    data: Annotated[str | None, typer.Option(help="Rows: a file with the columns that the cue reads.")] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Quantise the backbone's weights to 8 bits.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Write it even if predictions differ from the cue's.")] = False,
    backbone: Annotated[str | None, typer.Option(help="Load the backbone from here instead.")] = None,
    allow_pickle: AllowPickle = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write a cue in the format of other software."""
    from softcue.backbones import load_backbone
    from softcue.cli.output import print_json
    from softcue.cue.cue import backbone_config, load
    from softcue.cue.cue_file import read_cue_file
    from softcue.cue.hub import find_cue_folder
    from softcue.interop import FORMATS, ExportOptions, export_cue

    cue_folder = find_cue_folder(cue)
    config = backbone_config(read_cue_file(cue_folder), backbone, allow_pickle)
    if to in FORMATS and (dtype := FORMATS[to].dtype) is not None:
        config = config.model_copy(update={"dtype": dtype})
    loaded = load(cue_folder, load_backbone(config))
    report = export_cue(loaded, to, folder, ExportOptions(data=data, int8=int8, force=force))
    if as_json:
        print_json({"cue": str(cue), "format": to, "folder": str(folder), **report.facts, "notes": report.notes})
        return
    for name, value in report.facts.items():
        typer.echo(f"{name}: {value}")
    for note in report.notes:
        typer.echo(note, err=True)
    typer.echo(f"saved: {folder}")
