"""Points with names beside them, as inline SVG: what each of several things costs, and what it gives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from softcue.drawing.charts import (
    BOTTOM,
    COLOURS,
    HEIGHT,
    LEFT,
    LETTER_WIDTH,
    RIGHT,
    TOP,
    WIDTH,
    ChartAxes,
    axis_label,
    axis_range,
    chart_frame,
    curves_legend,
    marker,
)

LINE_HEIGHT = 12.0
GAP = 7.0  # between a point and its name
_Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class LabelledPoint:
    """A point with its name, and the limits of a vertical line through it."""

    x: float
    y: float
    label: str
    low: float | None = None
    high: float | None = None


def points_chart(
    title: str,
    series: Mapping[str, Sequence[LabelledPoint]],
    x_name: str,
    is_log_x: bool = False,
    x_names: Sequence[str] = (),
) -> str:
    """Points with names. Each series has its colour and shape; several series have a legend.

    A logarithmic axis takes positive values only. Names are moved until they do not cover each other.
    With `x_names` the axis has these names at 0, 1, 2, ...

    Example:
        >>> points_chart("cost", {"minilm": [LabelledPoint(10, 80.0, "vip", 78.0, 82.0)]}, "seconds").count(">vip<")
        1
    """
    drawn = {name: kept for name, points in series.items() if (kept := _drawable(points, is_log_x))}
    if not drawn:
        return ""
    all_points = [point for points in drawn.values() for point in points]
    heights = [value for point in all_points for value in (point.y, point.low, point.high) if value is not None]
    axes = ChartAxes(
        axis_range([point.x for point in all_points], margin=0.12),
        axis_range(heights, margin=0.1),
        is_log_x=is_log_x,
        x_names=tuple(x_names),
    )
    places = [axes.place(point.x, point.y) for point in all_points]
    taken: list[_Box] = [(x - 4, y - 4, x + 4, y + 4) for x, y in places]
    for point in all_points:
        if point.low is not None and point.high is not None:
            (x, bottom), (_, top) = axes.place(point.x, point.low), axes.place(point.x, point.high)
            taken.append((x - 1, top, x + 1, bottom))
    parts = []
    for number, points in enumerate(drawn.values()):
        colour = COLOURS[number % len(COLOURS)]
        for point in points:
            x, y = axes.place(point.x, point.y)
            if point.low is not None and point.high is not None:
                (_, bottom), (_, top) = axes.place(point.x, point.low), axes.place(point.x, point.high)
                parts.append(
                    f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom:.1f}" y2="{top:.1f}" stroke="{colour}" '
                    'stroke-width="1.5" stroke-opacity=".6"/>'
                )
            hint = f"{point.label}: {axes.x_text(point.x)} across, {point.y:.4g} up"
            parts.append(marker(number, (x, y), 4.5, colour, hint))
    # Names come last, the highest points first: they are the ones that are looked for.
    for (x, y), point in sorted(zip(places, all_points, strict=True), key=lambda pair: pair[0][1]):
        box, anchor = _place_label(x, y, len(point.label) * LETTER_WIDTH, taken)
        taken.append(box)
        text_x = {"start": box[0], "end": box[2], "middle": (box[0] + box[2]) / 2}[anchor]
        parts.append(axis_label(text_x, box[3] - 2.5, escape(point.label), anchor))
    legend = curves_legend(list(drawn)) if len(drawn) > 1 else ""
    return f"<div>{chart_frame(title, axes, x_name, ''.join(parts))}{legend}</div>"


def _drawable(points: Sequence[LabelledPoint], is_log_x: bool) -> list[LabelledPoint]:
    """The finite points, those of a logarithmic axis as powers of ten."""
    finite = [point for point in points if math.isfinite(point.x) and math.isfinite(point.y)]
    if not is_log_x:
        return finite
    return [
        LabelledPoint(math.log10(point.x), point.y, point.label, point.low, point.high)
        for point in finite
        if point.x > 0
    ]


def _place_label(x: float, y: float, width: float, taken: Sequence[_Box]) -> tuple[_Box, str]:
    """A place for a name near its point: the first that is inside the picture and covers the least."""
    choices: list[tuple[float, _Box, str]] = []
    for shift in (0, -1, 1, -2, 2, -3, 3):
        middle = y + shift * LINE_HEIGHT * 0.75
        top, bottom = middle - LINE_HEIGHT / 2, middle + LINE_HEIGHT / 2
        sides = [((x + GAP, top, x + GAP + width, bottom), "start"), ((x - GAP - width, top, x - GAP, bottom), "end")]
        if shift:
            sides.append(((x - width / 2, top - 2 * shift / abs(shift), x + width / 2, bottom), "middle"))
        for box, anchor in sides:
            covered = sum(_overlap(box, other) for other in taken) + _outside(box)
            choices.append((covered + abs(shift) * 0.01, box, anchor))
    _, box, anchor = min(choices, key=lambda choice: choice[0])
    # A name that fits nowhere is pushed inside.
    push = max(0.0, 2 - box[0]) - max(0.0, box[2] - (WIDTH - 2))
    return (box[0] + push, box[1], box[2] + push, box[3]), anchor


def _overlap(box: _Box, other: _Box) -> float:
    width = min(box[2], other[2]) - max(box[0], other[0])
    height = min(box[3], other[3]) - max(box[1], other[1])
    return max(0.0, width) * max(0.0, height)


def _outside(box: _Box) -> float:
    """How much of a box is outside the plot, which counts more than what it covers."""
    across = max(0.0, LEFT - box[0]) + max(0.0, box[2] - (WIDTH - RIGHT + 10))
    along = max(0.0, TOP - 6 - box[1]) + max(0.0, box[3] - (HEIGHT - BOTTOM))
    return 50 * (across + along)
