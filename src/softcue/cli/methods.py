"""`softcue methods`: what can be trained, and the paper's settings beside the preset's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softcue.cli.completion import complete_method

if TYPE_CHECKING:
    from softcue.methods import Method
    from softcue.recipes import Recipe, RecipeSetting

MAX_WIDTH = 120  # of the lines of the list


def methods(
    name: Annotated[
        str, typer.Argument(help="Show this method in full.", metavar="[NAME]", autocompletion=complete_method)
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the methods: what each trains, and the main settings of paper and preset; NAME shows one in full."""
    from softcue.cli.output import print_json
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
    for name, method in METHODS.items():
        _print_summary(name, method)
    typer.echo("All settings of one method, with their sources in the paper: softcue methods NAME")


def _describe(name: str, method: type[Method]) -> dict[str, Any]:
    """One method for JSON."""
    from softcue.configuration import preset
    from softcue.methods.registry import BACKBONE_KINDS
    from softcue.recipes import paper_recipe

    settings = {
        key: {"default": field.get_default(call_default_factory=True), "description": field.description}
        for key, field in method.Config.model_fields.items()
        if key != "name"
    }
    return {
        "name": name,
        "summary": method.summary,
        "paper": method.paper,
        "default_on": _default_kinds(name),
        "settings": settings,
        "paper_recipes": {kind: _describe_recipe(paper_recipe(name, kind)) for kind in BACKBONE_KINDS},
        "presets": {kind: preset(name, kind) for kind in BACKBONE_KINDS},
    }


def _default_kinds(name: str) -> list[str]:
    """The kinds of backbone on which a run that names no method trains this one."""
    from softcue.methods import DEFAULT_METHODS

    return [kind for kind, default in DEFAULT_METHODS.items() if default == name]


def _describe_recipe(recipe: Recipe) -> dict[str, Any]:
    """The paper's recipe on one kind of backbone for JSON."""
    return {
        "paper": recipe.paper,
        "backbone": recipe.backbone,
        "note": recipe.note,
        "settings": {path: _describe_setting(setting) for path, setting in recipe.settings.items()},
    }


def _describe_setting(setting: RecipeSetting) -> dict[str, Any]:
    return {
        "value": setting.value,
        "source": setting.source,
        "is_from_paper": setting.is_from_paper,
        "searched": list(setting.searched),
        "cases": [{"when": dict(condition), **_describe_setting(other)} for condition, other in setting.cases],
    }


def _print_summary(name: str, method: type[Method]) -> None:
    """A few lines: what is trained, the main settings of the paper, and those of the preset."""
    from softcue.configuration import preset
    from softcue.recipes import paper_recipe

    paper = paper_recipe(name)
    typer.echo(name if method.paper == "-" else f"{name} ({method.paper})")
    if kinds := _default_kinds(name):
        typer.echo(f"  the default on {' and '.join(f'{kind}s' for kind in kinds)}")
    _print_wrapped(method.summary)
    if paper.settings:
        values = {path: setting.value for path, setting in paper.settings.items()}
        used = main_settings(values) or "no settings of its own"
        _print_wrapped(f"paper:  {used}" + (f" (on {paper.backbone})" if paper.backbone else ""))
    if preset_values := _paths(preset(name, paper.kind)):
        _print_wrapped(f"preset: {main_settings(preset_values)} (for backbones of kind {paper.kind})")
    typer.echo("")


def _print_wrapped(text: str) -> None:
    """Print a text in lines that fit the terminal; further lines are indented."""
    import shutil
    import textwrap

    width = min(shutil.get_terminal_size((MAX_WIDTH, 24)).columns, MAX_WIDTH)
    typer.echo(
        textwrap.fill(text, max(width, 40), initial_indent="  ", subsequent_indent=" " * 10, break_on_hyphens=False)
    )


