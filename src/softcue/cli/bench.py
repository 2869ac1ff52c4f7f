"""`softcue bench`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(help="Measure speed and memory, as ratios with peers in one run.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure speed and memory, as ratios with peers in one run."""


Repeats = Annotated[int, typer.Option(min=3, help="Timed runs per contestant, interleaved.")]
Data = Annotated[Path | None, typer.Option(help="Folder of published files to take texts from; else the samples.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("train")
def train(repeats: Repeats = 7, data: Data = None, as_json: Json = False) -> None:
    """Training steps and epochs against the bare backbone and against PEFT."""
    from softcue.benchmarks.parts import Plan
    from softcue.benchmarks.training import training_figures

    _print(training_figures(Plan(repeats, data)), as_json)


@app.command("predict")
def predict(repeats: Repeats = 7, data: Data = None, as_json: Json = False) -> None:
    """Answers against PEFT; rows of many cues against rows of one; five cues at once."""
    from softcue.benchmarks.parts import Plan
    from softcue.benchmarks.predicting import predicting_figures

    _print(predicting_figures(Plan(repeats, data)), as_json)


@app.command("models")
def models(
    names: Annotated[list[str], typer.Argument(help="Backbones by name or folder, say: minilm smollm2.")],
    repeats: Repeats = 7,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Models with real weights: a prompt-tuning step and answers against PEFT, eight cues against one."""
    from softcue.benchmarks.parts import Plan
    from softcue.benchmarks.real_models import model_figures

    figures: dict[str, Any] = {}
    for name in names:
        figures |= model_figures(Plan(repeats, data), name)
    _print(figures, as_json)


@app.command("few-shot")
def few_shot(repeats: Repeats = 3, data: Data = None, as_json: Json = False) -> None:
    """Seconds to the linear probe's score on MiniLM: prompt tuning, SetFit and probes, on as many samples."""
    from softcue.benchmarks.few_shot import few_shot_figures
    from softcue.benchmarks.parts import Plan
    from softcue.cli.output import print_table

    found = few_shot_figures(Plan(repeats, data))
    if not as_json:
        keys = ("seconds", "seconds_to_score", "wanted", "validation", "test")
        print_table(
            "",
            ["contestant", *keys],
            [[name, *(row[key] for key in keys)] for name, row in found["contestants"].items()],
        )
    _print(found.pop("figures"), as_json, **found)


@app.command("growth")
def growth(repeats: Repeats = 3, as_json: Json = False) -> None:
    """A decoder step's time and memory by prompt, text and rows, ours and PEFT's; time of answering by cues."""
    from softcue.benchmarks.growth import growth as measure
    from softcue.benchmarks.parts import Plan
    from softcue.cli.output import print_json, print_table

    found = measure(Plan(repeats))
    if as_json:
        print_json({"growth": found})
        return
    for axis, points in found.items():
        columns = [(part, who) for part in ("seconds", "bytes") if part in points[0] for who in points[0][part]]
        rows = [[point[axis], *(f"{point[part][who]:.4g}" for part, who in columns)] for point in points]
        print_table("", [axis, *(f"{who}, {part}" for part, who in columns)], rows)


@app.command("serve")
def serve(
    repeats: Repeats = 3,
    data: Data = None,
    as_json: Json = False,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Torch threads of the servers and of the offline engine; else all cores.")
    ] = None,
    output_dir: Annotated[
        Path, typer.Option("--output-dir", help="Where sample cues, their copies and the servers' logs go.")
    ] = Path("runs/bench/serving"),
) -> None:
    """The server under load: against the engine offline and against switching cues; latency, overload, memory."""
    from softcue.benchmarks.parts import Plan
    from softcue.benchmarks.serving import serving_figures
    from softcue.cli.output import print_table

    found = serving_figures(Plan(repeats, data), output_dir, threads or os.cpu_count() or 1)
    if not as_json:
        for title in ("throughput", "latency"):
            print_table(title, list(found[title][0]), [list(row.values()) for row in found[title]])
    _print(found.pop("figures"), as_json, **found)


def _print(figures: dict[str, dict[str, Any]], as_json: bool, **more: Any) -> None:
    from softcue.cli.output import print_json, print_table

    if as_json:
        print_json({"figures": figures, **more})
        return
    rows = [
        [name, f"{f['ratio']:.3f}", f"{f['comparison']} {f['target']}", "yes" if f["met"] else "NO", f["meaning"]]
        for name, f in figures.items()
    ]
    print_table("", ["figure", "ratio", "target", "met", "meaning"], rows)
