"""Rows with known targets, and how the predictions of a cue are scored on them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from softcue.errors import ConfigurationError
from softcue.evaluation import Transfer, transfer_between
from softcue.tasks import (
    SPLITS,
    Source,
    Task,
    examples_from,
    find_task,
    sources,
)
from softcue.tasks.readers import name_of
from softcue.tasks.splits import is_task_name, limit_rows
from softcue.types import Example


@dataclass(frozen=True)
class EvaluationSet:
    """Rows with answers, and how a cue's answers to them are scored."""

    name: str
    examples: list[Example]
    transfer: Transfer


def evaluation_set(
    cue_task: Task,
    data: Source | None = None,
    task: str = "",
    split: str = "",
    num_rows: int = 0,
    skip_bad_rows: bool = False,
) -> EvaluationSet:
    """Rows a cue can be scored on: of a file, of a folder with published files, or of a task's own address.

    `num_rows` takes a sample of that many (seed 0).

    Example:
        rows_to_score(library_task("tickets")).name        # the task's own test rows
        rows_to_score(cue.task, "../data", task="mrpc")    # another task's, from its published files
    """
    is_folder = isinstance(data, (str, Path)) and Path(data).is_dir()
    theirs = cue_task
    if task:
        theirs = find_task(task)
    elif (data is None or is_folder) and is_task_name(cue_task.name):
        theirs = find_task(cue_task.name)
    if theirs.has_classes and not theirs.labels:  # a file of the user's own that leaves them to the rows
        theirs = theirs.model_copy(update={"labels": cue_task.labels})
    transfer = transfer_between(cue_task, theirs)
    source = data
    if split and (split not in SPLITS or not (data is None or is_folder)):
        raise ConfigurationError(
            setting="split",
            got=split,
            expected=f"{', '.join(SPLITS)}, of a task's own rows",
            fix="leave it out for a file",
        )
    if data is None or is_folder:
        known: dict[str, Source] = {one: getattr(theirs, one) for one in SPLITS}
        known = dict(sources(theirs, str(data))) if is_folder else {k: v for k, v in known.items() if v}
        split = split or next((one for one in ("test", "validation") if one in known), "")
        source = known.get(split)
        if source is None and known:
            raise ConfigurationError(
                setting="split", got=split, expected=f"one that is there: {', '.join(known)}", fix="name one of them"
            )
    if source is None:
        raise ConfigurationError(
            setting="data",
            got=data if data is not None else "",
            expected=f"rows with answers for {theirs.name}",
            fix="pass `data=FILE`, `data=FOLDER` with its files, or `task=FILE.yaml`",
        )
    name = f"{theirs.name} ({split})" if data is None or is_folder else name_of(source)
    examples = examples_from(source, theirs, skip_bad_rows=skip_bad_rows)
    return EvaluationSet(name, limit_rows(examples, num_rows, seed=0), transfer)
