"""Checkpoints, written completely or not at all. Tensors are in safetensors, the rest in JSON; nothing is pickled.

No random state is stored: all randomness is seeded by (run seed, step), so the step number is enough.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch import Tensor

from softcue.errors import RunError
from softcue.files import (
    METADATA_LIMIT,
    TEMPORARY_SUFFIX,
    is_complete_folder,
    read_within,
    remove,
    serialize_tensors,
    write_folder_atomically,
)
from softcue.training.processes import Processes

NUM_KEPT = 2  # the newest, and one to fall back to
_NAME = re.compile(r"step-(\d{8})")


@dataclass
class RunState:
    """The state of any run at one step, except its tensors."""

    step: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)  # one entry per evaluation


State = TypeVar("State", bound=RunState)


@dataclass(frozen=True)
class Checkpoint(Generic[State]):
    """A run at one step, with its tensors."""

    state: State
    tensors: dict[str, dict[str, Tensor]]  # by part, such as "model" and "optimizer", and by name


def other_run_error(got: str, expected: str) -> RunError:
    """The error for a checkpoint whose digests hold and whose content is not of this run.

    Example:
        >>> other_run_error("a checkpoint of step 9", "a step up to 8").expected
        'a step up to 8'
    """
    fix = "remove the folder `checkpoints` of the run, or use `overwrite=True`"
    return RunError(setting="resume", got=got, expected=expected, fix=fix)


class CheckpointFolder(Generic[State]):
    """The checkpoints of one run, in one folder. A subclass names the state and the parts of its kind of run."""

    state_class: type[State]
    parts: tuple[str, ...]
    expected: str  # of a checkpoint to resume from, and what to do with one of another run
    fix: str

    def __init__(self, folder: Path, run: str) -> None:
        self.folder = folder
        self.run = run  # digest of all that decides the result: another run's checkpoint is not loaded

    def save(self, checkpoint: Checkpoint[State]) -> None:
        """Write a checkpoint. Remove the oldest, and those of later steps: the run skipped them as damaged."""
        tensors = {f"{part}/{name}": tensor for part in self.parts for name, tensor in checkpoint.tensors[part].items()}
        facts = {"run": self.run, "progress": asdict(checkpoint.state)}
        self.folder.mkdir(parents=True, exist_ok=True)
        current = self.folder / f"step-{checkpoint.state.step:08d}"
        write_folder_atomically(
            current, {"state.safetensors": serialize_tensors(tensors), "state.json": json.dumps(facts).encode()}
        )
        folders = self._folders()
        later = [folder for folder in folders if folder.name > current.name]
        earlier = [folder for folder in folders if folder.name < current.name]
        for folder in later + earlier[NUM_KEPT - 1 :]:
            remove(folder)

    def newest(self) -> tuple[Checkpoint[State] | None, list[Path]]:
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

    def _load(self, folder: Path) -> Checkpoint[State] | None:
        """A checkpoint, or None if the files are whole but in a format this version does not write."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        tensors: dict[str, dict[str, Tensor]] = {part: {} for part in self.parts}
        try:
            facts = json.loads(read_within(folder / "state.json", METADATA_LIMIT).decode())
            run, state = facts["run"], self.state_class(**facts["progress"])
            for full_name, tensor in load_file(folder / "state.safetensors").items():
                part, _, name = full_name.partition("/")
                tensors[part][name] = tensor
        except (OSError, ValueError, TypeError, KeyError, RecursionError, SafetensorError):
            return None
        if run != self.run:
            raise RunError(setting="resume", got=folder, expected=self.expected, fix=self.fix)
        return Checkpoint(state, tensors)


def newest_of_all(
    checkpoints: CheckpointFolder[State], processes: Processes
) -> tuple[Checkpoint[State] | None, list[Path]]:
    """The newest whole checkpoint that any process has in its folder, in all processes, and the damaged ones of this.

    Only the first process writes checkpoints. Without a shared folder the others have none, and after a restart the
    first process may run on another machine. The checkpoint is therefore sent to all by the process that has it.

    Example:
        checkpoint, damaged = newest_of_all(Checkpoints(folder, digest), Processes())
    """
    checkpoint: Checkpoint[State] | None = None
    damaged: list[Path] = []
    problem = None
    try:
        checkpoint, damaged = checkpoints.newest()
    except RunError as error:
        problem = error
    processes.raise_together(problem)
    if processes.world_size == 1:
        return checkpoint, damaged
    # A step that is no number is for the trainer to refuse.
    steps = processes.gather(checkpoint.state.step if checkpoint and isinstance(checkpoint.state.step, int) else -1)
    owner = steps.index(max(steps))
    if steps[owner] < 0:
        return checkpoint, damaged
    state = processes.decide(None if checkpoint is None else checkpoint.state, owner)
    assert state is not None
    tensors = {
        part: processes.share_tensors({} if checkpoint is None else checkpoint.tensors[part], owner)
        for part in checkpoints.parts
    }
    return Checkpoint(state, tensors), damaged


@dataclass
class TrainingState(RunState):
    """The state of a training run at one step, except its tensors."""

    best_score: float | None = None
    best_step: int = 0
    num_worse: int = 0  # evaluations since the best
    num_collapsed: int = 0  # of the last evaluations in a row: all rows of each task got the same label
    is_over: bool = False  # stopped early
    num_skipped: int = 0  # steps since the last one whose loss was finite
    total_skipped: int = 0  # steps whose loss was not finite
    health: dict[str, float] = field(default_factory=dict)  # the method's measures of itself after the last step

    def is_possible(self, num_steps: int) -> bool:
        """Whether a run of so many steps can be in this state.

        Example:
            >>> TrainingState(step=3, best_step=2).is_possible(4), TrainingState(step=3, best_step=5).is_possible(4)
            (True, False)
        """
        of_evaluations = (self.num_worse, self.num_collapsed)
        counters = (self.step, self.best_step, *of_evaluations, self.num_skipped, self.total_skipped)
        if any(type(counter) is not int or counter < 0 for counter in counters):
            return False
        if not isinstance(self.history, list) or not all(isinstance(entry, dict) for entry in self.history):
            return False
        has_score = self.best_score is None or isinstance(self.best_score, (int, float))
        is_in_order = max(self.best_step, self.total_skipped) <= self.step <= num_steps
        is_in_order = is_in_order and self.num_skipped <= self.total_skipped
        is_in_order = is_in_order and max(of_evaluations) <= len(self.history)
        return has_score and is_in_order and type(self.is_over) is bool


class Checkpoints(CheckpointFolder[TrainingState]):
    """The checkpoints of a training run; "best" is the model at its best evaluation."""

    state_class = TrainingState
    parts = ("model", "best", "optimizer")
    expected = "a checkpoint of the same run (backbone, data, settings, softcue version)"
    fix = "use the settings in config.yaml beside it, another folder, or `overwrite=True`"
