"""`softcue params`: parameters each method adds to a backbone, counted without loading its weights."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from softcue.cli.completion import complete_method
from softcue.cli.config import KindOfRecipe

# Further rows of the papers' tables: WARP with 8 vectors (Hambardzumyan et al. 2021); IDPG's table 2 (Wu et al. 2022)
# and its S and L sharing; table 8 of VIP (Bhardwaj et al. 2022), by its numbers of soft tokens and VIP tokens, with ten
# codes for each VIP token.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "warp-8": ("warp", {"prompt_length": 8}),
    "prompt-tuning-134": ("prompt-tuning", {"prompt_length": 134}),
    "m-idpg-phm-s": ("m-idpg-phm", {"sharing": "S"}),
    "m-idpg-phm-l": ("m-idpg-phm", {"sharing": "L"}),
    "vip-100-0": ("prompt-tuning", {"prompt_length": 100}),
    "vip-80-20": ("vip", {"soft_tokens": 80, "codes": 200}),
    "vip-50-50": ("vip", {"soft_tokens": 50, "codes": 500}),
    "vip-10-90": ("vip", {"soft_tokens": 10, "codes": 900}),
}


def params(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[method.key=value ...]", help="Settings for --method.")
    ] = None,
    like: Annotated[str, typer.Option(help="A known shape, such as roberta-large, or a model folder.")] = "minilm",
    method: Annotated[
        str | None,
        typer.Option(help="Count this method only, with the settings given.", autocompletion=complete_method),
    ] = None,
    recipe: Annotated[
        KindOfRecipe,
        typer.Option(help="Count what the method's preset trains, or what its paper trains (with the paper's tables)."),
    ] = KindOfRecipe.default,
    classes: Annotated[int, typer.Option(min=2, help="Classes of the head; it is counted separately.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Count the parameters each method adds to a backbone: by gradient, by running average, stored; and the head.

    These are the numbers that `softcue train` trains with the same method, recipe and settings.
    """
    from softcue.backbones.loading.shapes import backbone_like
    from softcue.cli.output import print_json, print_table
    from softcue.configuration import merged, parse_overrides, resolve
    from softcue.errors import BackboneError, ConfigurationError
    from softcue.inference import make_task_model
    from softcue.methods import METHODS
    from softcue.tasks import Label, Task

    settings = parse_overrides(words or [])
    if settings and (method is None or set(settings) != {"method"}):
        raise ConfigurationError(
            setting="settings",
            got=" ".join(words or []),
            expected="method.key=value together with --method NAME",
            fix="such as --method m-idpg-phm method.prompt_length=10",
        )
    if (named := settings.get("method", {}).get("name", method)) != method:
        raise ConfigurationError(
            setting="method.name", got=named, expected=f"{method}, as --method says", fix="leave method.name out"
        )
    all_rows: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in METHODS}
    if recipe is KindOfRecipe.paper:
        all_rows |= VARIANTS
    rows = all_rows if method is None else {method: (method, settings.get("method", {}))}
    backbone = backbone_like(like)
    labels = {str(number): Label(words=str(number), description=str(number)) for number in range(classes)}
    task = Task(name="count", labels=labels)
    counts, skipped = [], []
    for name, (method_name, values) in rows.items():
        given = merged({"method": {**values, "name": method_name}})
        config = resolve(given, backbone.kind, recipe.value)
        try:
            model = make_task_model(task, (METHODS[method_name], config.method), config.readout, backbone, None)
        except (ConfigurationError, BackboneError) as error:
            if method is not None:
                raise
            skipped.append((name, str(error)))  # for example, n of PHM may not divide this backbone's width
            continue
        counts.append({"name": name, **asdict(model.counts())})
    if as_json:
        print_json({"backbone": like, "recipe": recipe.value, "methods": counts})
    else:
        columns = ["name", "gradient", "ema", "stored", "head"]
        print_table(
            f"parameters added to {like}, {recipe.value} recipe",
            columns,
            [[row[key] for key in columns] for row in counts],
        )
    for name, reason in skipped:
        typer.echo(f"{name} cannot be built on {like}: {reason}", err=True)
