"""Pictures of what `softcue bench growth --json` measured, beside theory.

Theory has as few constants as it can: one for time (seconds per operation) and two for memory (bytes per position in
the layers, bytes per position with words), each the same for us and for PEFT and for all curves.
"""

from __future__ import annotations

import io
import statistics
from pathlib import Path
from typing import Any

import numpy
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from PIL import Image

from softcue.benchmarks.growth import Point

Curves = dict[str, list[dict[str, Any]]]
LABELS = {"prompt": "prompt vectors, P", "text": "text tokens, T", "rows": "rows, B"}
COLOURS = {"ours": "#0072B2", "peft": "#D55E00"}  # told apart also by people who see fewer colours (Okabe and Ito)
NAMES = {"ours": "softcue", "peft": "PEFT"}


def draw(curves: Curves, folder: Path) -> list[Path]:
    """One picture of training steps, one of answering; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    steps, cues = folder / "growth-steps.png", folder / "growth-cues.png"
    _save(_steps({axis: curves[axis] for axis in LABELS}), steps)
    _save(_cues(curves["cues"]), cues)
    return [steps, cues]


def _save(figure: Figure, path: Path) -> None:
    """In few colours, which is a third of the bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=90)
    Image.open(buffer).convert("RGB").quantize(64).save(path, optimize=True)


def _steps(curves: Curves) -> Figure:
    expected = {"seconds": expected_seconds(curves), "bytes": expected_bytes(curves)}
    figure = Figure(figsize=(10, 5.6), layout="constrained")
    for place, (part, unit, label) in enumerate((("seconds", 1, "seconds a step"), ("bytes", 2**20, "peak megabytes"))):
        for column, (axis, points) in enumerate(curves.items()):
            axes = figure.add_subplot(2, 3, place * 3 + column + 1)
            values = [point[axis] for point in points]
            for who, colour in COLOURS.items():
                found = [point[part][who] / unit for point in points]
                wanted = [expected[part](point, who) / unit for point in points]
                axes.plot(values, found, marker="o", markersize=3.5, color=colour, label=NAMES[who])
                axes.plot(values, wanted, linestyle=":", color=colour, label=f"{NAMES[who]}, theory")
            axes.set_xscale("linear" if axis == "prompt" else "log")  # prompts of 1 are nobody's wish
            axes.set_yscale("log")
            _mark(axes.xaxis, values if axis != "prompt" else _apart(values))
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("")
            axes.set_xlabel(LABELS[axis])
            axes.grid(alpha=0.3)
            if not column:
                axes.set_ylabel(label)
            if not column and not place:
                axes.legend(frameon=False, fontsize=8)
    still = Point()
    title = f"P = {still.prompt}, T = {still.text}, B = {still.rows} where they do not vary"
    figure.suptitle(f"Prompt tuning on a decoder (width 512, 8 layers); {title}", fontsize=10)
    return figure


def _cues(points: list[dict[str, Any]]) -> Figure:
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.add_subplot()
    values, seconds = [point["cues"] for point in points], [point["seconds"]["ours"] for point in points]
    axes.plot(values, seconds, marker="o", color=COLOURS["ours"], label="softcue")
    axes.axhline(seconds[0], linestyle=":", color=COLOURS["ours"], label="theory: as with one cue")
    axes.set_xscale("log")
    axes.set_ylim(0, 1.15 * max(seconds))
    _mark(axes.xaxis, values)
    axes.set_xlabel("cues in a batch of 1,000 rows")
    axes.set_ylabel("seconds a batch")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8, loc="lower left")
    return figure


def _apart(values: list[int]) -> list[int]:
    """Those that leave room for their names on a linear axis."""
    found = values[:1]
    for value in values[1:]:
        if value - found[-1] >= max(values) / 10:
            found.append(value)
    return found


def _mark(axis: Any, values: list[int]) -> None:
    """Name the measured values themselves on an axis, and no others."""
    axis.set_ticks(values, [f"{value:,}" for value in values])
    axis.set_ticks([], minor=True)


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
