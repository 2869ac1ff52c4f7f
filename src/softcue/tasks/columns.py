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


def rename_columns(tasks: Sequence[Task], columns: Mapping[str, str]) -> list[Task]:
    """The tasks as they read a file with other column names; `columns` is {name in the file: name the task reads}.

    A name that no task reads is an error.

    Example:
        >>> [task] = rename_columns([Task(name="tickets")], {"message": "text", "team": "label"})
        >>> task.text, task.label
        (('message',), 'team')
    """
    read_names = {name for task in tasks for name in (*task.text, task.label)}
    for name, read_name in columns.items():
        if read_name not in read_names:
            raise ConfigurationError(
                setting="column",
                got=f"{name}={read_name}",
                expected="FILE=CUE with a column that the cue reads",
                fix=near_matches(read_name, read_names),
            )
    file_names = {read_name: name for name, read_name in columns.items()}
    return [
        task.model_copy(
            update={
                "text": tuple(file_names.get(name, name) for name in task.text),
                "label": file_names.get(task.label, task.label),
                # other names of a column do not count where the user has named it
                "columns": {name: others for name, others in task.columns.items() if name not in file_names},
            }
        )
        for task in tasks
    ]
