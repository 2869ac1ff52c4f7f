"""What a tracker is told about a run, and what it must be able to do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

PROJECT = "softcue"  # the project or experiment, unless the tracker's own environment variable names another
EndState = Literal["finished", "failed", "killed"]


@dataclass(frozen=True)
class TrackedRun:
    """A run as trackers show it."""

    folder: Path
    name: str
    group: str  # runs that belong together, such as those of a comparison; empty: none
    settings: dict[str, Any]  # by section.key
    tags: dict[str, str]  # such as method, backbone and task


class Tracker(Protocol):
    """A tracker of one run, in one process. Any method may raise: `Reports` decides what an error means."""

    place: str  # set by `start`: where the user finds the run, for one line of text

    def start(self, run: TrackedRun, identity: str) -> str:
        """Begin a run, or continue the one with this identity if it is not empty; returns the run's identity."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log finite numbers of one step."""

    def finish(self, scores: Mapping[str, float], step: int, state: EndState) -> None:
        """End after this step, with the scores of a finished run. All that was logged is sent or written."""


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted keys. Lists become text; unset values are left out.

    Example:
        >>> flatten({"training": {"epochs": 3, "report_to": ["wandb"]}, "readout": {"pooling": None}})
        {'training.epochs': 3, 'training.report_to': '["wandb"]'}
    """
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        elif value is not None:
            flat[f"{prefix}{key}"] = json.dumps(value) if isinstance(value, (list, tuple)) else value
    return flat


def name_run(folder: Path, group: str) -> str:
    """The name of a run: its path below the folder that its group is named after, else the name of its folder.

    Example:
        >>> name_run(Path("/runs/tickets/minilm/vip/seed-0"), "tickets"), name_run(Path("/cues/tickets"), "")
        ('minilm/vip/seed-0', 'tickets')
    """
    parts = folder.resolve().parts
    above = parts[:-1]
    if group not in above:
        return folder.resolve().name
    position = len(above) - 1 - above[::-1].index(group)
    return "/".join(parts[position + 1 :])
