"""`softcue methods`: what can be trained, and the paper's settings beside the preset's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from softcue.cli.completion import complete_method

if TYPE_CHECKING:
    from softcue.methods import Method

# The settings of the short table: heading -> paths, the first one that a paper or preset gives is shown.
SHOWN_SETTINGS = {
    "prompt length": ("method.prompt_length",),
    "learning rate": ("training.learning_rate",),
    "network learning rate": ("training.network_learning_rate",),
    "optimizer": ("training.optimizer",),
    "batch size": ("training.batch_size",),
    "training": ("training.steps", "training.epochs"),
}


def methods(
    name: Annotated[
        str, typer.Argument(help="Show this method in full.", metavar="[NAME]", autocompletion=complete_method)
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the methods: what each trains, and the paper's settings against the preset's; NAME shows one in full."""
    from softcue.cli.output import print_json, print_table
    from softcue.methods import METHODS

    if name:
        method = METHODS.find(name)
        if as_json:
            print_json(_describe(name, method))
        else:
            _print_method(name, method)
        return
    if as_json:
        print_json({"methods": [_describe(name, method) for name, method in METHODS.items()]})
        return
    rows = [[name, method.paper, method.summary] for name, method in METHODS.items()]
    print_table("", ["method", "paper", "what is trained"], rows)
    _print_comparison(list(METHODS))
    typer.echo("All settings of one method, with their sources: softcue methods NAME")


def _describe(name: str, method: type[Method]) -> dict[str, Any]:
    """One method for JSON."""
    from softcue.configuration import paper_settings, preset
    from softcue.methods.registry import BACKBONE_KINDS

    paper = paper_settings(name)
    settings = {
        key: {"default": field.get_default(call_default_factory=True), "description": field.description}
        for key, field in method.Config.model_fields.items()
        if key != "name"
    }
    return {
        "name": name,
        "summary": method.summary,
        "paper": method.paper,
        "settings": settings,
        "paper_backbone": {"kind": paper.kind, "name": paper.backbone},
        "paper_settings": {
            path: {"value": setting.value, "source": setting.source, "searched": list(setting.searched)}
            for path, setting in paper.settings.items()
        },
        "presets": {kind: preset(name, kind) for kind in BACKBONE_KINDS},
    }


def _print_comparison(names: list[str]) -> None:
    """Two lines per method: the paper's settings, and the preset's for the kind of backbone in the paper."""
    from softcue.cli.output import print_table
    from softcue.configuration import paper_settings, preset

    rows = []
    for name in names:
        paper = paper_settings(name)
        paper_values = {path: setting.value for path, setting in paper.settings.items()}
        preset_values = _paths(preset(name, paper.kind))
        if paper_values:
            rows.append([name, f"paper, {paper.backbone or paper.kind}", *_shown(paper_values)])
        if preset_values:
            rows.append(["" if paper_values else name, f"preset, {paper.kind}", *_shown(preset_values)])
    print_table("settings of the paper and of the preset", ["method", "settings of", *SHOWN_SETTINGS], rows)


def _shown(values: dict[str, Any]) -> list[str]:
    """The cells of a line of the short table."""
    from softcue.settings_docs import format_value

    cells = []
    for paths in SHOWN_SETTINGS.values():
        path = next((path for path in paths if path in values), "")
        unit = f" {path.partition('.')[2]}" if len(paths) > 1 and path else ""
        cells.append(format_value(values[path]) + unit if path else "-")
    return cells


def _print_method(name: str, method: type[Method]) -> None:
    """One method in full: every setting that the paper or a preset gives, then its own settings."""
    from softcue.cli.output import print_table
    from softcue.configuration import paper_settings, preset
    from softcue.methods.registry import BACKBONE_KINDS
    from softcue.settings_docs import format_value, list_settings

    typer.echo(f"{name} ({method.paper}): {method.summary}" if method.paper != "-" else f"{name}: {method.summary}")
    paper = paper_settings(name)
    presets = {kind: _paths(preset(name, kind)) for kind in BACKBONE_KINDS}
    rows = []
    for path in dict.fromkeys([*paper.settings, *(path for values in presets.values() for path in values)]):
        given = paper.settings.get(path)
        value, source = "-", ""
        if given is not None:
            searched = f" (searched: {', '.join(map(format_value, given.searched))})" if given.searched else ""
            value, source = format_value(given.value), given.source + searched
        preset_cells = [format_value(values[path]) if path in values else "-" for values in presets.values()]
        rows.append([path, value, source, *preset_cells])
    if rows:
        title = f"settings of the paper ({paper.backbone}) and of the presets" if paper.backbone else "presets"
        print_table(title, ["setting", "paper", "where the paper says so", *BACKBONE_KINDS], rows)
    settings = [setting for setting in list_settings("method", name) if setting.key != "name"]
    if settings:
        cells = [[setting.key, format_value(setting.default), setting.type, setting.meaning] for setting in settings]
        print_table("its own settings: method.KEY=value", ["key", "default", "type", "meaning"], cells)
    typer.echo(f"Train it: softcue train --method {name} ... ; the other settings: softcue config --method {name}")


def _paths(settings: dict[str, Any]) -> dict[str, Any]:
    """Nested settings by `section.key`."""
    return {f"{section}.{key}": value for section, values in settings.items() for key, value in values.items()}
