"""Loop, optimizers, batches, checkpoints, processes. Never branches on a method's name."""

from softcue.training.checkpoints import Checkpoints
from softcue.training.config import TrainingConfig
from softcue.training.loop import TaskData, Trainer, TrainingResult
from softcue.training.mixture import MixtureConfig
from softcue.training.processes import Processes

__all__ = ["Checkpoints", "MixtureConfig", "Processes", "TaskData", "Trainer", "TrainingConfig", "TrainingResult"]
