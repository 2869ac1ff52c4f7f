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
from softcue.files import TEMPORARY_SUFFIX, folder_is_whole, tensor_bytes, write_folder_whole

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
        """Write one and drop the oldest."""
        tensors = {
            f"{part}/{name}": tensor
            for part in ("model", "best", "optimizer")
            for name, tensor in getattr(checkpoint, part).items()
        }
        state = {"run": self.run, "progress": asdict(checkpoint.progress)}
        self.folder.mkdir(parents=True, exist_ok=True)
        write_folder_whole(
            self.folder / f"step-{checkpoint.progress.step:08d}",
            {"state.safetensors": tensor_bytes(tensors), "state.json": json.dumps(state).encode()},
        )
        for old in self._found()[KEPT:]:
            shutil.rmtree(old)

    def newest(self) -> tuple[Checkpoint | None, list[Path]]:
        """The newest whole checkpoint, and the damaged ones that were passed over."""
        skipped = sorted(self.folder.glob(f"*{TEMPORARY_SUFFIX}"))
        for folder in self._found():
            if not folder_is_whole(folder):
                skipped.append(folder)
                continue
            return self._load(folder), skipped
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

    def _load(self, folder: Path) -> Checkpoint:
        from safetensors.torch import load_file

        state = json.loads((folder / "state.json").read_text("utf-8"))
        if state["run"] != self.run:
            raise RunError(
                "--resume", folder, "a checkpoint of the same run (backbone, data and settings)",
                "use the settings in config.yaml beside it, another --output-dir, or --overwrite",
            )  # fmt: skip
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "optimizer": {}}
        for full_name, tensor in load_file(folder / "state.safetensors").items():
            part, _, name = full_name.partition("/")
            parts[part][name] = tensor
        return Checkpoint(Progress(**state["progress"]), parts["model"], parts["best"], parts["optimizer"])
