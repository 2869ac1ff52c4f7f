"""Tasks: a YAML file per task, readers for its rows, and the checked Examples of a run. Nothing here needs torch."""

from softcue.listing import make_callable
from softcue.tasks.catalogue import find_task, library_names, library_task, sources
from softcue.tasks.readers import Source
from softcue.tasks.rows import examples_from, stream_examples, stream_together, with_labels
from softcue.tasks.splits import (
    distinct,
    few_shot,
    sample,
    sample_examples,
    shares,
    split_off,
    with_swapped,
    without_copies,
)
from softcue.tasks.task import SPLITS, Label, Published, Task, joint_task, portable
from softcue.tasks.task_list import ListedTask, list_tasks

__all__ = [
    "SPLITS",
    "Label",
    "ListedTask",
    "Published",
    "Source",
    "Task",
    "distinct",
    "examples_from",
    "few_shot",
    "find_task",
    "joint_task",
    "library_names",
    "library_task",
    "list_tasks",
    "portable",
    "sample",
    "sample_examples",
    "shares",
    "sources",
    "split_off",
    "stream_examples",
    "stream_together",
    "with_labels",
    "with_swapped",
    "without_copies",
]

make_callable(__name__, list_tasks)
