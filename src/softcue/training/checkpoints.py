"""Checkpoints, written completely or not at all. Tensors are in safetensors, the rest in JSON; nothing is pickled.

No random state is stored: all randomness is seeded by (run seed, step), so the step number is enough.
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
from softcue.files import TEMPORARY_SUFFIX, is_complete_folder, remove, serialize_tensors, write_folder_atomically

NUM_KEPT = 2  # the newest, and one to fall back to
_NAME = re.compile(r"step-(\d{8})")


@dataclass
class TrainingState:
    """The state of a run at one step, except its tensors."""

    step: int = 0
    best_score: float | None = None
    best_step: int = 0
    num_worse: int = 0  # evaluations since the best
    is_over: bool = False  # stopped early
    history: list[dict[str, Any]] = field(default_factory=list)  # one entry per evaluation
    health: dict[str, float] = field(default_factory=dict)  # the method's measures of itself after the last step


@dataclass(frozen=True)
class Checkpoint:
    """A run at one step, with its tensors."""

    state: TrainingState
    model: dict[str, Tensor]
    best: dict[str, Tensor]  # the model at its best evaluation
    optimizer: dict[str, Tensor]


class Checkpoints:
    """The checkpoints of one run, in one folder."""

    def __init__(self, folder: Path, run: str) -> None:
        self.folder = folder
        self.run = run  # digest of settings, rows and backbone: another run's checkpoint is not loaded

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint. Remove the oldest, and those of later steps: the run skipped them as damaged."""
        tensors = {
            f"{part}/{name}": tensor
            for part in ("model", "best", "optimizer")
            for name, tensor in getattr(checkpoint, part).items()
        }
        facts = {"run": self.run, "progress": asdict(checkpoint.state)}
        self.folder.mkdir(parents=True, exist_ok=True)
        current = self.folder / f"step-{checkpoint.state.step:08d}"
        write_folder_atomically(
            current, {"state.safetensors": serialize_tensors(tensors), "state.json": json.dumps(facts).encode()}
        )
        folders = self._folders()
        position = folders.index(current)
        for folder in folders[:position] + folders[position + NUM_KEPT :]:
            remove(folder)

    def newest(self) -> tuple[Checkpoint | None, list[Path]]:
        """The newest whole checkpoint, and the paths of damaged ones that were skipped."""
        damaged = sorted(self.folder.glob(f"*{TEMPORARY_SUFFIX}"))
        for folder in self._folders():
            if checkpoint := self._load(folder) if is_complete_folder(folder) else None:
                return checkpoint, damaged
            damaged.append(folder)
        return None, damaged

    def remove(self) -> None:
        """Remove all checkpoints."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def exist(self) -> bool:
        """Whether an earlier run left checkpoints, whole or damaged."""
        return self.folder.is_dir() and any(self.folder.iterdir())

    def _folders(self) -> list[Path]:
        """The checkpoints' folders, newest first."""
        folders = [folder for folder in self.folder.glob("step-*") if _NAME.fullmatch(folder.name)]
        return sorted(folders, key=lambda folder: folder.name, reverse=True)

    def _load(self, folder: Path) -> Checkpoint | None:
        """A checkpoint, or None if the files are whole but in a format this version does not write."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        parts: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "optimizer": {}}
        try:
            facts = json.loads((folder / "state.json").read_text("utf-8"))
            run, state = facts["run"], TrainingState(**facts["progress"])
            for full_name, tensor in load_file(folder / "state.safetensors").items():
                part, _, name = full_name.partition("/")
                parts[part][name] = tensor
        except (OSError, ValueError, TypeError, KeyError, SafetensorError):
            return None
        if run != self.run:
            raise RunError(
                setting="resume",
                got=folder,
                expected="a checkpoint of the same run (backbone, data, settings, softcue version)",
                fix="use the settings in config.yaml beside it, another folder, or `overwrite=True`",
            )
        return Checkpoint(state, parts["model"], parts["best"], parts["optimizer"])
