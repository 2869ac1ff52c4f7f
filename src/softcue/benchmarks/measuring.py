"""How to time and weigh steps fairly on a noisy machine: interleaved, medians, allocator bytes."""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

Step = Callable[[], object]


def interleaved_seconds(steps: dict[str, Step], repeats: int, warmup: int = 2) -> dict[str, list[float]]:
    """Seconds of each contestant, taken in turn so that a slow moment hits all alike.

    Example:
        >>> sorted(interleaved_seconds({"a": lambda: 1, "b": lambda: 2}, repeats=3))
        ['a', 'b']
    """
    for _ in range(warmup):
        for step in steps.values():
            step()
    found: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(repeats):
        names = list(steps) if turn % 2 == 0 else list(reversed(steps))
        for name in names:
            started = time.perf_counter()
            steps[name]()
            found[name].append(time.perf_counter() - started)
    return found


def interleaved_values(
    steps: Mapping[Any, Callable[[], float]], repeats: int, warmup: int = 0
) -> dict[Any, list[float]]:
    """What each contestant measured of itself, taken in turn.

    Example:
        >>> interleaved_values({"a": lambda: 1.0, "b": lambda: 2.0}, repeats=2, warmup=1)
        {'a': [1.0, 1.0], 'b': [2.0, 2.0]}
    """
    found: dict[Any, list[float]] = {name: [] for name in steps}

    def noting(name: Any) -> Callable[[], object]:
        return lambda: found[name].append(steps[name]())

    interleaved_seconds({name: noting(name) for name in steps}, repeats, warmup)
    return {name: values[warmup:] for name, values in found.items()}


def ratio_of(seconds: Mapping[str, list[float]], ours: str, theirs: str) -> tuple[float, float]:
    """Median of the turn-by-turn ratios, and their interquartile spread."""
    ratios = [a / b for a, b in zip(seconds[ours], seconds[theirs], strict=True)]
    quarters = statistics.quantiles(ratios, n=4)
    return statistics.median(ratios), quarters[2] - quarters[0]


def start_seconds(words: list[str], repeats: int) -> tuple[float, float]:
    """Median seconds of a fresh Python process with these arguments, and the interquartile spread."""
    found = []
    for _ in range(repeats):
        started = time.perf_counter()
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
        found.append(time.perf_counter() - started)
    quarters = statistics.quantiles(found, n=4)
    return statistics.median(found), quarters[2] - quarters[0]


def peak_bytes(step: Step) -> int:
    """The most tensor memory a step holds above what was held before it, by torch's own allocator records."""
    step()  # first-time allocations (optimizer state, caches) are not the step's
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


def figure(
    ratio: float, target: float, spread: float, runs: int, meaning: str, comparison: str = "<="
) -> dict[str, Any]:
    """One measured figure beside its target."""
    met = ratio <= target if comparison == "<=" else ratio >= target
    return {
        "ratio": round(ratio, 4),
        "target": target,
        "comparison": comparison,
        "met": met,
        "spread": round(spread, 4),
        "runs": runs,
        "meaning": meaning,
    }
