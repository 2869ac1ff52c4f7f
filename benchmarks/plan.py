"""How a benchmark runs: parts that return figures, one after the other under one plan."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softcue.errors import ConfigurationError

Figures = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Plan:
    """The number of timed runs per contestant, and the folder of published files (None: the sample tasks)."""

    repeats: int
    data: Path | None = None


def choose_parts(parts: Sequence[Callable[[Plan], Figures]], names: Collection[str]) -> list[Callable[[Plan], Figures]]:
    """The parts with these names, all if there are none: `late-prompt` is that of `late_prompt_figures`.

    Example:
        >>> def late_prompt_figures(plan):
        ...     return {}
        >>> choose_parts([late_prompt_figures], ["late-prompt"]) == [late_prompt_figures]
        True
    """
    by_name = {part.__name__.removesuffix("_figures").replace("_", "-"): part for part in parts}
    if unknown := sorted(set(names) - set(by_name)):
        raise ConfigurationError(
            setting="parts", got=", ".join(unknown), expected=f"some of {', '.join(by_name)}", fix="name one of these"
        )
    return [part for name, part in by_name.items() if not names or name in names]


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
