"""Checkpoints that are whole or not there. Tensors in safetensors, the rest in JSON; nothing is pickled.

No random state is stored: every draw is seeded by (run seed, step), so a step number is enough.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from softcue.errors import RunError
from softcue.files import TEMPORARY_SUFFIX, folder_is_whole, remove, tensor_bytes, write_folder_whole

KEPT = 2  # the newest, and one to fall back to
_NAME = re.compile(r"step-(\d{8})")


@dataclass
class Progress:
    """Where a run stands; everything besides tensors."""

    step: int = 0
    best_score: float | None = None
    best_step: int = 0
    num_worse: int = 0  # evaluations since the best
    is_over: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)  # one entry per evaluation
    health: dict[str, float] = field(default_factory=dict)  # what the method said of itself after the last step


@dataclass(frozen=True)
class Checkpoint:
    """A run at one step."""

    progress: Progress
    model: dict[str, Tensor]
    best: dict[str, Tensor]
    optimizer: dict[str, Tensor]


class Checkpoints:
    """The checkpoints of one run, in one folder."""

    def __init__(self, folder: Path, run: str) -> None:
        self.folder = folder
        self.run = run  # digest of what the run is, so that another run's checkpoint is not taken for its own

    def save(self, checkpoint: Checkpoint) -> None:
        """Write one; drop the oldest, and any of a later step, which the run passed over as damaged."""
        tensors = {
            f"{part}/{name}": tensor
            for part in ("model", "best", "optimizer")
            for name, tensor in getattr(checkpoint, part).items()
        }
        state = {"run": self.run, "progress": asdict(checkpoint.progress)}
        self.folder.mkdir(parents=True, exist_ok=True)
        current = self.folder / f"step-{checkpoint.progress.step:08d}"
        write_folder_whole(
            current, {"state.safetensors": tensor_bytes(tensors), "state.json": json.dumps(state).encode()}
        )
        found = self._found()
        position = found.index(current)
        for other in found[:position] + found[position + KEPT :]:
            remove(other)

    def newest(self) -> tuple[Checkpoint | None, list[Path]]:
        """The newest whole checkpoint, and the damaged ones that were passed over."""
        skipped = sorted(self.folder.glob(f"*{TEMPORARY_SUFFIX}"))
        for folder in self._found():
            if checkpoint := self._load(folder) if folder_is_whole(folder) else None:
                return checkpoint, skipped
            skipped.append(folder)
        return None, skipped

    def remove(self) -> None:
        """Drop them all, once the cue is written."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def exist(self) -> bool:
        """Whether an earlier run left anything."""
        return self.folder.is_dir() and any(self.folder.iterdir())

    def _found(self) -> list[Path]:
        folders = [folder for folder in self.folder.glob("step-*") if _NAME.fullmatch(folder.name)]
        return sorted(folders, key=lambda folder: folder.name, reverse=True)

    def _load(self, folder: Path) -> Checkpoint | None:
        """A checkpoint, or None where the files are whole but not what this version writes."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        parts: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "optimizer": {}}
        try:
            state = json.loads((folder / "state.json").read_text("utf-8"))
            run, progress = state["run"], Progress(**state["progress"])
            for full_name, tensor in load_file(folder / "state.safetensors").items():
                part, _, name = full_name.partition("/")
                parts[part][name] = tensor
        except (OSError, ValueError, TypeError, KeyError, SafetensorError):
            return None
        if run != self.run:
            raise RunError(
                setting="resume",
                got=folder,
                expected="a checkpoint of the same run (backbone, data and settings)",
                fix="use the settings in config.yaml beside it, another folder, or `overwrite=True`",
            )
        return Checkpoint(progress, parts["model"], parts["best"], parts["optimizer"])
