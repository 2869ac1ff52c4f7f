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


def config(
    section: Annotated[
        str,
        typer.Argument(
            help="backbone, task, method, readout, training or mixture; or one key, such as training.epochs.",
            autocompletion=complete_section,
            metavar="[SECTION]",
        ),
    ] = "",
    method: Annotated[
        str, typer.Option(help="Show the keys and the preset of this method.", autocompletion=complete_method)
    ] = "prompt-tuning",
    backbone_kind: Annotated[
        KindOfBackbone, typer.Option("--backbone-kind", help="Show the preset for this kind of backbone.")
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
    from softcue.settings_docs import configuration_page, format_value, list_settings

    if docs or check_file is not None:
        compare_or_print(configuration_page(), check_file, "softcue config --docs")
        return
    settings = list_settings(section, method, backbone_kind.value)
    if as_json:
        entries = [
            {
                "section": setting.section,
                "key": setting.key,
                "type": setting.type,
                "default": setting.default,
                "value": setting.value,
                "from": "preset" if setting.is_from_preset else "default",
                "meaning": setting.meaning,
            }
            for setting in settings
        ]
        print_json({"method": method, "backbone_kind": backbone_kind.value, "settings": entries})
        return
    for name in dict.fromkeys(setting.section for setting in settings):
        rows = [
            [
                setting.key,
                format_value(setting.value) + (" *" if setting.is_from_preset else ""),
                setting.type,
                setting.meaning,
            ]
            for setting in settings
            if setting.section == name
        ]
        print_table(name, ["key", "value", "type", "meaning"], rows)
    typer.echo(f"* from the preset of {method} for backbones of kind {backbone_kind.value}; other values are defaults.")
    typer.echo("Set one: softcue train ... section.key=value. Other presets: --method M --backbone-kind K.")
