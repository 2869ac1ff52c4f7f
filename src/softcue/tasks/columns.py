"""Columns of a file under other names than a task reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from softcue.errors import ConfigurationError, near_matches
from softcue.tasks.task import Task


def parse_columns(words: Iterable[str]) -> dict[str, str]:
    """Parse words `FILE=CUE`: the name of a column in the file, and the name that the cue reads.

    Example:
        >>> parse_columns(["message=text", "team=label"])
        {'message': 'text', 'team': 'label'}
    """
    columns: dict[str, str] = {}
    for word in words:
        name, equals, read_name = word.partition("=")
        if not name or not equals or not read_name:
            raise ConfigurationError(
                setting="column",
                got=word,
                expected="FILE=CUE: the file's column and the cue's",
                fix="such as --column message=text",
            )
        if name in columns or read_name in columns.values():
            raise ConfigurationError(
                setting="column", got=word, expected="every column once", fix="leave out the second one"
            )
        columns[name] = read_name
    return columns


def rename_columns(tasks: Sequence[Task], columns: Mapping[str, str], needs_target: bool = True) -> list[Task]:
    """The tasks as they read a file with other column names; `columns` is {name in the file: name the task reads}.

    A name that no task reads is an error, and so is a column that a task would read twice. Without `needs_target` the
    column of the label is not read.

    Example:
        >>> [task] = rename_columns([Task(name="tickets")], {"message": "text", "team": "label"})
        >>> task.text, task.label
        (('message',), 'team')
    """
    read_names = {name for task in tasks for name in (*task.text, task.label)}
    for name, read_name in columns.items():
        if read_name not in read_names:
            is_reversed = name in read_names
            raise ConfigurationError(
                setting="column",
                got=f"{name}={read_name}",
                expected="FILE=CUE with a column that the cue reads",
                fix=f"it is the other way round: --column {read_name}={name}, the file's column first"
                if is_reversed
                else near_matches(read_name, read_names),
            )
    file_names = {read_name: name for name, read_name in columns.items()}
    for task in tasks:
        _check_read_once([*task.text, *([task.label] if needs_target else [])], columns)

    def in_file(name: str) -> str:
        return file_names.get(name, name)

    return [
        task.model_copy(
            update={
                "text": tuple(map(in_file, task.text)),
                "label": in_file(task.label),
                "may_be_empty": tuple(map(in_file, task.may_be_empty)),
                "where": {in_file(name): values for name, values in task.where.items()},
                "without": {in_file(name): values for name, values in task.without.items()},
                # other names of a column do not count where the user has named it
                "columns": {name: others for name, others in task.columns.items() if name not in file_names},
            }
        )
        for task in tasks
    ]


def _check_read_once(read_names: Sequence[str], columns: Mapping[str, str]) -> None:
    """Raise an error if two of the columns that a task reads would be the same column of the file."""
    for name, read_name in columns.items():
        if read_name in read_names and name in read_names and name not in columns.values():
            raise ConfigurationError(
                setting="column",
                got=f"{name}={read_name}",
                expected=f"no column that is read twice; the cue also reads '{name}'",
                fix=f"name the file's column for it too: --column NAME={name}",
            )
