"""`python -m benchmarks`: print the figures of one benchmark as tables or as one JSON object."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from softcue.cli.options import split_names
from softcue.cli.output import print_json, print_table
from softcue.errors import SoftcueError

app = typer.Typer(
    name="benchmarks",
    help="Measure speed and memory, as ratios with peers in one process.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
Repeats = Annotated[int, typer.Option(min=1, help="Timed runs per contestant, interleaved.")]
Data = Annotated[Path | None, typer.Option(help="Folder of published files to take texts from; else the samples.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("train")
def train(
    repeats: Repeats = 7,
    data: Data = None,
    as_json: Json = False,
    parts: Annotated[str, typer.Option(help="These parts only, A,B,..., such as late-prompt.")] = "",
) -> None:
    """Training steps and epochs against the bare backbone and against PEFT."""
    from benchmarks.plan import Plan
    from benchmarks.training_speed import training_figures

    _print_figures(training_figures(Plan(repeats, data), split_names(parts)), as_json)


@app.command("predict")
def predict(repeats: Repeats = 7, data: Data = None, as_json: Json = False) -> None:
    """Predictions against PEFT; rows of many cues against rows of one; five cues at once."""
    from benchmarks.plan import Plan
    from benchmarks.prediction_speed import prediction_figures

    _print_figures(prediction_figures(Plan(repeats, data)), as_json)


@app.command("models")
def models(
    names: Annotated[list[str], typer.Argument(help="Backbones by name or folder, say: minilm smollm2.")],
    repeats: Repeats = 7,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Models with real weights: a prompt-tuning step and predictions against PEFT, eight cues against one."""
    from benchmarks.plan import Plan
    from benchmarks.real_model_speed import model_figures

    figures: dict[str, Any] = {}
    for name in names:
        figures |= model_figures(Plan(repeats, data), name)
    _print_figures(figures, as_json)


@app.command("runtimes")
def runtimes(
    names: Annotated[list[str], typer.Argument(help="Encoders by name or folder, say: minilm.")],
    repeats: Repeats = 7,
    data: Data = None,
    as_json: Json = False,
    runtime: Annotated[str, typer.Option(help="openvino, onnx or auto.")] = "auto",
    runtime_dtype: Annotated[str, typer.Option(help="float32, bfloat16, int8 or auto.")] = "auto",
    methods: Annotated[str, typer.Option(help="Methods of the cues.")] = "prompt-tuning,p-tuning-v2,m-idpg-phm",
    output_dir: Annotated[Path, typer.Option("--output-dir", help="Folder for the cues.")] = Path(
        "runs/bench/runtimes"
    ),
) -> None:
    """Encoders in OpenVINO or ONNX Runtime against torch: processor seconds of the engine, and equal labels."""
    from benchmarks.plan import Plan
    from benchmarks.runtime_speed import runtime_figures
    from softcue.backbones.runtimes import RuntimeChoice

    choice = RuntimeChoice.of(runtime, runtime_dtype)
    figures: dict[str, Any] = {}
    reports: dict[str, Any] = {}
    for name in names:
        measured = runtime_figures(Plan(repeats, data), name, output_dir, choice, split_names(methods))
        figures |= measured["figures"]
        reports[name] = measured["report"]
    _print_figures(figures, as_json, runtimes=reports)


@app.command("few-shot")
def few_shot(
    repeats: Repeats = 3,
    data: Data = None,
    as_json: Json = False,
    tasks: Annotated[str, typer.Option(help="These tasks only, A,B,...")] = "",
) -> None:
    """Seconds to the linear probe's score + 4 points on MiniLM: p-tuning-v2, SetFit, probes; a sample per repeat."""
    from benchmarks.few_shot_speed import few_shot_figures
    from benchmarks.plan import Plan

    measurements = few_shot_figures(Plan(repeats, data), split_names(tasks))
    if not as_json:
        columns = ("seconds", "seconds_to_score", "wanted", "validation")
        rows = [[name, *(row[key] for key in columns)] for name, row in measurements["contestants"].items()]
        print_table("", ["contestant", *columns], rows)
    _print_figures(measurements.pop("figures"), as_json, **measurements)


@app.command("minute")
def minute(
    repeats: Repeats = 3,
    data: Data = None,
    as_json: Json = False,
    with_setfit: Annotated[bool, typer.Option("--setfit", help="Train SetFit on the same rows; takes hours.")] = False,
) -> None:
    """A cue from 200 rows on MiniLM: seconds from the command to the saved cue, and its test score."""
    from benchmarks.cue_minute import minute_figures
    from benchmarks.plan import Plan

    measurements = minute_figures(Plan(repeats, data), with_setfit)
    if not as_json:
        runs = measurements["runs"]
        print_table("", list(runs[0]), [list(run.values()) for run in runs])
    _print_figures(measurements.pop("figures"), as_json, **measurements)


@app.command("memory")
def memory(as_json: Json = False) -> None:
    """Memory of a training step: what `softcue plan` foresees, relative to what torch's allocator gives out."""
    from benchmarks.step_memory import memory_figures

    _print_figures(memory_figures(), as_json)


