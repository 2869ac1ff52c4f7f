"""A task is a data file (YAML) and its rows: text in, Example out. No torch in here."""

from softcue.tasks.catalogue import library_names, library_task
from softcue.tasks.readers import Source
from softcue.tasks.rows import examples_from, sample, split_off, with_labels
from softcue.tasks.task import Label, Task

__all__ = [
    "Label",
    "Source",
    "Task",
    "examples_from",
    "library_names",
    "library_task",
    "sample",
    "split_off",
    "with_labels",
]
