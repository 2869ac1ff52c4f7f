"""Rows to Examples: every cell checked, every complaint with its file and line."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from softcue.errors import ConfigurationError, DataError, near_matches
from softcue.tasks.cells import (
    Values,
    answer_spans,
    answers_in,
    cell,
    has_answers,
    label_text,
    name_in,
    options_in,
    tags_in,
    target_column,
    target_in,
    text_in,
)
from softcue.tasks.readers import Source, name_of, read_rows
from softcue.tasks.task import Label, Task
from softcue.types import Example, Span

SHOWN_BAD_ROWS = 10
Good = TypeVar("Good")


def examples_from(source: Source, task: Task, needs_target: bool = True, skip_bad_rows: bool = False) -> list[Example]:
    """The examples of a source, all checked; the task's own labels limit the targets when it has any.

    All bad rows are told at once. To skip them is the caller's choice, and warned about.

    Example:
        >>> task = Task(name="toy", labels={"a": Label(words="a"), "b": Label(words="b")})
        >>> examples_from([{"text": "hello", "label": "a"}], task)[0].target
        'a'
    """
    bad = _BadRows(source)
    examples = list(bad.left_out(_only(_checked(source, [task], needs_target)), stops=False))
    if not skip_bad_rows:
        bad.refuse()
    bad.warn()
    return examples


def stream_examples(
    source: Source, task: Task, needs_target: bool = True, skip_bad_rows: bool = False
) -> Iterator[Example]:
    """The same examples one by one, in little memory; the first bad row ends them, unless such rows are skipped.

    Example:
        >>> rows = [{"text": "hello", "label": "a"}, {"text": "bye", "label": "b"}]
        >>> [example.target for example in stream_examples(rows, Task(name="toy"))]
        ['a', 'b']
    """
    bad = _BadRows(source)
    yield from bad.left_out(_only(_checked(source, [task], needs_target)), stops=not skip_bad_rows)
    bad.warn()


def stream_together(
    source: Source, tasks: Sequence[Task], skip_bad_rows: bool = False
) -> Iterator[tuple[Example, ...]]:
    """Each row as every task reads it, without answers and in little memory; a row that is bad for one is bad for all.

    All rows are checked before the first one comes.

    Example:
        >>> rows = [{"text": "hello", "message": "hi"}]
        >>> [[row.texts[0] for row in found]
        ...  for found in stream_together(rows, [Task(name="a"), Task(name="b", text=("message",))])]
        [['hello', 'hi']]
    """
    formats = {task.format for task in tasks}
    if len(formats) > 1:
        raise ConfigurationError(
            setting="cues",
            got=", ".join(sorted(map(repr, formats))),
            expected="tasks whose files are laid out alike",
            fix="answer with one cue at a time",
        )
    if not skip_bad_rows:
        checked = _BadRows(source)
        for _ in checked.left_out(_checked(source, tasks, needs_target=False), stops=False):
            pass
        checked.refuse()
    bad = _BadRows(source)
    yield from bad.left_out(_checked(source, tasks, needs_target=False), stops=False)
    bad.warn()


def with_labels(
    task: Task, examples: Sequence[Example], words: Mapping[str, str], descriptions: Mapping[str, str] | None = None
) -> Task:
    """The task with the labels its training rows show, in sorted order, and the user's words and sentences for them.

    Example:
        >>> rows = [Example(("great film",), "1"), Example(("dull film",), "0")]
        >>> task = with_labels(Task(name="films"), rows, {"0": "bad"}, {"0": "The film is not worth seeing."})
        >>> task.labels["0"].words, task.labels["0"].description
        ('bad', 'The film is not worth seeing.')
    """
    is_tagging = task.kind == "tags"
    targets = (
        (span.label for example in examples for span in example.spans)
        if is_tagging
        else (str(example.target) for example in examples)
    )
    found = sorted(set(targets))
    labels = dict(task.labels) or {name: Label(words=name, description="") for name in found}
    for key, values in {"words": words, "description": descriptions or {}}.items():
        setting = {"words": "task.label_words", "description": "task.label_descriptions"}[key]
        for name, value in values.items():
            if name not in labels:
                raise DataError(
                    setting=setting, got=name, expected="a label of the training rows", fix=near_matches(name, labels)
                )
            labels[name] = labels[name].model_copy(update={key: value})
    if is_tagging and not found:
        raise DataError(
            setting="column 'spans'", got="no span", expected="at least one in training", fix="check the column"
        )
    if not is_tagging and len(found) < 2:
        raise DataError(
            setting=f"label column '{task.label}'",
            got=", ".join(found),
            expected="at least two classes in training",
            fix="check the column, or set task.kind=regression or generation",
        )
    return task.model_copy(update={"labels": labels})


class _BadRows:
    """The rows that cannot be used: how many, and the first of them, so that memory stays bounded."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._errors: list[DataError] = []
        self._num_bad = 0
        self._num_rows = 0

    def left_out(self, rows: Iterator[Good | DataError], stops: bool) -> Iterator[Good]:
        """The good rows; the bad ones are noted, or the first of them is raised."""
        for row in rows:
            self._num_rows += 1
            if not isinstance(row, DataError):
                yield row
                continue
            if stops:
                raise row
            self._num_bad += 1
            if self._num_bad <= SHOWN_BAD_ROWS:
                self._errors.append(row)
        if not self._num_rows:
            raise DataError(
                setting="data",
                got=name_of(self._source),
                expected="at least one row below the header",
                fix="check the file",
            )

    def refuse(self) -> None:
        if self._num_bad == 1:
            raise self._errors[0]
        if self._num_bad:
            raise DataError(
                setting="data",
                got=name_of(self._source),
                expected="no bad rows",
                fix=f"{self._list()}; fix them, or leave them out with `skip_bad_rows=True`",
            )

    def warn(self) -> None:
        if self._num_bad == self._num_rows:
            raise DataError(
                setting="data",
                got=name_of(self._source),
                expected="at least one row that is not bad",
                fix=f"{self._list()}; fix them",
            )
        if self._num_bad:
            message = f"skipped {self._num_bad} of {self._num_rows} rows: {'; '.join(map(_reason, self._errors))}"
            warnings.warn(message + ("; ..." if self._num_bad > SHOWN_BAD_ROWS else ""), stacklevel=3)

    def _list(self) -> str:
        shown = "; ".join(map(_reason, self._errors))
        first = f"; the first {SHOWN_BAD_ROWS}" if self._num_bad > SHOWN_BAD_ROWS else ""
        return f"{self._num_bad} bad row{'s' if self._num_bad > 1 else ''}{first}: {shown}"


