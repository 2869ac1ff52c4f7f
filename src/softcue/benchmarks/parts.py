"""What a bench consists of: parts that give figures, run one after the other under one plan."""

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
    """How often contestants take turns, and the folder of published files that texts come from, if there is one."""

    repeats: int
    data: Path | None = None


def measured(parts: Sequence[Callable[[Plan], Figures]], plan: Plan) -> Figures:
    """The figures of all parts.

    Example:
        >>> def speed_figures(plan):
        ...     return {"speed": {"runs": plan.repeats}}
        >>> measured([speed_figures], Plan(repeats=3))
        {'speed': {'runs': 3}}
    """
    figures: Figures = {}
    for number, part in enumerate(parts, start=1):
        with told(f"part {number} of {len(parts)}: {part.__name__}"):
            figures |= part(plan)
    return figures


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """A line on standard error when something has ended, with the seconds it took."""
    started = time.perf_counter()
    yield
    sys.stderr.write(f"{what} ({time.perf_counter() - started:.0f} s)\n")
    sys.stderr.flush()
