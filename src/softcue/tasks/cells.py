"""Cells of a row, each checked: texts, labels, numbers, answers and spans. Every complaint names its place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from numbers import Integral, Number, Real

from softcue.errors import DataError, near_matches
from softcue.tasks.task import Task, check_unicode
from softcue.types import Span

Values = Mapping[str, object]


def target_column(row: Values, task: Task) -> str:
    """The column that holds the answer."""
    has_label = name_in(row, task.label, task) is not None
    usual = {"span": "answers", "tags": "spans"}.get(task.kind)
    if usual is not None:
        return task.label if has_label and name_in(row, usual, task) is None else usual
    # free text may be given as its list of right answers alone
    return "answers" if task.kind == "generation" and not has_label and has_answers(row, task) else task.label


def name_in(row: Values, column: str, task: Task) -> str | None:
    """The column, or the first of its other names that the row has."""
    return next((name for name in (column, *task.columns.get(column, ())) if name in row), None)


def cell(place: str, row: Values, column: str, task: Task) -> object:
    """The value of a column."""
    name = name_in(row, column, task)
    if name is None:
        known = near_matches(column, map(str, row))
        raise DataError(setting=f"{place}, column", got=column, expected="a column of the data", fix=known)
    return row[name]


def text_in(place: str, row: Values, column: str, task: Task) -> str:
    """The text of a column."""
    return task.check_text(f"{place}, column '{column}'", column, cell(place, row, column, task))


def target_in(place: str, row: Values, task: Task) -> str | float:
    """The label, number or text of the answer."""
    value = cell(place, row, task.label, task)
    where = f"{place}, column '{task.label}'"
    if task.kind == "regression":
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise DataError(
                setting=where, got=value, expected="a finite number", fix="fix the row, or set task.kind=classification"
            )
        return number
    text = check_unicode(where, label_text(value))
    if not text:
        raise DataError(setting=where, got=value, expected="a label", fix="fill it in or remove the row")
    return _known_label(where, text, task) if task.has_classes else text


def _known_label(where: str, text: str, task: Task) -> str:
    if not task.labels:
        return text
    label = task.label_of(text)
    if label is None:
        raise DataError(
            setting=where,
            got=text,
            expected="a label of the task or its training rows",
            fix=near_matches(text, task.labels),
        )
    return label


def label_text(value: object) -> str:
    """A label as text; empty for what is none: null, DataFrame gaps, lists and objects."""
    if type(value).__name__ in ("bool", "bool_"):  # Python's and numpy's
        return str(value).lower()
    if isinstance(value, Real) and not isinstance(value, Integral) and float(value).is_integer():
        value = int(float(value))  # a DataFrame column with gaps turns class numbers into floats
    is_plain = isinstance(value, str) or (isinstance(value, Number) and value == value)
    return str(value).strip() if is_plain else ""


def _list_in(value: object) -> list[object] | None:
    """A list cell, as files and DataFrames give it; None for anything else."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return list(value) if isinstance(value, (list, tuple)) else None


def _texts_in(where: str, items: Sequence[object]) -> tuple[str, ...]:
    for item in items:
        if not isinstance(item, str) or not item.strip():
            raise DataError(
                setting=where, got=item, expected="texts that are not empty", fix="fill it in or remove the row"
            )
    return tuple(check_unicode(where, str(item)) for item in items)


def options_in(place: str, row: Values) -> tuple[str, ...]:
    """The only answers a row allows, where its format says so."""
    return _texts_in(f"{place}, column 'options'", _list_in(row.get("options")) or [])


def has_answers(row: Values, task: Task) -> bool:
    """Whether a row lists right answers."""
    name = name_in(row, "answers", task)
    return name is not None and bool(_list_in(row[name]))


def answers_in(place: str, row: Values, task: Task) -> tuple[str, ...]:
    """All right answers of a row."""
    column = target_column(row, task) if task.kind == "span" else "answers"
    value = cell(place, row, column, task)
    where = f"{place}, column '{column}'"
    items = [value] if isinstance(value, str) else _list_in(value)
    if not items:
        raise DataError(setting=where, got=value, expected="at least one answer", fix="fill it in or remove the row")
    return _texts_in(where, items)


def answer_spans(place: str, row: Values, task: Task, answers: Sequence[str], text: str) -> tuple[Span, ...]:
    """Where the answers stand in the text; those that stand nowhere in it have the place -1, and no span."""
    name = name_in(row, "starts", task)
    starts = _list_in(row[name]) if name else [text.find(answer) for answer in answers]
    where = f"{place}, column 'starts'"
    if starts is None or len(starts) != len(answers):
        raise DataError(
            setting=where,
            got=starts,
            expected=f"a list of {len(answers)}, one place for every answer",
            fix="fix the row",
        )
    spans = []
    for answer, start in zip(answers, starts, strict=True):
        if not isinstance(start, int) or (start >= 0 and not text.startswith(answer, start)):
            raise DataError(
                setting=where, got=start, expected=f"the place of '{answer[:40]}' in the text, or -1", fix="fix the row"
            )
        if start >= 0:
            spans.append(Span(start, start + len(answer)))
    return tuple(spans)


def tags_in(place: str, row: Values, task: Task, text: str) -> tuple[Span, ...]:
    """The marked spans of a row."""
    column = target_column(row, task)
    where, value = f"{place}, column '{column}'", cell(place, row, column, task)
    items = _list_in(value)
    if items is None:
        raise DataError(setting=where, got=value, expected="a list of [start, end, label]", fix="fix the row")
    spans = sorted(_tag(where, item, task, len(text)) for item in items)
    for one, other in pairwise(spans):
        if other.start < one.end:
            raise DataError(
                setting=where,
                got=f"{one.start} to {one.end} and {other.start} to {other.end}",
                expected="spans that do not overlap",
                fix="fix the row",
            )
    return tuple(spans)


def _tag(where: str, item: object, task: Task, length: int) -> Span:
    parts = [item.get(key) for key in ("start", "end", "label")] if isinstance(item, Mapping) else _list_in(item)
    match parts:
        case [int(start), int(end), str(label)] if 0 <= start < end <= length and label:
            return Span(start, end, _known_label(where, label, task))
    raise DataError(
        setting=where,
        got=item,
        expected=f"[start, end, label] inside the text of {length} characters",
        fix="fix the row",
    )
