"""Pictures of what `softcue bench growth --json` measured, beside theory.

Theory has as few constants as it can: one for time (seconds per operation) and two for memory (bytes per position in
the layers, bytes per position with words), each the same for us and for PEFT and for all curves.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy
from matplotlib.figure import Figure

Curves = dict[str, list[dict[str, Any]]]
LABELS = {"prompt": "prompt vectors, P", "text": "text tokens, T", "rows": "rows, B"}
COLOURS = {"ours": "#0072B2", "peft": "#D55E00"}  # told apart also by people who see fewer colours (Okabe and Ito)
NAMES = {"ours": "softcue", "peft": "PEFT"}
DOTS_PER_INCH = 80  # keeps each file below 80 KB


def draw(curves: Curves, folder: Path) -> list[Path]:
    """One picture of training steps, one of answering; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    steps, cues = folder / "growth-steps.png", folder / "growth-cues.png"
    _steps({axis: curves[axis] for axis in LABELS}).savefig(steps, dpi=DOTS_PER_INCH)
    _cues(curves["cues"]).savefig(cues, dpi=DOTS_PER_INCH)
    return [steps, cues]


def _steps(curves: Curves) -> Figure:
    expected = {"seconds": expected_seconds(curves), "bytes": expected_bytes(curves)}
    figure = Figure(figsize=(10.5, 6), layout="constrained")
    for place, (part, unit, label) in enumerate((("seconds", 1, "seconds a step"), ("bytes", 2**20, "peak megabytes"))):
        for column, (axis, points) in enumerate(curves.items()):
            axes = figure.add_subplot(2, 3, place * 3 + column + 1)
            values = [point[axis] for point in points]
            for who, colour in COLOURS.items():
                found = [point[part][who] / unit for point in points]
                wanted = [expected[part](point, who) / unit for point in points]
                axes.plot(values, found, marker="o", markersize=4, color=colour, label=NAMES[who])
                axes.plot(values, wanted, linestyle=":", color=colour, label=f"{NAMES[who]}, theory")
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xticks(values, [str(value) for value in values], minor=False)
            axes.minorticks_off()
            axes.set_xlabel(LABELS[axis])
            axes.grid(alpha=0.3)
            if not column:
                axes.set_ylabel(label)
            if not column and not place:
                axes.legend(frameon=False, fontsize=8)
    figure.suptitle("Prompt tuning on a decoder (width 512, 8 layers); P = 100, T = 32, B = 8 where they do not vary",
                    fontsize=10)  # fmt: skip
    return figure


def _cues(points: list[dict[str, Any]]) -> Figure:
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.add_subplot()
    values, seconds = [point["cues"] for point in points], [point["seconds"]["ours"] for point in points]
    axes.plot(values, seconds, marker="o", color=COLOURS["ours"], label="softcue")
    axes.axhline(seconds[0], linestyle=":", color=COLOURS["ours"], label="theory: as with one cue")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("cues in a batch of 1,000 rows")
    axes.set_ylabel("seconds a batch")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8, loc="lower left")
    return figure


def expected_seconds(curves: Curves) -> Any:
    """Operations times one constant, the median of all measured."""
    points = [(point, who) for own in curves.values() for point in own for who in COLOURS]
    scale = statistics.median(point["seconds"][who] / point["operations"][who] for point, who in points)
    return lambda point, who: scale * point["operations"][who]


def expected_bytes(curves: Curves) -> Any:
    """Two constants that fit all measured best, as shares of each."""
    points = [(point, who) for own in curves.values() for point in own for who in COLOURS]
    terms = numpy.array([[point["positions"][who], point["words"][who]] for point, who in points], dtype=float)
    found = numpy.array([point["bytes"][who] for point, who in points], dtype=float)[:, None]
    scales = numpy.linalg.lstsq(terms / found, numpy.ones(len(found)), rcond=None)[0]
    return lambda point, who: float(scales @ [point["positions"][who], point["words"][who]])