def _reason(error: DataError) -> str:
    return str(error).removesuffix(f"; {error.fix}").replace("; expected ", ", expected ")


def _only(rows: Iterator[tuple[Example, ...] | DataError]) -> Iterator[Example | DataError]:
    return (row if isinstance(row, DataError) else row[0] for row in rows)


def _checked(source: Source, tasks: Sequence[Task], needs_target: bool) -> Iterator[tuple[Example, ...] | DataError]:
    """Every row that the tasks want, as an example for each or as what is wrong with it."""
    is_first = True
    for place, row in read_rows(source, tasks[0].format):
        if isinstance(row, DataError):
            yield row
            continue
        if is_first:  # a column that is missing here is most likely missing everywhere
            for task in tasks:
                _check_columns(place, row, task, needs_target)
            is_first = False
        # What is to be answered is answered: which rows a task learns from is no matter then.
        if needs_target and not all(_is_wanted(row, task) for task in tasks):
            continue
        try:
            yield tuple(_example(place, row, task, needs_target) for task in tasks)
        except DataError as error:
            yield error


def _check_columns(place: str, row: Values, task: Task, needs_target: bool) -> None:
    for column in (*task.text, *([target_column(row, task)] if needs_target else [])):
        cell(place, row, column, task)


def _is_wanted(row: Values, task: Task) -> bool:
    def has(column: str, values: Sequence[str], if_missing: bool) -> bool:
        name = name_in(row, column, task)
        return if_missing if name is None else (label_text(row[name]) or str(row[name])) in values

    is_in = all(has(column, values, if_missing=True) for column, values in task.where.items())
    return is_in and not any(has(column, values, if_missing=False) for column, values in task.without.items())


def _example(place: str, row: Values, task: Task, needs_target: bool) -> Example:
    texts = tuple(text_in(place, row, column, task) for column in task.text)
    target: str | float | None = None
    answers: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()
    if needs_target and task.kind == "tags":
        spans = tags_in(place, row, task, texts[-1])
    elif needs_target and task.kind == "span":
        answers = answers_in(place, row, task)
        target, spans = answers[0], answer_spans(place, row, task, answers, texts[-1])
    elif needs_target:
        answers = answers_in(place, row, task) if task.kind == "generation" and has_answers(row, task) else ()
        target = answers[0] if target_column(row, task) == "answers" else target_in(place, row, task)
    if not task.format:  # columns of these names in a user's own file are the user's own
        return Example(texts, target, answers, spans)
    return Example(texts, target, answers, spans, label_text(row.get("group")), options_in(place, row))
