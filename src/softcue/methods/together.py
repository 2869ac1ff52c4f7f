"""Several tasks on one method: the prompt is the same for all, each task has its own readout (Bhardwaj et al. 2022,
section 5.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from torch import nn

from softcue.methods.task_model import TaskModel
from softcue.tasks import Label, Task


class Together(nn.Module):
    """All trained numbers of several tasks that share a method: its own once, and every task's readout."""

    def __init__(self, models: Sequence[TaskModel]) -> None:
        super().__init__()
        self.method = models[0].method
        self.readouts = nn.ModuleList(model.readout for model in models)
        self.models = tuple(models)  # a tuple: their numbers are registered above, once

    def train(self, mode: bool = True) -> Self:
        """Training or evaluation, also for what each task decides by it."""
        for model in self.models:
            model.train(mode)
        return super().train(mode)


def joint_task(tasks: Sequence[Task]) -> Task:
    """What a shared method may know of its tasks: their words, each once.

    Example:
        >>> from softcue.tasks import library_task
        >>> joint_task([library_task("tickets"), library_task("urgency")]).label_words[-2:]
        ('normal', 'high')
    """
    if len(tasks) == 1:
        return tasks[0]
    labels = {label.words: Label(words=label.words) for task in tasks for label in task.labels.values()}
    words = (word for task in tasks for word in task.init_words or task.label_words)
    return Task(
        name="+".join(task.name for task in tasks),
        description=" ".join(task.description for task in tasks if task.description),
        init_words=tuple(dict.fromkeys(words)),
        labels=labels,
    )
