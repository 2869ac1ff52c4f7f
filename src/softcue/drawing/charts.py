"""Charts as inline SVG: curves, points and bars. Lines and text take the page's colour."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from softcue.drawing.sparkline import group_means

Points = Sequence[tuple[float, float]]
BLUE, ORANGE = "#3b82c4", "#d9822b"  # readable on white and on black
# of several curves: all readable on white and on black, the first ones also by people with colour blindness
COLOURS = (BLUE, ORANGE, "#2a9d78", "#c4659f", "#8577d6", "#a58a1e", "#4aa3b8", "#8a8a8a")
DASHES = ("", "7 4", "2 3")  # of the curves after as many as there are colours
WIDTH, HEIGHT = 400, 240
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 30, 38  # margins: the plot lies inside
MAX_CURVE_POINTS, MAX_SCATTER_POINTS, MAX_DOTS = 200, 1500, 40
MARKERS_OF_LONG_CURVES = 8
LETTER_WIDTH = 6.2  # of a text of an axis, about
MOST_LOG_SPAN = 6  # powers of ten that all have a number on an axis
NUM_MARKERS = 5  # shapes: circle, square, triangle, diamond, cross


@dataclass(frozen=True)
class ChartAxes:
    """The ranges of a chart's two axes; a logarithmic axis holds powers of ten."""

    x: tuple[float, float]
    y: tuple[float, float]
    is_log: bool = False  # the axis of values, y
    is_log_x: bool = False
    x_names: tuple[str, ...] = ()  # of the places 0, 1, 2, ... instead of numbers

    def place(self, x: float, y: float) -> tuple[float, float]:
        """The position of a point in the picture."""
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    def x_text(self, x: float) -> str:
        """A value of the axis x as text."""
        return short_number(10**x) if self.is_log_x else f"{x:g}"

    def y_text(self, y: float) -> str:
        """A value of the axis y as text."""
        return short_number(10**y) if self.is_log else f"{y:.4g}"


def line_chart(
    title: str,
    points: Points,
    x_name: str,
    colour: str = BLUE,
    best: tuple[float, float] | None = None,
    is_log: bool = False,
    min_span: float = 0.0,
) -> str:
    """A curve; `best` is a point to mark. Of very long curves, neighbouring points are averaged.

    With `is_log` the values are positive and their axis is logarithmic. The axis of values covers at least
    `min_span`, so that small differences look small.

    Example:
        >>> line_chart("loss", [(1, 2.0), (2, 1.0)], "step").count("<polyline")
        1
    """
    finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if is_log:
        finite = [(x, math.log10(y)) for x, y in finite if y > 0]
    if not finite:
        return ""
    drawn = group_means(finite, MAX_CURVE_POINTS)
    marked = [] if best is None else [best]
    axes = ChartAxes(
        axis_range([x for x, _ in finite]), axis_range([y for _, y in [*drawn, *marked]], min_span, margin=0.06), is_log
    )
    places = [axes.place(x, y) for x, y in drawn]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"/>']
    if len(drawn) <= MAX_DOTS:
        parts += [
            _dot(place, 3, colour, f"{x_name} {x:g}: {10**y if is_log else y:.4g}")
            for place, (x, y) in zip(places, drawn, strict=True)
        ]
    if best is not None:
        x, y = axes.place(*best)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="none" stroke="currentColor" stroke-width="1.5"/>')
        x_name += f" (circle: best, {best[1]:.4g} at {best[0]:g})"
    return chart_frame(title, axes, x_name, "".join(parts))


