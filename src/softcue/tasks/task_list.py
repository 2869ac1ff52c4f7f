"""The list of tasks that `softcue.tasks()` returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from softcue.listing import Listing
from softcue.tasks.catalogue import library_names, library_task
from softcue.tasks.task_docs import sizes


@dataclass(frozen=True)
class ListedTask:
    """A task that comes with softcue, as `softcue.tasks()` lists it."""

    name: str
    kind: str
    description: str
    metric: str
    rows: dict[str, int] = field(compare=False)  # split -> number of rows, as published
    text: tuple[str, ...] = field(repr=False)  # the columns it reads
    labels: tuple[str, ...] = field(repr=False)


def list_tasks() -> Listing[ListedTask]:
    """List the tasks that come with softcue. `softcue.train(folder, task=NAME)` trains one.

    Example:
        >>> import softcue
        >>> softcue.tasks()["tickets"].labels[:2]
        ('billing', 'accounts')
    """
    tasks = [library_task(name) for name in library_names()]
    return Listing(
        [
            ListedTask(
                name=task.name,
                kind=task.kind,
                description=task.description,
                metric=task.main_metric,
                rows=sizes(task),
                text=tuple(task.text),
                labels=tuple(task.label_names),
            )
            for task in tasks
        ]
    )
