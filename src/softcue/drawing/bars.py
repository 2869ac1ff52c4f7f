"""Bars of several series beside each other, as inline SVG, and the legend of their colours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from softcue.drawing.charts import (
    BLUE,
    BOTTOM,
    HEIGHT,
    LEFT,
    LETTER_WIDTH,
    ORANGE,
    RIGHT,
    TOP,
    WIDTH,
    axis_label,
    format_tick,
    round_ticks,
)

GREY = "#8a8f98"
# the first series is what the others are compared with
SERIES_COLOURS = (GREY, BLUE, ORANGE, "#2f9e77", "#a65fb0", "#c2504f")
BAR_SHARE = 0.8  # of the room of a name that its bars take
TURNED = 35.0  # degrees


def bar_chart(
    title: str,
    names: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    x_name: str,
    marks: Sequence[float] = (),
    colours: Sequence[str] = SERIES_COLOURS,
) -> str:
    """Bars for each name, one of each series; `marks` are values that all bars of a name are compared with.

    A value of None has no bar. Negative values have bars below zero.

    Example:
        >>> bar_chart("pairs", ["low", "high"], {"before": [3, 1], "after": [1, 3]}, "group", [2, 2]).count("<rect")
        4
    """
    values = [value for bars in series.values() for value in (*bars, *marks) if value is not None]
    if not values:
        return ""
    low, high = min(0.0, *values), max(0.0, *values)
    high = high if high > low else 1.0
    high += 0.06 * (high - low)
    low -= 0.06 * (high - low) if low < 0 else 0.0

    def height_of(value: float) -> float:
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    room = (WIDTH - LEFT - RIGHT) / len(names)
    width = room * BAR_SHARE / len(series)
    parts = []
    for value in round_ticks(low, high):
        y = height_of(value)
        opacity = ".5" if value == 0 else ".15"
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" '
            f'stroke-opacity="{opacity}"/>'
        )
        parts.append(axis_label(LEFT - 6, y + 4, format_tick(value), "end"))
    longest = max(len(name) for name in names) * LETTER_WIDTH
    slope = TURNED if longest > room else 0.0  # names that would run into each other are turned
    total_height = HEIGHT + longest * math.sin(math.radians(slope))
    for number, name in enumerate(names):
        left = LEFT + room * (number + (1 - BAR_SHARE) / 2)
        for position, ((series_name, bars), colour) in enumerate(zip(series.items(), _repeat(colours), strict=False)):
            bar = bars[number]
            if bar is not None:
                hint = f"{name}, {series_name}: {bar:.4g}"
                parts.append(_bar(left + position * width, width, height_of(bar), height_of(0.0), colour, hint))
        if marks:
            y = height_of(marks[number])
            parts.append(
                f'<line x1="{left - 2:.1f}" x2="{left + room * BAR_SHARE + 2:.1f}" y1="{y:.1f}" y2="{y:.1f}" '
                f'stroke="currentColor" stroke-width="1.5" stroke-dasharray="3 3"><title>{marks[number]:.4g}</title>'
                "</line>"
            )
        x, y = LEFT + room * (number + 0.5), HEIGHT - BOTTOM + 16
        label = axis_label(x, y, escape(name), "end" if slope else "middle")
        parts.append(f'<g transform="rotate({-slope:g} {x:.1f} {y:.1f})">{label}</g>' if slope else label)
    parts.append(axis_label((LEFT + WIDTH - RIGHT) / 2, total_height - 6, escape(x_name), "middle"))
    heading = escape(title)
    return (
        f'<svg viewBox="0 0 {WIDTH} {total_height:.0f}" role="img" aria-label="{heading}" '
        'style="width: 100%; height: auto; font-family: system-ui, sans-serif" xmlns="http://www.w3.org/2000/svg">'
        f'<text x="4" y="17" font-size="13" font-weight="600" fill="currentColor">{heading}</text>'
        f"{''.join(parts)}</svg>"
    )


def legend(names: Sequence[str], mark: str = "", colours: Sequence[str] = SERIES_COLOURS) -> str:
    """The colours of series in their order, as one line of HTML; `mark` is the meaning of the dashed lines.

    Example:
        >>> legend(["before", "after <b>"]).count("after &lt;b&gt;")
        1
    """
    entries = [
        f'<span style="white-space: nowrap"><span style="display: inline-block; width: .8em; height: .8em; '
        f'background: {colour}; margin-right: .4em"></span>{escape(name)}</span>'
        for name, colour in zip(names, _repeat(colours), strict=False)
    ]
    if mark:
        entries.append(f'<span style="white-space: nowrap">- - - {escape(mark)}</span>')
    return f'<p style="display: flex; flex-wrap: wrap; gap: .2em 1.4em; margin: .4em 0">{"".join(entries)}</p>'


def _bar(x: float, width: float, end: float, zero: float, colour: str, title: str) -> str:
    top, height = min(end, zero), abs(end - zero)
    return (
        f'<rect x="{x + 0.5:.1f}" y="{top:.1f}" width="{max(1.0, width - 1):.1f}" height="{height:.1f}" '
        f'fill="{colour}"><title>{escape(title)}</title></rect>'
    )


def _repeat(colours: Sequence[str]) -> Sequence[str]:
    """More colours than series: from the second on they come again."""
    return [colours[0], *list(colours[1:]) * 20]
