"""Lines of Markdown tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def print_header(*columns: str) -> None:
    """Print the first two lines of a Markdown table."""
    print_row(*columns)
    print("|---" * len(columns) + "|", flush=True)


def print_row(*cells: object) -> None:
    """Print a line of a Markdown table."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def format_mean(scores: Sequence[float]) -> str:
    """Mean and standard deviation.

    Example:
        >>> format_mean([80.0, 82.0]), format_mean([80.0])
        ('81.0 ± 1.4', '80.0')
    """
    deviation = f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
    return f"{statistics.mean(scores):.1f}{deviation}"
