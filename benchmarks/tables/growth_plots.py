"""Plots of the measurements of `python -m benchmarks growth --json`, with the curves that theory predicts.

Theory has as few constants as possible: one for time (seconds per operation) and two for memory (bytes per position in
the layers, bytes per position with logits). Each is the same for softcue and PEFT and for all curves.
"""

from __future__ import annotations

import io
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from PIL import Image

from benchmarks.growth import StepSize

Curves = dict[str, list[dict[str, Any]]]
AXIS_LABELS = {"prompt": "prompt vectors, P", "text": "text tokens, T", "rows": "rows, B"}
COLOURS = {"ours": "#0072B2", "peft": "#D55E00"}  # distinct also for colour-blind readers (Okabe and Ito)
NAMES = {"ours": "softcue", "peft": "PEFT"}


def draw_plots(curves: Curves, folder: Path) -> list[Path]:
    """Draw one plot of training steps and one of predictions; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    steps, cues = folder / "growth-steps.png", folder / "growth-cues.png"
    _save(_plot_steps({axis: curves[axis] for axis in AXIS_LABELS}), steps)
    _save(_plot_cues(curves["cues"]), cues)
    return [steps, cues]


def _save(figure: Figure, path: Path) -> None:
    """Save with few colours, which takes a third of the bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=90)
    Image.open(buffer).convert("RGB").quantize(64).save(path, optimize=True)


def _plot_steps(curves: Curves) -> Figure:
    expected = {"seconds": fit_seconds(curves), "bytes": fit_bytes(curves)}
    figure = Figure(figsize=(10, 5.6), layout="constrained")
    for row, (part, unit, label) in enumerate((("seconds", 1, "seconds a step"), ("bytes", 2**20, "peak megabytes"))):
        for column, (axis, points) in enumerate(curves.items()):
            axes = figure.add_subplot(2, 3, row * 3 + column + 1)
            values = [point[axis] for point in points]
            for name, colour in COLOURS.items():
                measured_values = [point[part][name] / unit for point in points]
                expected_values = [expected[part](point, name) / unit for point in points]
                axes.plot(values, measured_values, marker="o", markersize=3.5, color=colour, label=NAMES[name])
                axes.plot(values, expected_values, linestyle=":", color=colour, label=f"{NAMES[name]}, theory")
            axes.set_xscale("linear" if axis == "prompt" else "log")  # prompts of length 1 are of little interest
            axes.set_yscale("log")
            _set_ticks(axes.xaxis, values if axis != "prompt" else _thin_out(values))
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("")
            axes.set_xlabel(AXIS_LABELS[axis])
            axes.grid(alpha=0.3)
            if not column:
                axes.set_ylabel(label)
            if not column and not row:
                axes.legend(frameon=False, fontsize=8)
    fixed = StepSize()
    sizes = f"P = {fixed.prompt}, T = {fixed.text}, B = {fixed.rows} where they do not vary"
    figure.suptitle(f"Prompt tuning on a decoder (width 512, 8 layers); {sizes}", fontsize=10)
    return figure


def _plot_cues(points: list[dict[str, Any]]) -> Figure:
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.add_subplot()
    values, seconds = [point["cues"] for point in points], [point["seconds"]["ours"] for point in points]
    axes.plot(values, seconds, marker="o", color=COLOURS["ours"], label="softcue")
    axes.axhline(seconds[0], linestyle=":", color=COLOURS["ours"], label="theory: as with one cue")
    axes.set_xscale("log")
    axes.set_ylim(0, 1.15 * max(seconds))
    _set_ticks(axes.xaxis, values)
    axes.set_xlabel("cues in a batch of 1,000 rows")
    axes.set_ylabel("seconds a batch")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8, loc="lower left")
    return figure


def _thin_out(values: list[int]) -> list[int]:
    """Leave out values whose labels would overlap on a linear axis."""
    kept = values[:1]
    for value in values[1:]:
        if value - kept[-1] >= max(values) / 10:
            kept.append(value)
    return kept


def _set_ticks(axis: Any, values: list[int]) -> None:
    """Label exactly these values on an axis."""
    axis.set_ticks(values, [f"{value:,}" for value in values])
    axis.set_ticks([], minor=True)


Expectation = Callable[[dict[str, Any], str], float]  # a point and a name -> the expected value


def fit_seconds(curves: Curves) -> Expectation:
    """Operations times one constant: the median over all measurements."""
    scale = statistics.median(
        point["seconds"][name] / point["operations"][name] for point, name in _measurements(curves)
    )
    return lambda point, name: float(scale * point["operations"][name])


def fit_bytes(curves: Curves) -> Expectation:
    """Positions times two constants that fit all measurements best, by relative error."""
    measurements = _measurements(curves)
    terms = numpy.array([[point["positions"][name], point["words"][name]] for point, name in measurements], dtype=float)
    measured = numpy.array([point["bytes"][name] for point, name in measurements], dtype=float)[:, None]
    scales = numpy.linalg.lstsq(terms / measured, numpy.ones(len(measured)), rcond=None)[0]
    return lambda point, name: float(scales @ [point["positions"][name], point["words"][name]])


def _measurements(curves: Curves) -> list[tuple[dict[str, Any], str]]:
    return [(point, name) for points in curves.values() for point in points for name in COLOURS]
