"""Measure, and write the tables and pictures of docs/benchmarks.md.

    python benchmarks/write_benchmarks.py train predict models few-shot growth serve --data ../shared/data
                                               measure these, keep what was found in runs/bench, write the tables
    python benchmarks/write_benchmarks.py      only write, from what is kept

Only what stands between `<!-- bench NAME -->` and `<!-- end -->` is replaced; a table nobody measured stays.
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

from growth import draw

BENCHES = ("train", "predict", "models", "few-shot", "growth", "serve")
WITHOUT_DATA = ("growth",)  # its lengths are its own
PACKAGES = ("torch", "transformers", "peft", "setfit")
END = "<!-- end -->"
LATENCIES = ("p50_ms", "p90_ms", "p99_ms", "max_ms")
Saved = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benches", nargs="*", choices=[*BENCHES, []], help="what to measure first")
    parser.add_argument("--data", type=Path, help="folder of published files to take texts from")
    parser.add_argument("--saved", type=Path, default=Path("runs/bench"), help="where measurements are kept")
    parser.add_argument("--docs", type=Path, default=Path("docs/benchmarks.md"))
    arguments = parser.parse_args()
    for name in arguments.benches:
        measure(name, arguments.data, arguments.saved)
    text = arguments.docs.read_text("utf-8")
    for name in BENCHES:
        path = arguments.saved / f"{name}.json"
        if path.is_file():
            saved = json.loads(path.read_text("utf-8"))
            if name == "growth":
                draw(saved["growth"], arguments.docs.parent / "plots")
            text = rewritten(text, name, section(saved))
    arguments.docs.write_text(text, "utf-8")
    print(f"wrote {arguments.docs}")


def measure(name: str, data: Path | None, folder: Path) -> None:
    """Run one bench in a process of its own and keep what it prints."""
    words = [
        "bench",
        name,
        *(_models() if name == "models" else ()),
        "--json",
        *(["--data", str(data)] if data and name not in WITHOUT_DATA else []),
    ]
    load = os.getloadavg()[0]
    print(f"softcue {' '.join(words)}", file=sys.stderr, flush=True)
    quiet = os.environ | {"KINETO_LOG_LEVEL": "99"}  # torch's profiler tells of every start and stop
    asked = [sys.executable, "-m", "softcue", *words]
    printed = subprocess.run(asked, check=True, stdout=subprocess.PIPE, env=quiet).stdout
    about = {"command": f"softcue {' '.join(words)}", "date": f"{datetime.date.today()}", "machine": machine(load)}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(about | json.loads(printed), indent=1), "utf-8")


def _models() -> list[str]:
    """Real weights that can be had: by pip, and a T5 where someone made one."""
    return ["minilm", "smollm2", *(["models/t5"] if Path("models/t5").is_dir() else [])]


def machine(load: float) -> str:
    """Where it was measured, and how busy it was before."""
    versions = []
    for package in PACKAGES:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            versions.append(f"no {package}")
    threads = f"OMP_NUM_THREADS={found}, " if (found := os.environ.get("OMP_NUM_THREADS")) else ""
    return f"{os.cpu_count()} cores ({_processor()}), {threads}load {load:.1f} before, {', '.join(versions)}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def rewritten(text: str, name: str, content: str) -> str:
    """The text with what stands between a bench's marks replaced."""
    begin = f"<!-- bench {name} -->"
    before, mark, rest = text.partition(begin)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise SystemExit(f"docs: found no '{begin}' with '{END}' behind it; put both where the table belongs")
    return f"{before}{begin}\n{content}\n{END}{after}"


def section(saved: Saved) -> str:
    """Command, date and machine, then what was found."""
    parts = [f"`{saved['command']}`, {saved['date']}; {saved['machine']}."]
    if "contestants" in saved:
        parts.append(_contestants(saved["contestants"]))
    if "figures" in saved:
        parts.append(_figures(saved["figures"]))
    if "growth" in saved:
        parts.append(_growth(saved["growth"]))
    if "throughput" in saved:
        parts += _served(saved)
    return "\n\n".join(parts)


def _figures(figures: dict[str, dict[str, Any]]) -> str:
    rows = [
        [
            name,
            f"{'at most' if one['comparison'] == '<=' else 'at least'} {one['target']:g}",
            f"{one['ratio']:.3f}",
            f"{one['spread']:.3f}" if one["runs"] > 1 else "exact",
            str(one["runs"]),
            _verdict(one),
            one["meaning"],
        ]
        for name, one in figures.items()
    ]
    return _table(["figure", "to reach", "found", "spread", "runs", "reached", "what it is"], rows)


def _verdict(one: dict[str, Any]) -> str:
    if one["met"]:
        return "yes"
    gap = abs(one["ratio"] - one["target"])
    share = f" ({100 * gap / one['target']:.0f} %)" if one["target"] else ""
    return f"**missed by {gap:.3f}**{share}"


def _contestants(found: dict[str, dict[str, Any]]) -> str:
    rows = [
        [
            name,
            f"{one['seconds']:.1f}",
            ", ".join("-" if s is None else f"{s:.1f}" for s in one["seconds_to_score"]),
            ", ".join(f"{score:.1f}" for score in one["wanted"]),
            f"{one['validation']:.1f}",
            f"{one['test']:.1f}",
        ]
        for name, one in found.items()
    ]
    return _table(["contestant", "seconds, all", "seconds to the score", "score wanted", "validation", "test"], rows)


def _growth(curves: dict[str, list[dict[str, Any]]]) -> str:
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


def _served(saved: Saved) -> list[str]:
    """What the figures of the server consist of."""
    setting, peak, flood, answers = (saved[part] for part in ("setting", "peak", "overload", "answers"))
    rates = [
        [
            row["popularity"],
            f"{row['cues']:,}",
            str(row["inputs"]),
            f"{row['answers_per_second']:.1f}",
            f"{row['least']:.1f} to {row['most']:.1f}",
        ]
        for row in saved["throughput"]
    ]
    latency = [
        [f"{row['load']:.0%}", f"{row['rate']:.1f}", *(f"{row[key]:.0f}" for key in LATENCIES)]
        for row in saved["latency"]
    ]
    switching = [
        [name, f"{row['answers_per_second']:.1f}", f"{row['least']:.1f} to {row['most']:.1f}"]
        for name, row in saved["switching"].items()
    ]
    memory, busy = saved["memory_mb"], saved["memory_mb_while_asked"]
    return [
        f"Servers and offline engine with {setting['torch_threads']} torch thread(s) each, load from a process of its "
        f"own, texts of {setting['texts']}. Saturated: server {peak['server']:.1f} answers a second, engine "
        f"offline {peak['offline']:.1f}.",
        _table(["popularity", "cues", "inputs a request", "answers a second", "least to most"], rates),
        _table(["load", "requests a second", "p50, ms", "p90, ms", "p99, ms", "longest, ms"], latency),
        _table(["32 clients", "answers a second", "least to most"], switching),
        f"Overload: of {flood['asked']:,} requests {flood['answered']:,} were answered and {flood['gave_up']:,} gave "
        f"up after five attempts ({flood['mean_attempts']:.1f} on average). Memory: {min(memory):.1f} to "
        f"{max(memory):.1f} MB, {memory[0]:.1f} at first and {memory[-1]:.1f} at last; while others were asked too, "
        f"{min(busy):.1f} to {max(busy):.1f}. "
        f"Answers compared: {answers['compare_texts']:,}.",
    ]


def _table(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" if line[0] != "---" else "|" + "---|" * len(line) for line in lines)


if __name__ == "__main__":
    main()