@app.command("start")
def start(repeats: Repeats = 7, as_json: Json = False) -> None:
    """One prediction as a whole command, against a bare script that loads the same model and runs one pass."""
    from benchmarks.plan import Plan
    from benchmarks.start_time import start_figures

    _print_figures(start_figures(Plan(repeats)), as_json)


@app.command("host")
def host(repeats: Repeats = 5, data: Data = None, as_json: Json = False) -> None:
    """Rows in a processor second besides the backbone's layers, from file to file and through the engine."""
    from benchmarks.host_speed import host_figures
    from benchmarks.plan import Plan

    _print_figures(host_figures(Plan(repeats, data)), as_json)


@app.command("growth")
def growth(repeats: Repeats = 3, as_json: Json = False) -> None:
    """Time and memory of a decoder step by prompt, text and rows, softcue and PEFT; time to predict by cues."""
    from benchmarks.growth import measure_growth
    from benchmarks.plan import Plan

    curves = measure_growth(Plan(repeats))
    if as_json:
        print_json({"growth": curves})
        return
    for axis, points in curves.items():
        columns = [(part, name) for part in ("seconds", "bytes") if part in points[0] for name in points[0][part]]
        rows = [[point[axis], *(f"{point[part][name]:.4g}" for part, name in columns)] for point in points]
        print_table("", [axis, *(f"{name}, {part}" for part, name in columns)], rows)


@app.command("rows")
def rows(
    sizes: Annotated[
        list[int] | None, typer.Argument(help="Numbers of training rows; else 0.1, 1 and 10 million.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Resident memory and seconds of a training run by the number of its rows."""
    from benchmarks.training_rows import SIZES, measure_rows

    points = measure_rows(sizes or SIZES)
    if as_json:
        print_json({"rows": points})
        return
    columns = ("file_megabytes", "seconds", "before_megabytes", "peak_megabytes", "own_megabytes", "bytes_per_row")
    print_table(
        "",
        ["rows", *columns],
        [
            [f"{point['rows']:,}", *(f"{point[key]:,.0f}" if key in point else "" for key in columns)]
            for point in points
        ],
    )


@app.command("classifiers")
def classifiers(
    repeats: Repeats = 5,
    data: Data = None,
    as_json: Json = False,
    threads: Annotated[int, typer.Option(min=1, help="Torch threads of each server.")] = 1,
) -> None:
    """Many classifiers on one MiniLM, against sentence-transformers with logistic regressions: speed and accuracy."""
    from benchmarks.classifiers_speed import classifier_figures
    from benchmarks.plan import Plan

    measurements = classifier_figures(Plan(repeats, data), threads)
    if not as_json:
        for title in ("accuracy", "throughput"):
            rows = measurements[title]
            print_table(title, list(rows[0]), [list(row.values()) for row in rows])
    _print_figures(measurements.pop("figures"), as_json, **measurements)


@app.command("replicas")
def replicas(
    numbers: Annotated[list[int] | None, typer.Argument(help="Numbers of replicas; else 1 and 2.")] = None,
    repeats: Repeats = 5,
    data: Data = None,
    as_json: Json = False,
    ray_address: Annotated[str, typer.Option(help="The address of a Ray cluster that runs already.")] = "auto",
) -> None:
    """Rows a second of replicas on Ray, and the processor time of a request in Ray's proxy. Needs the extra ray."""
    from benchmarks.plan import Plan
    from benchmarks.replica_speed import measure_replicas

    points = measure_replicas(Plan(repeats, data), numbers or [1, 2], ray_address)
    if as_json:
        print_json({"replicas": points})
        return
    print_table("", list(points[0]), [list(point.values()) for point in points])


@app.command("serve")
def serve(
    repeats: Repeats = 3,
    data: Data = None,
    as_json: Json = False,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Torch threads of the servers and of the offline engine; else all cores.")
    ] = None,
    output_dir: Annotated[
        Path, typer.Option("--output-dir", help="Folder for sample cues, their copies and the servers' logs.")
    ] = Path("runs/bench/serving"),
    parts: Annotated[str, typer.Option(help="These parts only, A,B,..., such as latency; the peak always.")] = "",
) -> None:
    """The server under load: against the offline engine and against switching cues; latency, overload, memory."""
    from benchmarks.plan import Plan
    from benchmarks.serving_speed import serving_figures

    measurements = serving_figures(
        Plan(repeats, data), output_dir, threads or os.cpu_count() or 1, names=split_names(parts)
    )
    if not as_json:
        for title in [title for title in ("throughput", "latency", "passes") if title in measurements]:
            rows = measurements[title]
            print_table(title, list(rows[0]), [list(row.values()) for row in rows])
    _print_figures(measurements.pop("figures"), as_json, **measurements)


def _print_figures(figures: dict[str, dict[str, Any]], as_json: bool, **tables: Any) -> None:
    if as_json:
        print_json({"figures": figures, **tables})
        return
    rows = [
        [
            name,
            f"{figure['ratio']:.3f}",
            f"{figure['comparison']} {figure['target']}",
            "yes" if figure["met"] else "NO",
            figure["meaning"],
        ]
        for name, figure in figures.items()
    ]
    print_table("", ["figure", "ratio", "target", "met", "meaning"], rows)


def main() -> None:
    """Run the command line; an error meant for users ends it with one line and exit code 2."""
    try:
        app(prog_name="python -m benchmarks")
    except SoftcueError as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
