"""Finds tasks (YAML files of `library/` or of a user) and the files of their rows below a data folder."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from softcue.errors import ConfigurationError, DataError, near_matches
from softcue.tasks.formats import FORMATS
from softcue.tasks.readers import HUB_PREFIX
from softcue.tasks.task import SPLITS, Task
from softcue.yaml_text import TEXT_LIMIT, parse_yaml

LIBRARY = Path(__file__).parent / "library"
SAMPLES = Path(__file__).parent / "samples"
TASK_SUFFIXES = (".yaml", ".yml")


def library_names() -> list[str]:
    """The names of the tasks of the library, in sorted order.

    Example:
        >>> "tickets" in library_names()
        True
    """
    return sorted(file.stem for file in LIBRARY.glob("*.yaml"))


@cache
def library_task(name: str) -> Task:
    """The library task of that name; the paths of its sample files are absolute.

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
    """The library task of that name, or the task of a YAML file, whose paths are relative to that file.

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
    """The files of each split below a data folder: those of the first pattern of the task's `files` that matches any.

    Example:
        >>> task = Task(name="toy", files={"train": ("toy/train.csv", "train.*")})
        >>> folder = SAMPLES / "tickets"
        >>> [path.name for path in sources(task, folder)["train"]]
        ['train.csv']
    """
    files_by_split = {split: files for split, (_, files) in match_files(task, folder).items()}
    if not files_by_split:
        patterns = ", ".join(pattern for split in SPLITS for pattern in task.files.get(split, ()))
        raise DataError(
            setting=f"files of the task {task.name}",
            got=folder,
            expected="a data folder that has some",
            fix=f"looked for {patterns}" if patterns else "the task names no files",
        )
    return files_by_split


def match_files(task: Task, folder: str | Path) -> dict[str, tuple[str, list[Path]]]:
    """The first pattern of each split that matches files below a data folder, and these files.

    Example:
        >>> match_files(Task(name="toy", files={"test": ("toy/*.csv",)}), SAMPLES)
        {}
    """
    root = check_folder(folder)
    matches = {}
    for split in SPLITS:
        for pattern in task.files.get(split, ()):
            if files := _glob(root, pattern, task.name):
                matches[split] = (pattern, files)
                break
    return matches


def _glob(root: Path, pattern: str, task_name: str) -> list[Path]:
    try:
        return sorted(path for path in root.glob(pattern) if path.is_file())
    except (NotImplementedError, ValueError) as error:  # an absolute path or an invalid pattern
        raise ConfigurationError(
            setting=f"files of the task {task_name}",
            got=pattern,
            expected="paths below a data folder, with * and ?",
            fix=f"correct it: {error}",
        ) from error


def with_local_files(task: Task, folder: str | Path) -> Task:
    """The task with the files of a data folder as its splits, for tasks with one file per split.

    Splits without a file become empty.

    Example:
        >>> task = Task(name="toy", train="hub:toy@train", files={"test": ("test.csv",)})
        >>> local = with_local_files(task, SAMPLES / "tickets")
        >>> local.train, Path(local.test).name
        ('', 'test.csv')
    """
    files_by_split = sources(task, folder)
    for split, files in files_by_split.items():
        if len(files) > 1:
            raise DataError(
                setting=f"files of the task {task.name}",
                got=folder,
                expected=f"one file for {split}",
                fix=f"there are {len(files)}, so pass the list that sources(task, folder) returns",
            )
    paths = {split: str(files_by_split[split][0]) if split in files_by_split else "" for split in SPLITS}
    return task.model_copy(update=paths)


def check_folder(folder: str | Path) -> Path:
    """The path of a data folder, if it exists.

    Example:
        >>> check_folder(SAMPLES).name
        'samples'
    """
    path = Path(folder)
    if not path.is_dir():
        raise DataError(setting="data folder", got=path, expected="an existing folder", fix="check the path")
    return path


def _read(path: Path, folder: Path) -> Task:
    """Read the task of a YAML file; its paths are relative to that folder."""
    values = _values(path)
    for split in SPLITS:
        if isinstance(source := values.get(split), str) and source and not source.startswith(HUB_PREFIX):
            values[split] = str((folder / source).absolute())
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
        raise _as_configuration_error(path, error) from error


def _values(path: Path) -> dict[str, Any]:
    """The keys and values of a YAML file."""
    try:
        with path.open("rb") as handle:
            text = handle.read(TEXT_LIMIT + 1).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            setting="task file", got=path, expected="a file of UTF-8 text that can be read", fix=str(error)
        ) from error
    try:
        values = parse_yaml(text)
    except ValueError as error:
        raise ConfigurationError(setting="task file", got=path, expected="valid YAML", fix=str(error)) from error
    if not isinstance(values, dict):
        raise ConfigurationError(
            setting="task file",
            got=path,
            expected="keys with values, such as `text: [message]`",
            fix="see docs/tasks.md",
        )
    return values


def _as_configuration_error(path: Path, error: ValidationError) -> ConfigurationError:
    """The first error of pydantic as an error that names file and key."""
    first = error.errors()[0]
    steps = first["loc"][:-2] if first["loc"][-1:] == ("[key]",) else first["loc"]  # the key is wrong, not its value
    key = ".".join(map(str, steps))
    setting = f"{path}, key '{key}'" if key else str(path)
    if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
        return ConfigurationError(
            setting=setting, got=key, expected="a key of a task", fix=near_matches(key, Task.model_fields)
        )
    expected = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    needs_text = first["type"] == "string_type"  # YAML reads yes, no, on, off and 1 as other types
    fix = "put yes, no, on, off and numbers that are text in quotes" if needs_text else "correct the file"
    return ConfigurationError(setting=setting, got=first["input"] if key else path.name, expected=expected, fix=fix)
