"""`softcue params`: parameters each method adds to a backbone, counted without loading its weights."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softcue.cli.completion import complete_method
from softcue.cli.config import KindOfRecipe
from softcue.cli.options import read_method_name

if TYPE_CHECKING:
    from softcue.inspection.parameter_sizes import MethodRow, ParameterSizes

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
    like: Annotated[
        str,
        typer.Option(
            help="A known shape, such as roberta-large, or a model folder; several with commas, or a family such as "
            "t5. Unset: minilm, or t5 for a plot."
        ),
    ] = "",
    method: Annotated[
        str | None,
        typer.Option(
            help="Count this method only, with the settings given; or several, with commas.",
            autocompletion=complete_method,
        ),
    ] = None,
    recipe: Annotated[
        KindOfRecipe,
        typer.Option(help="Count what the method's preset trains, or what its paper trains (with the paper's tables)."),
    ] = KindOfRecipe.default,
    classes: Annotated[int, typer.Option(min=2, help="Classes of the head; it is counted separately.")] = 2,
    is_figure_4: Annotated[
        bool, typer.Option("--figure-4", help="Figure 4 of Lester et al. 2021: its lines on all sizes of T5 1.1.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw parameters by model size into this file (PNG).")] = None,
    output_dir: Annotated[
        Path | None, typer.Option(help="Write index.html and parameters.png by model size here.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Count the parameters each method adds to a backbone: by gradient, by running average, stored; and the head.

    These are the numbers that `softcue train` trains with the same method, recipe and settings.
    """
    from softcue.backbones.loading.shapes import backbone_like
    from softcue.cli.output import print_json, print_table
    from softcue.inspection.parameter_sizes import count_by_size, count_methods, figure_4, sizes_named

    is_plotted = is_figure_4 or plot is not None or output_dir is not None
    names = sizes_named(like or ("t5" if is_plotted else "minilm"))
    is_by_size = is_plotted or len(names) > 1
    rows = _method_rows(method, words or [], with_variants=recipe is KindOfRecipe.paper and not is_by_size)
    if is_figure_4:
        _check_figure(like, method, words or [])
    if is_by_size:
        sizes = figure_4(classes) if is_figure_4 else count_by_size(names, rows, recipe.value, classes)
        _write_plots(sizes, plot, output_dir)
        if as_json:
            print_json(sizes.as_dict())
            return
        print_table(sizes.title, *sizes.table(), numbers_from=1)
        for note in sizes.notes:
            typer.echo(note, err=not is_figure_4)
        for path in (plot, None if output_dir is None else output_dir / "index.html"):
            if path is not None:
                typer.echo(f"saved: {path}")
        return
    [name] = names
    counts, skipped = count_methods(backbone_like(name), rows, recipe.value, classes)
    if method is not None and "," not in method and skipped:
        raise skipped[method]
    lines = [{"name": row, **asdict(count)} for row, count in counts.items()]
    if as_json:
        print_json({"backbone": name, "recipe": recipe.value, "methods": lines})
    else:
        columns = ["name", "gradient", "ema", "stored", "head"]
        table = [[line[key] for key in columns] for line in lines]
        print_table(f"parameters added to {name}, {recipe.value} recipe", columns, table)
    for row, reason in skipped.items():
        typer.echo(f"{row} cannot be built on {name}: {reason}", err=True)


def _method_rows(method: str | None, words: list[str], with_variants: bool) -> dict[str, MethodRow]:
    """The methods to count: all of them, with or without the papers' variants, or those that are named.

    One that is named alone may have settings.
    """
    from softcue.configuration import parse_overrides
    from softcue.errors import ConfigurationError
    from softcue.methods import METHODS

    settings = parse_overrides(words)
    if settings and (method is None or "," in method or set(settings) != {"method"}):
        raise ConfigurationError(
            setting="settings",
            got=" ".join(words),
            expected="method.key=value together with --method NAME",
            fix="such as --method m-idpg-phm method.prompt_length=10",
        )
    read_method_name(method, settings)
    if method is not None and "," not in method:
        return {method: (method, settings.get("method", {}))}
    methods: dict[str, MethodRow] = {name: (name, {}) for name in METHODS}
    if method is None:
        return {**methods, **VARIANTS} if with_variants else methods
    chosen = [name.strip() for name in method.split(",")]
    for name in chosen:
        METHODS.find(name)  # an error if there is no such method
    return {name: methods[name] for name in chosen}


def _check_figure(like: str, method: str | None, words: list[str]) -> None:
    """Check that nothing is set that the paper's figure fixes."""
    from softcue.errors import ConfigurationError

    for setting, value in (("like", like), ("method", method), ("settings", " ".join(words))):
        if value:
            raise ConfigurationError(
                setting=setting,
                got=value,
                expected="nothing besides --figure-4, which fixes methods, lengths and models",
                fix="leave out --figure-4 for a plot of your own",
            )


def _write_plots(sizes: ParameterSizes, plot: Path | None, folder: Path | None) -> None:
    """Write the picture, and the page with the picture beside it."""
    from softcue.errors import ConfigurationError, MissingExtraError
    from softcue.files import convert_write_errors, write_atomically
    from softcue.inspection.parameter_page import parameter_page, parameter_picture

    if plot is not None:
        if plot.suffix.lower() != ".png":
            raise ConfigurationError(
                setting="plot",
                got=str(plot),
                expected="a file name that ends with .png",
                fix="--output-dir writes a page",
            )
        with convert_write_errors("plot", plot):
            picture = parameter_picture(sizes)
            plot.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(plot, picture)
    if folder is not None:
        with convert_write_errors("output_dir", folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / "index.html", parameter_page(sizes).encode())
            try:
                write_atomically(folder / "parameters.png", parameter_picture(sizes))
            except MissingExtraError as error:
                typer.echo(f"no parameters.png: {error}", err=True)
