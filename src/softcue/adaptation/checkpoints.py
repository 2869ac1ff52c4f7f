"""Checkpoints of an adaptation: weights, optimizer and position in the text, written completely or not at all.

They are like those of a training run (`softcue.training.checkpoints`), but hold a whole model, once instead of twice,
and the chunks that wait in the shuffle buffer. Nothing is pickled, and no random state is stored.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from softcue.errors import RunError
from softcue.files import TEMPORARY_SUFFIX, is_complete_folder, remove, serialize_tensors, write_folder_atomically

NUM_KEPT = 2  # the newest, and one to fall back to
PARTS = ("model", "optimizer", "stream")


@dataclass
class AdaptationState:
    """The progress of an adaptation at one step, except its tensors."""

    step: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)  # one entry per perplexity

    @property
    def best_perplexity(self) -> float | None:
        """The lowest perplexity so far."""
        return min((entry["perplexity"] for entry in self.history), default=None)


@dataclass(frozen=True)
class AdaptationCheckpoint:
    """An adaptation at one step, with its tensors by part."""

    state: AdaptationState
    tensors: dict[str, dict[str, Tensor]]  # the keys are PARTS


class AdaptationCheckpoints:
    """The checkpoints of one adaptation, in one folder."""

    def __init__(self, folder: Path, run: str) -> None:
        self.folder = folder
        self.run = run  # digest of settings, texts and first weights: another run's checkpoint is not loaded

    def save(self, checkpoint: AdaptationCheckpoint) -> None:
        """Write a checkpoint, then remove the oldest ones and those of later steps, which were damaged."""
        tensors = {
            f"{part}/{name}": tensor for part in PARTS for name, tensor in checkpoint.tensors.get(part, {}).items()
        }
        facts = {"run": self.run, "progress": asdict(checkpoint.state)}
        self.folder.mkdir(parents=True, exist_ok=True)
        current = self.folder / f"step-{checkpoint.state.step:08d}"
        write_folder_atomically(
            current, {"state.safetensors": serialize_tensors(tensors), "state.json": json.dumps(facts).encode()}
        )
        folders = self._folders()
        place = folders.index(current)
        for folder in folders[:place] + folders[place + NUM_KEPT :]:
            remove(folder)

    def newest(self) -> tuple[AdaptationCheckpoint | None, list[Path]]:
        """The newest whole checkpoint, and the paths of damaged ones that were passed over."""
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
        names = [folder for folder in self.folder.glob("step-*") if not folder.name.endswith(TEMPORARY_SUFFIX)]
        return sorted(names, key=lambda folder: folder.name, reverse=True)

    def _load(self, folder: Path) -> AdaptationCheckpoint | None:
        """A checkpoint, or None if the files are whole but in a format this version does not write."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        tensors: dict[str, dict[str, Tensor]] = {part: {} for part in PARTS}
        try:
            facts = json.loads((folder / "state.json").read_text("utf-8"))
            run, state = facts["run"], AdaptationState(**facts["progress"])
            for full_name, tensor in load_file(folder / "state.safetensors").items():
                part, _, name = full_name.partition("/")
                tensors[part][name] = tensor
        except (OSError, ValueError, TypeError, KeyError, SafetensorError):
            return None
        if run != self.run:
            raise RunError(
                setting="resume",
                got=folder,
                expected="a checkpoint of the same adaptation (model, texts and settings)",
                fix="repeat the settings it began with, choose another folder, or pass `overwrite=True`",
            )
        return AdaptationCheckpoint(state, tensors)
