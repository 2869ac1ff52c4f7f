"""The tasks that come with softcue: one YAML file each in `library/`, rows in `samples/`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import yaml

from softcue.errors import ConfigurationError, near_matches
from softcue.tasks.task import Task

LIBRARY = Path(__file__).parent / "library"
SAMPLES = Path(__file__).parent / "samples"


def library_names() -> list[str]:
    """Names of the tasks that come with softcue.

    Example:
        >>> "tickets" in library_names()
        True
    """
    return sorted(file.stem for file in LIBRARY.glob("*.yaml"))


@cache
def library_task(name: str) -> Task:
    """The task of that name; its sample files as absolute paths.

    Example:
        >>> library_task("tickets").label_names[0]
        'billing'
    """
    if name not in library_names():
        raise ConfigurationError(
            "task.name", name, "a task that comes with softcue", near_matches(name, library_names())
        )
    values = yaml.safe_load((LIBRARY / f"{name}.yaml").read_text("utf-8"))
    for split in ("train", "validation", "test"):
        if split in values:
            values[split] = str(SAMPLES / values[split])
    return Task.model_validate(values)
