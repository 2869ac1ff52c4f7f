"""A curve in one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

BARS = "▁▂▃▄▅▆▇█"
PLAIN_BARS = "_.-=+*#@"  # for terminals that cannot show the others


def sparkline(values: Sequence[float], width: int = 40, bars: str = BARS) -> str:
    """Draw values as bars of different height; more values than `width` are averaged in groups.

    Example:
        >>> sparkline([0, 1, 2, 3, 4, 5, 6, 7])
        '▁▂▃▄▅▆▇█'
        >>> sparkline([5.0, 5.0], bars=PLAIN_BARS)
        '=='
    """
    finite = [value for value in values if math.isfinite(value)]
    means = [mean for _, mean in group_means([(float(number), value) for number, value in enumerate(finite)], width)]
    if not means:
        return ""
    low, high = min(means), max(means)
    if high == low:
        return bars[(len(bars) - 1) // 2] * len(means)
    return "".join(bars[round((value - low) / (high - low) * (len(bars) - 1))] for value in means)


def group_means(points: Sequence[tuple[float, float]], limit: int) -> list[tuple[float, float]]:
    """At most `limit` points: neighbours are averaged in groups of nearly equal size.

    Example:
        >>> group_means([(0, 1.0), (1, 3.0), (2, 5.0), (3, 7.0)], limit=2)
        [(0.5, 2.0), (2.5, 6.0)]
    """
    if len(points) <= limit:
        return list(points)
    edges = [round(number * len(points) / limit) for number in range(limit + 1)]
    groups = [points[start:end] for start, end in pairwise(edges)]
    return [(_mean([x for x, _ in group]), _mean([y for _, y in group])) for group in groups]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
