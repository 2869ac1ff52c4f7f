"""`softcue bench`."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(help="Measure speed and memory, as ratios with peers in one run.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure speed and memory, as ratios with peers in one run."""


@app.command("train")
def train(
    repeats: Annotated[int, typer.Option(min=3, help="Timed runs per contestant, interleaved.")] = 15,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Training steps against the bare backbone and against PEFT."""
    from softcue.benchmarks.training import training_figures
    from softcue.cli.output import print_json, print_table

    figures = training_figures(repeats)
    if as_json:
        print_json({"figures": figures})
        return
    rows = [
        [
            name,
            f"{f['ratio']:.3f}",
            f"{f['comparison']} {f['target']}",
            "yes" if f["met"] else "NO",
            f["meaning"],
        ]
        for name, f in figures.items()
    ]
    print_table("", ["figure", "ratio", "target", "met", "meaning"], rows)
