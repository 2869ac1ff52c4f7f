"""Run benchmarks, and write the tables and plots of docs/benchmarks.md.

    python -m benchmarks.tables.write_benchmarks train serve --data data
                                                     run these, save the measurements in runs/bench, write the tables
    python -m benchmarks.tables.write_benchmarks     only write the tables, from saved measurements

Only the text between `<!-- bench NAME -->` and `<!-- end -->` is replaced. A table without measurements stays.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.load import child_environment
from benchmarks.tables.growth_plots import draw_plots

BENCHMARKS = (
    "train",
    "predict",
    "models",
    "host",
    "start",
    "classifiers",
    "few-shot",
    "growth",
    "serve",
    "runtimes",
)
# Benchmarks of real models: those that pip installs, and a folder that is taken if it exists.
REAL_MODELS = {"models": (["minilm", "smollm2"], "models/t5"), "runtimes": (["minilm"], "models/mpnet")}
WITHOUT_DATA = ("growth", "start", "classifiers")  # they set their texts themselves, or take the sample tasks
PACKAGES = ("torch", "transformers", "peft", "setfit", "openvino")
END = "<!-- end -->"
LATENCIES = ("p50_ms", "p90_ms", "p99_ms", "max_ms")
Measurements = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmarks", nargs="*", choices=[*BENCHMARKS, []], help="benchmarks to run first")
    parser.add_argument("--data", type=Path, help="folder of published files to take texts from")
    parser.add_argument("--repeats", type=int, help="timed runs per contestant; else each benchmark's own number")
    parser.add_argument("--saved", type=Path, default=Path("runs/bench"), help="folder of the measurements")
    parser.add_argument("--docs", type=Path, default=Path("docs/benchmarks.md"))
    arguments = parser.parse_args()
    for name in arguments.benchmarks:
        measure(name, arguments.saved, arguments.data, arguments.repeats)
    text = arguments.docs.read_text("utf-8")
    for name in BENCHMARKS:
        path = arguments.saved / f"{name}.json"
        if path.is_file():
            measurements = json.loads(path.read_text("utf-8"))
            if name == "growth":
                draw_plots(measurements["growth"], arguments.docs.parent / "plots")
            text = replace_section(text, name, format_section(measurements))
    arguments.docs.write_text(text, "utf-8")
    print(f"wrote {arguments.docs}")


def measure(name: str, folder: Path, data: Path | None = None, repeats: int | None = None) -> None:
    """Run one benchmark in a separate process and save its measurements."""
    arguments = [
        "-m",
        "benchmarks",
        name,
        *_available_models(name),
        "--json",
        *(["--data", str(data)] if data and name not in WITHOUT_DATA else []),
        *(["--repeats", str(repeats)] if repeats else []),
    ]
    load = os.getloadavg()[0]
    command = f"python {' '.join(arguments)}"
    print(command, file=sys.stderr, flush=True)
    quiet = child_environment() | {"KINETO_LOG_LEVEL": "99"}  # torch's profiler logs every start and stop
    printed = subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.PIPE, env=quiet).stdout
    about = {"command": command, "date": f"{datetime.date.today()}", "machine": describe_machine(load)}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(about | json.loads(printed), indent=1), "utf-8")


def _available_models(benchmark: str) -> list[str]:
    """The real models of a benchmark that are there; none if it takes random weights."""
    installed, folder = REAL_MODELS.get(benchmark, ([], ""))
    return [*installed, *([folder] if folder and Path(folder).is_dir() else [])]


def describe_machine(load: float) -> str:
    """The machine, its load before the benchmark, and the versions of packages."""
    versions = []
    for package in PACKAGES:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            versions.append(f"no {package}")
    num_threads = os.environ.get("OMP_NUM_THREADS")
    threads = f"OMP_NUM_THREADS={num_threads}, " if num_threads else ""
    return f"{os.cpu_count()} cores ({_processor_name()}), {threads}load {load:.1f} before, {', '.join(versions)}"


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def replace_section(text: str, name: str, content: str) -> str:
    """Replace the text between the marks of a benchmark."""
    start = f"<!-- bench {name} -->"
    before, start_mark, rest = text.partition(start)
    _, end_mark, after = rest.partition(END)
    if not start_mark or not end_mark:
        raise SystemExit(f"docs: no '{start}' with '{END}' after it; put both where the table belongs")
    return f"{before}{start}\n{content}\n{END}{after}"


def format_section(measurements: Measurements) -> str:
    """Command, date and machine, then the tables."""
    parts = [f"`{measurements['command']}`, {measurements['date']}; {measurements['machine']}."]
    if "contestants" in measurements:
        parts.append(_format_contestants(measurements["contestants"]))
    if "figures" in measurements:
        parts.append(_format_figures(measurements["figures"]))
    if "growth" in measurements:
        parts.append(_format_growth(measurements["growth"]))
    if "accuracy" in measurements:
        parts += _format_classifiers(measurements)
    if "runtimes" in measurements:
        parts.append(_format_runtimes(measurements["runtimes"]))
    if "switching" in measurements:
        parts += _format_serving(measurements)
    return "\n\n".join(parts)


def _format_figures(figures: dict[str, dict[str, Any]]) -> str:
    rows = [
        [
            name,
            f"{'at most' if figure['comparison'] == '<=' else 'at least'} {figure['target']:g}",
            f"{figure['ratio']:.3f}",
            f"{figure['spread']:.3f}" if figure["runs"] > 1 else "exact",
            str(figure["runs"]),
            _format_verdict(figure),
            figure["meaning"],
        ]
        for name, figure in figures.items()
    ]
    return _table(["figure", "to reach", "found", "spread", "runs", "reached", "what it is"], rows)


def _format_verdict(figure: dict[str, Any]) -> str:
    if figure["met"]:
        return "yes"
    gap = abs(figure["ratio"] - figure["target"])
    share = f" ({100 * gap / figure['target']:.0f} %)" if figure["target"] else ""
    return f"**missed by {gap:.3f}**{share}"


def _format_contestants(contestants: dict[str, dict[str, Any]]) -> str:
    rows = [
        [
            name,
            f"{contestant['seconds']:.1f}",
            ", ".join("-" if seconds is None else f"{seconds:.1f}" for seconds in contestant["seconds_to_score"]),
            ", ".join("-" if score is None else f"{score:.1f}" for score in contestant["wanted"]),
            f"{contestant['validation']:.1f}",
        ]
        for name, contestant in contestants.items()
    ]
    return _table(
        ["contestant", "seconds to its end", "seconds to the score", "score wanted", "best validation until then"], rows
    )


def _format_growth(curves: dict[str, list[dict[str, Any]]]) -> str:
    rows = []
    for axis, points in curves.items():
        for point in points if axis != "cues" else []:
            seconds, memory, operations = (point[part] for part in ("seconds", "bytes", "operations"))
            rows.append(
                [
                    f"{axis} {point[axis]}",
                    f"{seconds['ours']:.3f}",
                    f"{seconds['peft']:.3f}",
                    f"{seconds['peft'] / seconds['ours']:.2f}",
                    f"{operations['peft'] / operations['ours']:.2f}",
                    f"{memory['ours'] / 2**20:.0f}",
                    f"{memory['peft'] / 2**20:.0f}",
                ]
            )
    steps = _table(["step", "ours, s", "PEFT, s", "PEFT / ours", "by theory", "ours, MB", "PEFT, MB"], rows)
    cues = _table(
        ["cues in a batch of 1,000 rows", "seconds"],
        [[str(point["cues"]), f"{point['seconds']['ours']:.2f}"] for point in curves["cues"]],
    )
    return "\n\n".join(
        [
            "![Seconds and peak memory of a step by prompt vectors, text tokens and rows](plots/growth-steps.png)",
            steps,
            "![Seconds to answer a batch by the number of cues in it](plots/growth-cues.png)",
            cues,
        ]
    )


def _format_classifiers(measurements: Measurements) -> list[str]:
    """Accuracy on each task, and rows a second by the number of clients."""
    accuracy = [
        [row["task"], f"{row['ours']:.1f}", f"{row['theirs']:.1f}", str(row["test_rows"])]
        for row in measurements["accuracy"]
    ]
    rates = [
        [
            str(row["clients"]),
            "softcue" if row["server"] == "ours" else "logistic regressions",
            f"{row['rows_per_second']:.1f}",
        ]
        for row in measurements["throughput"]
    ]
    return [
        _table(["clients", "server", "rows a second"], rates),
        _table(["task", "softcue, accuracy", "logistic regression, accuracy", "test rows"], accuracy),
    ]


def _format_runtimes(reports: dict[str, dict[str, Any]]) -> str:
    """What runs where for each backbone, and on which rows each cue was compared with torch."""

    def join(notes: dict[str, Any]) -> str:
        return "; ".join(f"{name}: {note}" for name, note in notes.items()) or "-"

    rows = [
        [name, report["runtime"], *(join(report[part]) for part in ("speeds", "compared", "in_torch"))]
        for name, report in reports.items()
    ]
    return _table(["backbone", "runtime", "rows a second against torch", "compared with torch", "runs in torch"], rows)


def _format_serving(measurements: Measurements) -> list[str]:
    """The measurements behind the figures of the server."""
    setting, peak, overload = (measurements[part] for part in ("setting", "peak", "overload"))
    rates = [
        [
            row["popularity"],
            f"{row['cues']:,}",
            str(row["inputs"]),
            *_format_rate(row),
        ]
        for row in measurements["throughput"]
    ]
    latency = [
        [f"{row['load']:.0%}", f"{row['rate']:.1f}", *(f"{row[key]:.0f}" for key in LATENCIES)]
        for row in measurements["latency"]
    ]
    switching = [[name, *_format_rate(row)] for name, row in measurements["switching"].items()]
    passes = [[str(row["clients"]), row["server"], *_format_rate(row)] for row in measurements["passes"]]
    idle_memory, busy_memory = measurements["memory_mb"], measurements["memory_mb_while_asked"]
    return [
        f"Servers and offline engine with {setting['torch_threads']} torch thread(s) each, load from a process of its "
        f"own, texts of {setting['texts']}. Saturated: server {peak['server']:.1f} answers a second, engine "
        f"offline {peak['offline']:.1f}.",
        _table(["popularity", "cues", "inputs a request", "answers a second", "least to most"], rates),
        _table(["load", "requests a second", "p50, ms", "p90, ms", "p99, ms", "longest, ms"], latency),
        _table(["32 clients", "answers a second", "least to most"], switching),
        _table(["clients", "server", "answers a second", "least to most"], passes),
        f"Overload: of {overload['asked']:,} requests {overload['answered']:,} were answered and "
        f"{overload['gave_up']:,} gave up after five attempts ({overload['mean_attempts']:.1f} on average). "
        f"Memory: {min(idle_memory):.1f} to {max(idle_memory):.1f} MB, {idle_memory[0]:.1f} at first and "
        f"{idle_memory[-1]:.1f} at last; with requests to other cues, {min(busy_memory):.1f} to "
        f"{max(busy_memory):.1f}. Answers compared: {measurements['answers']['compared']:,}.",
    ]


def _format_rate(row: dict[str, Any]) -> list[str]:
    """Answers a second, and their range over turns."""
    return [f"{row['answers_per_second']:.1f}", f"{row['least']:.1f} to {row['most']:.1f}"]


def _table(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" if line[0] != "---" else "|" + "---|" * len(line) for line in lines)


if __name__ == "__main__":
    main()
