"""Time and memory of steps on a noisy machine: interleaved runs, medians, bytes of torch's allocator."""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

Step = Callable[[], object]


def interleave_seconds(steps: Mapping[Any, Step], repeats: int, warmup: int = 2) -> dict[Any, list[float]]:
    """Time each contestant in turn, so that a slow moment of the machine affects all of them.

    With one thread processor seconds count, which other work beside the benchmark lengthens less than the clock.

    Example:
        >>> sorted(interleave_seconds({"a": lambda: 1, "b": lambda: 2}, repeats=3))
        ['a', 'b']
    """
    for _ in range(warmup):
        for step in steps.values():
            step()
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    seconds: dict[Any, list[float]] = {name: [] for name in steps}
    for turn in range(repeats):
        names = list(steps) if turn % 2 == 0 else list(reversed(list(steps)))
        for name in names:
            started = clock()
            steps[name]()
            seconds[name].append(clock() - started)
    return seconds


def interleave_values(
    steps: Mapping[Any, Callable[[], float]], repeats: int, warmup: int = 0
) -> dict[Any, list[float]]:
    """Run each contestant in turn and collect the values that the contestants return.

    Example:
        >>> interleave_values({"a": lambda: 1.0, "b": lambda: 2.0}, repeats=2, warmup=1)
        {'a': [1.0, 1.0], 'b': [2.0, 2.0]}
    """
    values: dict[Any, list[float]] = {name: [] for name in steps}

    def collect(name: Any) -> Step:
        return lambda: values[name].append(steps[name]())

    interleave_seconds({name: collect(name) for name in steps}, repeats, warmup)
    return {name: measured[warmup:] for name, measured in values.items()}


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Let torch use so many threads in this block.

    Example:
        >>> with torch_threads(1):
        ...     torch.get_num_threads()
        1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def median_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """The median and the interquartile range; one value alone has no spread.

    Example:
        >>> median_and_spread([1.0, 2.0, 9.0])
        (2.0, 8.0)
        >>> median_and_spread([3.0])
        (3.0, 0.0)
    """
    if len(values) == 1:
        return values[0], 0.0
    quarters = statistics.quantiles(values, n=4)
    return statistics.median(values), quarters[2] - quarters[0]


def median_ratio(values: Mapping[Any, Sequence[float]], numerator: Any, denominator: Any) -> tuple[float, float]:
    """The median of the ratios of each turn, and their interquartile range.

    Example:
        >>> median_ratio({"a": [2.0, 4.0], "b": [1.0, 2.0]}, "a", "b")
        (2.0, 0.0)
    """
    return median_and_spread([a / b for a, b in zip(values[numerator], values[denominator], strict=True)])


def process_seconds(arguments: list[str], repeats: int) -> tuple[float, float]:
    """Median seconds of a fresh Python process with these arguments, and the interquartile range."""
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - started)
    return median_and_spread(seconds)


def peak_bytes(step: Step) -> int:
    """The largest tensor memory of a step above the memory held before it, by torch's allocator events."""
    step()  # first-time allocations (optimizer state, caches) do not belong to the step
    gc.collect()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text("utf-8"))["traceEvents"]
    changes: list[dict[str, Any]] = sorted(
        (event for event in events if event.get("name") == "[memory]"), key=lambda event: float(event["ts"])
    )
    held = peak = 0
    for event in changes:
        held += int(event["args"]["Bytes"])
        peak = max(peak, held)
    return peak


def make_figure(
    ratio: float, target: float, spread: float, runs: int, meaning: str, comparison: str = "<="
) -> dict[str, Any]:
    """One measured figure with its target.

    Example:
        >>> make_figure(0.6, 0.7, 0.0, 7, "ours / theirs")["met"]
        True
    """
    is_met = ratio <= target if comparison == "<=" else ratio >= target
    return {
        "ratio": round(ratio, 4),
        "target": target,
        "comparison": comparison,
        "met": is_met,
        "spread": round(spread, 4),
        "runs": runs,
        "meaning": meaning,
    }
