"""`softcue tasks lengths`: which pairs are measured, and the files that are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from softcue.tasks.pair_lengths import PairLengths
    from softcue.tasks.task import Task


def measure(
    names: Sequence[str], data: str | None, text: str, split: str, backbone: str, skip_bad_rows: bool
) -> list[PairLengths]:
    """The lengths of the pairs that a user names: of tasks, of a folder with files of tasks, or of a file."""
    from softcue.errors import ConfigurationError
    from softcue.tasks import Task, find_task
    from softcue.tasks.pair_lengths import count_words, pair_lengths

    is_file = data is not None and not Path(data).is_dir()
    if text and (names or not is_file):
        raise ConfigurationError(
            setting="--text", got=text, expected="a file in --data and no task", fix="a task knows its columns"
        )
    if text:
        columns = tuple(column.strip() for column in text.split(","))
        if len(columns) != 2 or not all(columns) or columns[0] == columns[1]:
            raise ConfigurationError(
                setting="--text", got=text, expected="two columns", fix="name them as --text first,second"
            )
        tasks = [Task(name=Path(str(data)).stem, text=columns)]
    elif is_file and len(names) != 1:
        raise ConfigurationError(
            setting="--data",
            got=data,
            expected="a file with --text FIRST,SECOND or with one task",
            fix="name its two text columns, or the task whose rows it has",
        )
    else:
        tasks = [find_task(name) for name in names] or _tasks_in(data)
    count, unit = (_token_counter(backbone), "tokens") if backbone else (count_words, "words")
    return [pair_lengths(task, data, split, count, unit, skip_bad_rows) for task in tasks]


def write_lengths(lengths: Sequence[PairLengths], folder: Path) -> None:
    """Write index.html, and lengths.png if matplotlib is installed."""
    from softcue.errors import MissingExtraError
    from softcue.files import convert_write_errors, write_atomically
    from softcue.inspection import length_page, length_picture

    files = {"index.html": length_page(lengths).encode()}
    try:
        files["lengths.png"] = length_picture(lengths)
    except MissingExtraError as error:
        typer.echo(f"the chart is on the page only: {error}", err=True)
    with convert_write_errors("output_dir", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_atomically(folder / name, content)


def _tasks_in(data: str | None) -> list[Task]:
    """The sentence-pair tasks with files in a data folder."""
    from softcue.errors import ConfigurationError
    from softcue.tasks import library_names, library_task
    from softcue.tasks.catalogue import match_files
    from softcue.tasks.pair_lengths import is_sentence_pair_task

    pair_tasks = [task for name in library_names() if is_sentence_pair_task(task := library_task(name))]
    present = [task for task in pair_tasks if data is not None and match_files(task, data)]
    if not present:
        all_names = ", ".join(task.name for task in pair_tasks)
        raise ConfigurationError(
            setting="--data",
            got=data or "",
            expected="a folder with files of pair tasks",
            fix=f"name tasks with rows of their own, or pass a folder with files of {all_names}",
        )
    return present


def _token_counter(backbone: str) -> Callable[[str], int]:
    """How many tokens the tokenizer of a backbone makes of a text, without special tokens."""
    from softcue.backbones import load_backbone

    tokenizer = load_backbone(backbone).tokenizer
    return lambda text: len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
