"""Where tasks come from: one YAML file each in `library/`, or a user's own; and where their rows lie on a disk."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from softcue.errors import ConfigurationError, DataError, near_matches
from softcue.tasks.formats import FORMATS
from softcue.tasks.readers import HUB_PREFIX
from softcue.tasks.task import SPLITS, Task

LIBRARY = Path(__file__).parent / "library"
SAMPLES = Path(__file__).parent / "samples"
TASK_SUFFIXES = (".yaml", ".yml")


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
            setting="task.name",
            got=name,
            expected="a task that comes with softcue",
            fix=near_matches(name, library_names()),
        )
    return _read(LIBRARY / f"{name}.yaml", SAMPLES)


def find_task(name_or_path: str | Path) -> Task:
    """A task that comes with softcue, or the one a YAML file describes; its paths are relative to that file.

    Example:
        >>> find_task("rte").text
        ('sentence1', 'sentence2')
    """
    path = Path(name_or_path)
    if path.suffix.lower() not in TASK_SUFFIXES:
        return library_task(str(name_or_path))
    if not path.is_file():
        siblings = sorted(file.name for file in path.parent.glob("*") if file.suffix.lower() in TASK_SUFFIXES)
        hint = near_matches(path.name, siblings[:50]) if siblings else "check the path"
        raise ConfigurationError(setting="task file", got=path, expected="an existing file", fix=hint)
    return _read(path, path.parent)


def sources(task: Task, folder: str | Path) -> dict[str, list[Path]]:
    """The files of each split below a data folder: the first place of the task's `files` where there are any.

    Example:
        >>> task = Task(name="toy", files={"train": ("toy/train.csv", "train.*")})
        >>> folder = SAMPLES / "tickets"
        >>> [path.name for path in sources(task, folder)["train"]]
        ['train.csv']
    """
    found = {split: files for split, (_, files) in places(task, folder).items()}
    if not found:
        looked_for = ", ".join(place for split in SPLITS for place in task.files.get(split, ()))
        raise DataError(
            setting=f"files of the task {task.name}",
            got=folder,
            expected="a data folder that has some",
            fix=f"looked for {looked_for}" if looked_for else "the task names no files",
        )
    return found


def places(task: Task, folder: str | Path) -> dict[str, tuple[str, list[Path]]]:
    """What `sources` gives, with the place in `files` that was found; empty where nothing is there.

    Example:
        >>> places(Task(name="toy", files={"test": ("toy/*.csv",)}), SAMPLES)
        {}
    """
    root = checked_folder(folder)
    found = {}
    for split in SPLITS:
        for place in task.files.get(split, ()):
            if files := _matches(root, place, task.name):
                found[split] = (place, files)
                break
    return found


def _matches(root: Path, place: str, name: str) -> list[Path]:
    try:
        return sorted(path for path in root.glob(place) if path.is_file())
    except (NotImplementedError, ValueError) as error:  # an absolute path, or a pattern that is none
        raise ConfigurationError(
            setting=f"files of the task {name}",
            got=place,
            expected="places below a data folder, with * and ?",
            fix=f"correct it: {error}",
        ) from error


def located(task: Task, folder: str | Path) -> Task:
    """The task with its rows below a data folder, for tasks with one file per split; other splits become empty.

    Example:
        >>> task = Task(name="toy", train="hub:toy@train", files={"test": ("test.csv",)})
        >>> moved = located(task, SAMPLES / "tickets")
        >>> moved.train, Path(moved.test).name
        ('', 'test.csv')
    """
    found = sources(task, folder)
    for split, files in found.items():
        if len(files) > 1:
            raise DataError(
                setting=f"files of the task {task.name}",
                got=folder,
                expected=f"one file for {split}",
                fix=f"{len(files)} are there, so pass the list that sources(task, folder) gives",
            )
    return task.model_copy(update={split: str(found[split][0]) if split in found else "" for split in SPLITS})


def checked_folder(folder: str | Path) -> Path:
    """The data folder, if it is one.

    Example:
        >>> checked_folder(SAMPLES).name
        'samples'
    """
    path = Path(folder)
    if not path.is_dir():
        raise DataError(setting="data folder", got=path, expected="a folder that is there", fix="check the path")
    return path


def _read(path: Path, folder: Path) -> Task:
    """The task of a YAML file, with paths relative to that folder."""
    values = _values(path)
    for split in SPLITS:
        if isinstance(given := values.get(split), str) and given and not given.startswith(HUB_PREFIX):
            values[split] = str((folder / given).absolute())
    if (layout := values.get("format")) and layout not in FORMATS:
        raise ConfigurationError(
            setting=f"{path}, key 'format'",
            got=layout,
            expected="a known format",
            fix=near_matches(str(layout), FORMATS),
        )
    try:
        return Task.model_validate({"name": path.stem} | values)
    except ValidationError as error:
        raise _in_our_words(path, error) from error


def _values(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text("utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            setting="task file", got=path, expected="a file of UTF-8 text that can be read", fix=str(error)
        ) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # the latter two of odd dates and deep nesting
        raise ConfigurationError(
            setting="task file", got=path, expected="valid YAML", fix=" ".join(str(error).split())
        ) from error
    if not isinstance(values, dict):
        raise ConfigurationError(
            setting="task file",
            got=path,
            expected="keys with values, such as `text: [message]`",
            fix="see docs/tasks.md",
        )
    return values


def _in_our_words(path: Path, error: ValidationError) -> ConfigurationError:
    first = error.errors()[0]
    steps = first["loc"][:-2] if first["loc"][-1:] == ("[key]",) else first["loc"]  # a key that is wrong, not its value
    key = ".".join(map(str, steps))
    where = f"{path}, key '{key}'" if key else str(path)
    if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
        return ConfigurationError(
            setting=where, got=key, expected="a key of a task", fix=near_matches(key, Task.model_fields)
        )
    expected = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    is_text = first["type"] == "string_type"  # YAML has its own mind about yes, no, on, off and 1
    next_step = "put yes, no, on, off and numbers that are text in quotes" if is_text else "correct the file"
    return ConfigurationError(setting=where, got=first["input"] if key else path.name, expected=expected, fix=next_step)
