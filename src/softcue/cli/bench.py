"""`softcue bench`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

app = typer.Typer(help="Measure speed and memory, as ratios with peers in one run.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure speed and memory, as ratios with peers in one run."""


Repeats = Annotated[int, typer.Option(min=3, help="Timed runs per contestant, interleaved.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("train")
def train(repeats: Repeats = 15, as_json: Json = False) -> None:
    """Training steps against the bare backbone and against PEFT."""
    from softcue.benchmarks.training import training_figures

    _print(training_figures(repeats), as_json)


def _print(figures: dict[str, dict[str, Any]], as_json: bool) -> None:
    from softcue.cli.output import print_json, print_table

    if as_json:
        print_json({"figures": figures})
        return
    rows = [
        [name, f"{f['ratio']:.3f}", f"{f['comparison']} {f['target']}", "yes" if f["met"] else "NO", f["meaning"]]
        for name, f in figures.items()
    ]
    print_table("", ["figure", "ratio", "target", "met", "meaning"], rows)
