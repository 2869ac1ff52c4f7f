"""Rows to Examples: every cell checked, every complaint with its file and line."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from numbers import Integral, Number, Real

from softcue.errors import DataError, near_matches
from softcue.tasks.readers import Source, name_of, read_rows
from softcue.tasks.task import Label, Task
from softcue.types import Example, Span

SHOWN_BAD_ROWS = 10
Values = Mapping[str, object]


def examples_from(source: Source, task: Task, needs_target: bool = True, skip_bad_rows: bool = False) -> list[Example]:
    """The examples of a source, all checked; the task's own labels limit the targets when it has any.

    All bad rows are told at once. To skip them is the caller's choice, and warned about.

    Example:
        >>> task = Task(name="toy", labels={"a": Label(words="a"), "b": Label(words="b")})
        >>> examples_from([{"text": "hello", "label": "a"}], task)[0].target
        'a'
    """
    bad = _BadRows(source)
    examples = list(bad.left_out(_checked(source, task, needs_target), stops=False))
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
    yield from bad.left_out(_checked(source, task, needs_target), stops=not skip_bad_rows)
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
    targets = (span.label for example in examples for span in example.spans) if is_tagging else (
        str(example.target) for example in examples
    )  # fmt: skip
    found = sorted(set(targets))
    labels = dict(task.labels) or {name: Label(words=name, description="") for name in found}
    for key, values in {"words": words, "description": descriptions or {}}.items():
        setting = {"words": "task.label_words", "description": "task.label_descriptions"}[key]
        for name, value in values.items():
            if name not in labels:
                raise DataError(setting, name, "a label of the training rows", near_matches(name, labels))
            labels[name] = labels[name].model_copy(update={key: value})
    if is_tagging and not found:
        raise DataError("column 'spans'", "no span", "at least one in training", "check the column")
    if not is_tagging and len(found) < 2:
        raise DataError(f"label column '{task.label}'", ", ".join(found), "at least two classes in training",
                        "check the column, or set task.kind=regression or generation")  # fmt: skip
    return task.model_copy(update={"labels": labels})


class _BadRows:
    """The rows that cannot be used: how many, and the first of them, so that memory stays bounded."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._errors: list[DataError] = []
        self._num_bad = 0
        self._num_rows = 0

    def left_out(self, rows: Iterator[Example | DataError], stops: bool) -> Iterator[Example]:
        """The good rows; the bad ones are noted, or the first of them is raised."""
        for row in rows:
            self._num_rows += 1
            if isinstance(row, Example):
                yield row
                continue
            if stops:
                raise row
            self._num_bad += 1
            if self._num_bad <= SHOWN_BAD_ROWS:
                self._errors.append(row)
        if not self._num_rows:
            raise DataError("data", name_of(self._source), "at least one row below the header", "check the file")

    def refuse(self) -> None:
        if self._num_bad == 1:
            raise self._errors[0]
        if self._num_bad:
            raise DataError("data", name_of(self._source), "no bad rows",
                            f"{self._list()}; fix them, or leave them out with --skip-bad-rows")  # fmt: skip

    def warn(self) -> None:
        if self._num_bad == self._num_rows:
            raise DataError("data", name_of(self._source), "at least one row that is not bad",
                            f"{self._list()}; fix them")  # fmt: skip
        if self._num_bad:
            message = f"skipped {self._num_bad} of {self._num_rows} rows: {'; '.join(map(_reason, self._errors))}"
            warnings.warn(message + ("; ..." if self._num_bad > SHOWN_BAD_ROWS else ""), stacklevel=3)

    def _list(self) -> str:
        shown = "; ".join(map(_reason, self._errors))
        first = f"; the first {SHOWN_BAD_ROWS}" if self._num_bad > SHOWN_BAD_ROWS else ""
        return f"{self._num_bad} bad row{'s' if self._num_bad > 1 else ''}{first}: {shown}"


def _reason(error: DataError) -> str:
    return str(error).removesuffix(f"; {error.next_step}").replace("; expected ", ", expected ")


def _checked(source: Source, task: Task, needs_target: bool) -> Iterator[Example | DataError]:
    """Every row that the task wants, as an example or as what is wrong with it."""
    is_first = True
    for place, row in read_rows(source, task.format):
        if isinstance(row, DataError):
            yield row
            continue
        if is_first:  # a column that is missing here is most likely missing everywhere
            _check_columns(place, row, task, needs_target)
            is_first = False
        if not _is_wanted(row, task):
            continue
        try:
            yield _example(place, row, task, needs_target)
        except DataError as error:
            yield error


def _check_columns(place: str, row: Values, task: Task, needs_target: bool) -> None:
    for column in (*task.text, *([_target_column(row, task)] if needs_target else [])):
        _cell(place, row, column, task)


def _target_column(row: Values, task: Task) -> str:
    has_label = _name_in(row, task.label, task) is not None
    usual = {"span": "answers", "tags": "spans"}.get(task.kind)
    if usual is not None:
        return task.label if has_label and _name_in(row, usual, task) is None else usual
    # free text may be given as its list of right answers alone
    return "answers" if task.kind == "generation" and not has_label and _has_answers(row, task) else task.label


def _is_wanted(row: Values, task: Task) -> bool:
    names = ((_name_in(row, column, task), values) for column, values in task.where.items())
    return all(name is None or (_label_text(row[name]) or str(row[name])) in values for name, values in names)