def curves_chart(
    title: str,
    curves: Mapping[str, Points],
    x_name: str,
    is_log_x: bool = False,
    is_log: bool = False,
    min_span: float = 0.0,
    bands: Mapping[str, Sequence[tuple[float, float, float]]] | None = None,
    has_legend: bool = True,
) -> str:
    """Several curves in one chart, by name, with a legend below it. Curves without a point are left out.

    A point that is not finite interrupts a curve. `bands` are shaded around curves: x, lowest and highest value of
    each point. Logarithmic axes take positive values only.

    Example:
        >>> curves_chart("validation", {"vip": [(1, 50.0), (2, 70.0)], "pt": [(1, 40.0)]}, "step").count("<polyline")
        2
    """
    segments = {name: _segments(points, is_log_x, is_log) for name, points in curves.items()}
    drawn = {name: [point for segment in parts for point in segment] for name, parts in segments.items() if parts}
    if not drawn:
        return ""
    shaded = {}  # name -> the edge of its band, there and back
    for name, limits in (bands or {}).items():
        lowest, highest = ([(point[0], point[side]) for point in limits] for side in (1, 2))
        edge = [*_drawable(highest, is_log_x, is_log), *reversed(_drawable(lowest, is_log_x, is_log))]
        if edge and name in drawn:
            shaded[name] = edge
    values = [y for points in [*drawn.values(), *shaded.values()] for _, y in points]
    margin = 0.04 if is_log_x else 0.0
    x_range = axis_range([x for points in drawn.values() for x, _ in points], margin=margin)
    axes = ChartAxes(x_range, axis_range(values, min_span, margin=0.06), is_log, is_log_x)
    parts = []
    for number, (name, points) in enumerate(drawn.items()):
        colour, dash = _style(number)
        if name in shaded:
            parts.append(f'<polygon points="{_path(axes, shaded[name])}" fill="{colour}" fill-opacity=".18"/>')
        parts += [
            f'<polyline points="{_path(axes, segment)}" fill="none" stroke="{colour}" stroke-width="2" '
            f'stroke-linejoin="round" stroke-dasharray="{dash or "none"}"><title>{escape(name)}</title></polyline>'
            for segment in segments[name]
        ]
        every = 1 if len(points) <= MAX_DOTS else math.ceil(len(points) / MARKERS_OF_LONG_CURVES)
        parts += [
            marker(number, axes.place(x, y), 3.5, colour, f"{name}, {x_name} {axes.x_text(x)}: {axes.y_text(y)}")
            for x, y in points[every // 2 :: every]
        ]
    legend = curves_legend(list(drawn)) if has_legend else ""
    return f"<div>{chart_frame(title, axes, x_name, ''.join(parts))}{legend}</div>"


def curves_legend(names: Sequence[str]) -> str:
    """The legend of the curves with these names, for charts that are drawn without one.

    Example:
        >>> curves_legend(["vip", "a<b"]).count("<span")
        2
    """
    return _legend([_legend_key(name, *_style(number), marker_number=number) for number, name in enumerate(names)])


def histograms(title: str, groups: Mapping[str, Sequence[float]], x_name: str, num_bars: int = 20) -> str:
    """Bars of several groups of values over each other, with a legend. They show shares of each group, in percent.

    Example:
        >>> histograms("tightness", {"prompt": [0.5, 0.6], "random": [0.1, 0.2]}, "cosine", num_bars=4).count("<rect")
        8
    """
    finite = {name: [value for value in values if math.isfinite(value)] for name, values in groups.items()}
    finite = {name: values for name, values in finite.items() if values}
    if not finite:
        return ""
    low, high = axis_range([value for values in finite.values() for value in values])
    shares = {name: _shares(values, low, high, num_bars) for name, values in finite.items()}
    axes = ChartAxes((low, high), (0.0, max(map(max, shares.values()))))
    parts, keys = [], []
    for number, (name, heights) in enumerate(shares.items()):
        colour = COLOURS[number % len(COLOURS)]
        for bar, height in enumerate(heights):
            start, end = _limits_of_bar(low, high, bar, num_bars)
            style = f' fill-opacity=".45" stroke="{colour}" stroke-width="{1 if height else 0}"'
            title_of_bar = f"{escape(name)}, {start:.3g} to {end:.3g}: {height:.1f} %"
            parts.append(_bar(axes, start, end, height, colour, title_of_bar, style))
        keys.append(_legend_key(f"{name} ({len(finite[name]):,})", colour, ""))
    return f"<div>{chart_frame(title, axes, x_name, ''.join(parts))}{_legend(keys)}</div>"


def scatter_chart(title: str, points: Points, x_name: str, y_name: str, colour: str = BLUE) -> str:
    """Points, and the diagonal on which both values are the same. Of very many points an even share is drawn.

    Example:
        >>> scatter_chart("values", [(1, 2.0), (2, 1.0)], "true", "predicted").count("<circle")
        2
    """
    finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if not finite:
        return ""
    both = axis_range([value for point in finite for value in point])
    axes = ChartAxes(both, both)
    every = math.ceil(len(finite) / MAX_SCATTER_POINTS)
    (x1, y1), (x2, y2) = axes.place(both[0], both[0]), axes.place(both[1], both[1])
    diagonal = (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="currentColor" '
        'stroke-opacity=".5" stroke-dasharray="4 4"/>'
    )
    dots = "".join(
        _dot(axes.place(x, y), 3.5, colour, f"{x_name} {x:.4g}, {y_name} {y:.4g}", opacity=0.6)
        for x, y in finite[::every]
    )
    return chart_frame(title, axes, f"{x_name} (across), {y_name} (up)", diagonal + dots)


def histogram(
    title: str,
    values: Sequence[float],
    x_name: str,
    colour: str = ORANGE,
    num_bars: int = 15,
    limits: tuple[float, float] | None = None,
) -> str:
    """Bars that count the values of equal ranges between the limits, which are those of the values unless given.

    Example:
        >>> histogram("errors", [0.0, 0.1, 0.9], "error", num_bars=2).count("<rect")
        2
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    low, high = limits or axis_range(finite)
    counts = _counts(finite, low, high, num_bars)
    axes = ChartAxes((low, high), (0.0, float(max(counts))))
    bars = []
    for number, count in enumerate(counts):
        start, end = _limits_of_bar(low, high, number, num_bars)
        bars.append(_bar(axes, start, end, count, colour, f"{start:.3g} to {end:.3g}: {count:,}"))
    return chart_frame(title, axes, x_name, "".join(bars))


def side_by_side(charts: Sequence[str]) -> str:
    """Charts in a row; on a narrow screen one below the other.

    Example:
        >>> side_by_side([]), side_by_side(["<svg/>"]).count("<svg")
        ('', 1)
    """
    boxes = "".join(
        f'<div style="flex: 1 1 340px; min-width: 0; max-width: 460px">{chart}</div>' for chart in charts if chart
    )
    return f'<div style="display: flex; flex-wrap: wrap; gap: 8px 24px">{boxes}</div>' if boxes else ""


def short_number(value: float) -> str:
    """A number with a letter for thousands, millions or billions, as on logarithmic axes.

    Example:
        >>> [short_number(value) for value in (0.00001, 0.25, 20, 316.2, 1000, 76_800, 1e9, 1.1e10, 1e13)]
        ['1e-05', '0.25', '20', '316', '1K', '77K', '1B', '11B', '1e+13']
    """
    for power, letter in ((9, "B"), (6, "M"), (3, "K")):
        if 10**power <= abs(value) < 10**12:
            scaled = value / 10**power
            return f"{scaled:.0f}{letter}" if scaled >= 10 else f"{scaled:.2g}{letter}"
    return f"{value:.0f}" if 10 <= abs(value) < 1000 else f"{value:.2g}"


def _drawable(points: Points, is_log_x: bool, is_log: bool) -> list[tuple[float, float]]:
    """The finite points, those of logarithmic axes as powers of ten; of very many, neighbours are averaged."""
    finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if is_log_x:
        finite = [(math.log10(x), y) for x, y in finite if x > 0]
    if is_log:
        finite = [(x, math.log10(y)) for x, y in finite if y > 0]
    return group_means(finite, MAX_CURVE_POINTS)


def _segments(points: Points, is_log_x: bool, is_log: bool) -> list[list[tuple[float, float]]]:
    """The parts of a curve between points that are not finite, as they are drawn."""
    segments: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if math.isfinite(x) and math.isfinite(y):
            segments[-1].append((x, y))
        else:
            segments.append([])
    drawn = [_drawable(segment, is_log_x, is_log) for segment in segments]
    return [segment for segment in drawn if segment]


def _style(number: int) -> tuple[str, str]:
    """Colour and dashes of a curve, by its number."""
    return COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]


def _path(axes: ChartAxes, points: Points) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in (axes.place(*point) for point in points))


def _counts(values: Sequence[float], low: float, high: float, num_bars: int) -> list[int]:
    """The number of values in each of equal ranges."""
    counts = [0] * num_bars
    for value in values:
        counts[min(num_bars - 1, int((value - low) / (high - low) * num_bars))] += 1
    return counts


def _shares(values: Sequence[float], low: float, high: float, num_bars: int) -> list[float]:
    """The share of the values in each of equal ranges, in percent."""
    return [100 * count / len(values) for count in _counts(values, low, high, num_bars)]


def _limits_of_bar(low: float, high: float, number: int, num_bars: int) -> tuple[float, float]:
    """Where the bar with this number starts and ends."""
    return low + (high - low) * number / num_bars, low + (high - low) * (number + 1) / num_bars


def _bar(axes: ChartAxes, start: float, end: float, height: float, colour: str, title: str, style: str = "") -> str:
    (x1, y1), (x2, y2) = axes.place(start, height), axes.place(end, 0)
    return (
        f'<rect x="{x1 + 0.5:.1f}" y="{y1:.1f}" width="{max(0.5, x2 - x1 - 1):.1f}" height="{y2 - y1:.1f}" '
        f'fill="{colour}"{style}><title>{title}</title></rect>'
    )


def _legend_key(name: str, colour: str, dash: str, marker_number: int | None = None) -> str:
    shape = "" if marker_number is None else marker(marker_number, (13, 6), 4, colour)
    width = 4 if marker_number is None else 2
    line = (
        f'<svg width="26" height="12" aria-hidden="true" style="flex: none"><line x1="1" x2="25" y1="6" y2="6" '
        f'stroke="{colour}" stroke-width="{width}" stroke-dasharray="{dash or "none"}"/>{shape}</svg>'
    )
    return f'<span style="display: inline-flex; align-items: center; gap: 5px">{line}{escape(name)}</span>'


def _legend(keys: Sequence[str]) -> str:
    style = "display: flex; flex-wrap: wrap; gap: 2px 16px; font-size: 13px; padding-left: 8px; overflow-wrap: anywhere"
    return f'<div style="{style}">{"".join(keys)}</div>'


def chart_frame(title: str, axes: ChartAxes, x_name: str, content: str) -> str:
    """The picture of a chart: title, grid and axes around its content, which is SVG.

    Example:
        >>> chart_frame("loss", ChartAxes((0, 1), (0, 1)), "step", "").count("<svg")
        1
    """
    name = escape(title)
    parts = [f'<text x="4" y="17" font-size="13" font-weight="600" fill="currentColor">{name}</text>']
    for value in log_ticks(*axes.y) if axes.is_log else round_ticks(*axes.y):
        _, y = axes.place(axes.x[0], value)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" '
            'stroke-opacity=".15"/>'
        )
        parts.append(axis_label(LEFT - 6, y + 4, short_number(10**value) if axes.is_log else format_tick(value), "end"))
    for number, text in enumerate(axes.x_names):
        x, y = axes.place(number, axes.y[0])
        parts.append(axis_label(x, y + 16, escape(_cut(text, len(axes.x_names))), "middle"))
    for value in () if axes.x_names else log_ticks(*axes.x) if axes.is_log_x else round_ticks(*axes.x):
        x, y = axes.place(value, axes.y[0])
        parts.append(axis_label(x, y + 16, short_number(10**value) if axes.is_log_x else format_tick(value), "middle"))
    parts.append(axis_label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, escape(x_name), "middle"))
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}" '
        'style="width: 100%; height: auto; font-family: system-ui, sans-serif" xmlns="http://www.w3.org/2000/svg">'
        f"{''.join(parts)}{content}</svg>"
    )


def _cut(name: str, count: int) -> str:
    """A name that fits below an axis with so many names."""
    room = int((WIDTH - LEFT - RIGHT) / count / LETTER_WIDTH)
    return name if len(name) <= room else f"{name[: max(1, room - 1)].rstrip()}…"


def axis_label(x: float, y: float, text: str, anchor: str) -> str:
    """A small text of an axis; `text` is escaped already.

    Example:
        >>> axis_label(5, 9, "step", "end").count(">step<")
        1
    """
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="11" text-anchor="{anchor}" fill="currentColor" '
        f'fill-opacity=".8">{text}</text>'
    )


def marker(number: int, place: tuple[float, float], radius: float, colour: str, title: str = "") -> str:
    """A point of the curve or series with this number. Shapes differ, so that colour is not the only difference.

    Example:
        >>> [marker(number, (5, 5), 3, "#888")[1:8] for number in (0, 1, 2)]
        ['circle ', 'rect x=', 'path d=']
    """
    x, y = place
    hint = f"<title>{escape(title)}</title>" if title else ""
    shape = number % NUM_MARKERS
    if shape == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}">{hint}</circle>'
    if shape == 1:
        start, side = radius * 0.9, radius * 1.8
        place_of_box = f'x="{x - start:.1f}" y="{y - start:.1f}" width="{side:.1f}" height="{side:.1f}"'
        return f'<rect {place_of_box} fill="{colour}">{hint}</rect>'
    far, half = radius * 1.3, radius * 0.65
    if shape == 4:
        lines = f"M{x - half * 1.5:.1f},{y - half * 1.5:.1f} l{half * 3:.1f},{half * 3:.1f} m0,{-half * 3:.1f} "
        lines += f"l{-half * 3:.1f},{half * 3:.1f}"
        return f'<path d="{lines}" stroke="{colour}" stroke-width="2.2" fill="none">{hint}</path>'
    corners = {
        2: [(x, y - far), (x + far, y + half * 1.6), (x - far, y + half * 1.6)],
        3: [(x, y - far), (x + far, y), (x, y + far), (x - far, y)],
    }[shape]
    lines = " ".join(f"{corner_x:.1f},{corner_y:.1f}" for corner_x, corner_y in corners)
    return f'<path d="M{lines}Z" fill="{colour}">{hint}</path>'


def _dot(place: tuple[float, float], radius: float, colour: str, title: str, opacity: float = 1.0) -> str:
    x, y = place
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}" fill-opacity="{opacity}">'
        f"<title>{escape(title)}</title></circle>"
    )


def axis_range(values: Sequence[float], min_span: float = 0.0, margin: float = 0.0) -> tuple[float, float]:
    """The lowest and the highest value with a margin (a share of the span); apart from each other if they are equal.

    Example:
        >>> axis_range([2.0, 4.0], margin=0.5), axis_range([10.0])
        ((1.0, 5.0), (9.5, 10.5))
    """
    low, high = min(values), max(values)
    span = max(high - low, min_span)
    if not span:
        span = abs(low) * 0.1 or 1.0
    missing = (span - (high - low)) / 2
    return low - missing - margin * span, high + missing + margin * span


def round_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers inside a range: multiples of 1, 2 or 5 times a power of ten.

    Example:
        >>> round_ticks(0.0, 9.0)
        [0.0, 2.0, 4.0, 6.0, 8.0]
    """
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Where a logarithmic axis has numbers, as powers of ten: at 10, 100, 1000, or also at 20 and 50 if it is short.

    Example:
        >>> [round(10**power) for power in log_ticks(1.9, 3.1)], log_ticks(2.0, 6.5)
        ([100, 200, 500, 1000], [2.0, 3.0, 4.0, 5.0, 6.0])
    """
    span = high - low
    if span > MOST_LOG_SPAN:
        return round_ticks(low, high)
    factors = (1,) if span > 2.2 else (1, 2, 5)
    powers = [power + math.log10(factor) for power in range(math.floor(low), math.ceil(high) + 1) for factor in factors]
    ticks = [power for power in powers if low - 1e-9 <= power <= high + 1e-9]
    return ticks if len(ticks) > 1 else round_ticks(low, high)


def format_tick(value: float) -> str:
    """A number beside an axis.

    Example:
        >>> format_tick(1500.0), format_tick(0.25)
        ('1,500', '0.25')
    """
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{round(value, 12):g}"
