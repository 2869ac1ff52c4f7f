"""Loop, optimizers, batches, checkpoints, processes. Never branches on a method's name."""

from softcue.training.checkpoints import Checkpoints
from softcue.training.config import TrainingConfig
from softcue.training.loop import Result, Trainer
from softcue.training.processes import Processes

__all__ = ["Checkpoints", "Processes", "Result", "Trainer", "TrainingConfig"]
