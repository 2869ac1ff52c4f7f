"""`softcue config`: every setting with type, meaning and value, and docs/configuration.md."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from softcue.cli.completion import complete_method, complete_section


class KindOfBackbone(StrEnum):
    """The kinds of backbone that presets know."""

    encoder = "encoder"
    encoder_decoder = "encoder-decoder"
    decoder = "decoder"


class KindOfRecipe(StrEnum):
    """Where settings come from that a user does not give."""

    default = "default"
    paper = "paper"


def config(
    section: Annotated[
        str,
        typer.Argument(
            help="backbone, task, method, readout, training, mixture or selection; or a key, such as training.epochs.",
            autocompletion=complete_section,
            metavar="[SECTION]",
        ),
    ] = "",
    method: Annotated[
        str | None,
        typer.Option(
            help="Show the keys and the recipe of this method; else of the default for the kind of backbone.",
            autocompletion=complete_method,
        ),
    ] = None,
    recipe: Annotated[
        KindOfRecipe, typer.Option(help="Show the method's preset, or the settings of its paper.")
    ] = KindOfRecipe.default,
    backbone_kind: Annotated[
        KindOfBackbone, typer.Option("--backbone-kind", help="Show the recipe for this kind of backbone.")
    ] = KindOfBackbone.encoder,
    docs: Annotated[bool, typer.Option("--docs", help="Print docs/configuration.md.")] = False,
    check_file: Annotated[
        Path | None, typer.Option("--check", help="Exit with 1 unless this file is what --docs would print.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List every setting: key, type, the value a run starts from, and what it means.

    Set one with `softcue train ... section.key=value`, or below its section in a YAML file.
    """
    from softcue.cli.output import compare_or_print, print_json, print_table
    from softcue.configuration import find_method_name
    from softcue.settings_docs import configuration_page, format_value, list_settings

    if docs or check_file is not None:
        compare_or_print(configuration_page(), check_file, "softcue config --docs")
        return
    method = method or find_method_name({}, backbone_kind.value)
    settings = list_settings(section, method, backbone_kind.value, recipe.value)
    if as_json:
        entries = [
            {
                "section": setting.section,
                "key": setting.key,
                "type": setting.type,
                "default": setting.default,
                "value": setting.value,
                "from": setting.origin,
                "meaning": setting.meaning,
            }
            for setting in settings
        ]
        facts = {"method": method, "recipe": recipe.value, "backbone_kind": backbone_kind.value}
        print_json({**facts, "settings": entries})
        return
    for name in dict.fromkeys(setting.section for setting in settings):
        rows = [
            [
                setting.key,
                format_value(setting.value) + ("" if setting.origin == "default" else " *"),
                setting.type,
                setting.meaning,
            ]
            for setting in settings
            if setting.section == name
        ]
        print_table(name, ["key", "value", "type", "meaning"], rows)
    origin = "paper" if any(setting.origin == "paper" for setting in settings) else "preset"
    typer.echo(
        f"* from the {origin} of {method} for backbones of kind {backbone_kind.value}; other values are defaults."
    )
    if origin == "paper":
        typer.echo(f"Some values of the paper depend on the task: softcue methods {method}.")
    typer.echo("Set one: softcue train ... section.key=value. Others: --method M --backbone-kind K --recipe paper.")