def main_settings(values: Mapping[str, Any]) -> str:
    """The settings that say most about a run, in words.

    Example:
        >>> main_settings({"training.steps": 30000, "training.learning_rate": 0.3, "method.prompt_length": 100})
        'prompt length 100, learning rate 0.3, 30000 steps'
        >>> main_settings({"training.relative_rate": 0.2, "training.epochs": 8, "training.min_steps": 100})
        "learning rate 0.2 of the words' size, 8 epochs, at least 100 steps"
    """
    from softcue.settings_docs import format_value

    shown = {path.partition(".")[2]: format_value(value) for path, value in values.items()}
    rate, network_rate = shown.get("learning_rate"), shown.get("network_learning_rate")
    if values.get("training.relative_rate"):
        rate = f"{shown['relative_rate']} of the words' size"
    parts = [f"prompt length {shown['prompt_length']}"] if "prompt_length" in shown else []
    if rate is not None:
        parts.append(f"learning rate {rate}")
    if network_rate not in (None, rate):
        parts.append(f"network learning rate {network_rate}")
    if "optimizer" in shown:
        parts.append(shown["optimizer"])
    if "batch_size" in shown:
        parts.append(f"batch size {shown['batch_size']}")
    parts += [f"{shown[key]} {key}" for key in ("steps", "epochs") if key in shown]
    if values.get("training.min_steps"):
        parts.append(f"at least {shown['min_steps']} steps")
    return ", ".join(parts)


def _print_method(name: str, method: type[Method]) -> None:
    """One method in full: every setting that the paper or a preset gives, then its own settings."""
    from softcue.cli.output import print_table
    from softcue.configuration import preset
    from softcue.methods.registry import BACKBONE_KINDS
    from softcue.recipes import paper_recipe
    from softcue.settings_docs import format_value, list_settings

    typer.echo(f"{name} ({method.paper}): {method.summary}" if method.paper != "-" else f"{name}: {method.summary}")
    recipes = {kind: paper_recipe(name, kind) for kind in BACKBONE_KINDS}
    for recipe in recipes.values():
        if recipe.settings:
            _print_recipe(recipe)
    if not any(recipe.settings for recipe in recipes.values()):
        typer.echo("It has no paper: --recipe paper is the preset.")
    presets = {kind: _paths(preset(name, kind)) for kind in BACKBONE_KINDS}
    paths = dict.fromkeys(path for values in presets.values() for path in values)
    if paths:
        rows = [
            [path, *(format_value(values[path]) if path in values else "-" for values in presets.values())]
            for path in paths
        ]
        print_table("presets (--recipe default)", ["setting", *BACKBONE_KINDS], rows)
    settings = [setting for setting in list_settings("method", name) if setting.key != "name"]
    if settings:
        cells = [[setting.key, format_value(setting.default), setting.type, setting.meaning] for setting in settings]
        print_table("its own settings: method.KEY=value", ["key", "default", "type", "meaning"], cells)
    typer.echo(f"Train it: softcue train --method {name} ... ; the other settings: softcue config --method {name}")


def _print_recipe(recipe: Recipe) -> None:
    """The paper's settings on one kind of backbone, with their sources, and values for other forms of task."""
    from softcue.cli.output import print_table
    from softcue.recipes import describe_condition
    from softcue.settings_docs import format_value

    rows = []
    for path, setting in recipe.settings.items():
        rows.append([path, format_value(setting.value), _describe_source(setting)])
        for condition, other in setting.cases:
            rows.append(["", format_value(other.value), f"{describe_condition(condition)}: {_describe_source(other)}"])
    used_on = f"the paper: {recipe.backbone}" if recipe.backbone else recipe.note
    print_table(f"--recipe paper on backbones of kind {recipe.kind} ({used_on})", ["setting", "value", "source"], rows)
    if recipe.backbone and recipe.note:
        typer.echo(f"Differs from the paper: {recipe.note}.")


def _describe_source(setting: RecipeSetting) -> str:
    """Where a value comes from: the place in the paper, or that it was chosen here and why."""
    from softcue.settings_docs import format_value

    searched = f" (searched: {', '.join(map(format_value, setting.searched))})" if setting.searched else ""
    return setting.source + searched if setting.is_from_paper else f"chosen here: {setting.source}"


def _paths(settings: dict[str, Any]) -> dict[str, Any]:
    """Nested settings by `section.key`."""
    return {f"{section}.{key}": value for section, values in settings.items() for key, value in values.items()}