def _example(place: str, row: Values, task: Task, needs_target: bool) -> Example:
    texts = tuple(_text(place, row, column, task) for column in task.text)
    target: str | float | None = None
    answers: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()
    if needs_target and task.kind == "tags":
        spans = _tags(place, row, task, texts[-1])
    elif needs_target and task.kind == "span":
        answers = _answers(place, row, task)
        target, spans = answers[0], _answer_spans(place, row, task, answers, texts[-1])
    elif needs_target:
        answers = _answers(place, row, task) if task.kind == "generation" and _has_answers(row, task) else ()
        target = answers[0] if _target_column(row, task) == "answers" else _target(place, row, task)
    return Example(texts, target, answers, spans, _label_text(row.get("group")), _options(place, row))


def _name_in(row: Values, column: str, task: Task) -> str | None:
    """The column, or the first of its other names that the row has."""
    return next((name for name in (column, *task.columns.get(column, ())) if name in row), None)


def _cell(place: str, row: Values, column: str, task: Task) -> object:
    name = _name_in(row, column, task)
    if name is None:
        known = near_matches(column, map(str, row))
        raise DataError(f"{place}, column", column, "a column of the data", known)
    return row[name]


def _text(place: str, row: Values, column: str, task: Task) -> str:
    value = _cell(place, row, column, task)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{place}, column '{column}'", value, "a text that is not empty",
                        "fill it in or remove the row")  # fmt: skip
    return _whole_characters(f"{place}, column '{column}'", value)


def _whole_characters(where: str, value: str) -> str:
    """The text, if it can be written as UTF-8: a JSON escape can hold half of a character."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(where, repr(value[:40]), "text without lone surrogates",
                        "repair the escape sequence") from error  # fmt: skip
    return value


def _target(place: str, row: Values, task: Task) -> str | float:
    value = _cell(place, row, task.label, task)
    where = f"{place}, column '{task.label}'"
    if task.kind == "regression":
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise DataError(where, value, "a finite number", "fix the row, or set task.kind=classification")
        return number
    text = _whole_characters(where, _label_text(value))
    if not text:
        raise DataError(where, value, "a label", "fill it in or remove the row")
    return _known_label(where, text, task) if task.has_classes else text


def _known_label(where: str, text: str, task: Task) -> str:
    if not task.labels:
        return text
    label = task.label_of(text)
    if label is None:
        raise DataError(where, text, "a label of the task or its training rows", near_matches(text, task.labels))
    return label


def _label_text(value: object) -> str:
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
            raise DataError(where, item, "texts that are not empty", "fill it in or remove the row")
    return tuple(_whole_characters(where, str(item)) for item in items)


def _options(place: str, row: Values) -> tuple[str, ...]:
    # a column of that name that holds no list is the user's own
    return _texts_in(f"{place}, column 'options'", _list_in(row.get("options")) or [])


def _has_answers(row: Values, task: Task) -> bool:
    name = _name_in(row, "answers", task)
    return name is not None and bool(_list_in(row[name]))


def _answers(place: str, row: Values, task: Task) -> tuple[str, ...]:
    column = _target_column(row, task) if task.kind == "span" else "answers"
    value = _cell(place, row, column, task)
    where = f"{place}, column '{column}'"
    items = [value] if isinstance(value, str) else _list_in(value)
    if not items:
        raise DataError(where, value, "at least one answer", "fill it in or remove the row")
    return _texts_in(where, items)


def _answer_spans(place: str, row: Values, task: Task, answers: Sequence[str], text: str) -> tuple[Span, ...]:
    """Where the answers stand in the text; those that stand nowhere in it have the place -1, and no span."""
    name = _name_in(row, "starts", task)
    starts = _list_in(row[name]) if name else [text.find(answer) for answer in answers]
    where = f"{place}, column 'starts'"
    if starts is None or len(starts) != len(answers):
        raise DataError(where, starts, f"a list of {len(answers)}, one place for every answer", "fix the row")
    spans = []
    for answer, start in zip(answers, starts, strict=True):
        if not isinstance(start, int) or (start >= 0 and not text.startswith(answer, start)):
            raise DataError(where, start, f"the place of '{answer[:40]}' in the text, or -1", "fix the row")
        if start >= 0:
            spans.append(Span(start, start + len(answer)))
    return tuple(spans)


def _tags(place: str, row: Values, task: Task, text: str) -> tuple[Span, ...]:
    column = _target_column(row, task)
    where, value = f"{place}, column '{column}'", _cell(place, row, column, task)
    items = _list_in(value)
    if items is None:
        raise DataError(where, value, "a list of [start, end, label]", "fix the row")
    spans = sorted(_tag(where, item, task, len(text)) for item in items)
    for one, other in pairwise(spans):
        if other.start < one.end:
            raise DataError(where, f"{one.start} to {one.end} and {other.start} to {other.end}",
                            "spans that do not overlap", "fix the row")  # fmt: skip
    return tuple(spans)


def _tag(where: str, item: object, task: Task, length: int) -> Span:
    parts = [item.get(key) for key in ("start", "end", "label")] if isinstance(item, Mapping) else _list_in(item)
    match parts:
        case [int(start), int(end), str(label)] if 0 <= start < end <= length and label:
            return Span(start, end, _known_label(where, label, task))
    raise DataError(where, item, f"[start, end, label] inside the text of {length} characters", "fix the row")
