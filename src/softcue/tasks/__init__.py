"""A task is a data file (YAML) and its rows: text in, Example out. No torch in here."""

from softcue.tasks.catalogue import library_names, library_task
from softcue.tasks.readers import Source
from softcue.tasks.rows import (
    distinct,
    examples_from,
    few_shot,
    sample,
    shares,
    split_off,
    with_labels,
    with_swapped,
    without_copies,
)
from softcue.tasks.task import Label, Task

__all__ = [
    "Label",
    "Source",
    "Task",
    "distinct",
    "examples_from",
    "few_shot",
    "library_names",
    "library_task",
    "sample",
    "shares",
    "split_off",
    "with_labels",
    "with_swapped",
    "without_copies",
]
