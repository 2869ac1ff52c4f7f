"""How a benchmark runs: parts that return figures, one after the other under one plan."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Figures = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Plan:
    """The number of timed runs per contestant, and the folder of published files (None: the sample tasks)."""

    repeats: int
    data: Path | None = None


def measure_parts(parts: Sequence[Callable[[Plan], Figures]], plan: Plan) -> Figures:
    """Run all parts and join their figures.

    Example:
        >>> def speed_figures(plan):
        ...     return {"speed": {"runs": plan.repeats}}
        >>> measure_parts([speed_figures], Plan(repeats=3))
        {'speed': {'runs': 3}}
    """
    figures: Figures = {}
    for number, part in enumerate(parts, start=1):
        with report_seconds(f"part {number} of {len(parts)}: {part.__name__}"):
            figures |= part(plan)
    return figures


@contextlib.contextmanager
def report_seconds(title: str) -> Iterator[None]:
    """Write a line with the seconds that the block took to standard error."""
    started = time.perf_counter()
    yield
    sys.stderr.write(f"{title} ({time.perf_counter() - started:.0f} s)\n")
    sys.stderr.flush()
