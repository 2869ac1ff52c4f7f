"""Rows to checked Examples. Every error names the file and the line, or the number of the row."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from typing import TypeVar

from softcue.errors import ConfigurationError, DataError, near_matches
from softcue.tasks.formats.records import missing_key_error
from softcue.tasks.label_column import LabelColumn, cell_text, is_gap, is_number, labels_in, list_in, written_list
from softcue.tasks.readers import ClassId, Dataset, Source, has_header, name_of, read_rows
from softcue.tasks.task import Label, Task, check_unicode, is_plain_text
from softcue.types import Example, Span

MAX_SHOWN_ERRORS = 10
KEPT_BYTES = 1 << 24  # of checked rows that are kept, so that a small source is read once
EXAMPLE_BYTES = 512  # of an example besides its texts, about
MULTI_LABEL_HINT = "`multi_label=True` allows rows without a label"
Values = Mapping[str, object]
Good = TypeVar("Good")
Collected = TypeVar("Collected", bound=Sequence[Example])


def examples_from(
    source: Source,
    task: Task,
    needs_target: bool = True,
    skip_bad_rows: bool = False,
    setting: str = "data",
) -> list[Example]:
    """Read and check all examples of a source. Where the task lists labels, a target must be one of them.

    One error reports all bad rows; it begins with `setting`, the setting that names the source. With `skip_bad_rows`
    they are left out, and a warning reports them.

    Example:
        >>> task = Task(name="toy", labels={"a": Label(words="a"), "b": Label(words="b")})
        >>> examples_from([{"text": "hello", "label": "a"}], task)[0].target
        'a'
    """
    return collect_examples(source, task, list, needs_target, skip_bad_rows, setting=setting)


def collect_examples(
    source: Source,
    task: Task,
    collect: Callable[[Iterator[Example]], Collected],
    needs_target: bool = True,
    skip_bad_rows: bool = False,
    label_column: LabelColumn | None = None,
    setting: str = "data",
) -> Collected:
    """Read and check all examples, as `examples_from`; `collect` makes a sequence of them: a list, or one in a file.

    The labels of the good rows are recorded in `label_column`.

    Example:
        >>> collect_examples([{"text": "hello", "label": "a"}], Task(name="toy"), tuple)[0].target
        'a'
    """
    bad_rows = _BadRows(source, setting)
    rows = _first_examples(_check_rows(source, [task], needs_target, label_column))
    examples = collect(bad_rows.filter_out(rows, stop_at_first=False))
    if not skip_bad_rows:
        bad_rows.raise_error()
    bad_rows.warn()
    return examples


def stream_examples(
    source: Source, task: Task, needs_target: bool = True, skip_bad_rows: bool = False, setting: str = "data"
) -> Iterator[Example]:
    """Yield the same examples one by one, in little memory. The first bad row raises, unless bad rows are skipped.

    Example:
        >>> rows = [{"text": "hello", "label": "a"}, {"text": "bye", "label": "b"}]
        >>> [example.target for example in stream_examples(rows, Task(name="toy"))]
        ['a', 'b']
    """
    bad_rows = _BadRows(source, setting)
    rows = _first_examples(_check_rows(source, [task], needs_target))
    yield from bad_rows.filter_out(rows, stop_at_first=not skip_bad_rows)
    bad_rows.warn()


def stream_together(
    source: Source, tasks: Sequence[Task], skip_bad_rows: bool = False, setting: str = "data"
) -> Iterator[tuple[Example, ...]]:
    """Yield each row as one example per task, without targets, in little memory.

    A row that is bad for one task is bad for all. All rows are checked before the first one is yielded, except those of
    an iterator, which can be read only once: there the first bad row raises when it is reached. A source of many rows
    is read twice: they are not all kept in memory.

    Example:
        >>> rows = [{"text": "hello", "message": "hi"}]
        >>> tasks = [Task(name="a"), Task(name="b", text=("message",))]
        >>> [[example.texts[0] for example in examples] for examples in stream_together(rows, tasks)]
        [['hello', 'hi']]
    """
    formats = {task.format for task in tasks}
    if len(formats) > 1:
        raise ConfigurationError(
            setting="cues",
            got=", ".join(sorted(map(repr, formats))),
            expected="tasks whose files have the same format",
            fix="predict with one cue at a time",
        )
    is_read_once = isinstance(source, Iterator)
    if not skip_bad_rows and not is_read_once:
        first_pass = _BadRows(source, setting)
        good_rows = first_pass.filter_out(_check_rows(source, tasks, needs_target=False), stop_at_first=False)
        kept = _keep_if_small(good_rows)
        first_pass.raise_error()
        if kept is not None:
            yield from kept
            return
    bad_rows = _BadRows(source, setting)
    rows = _check_rows(source, tasks, needs_target=False)
    yield from bad_rows.filter_out(rows, stop_at_first=is_read_once and not skip_bad_rows)
    bad_rows.warn()


def _keep_if_small(rows: Iterator[tuple[Example, ...]]) -> list[tuple[Example, ...]] | None:
    """All rows, if they need little memory; else None. They are read to the end in any case."""
    kept: list[tuple[Example, ...]] = []
    num_bytes = 0
    for row in rows:
        num_bytes += sum([EXAMPLE_BYTES + sum(map(len, example.texts)) for example in row])
        if num_bytes <= KEPT_BYTES:
            kept.append(row)
        elif kept:
            kept = []
    return kept if num_bytes <= KEPT_BYTES else None


def has_targets(dataset: Dataset, task: Task) -> bool:
    """Whether the rows of a published split have targets: hidden ones are class -1, or there is no column for them."""
    if task.format or task.kind not in ("classification", "multi-label", "regression"):
        return True
    first: Values = next(iter(dataset.with_format(None)), {})
    column = _find_column(first, task.label, task)
    if column is None:
        return False
    is_class = hasattr((dataset.features or {}).get(column), "int2str")
    return not (is_class and first[column] == -1)


def holds_label_lists(source: Source, task: Task) -> bool:
    """Whether the label column of a user's rows holds lists, so that a row has a set of labels. The first one says it.

    Lists that are written as JSON, as in a csv file, count if all cells of the column that are not empty hold one.

    Example:
        >>> holds_label_lists([{"text": "hello", "label": ["greeting", "short"]}], Task(name="toy"))
        True
        >>> rows = [{"text": "hello", "label": '["greeting"]'}, {"text": "ho", "label": "short"}]
        >>> holds_label_lists(rows, Task(name="toy"))
        False
    """
    has_written_lists = False
    for _, row in read_rows(source, task.format):
        if isinstance(row, DataError):
            continue
        column = _find_column(row, task.label, task)
        value = "" if column is None else row[column]
        if column is None or list_in(value) is not None:
            return column is not None
        if is_gap(value) or value == "":
            continue
        if not isinstance(value, str) or written_list(value) is None:
            return False
        has_written_lists = True
    return has_written_lists


def with_labels(
    task: Task,
    examples: Sequence[Example],
    words: Mapping[str, str],
    descriptions: Mapping[str, str] | None = None,
    class_names: Mapping[str, str] | None = None,
) -> Task:
    """The task with the labels of its training rows, in sorted order, and the user's words and descriptions for them.

    Names of classes (`datasets.ClassLabel`) are the words of labels that the user gives none for.

    Example:
        >>> rows = [Example(("great film",), "1"), Example(("dull film",), "0")]
        >>> task = with_labels(Task(name="films"), rows, {"0": "bad"}, {"0": "The film is not worth seeing."})
        >>> task.labels["0"].words, task.labels["0"].description
        ('bad', 'The film is not worth seeing.')
    """
    names = sorted({name for example in examples for name in task.labels_of(example)})
    if task.label_type in ("integer", "float"):
        names.sort(key=float)
    all_names = set(names)
    labels = dict(task.labels) or {name: _new_label(name, all_names, class_names or {}) for name in names}
    labelled = task.model_copy(update={"labels": dict(labels)})
    for key, values in {"words": words, "description": descriptions or {}}.items():
        setting = {"words": "task.label_words", "description": "task.label_descriptions"}[key]
        for given, value in values.items():
            name = labelled.label_of(given)
            if name is None:
                raise DataError(
                    setting=setting, got=given, expected="a label of the training rows", fix=near_matches(given, labels)
                )
            labels[name] = labels[name].model_copy(update={key: value})
    if task.kind == "tags" and not names:
        raise DataError(
            setting="column 'spans'", got="no span", expected="at least one in training", fix="check the column"
        )
    if len(names) < task.min_labels:
        raise DataError(
            setting=f"label column '{task.label}'",
            got=", ".join(names),
            expected="at least two classes in training" if task.has_classes else "at least one label in training",
            fix="check the column" + (f", or set task.kind={kinds_for(names)}" if task.has_classes else ""),
        )
    return task.model_copy(update={"labels": labels})


def kinds_for(labels: Iterable[str]) -> str:
    """The kinds of tasks, besides classification, that rows with these labels may be meant for.

    Example:
        >>> kinds_for(["1", "2.5"]), kinds_for(["billing"])
        ('regression or generation', 'generation')
    """
    return "regression or generation" if all(map(is_number, labels)) else "generation"


def _new_label(name: str, names: AbstractSet[str], class_names: Mapping[str, str]) -> Label:
    """A label of the training rows. The name of its class also stands for it in other files, if it is no label."""
    class_name = class_names.get(name, name)
    return Label(words=class_name, description="", also=() if class_name in names else (class_name,))


class _BadRows:
    """The bad rows of a source: their number and the first errors. The rest is not kept, so memory stays bounded.

    `setting` is what the user named the source by, such as `train`.
    """

    def __init__(self, source: Source, setting: str) -> None:
        self._source, self._setting = source, setting
        self._errors: list[DataError] = []
        self._num_bad = 0
        self._num_rows = 0

    def filter_out(self, rows: Iterator[Good | DataError], stop_at_first: bool) -> Iterator[Good]:
        """Yield the good rows. Bad rows are counted, or the first of them is raised."""
        for row in rows:
            self._num_rows += 1
            if not isinstance(row, DataError):
                yield row
                continue
            if stop_at_first:
                raise row
            self._num_bad += 1
            if self._num_bad <= MAX_SHOWN_ERRORS:
                self._errors.append(row)
        if not self._num_rows:
            raise DataError(
                setting=self._setting,
                got=name_of(self._source),
                expected="at least one row below the header",
                fix="check the file",
            )

    def raise_error(self) -> None:
        """Raise one error for all bad rows, if there are any."""
        if self._num_bad == 1:
            raise self._errors[0]
        if self._num_bad:
            raise DataError(
                setting=self._setting,
                got=name_of(self._source),
                expected="no bad rows",
                fix=f"{self._summary()}; fix them{self._hint()}, or leave them out with `skip_bad_rows=True`",
                details=self._reasons(),
            )

    def warn(self) -> None:
        """Warn about the skipped rows, if there are any. A source without a good row is an error."""
        if self._num_bad == self._num_rows:
            raise DataError(
                setting=self._setting,
                got=name_of(self._source),
                expected="at least one row that is not bad",
                fix=f"{self._summary()}; fix them{self._hint()}",
                details=self._reasons(),
            )
        if self._num_bad:
            shown = "; the first are" if self._num_bad > MAX_SHOWN_ERRORS else ""
            message = "\n  ".join([f"skipped {self._num_bad} of {self._num_rows} rows{shown}:", *self._reasons()])
            warnings.warn(message, stacklevel=3)

    def _summary(self) -> str:
        first = f", of which these are the first {MAX_SHOWN_ERRORS}" if self._num_bad > MAX_SHOWN_ERRORS else ""
        return f"{self._num_bad} bad row{'s' if self._num_bad > 1 else ''}{first}"

    def _hint(self) -> str:
        """What all shown rows have in common beside that they are bad, if it may be meant."""
        return f" ({MULTI_LABEL_HINT})" if any(error.fix.endswith(MULTI_LABEL_HINT) for error in self._errors) else ""

    def _reasons(self) -> list[str]:
        return [error.headline.removesuffix(f"; {error.fix}") for error in self._errors]


# --- rows to examples ---


def _first_examples(rows: Iterator[tuple[Example, ...] | DataError]) -> Iterator[Example | DataError]:
    return (row if isinstance(row, DataError) else row[0] for row in rows)


def _check_rows(
    source: Source, tasks: Sequence[Task], needs_target: bool, label_column: LabelColumn | None = None
) -> Iterator[tuple[Example, ...] | DataError]:
    """Yield every row that the tasks select, as one example per task, or the error of the row."""
    is_first = True
    for location, row in read_rows(source, tasks[0].format):
        if isinstance(row, DataError):
            yield row
            continue
        if is_first:  # a column that is missing here is most likely missing everywhere
            for task in tasks:
                _check_columns(name_of(source) if has_header(source) else location, row, task, needs_target)
            is_first = False
        # `where` and `without` choose the rows to train and score on. A prediction is made for every row.
        if needs_target and not all(_is_selected(row, task) for task in tasks):
            continue
        try:
            examples = tuple([_example(location, row, task, needs_target) for task in tasks])
        except DataError as error:
            yield error
            continue
        if label_column is not None:
            for value in labels_in(_cell(location, row, label_column.name, tasks[0]), tasks[0]):
                label_column.add(location, value)
        yield examples


def _check_columns(location: str, row: Values, task: Task, needs_target: bool) -> None:
    for column in (*task.text, *([_target_column(row, task)] if needs_target else [])):
        _cell(location, row, column, task)


def _is_selected(row: Values, task: Task) -> bool:
    """Whether a row passes the task's `where` and `without`."""

    def has(column: str, values: Sequence[str], if_missing: bool) -> bool:
        name = _find_column(row, column, task)
        return if_missing if name is None else (cell_text(row[name]) or str(row[name])) in values

    is_included = all(has(column, values, if_missing=True) for column, values in task.where.items())
    return is_included and not any(has(column, values, if_missing=False) for column, values in task.without.items())


def _example(location: str, row: Values, task: Task, needs_target: bool) -> Example:
    texts = tuple([_text(location, row, column, task) for column in task.text])
    if not needs_target and not task.format:
        return Example(texts)
    target: str | float | None = None
    answers: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()
    if needs_target and task.kind == "multi-label":
        return Example(texts, labels=_label_set(location, row, task))
    if needs_target and task.kind == "tags":
        spans = _tag_spans(location, row, task, texts[-1])
    elif needs_target and task.kind == "span":
        answers = _answers(location, row, task)
        target, spans = answers[0], _answer_spans(location, row, task, answers, texts[-1])
    elif needs_target:
        answers = _answers(location, row, task) if task.kind == "generation" and _has_answers(row, task) else ()
        target = answers[0] if _target_column(row, task) == "answers" else _target(location, row, task)
    if not task.format:  # in a user's file, columns called `group` and `options` have no special meaning
        return Example(texts, target, answers, spans)
    return Example(texts, target, answers, spans, cell_text(row.get("group")), _options(location, row))


# --- the cells of a row ---


def _target_column(row: Values, task: Task) -> str:
    """The column that holds the target."""
    has_label = _find_column(row, task.label, task) is not None
    usual = {"span": "answers", "tags": "spans"}.get(task.kind)
    if usual is not None:
        return task.label if has_label and _find_column(row, usual, task) is None else usual
    # Free text may be given as a list of correct answers alone.
    return "answers" if task.kind == "generation" and not has_label and _has_answers(row, task) else task.label


def _find_column(row: Values, column: str, task: Task) -> str | None:
    """The name a column has in the row: its own, or the first of its other names."""
    if column in row:
        return column
    return next((name for name in task.columns.get(column, ()) if name in row), None)


def _cell(location: str, row: Values, column: str, task: Task) -> object:
    """The value of a column."""
    name = _find_column(row, column, task)
    if name is None:
        raise missing_key_error(location, row, column, task.columns.get(column, ()), noun="column")
    return row[name]


def _text(location: str, row: Values, column: str, task: Task) -> str:
    """The text of a column."""
    value = row[column] if column in row else _cell(location, row, column, task)
    if isinstance(value, str) and is_plain_text(value):
        return value  # the usual case needs no place for an error
    return task.check_text(f"{location}, column '{column}'", column, value)


def _target(location: str, row: Values, task: Task) -> str | float:
    """The label, number or text to predict."""
    value = _cell(location, row, task.label, task)
    setting = f"{location}, column '{task.label}'"
    if task.kind == "regression":
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise DataError(
                setting=setting,
                got=value,
                expected="a finite number",
                fix="fix the row, or set task.kind=classification",
            )
        return number
    return _label(setting, value, task)


def _label_set(location: str, row: Values, task: Task) -> tuple[str, ...]:
    """The labels of a row, each once, in the task's order (sorted, as long as the task has none)."""
    setting, value = f"{location}, column '{task.label}'", _cell(location, row, task.label, task)
    items = labels_in(value, task)
    labels = [_label(setting, item, task) for item in items]
    for number, label in enumerate(labels):
        if label in labels[:number]:
            raise DataError(setting=setting, got=value, expected=f"'{label}' once", fix="remove the copy")
        if task.separator in label:
            raise DataError(
                setting=setting,
                got=label,
                expected=f"labels without '{task.separator}', which stands between labels in a text",
                fix="set task.separator to another text",
            )
    order = {name: number for number, name in enumerate(task.label_names)}
    return tuple(sorted(labels, key=lambda label: (order.get(label, 0), label)))


def _label(setting: str, value: object, task: Task) -> str:
    """The label that a cell, or an item of its list, stands for; of a task without labels, the text."""
    text = check_unicode(setting, cell_text(value))
    if not text:
        expected, fix = "a label", "fill it in or remove the row"
        if task.kind == "multi-label":
            fix = "each item of a list is a label; a row without labels has an empty list"
        elif task.has_classes and list_in(value) is not None:
            expected, fix = "one label, or task.kind=multi-label for lists", "fix the row, or pass `multi_label=True`"
        elif task.has_classes and not task.labels:
            fix += f"; {MULTI_LABEL_HINT}"
        raise DataError(setting=setting, got=value, expected=expected, fix=fix)
    if not task.has_row_labels:
        return text
    if task.label_type == "text" and not isinstance(value, str):
        # The name of a class says more than its number. A csv cell "True" or "1.0" is True or 1.0 in a DataFrame.
        names = (value.name, text) if isinstance(value, ClassId) else (text, str(value))
        text = next((name for name in names if task.label_of(name) is not None), text)
    return _check_label(setting, text, task)


def _check_label(setting: str, text: str, task: Task) -> str:
    """The label that a value stands for. A task that lists no labels accepts every value."""
    if not task.labels:
        return text
    label = task.label_of(text)
    if label is None:
        raise DataError(
            setting=setting,
            got=text,
            expected="a label of the task or its training rows",
            fix=near_matches(text, task.labels),
        )
    return label


def _check_texts(setting: str, items: Sequence[object]) -> tuple[str, ...]:
    for item in items:
        if not isinstance(item, str) or not item.strip():
            raise DataError(
                setting=setting, got=item, expected="texts that are not empty", fix="fill it in or remove the row"
            )
    return tuple(check_unicode(setting, str(item)) for item in items)


def _options(location: str, row: Values) -> tuple[str, ...]:
    """The only texts that a prediction may be, where the format lists them."""
    return _check_texts(f"{location}, column 'options'", list_in(row.get("options")) or [])


def _has_answers(row: Values, task: Task) -> bool:
    """Whether a row lists correct answers."""
    name = _find_column(row, "answers", task)
    return name is not None and bool(list_in(row[name]))


def _answers(location: str, row: Values, task: Task) -> tuple[str, ...]:
    """All correct answers of a row."""
    column = _target_column(row, task) if task.kind == "span" else "answers"
    value = _cell(location, row, column, task)
    setting = f"{location}, column '{column}'"
    items = [value] if isinstance(value, str) else list_in(value)
    if not items:
        raise DataError(setting=setting, got=value, expected="at least one answer", fix="fill it in or remove the row")
    return _check_texts(setting, items)


def _answer_spans(location: str, row: Values, task: Task, answers: Sequence[str], text: str) -> tuple[Span, ...]:
    """The character spans of the answers in the text. An answer with start -1 is not in the text and has no span."""
    name = _find_column(row, "starts", task)
    starts = list_in(row[name]) if name else [text.find(answer) for answer in answers]
    setting = f"{location}, column 'starts'"
    if starts is None or len(starts) != len(answers):
        raise DataError(
            setting=setting,
            got=starts,
            expected=f"a list of {len(answers)}, one start for every answer",
            fix="fix the row",
        )
    spans = []
    for answer, start in zip(answers, starts, strict=True):
        if not isinstance(start, int) or (start >= 0 and not text.startswith(answer, start)):
            raise DataError(
                setting=setting,
                got=start,
                expected=f"the start of '{answer[:40]}' in the text, or -1",
                fix="fix the row",
            )
        if start >= 0:
            spans.append(Span(start, start + len(answer)))
    return tuple(spans)


def _tag_spans(location: str, row: Values, task: Task, text: str) -> tuple[Span, ...]:
    """The labelled spans of a row, in order."""
    column = _target_column(row, task)
    setting, value = f"{location}, column '{column}'", _cell(location, row, column, task)
    items = list_in(value)
    if items is None:
        raise DataError(setting=setting, got=value, expected="a list of [start, end, label]", fix="fix the row")
    spans = sorted(_tag_span(setting, item, task, len(text)) for item in items)
    for span, following in pairwise(spans):
        if following.start < span.end:
            raise DataError(
                setting=setting,
                got=f"{span.start} to {span.end} and {following.start} to {following.end}",
                expected="spans that do not overlap",
                fix="fix the row",
            )
    return tuple(spans)


def _tag_span(setting: str, item: object, task: Task, length: int) -> Span:
    parts = [item.get(key) for key in ("start", "end", "label")] if isinstance(item, Mapping) else list_in(item)
    match parts:
        case [int(start), int(end), str(label)] if 0 <= start < end <= length and label:
            return Span(start, end, _check_label(setting, label, task))
    raise DataError(
        setting=setting,
        got=item,
        expected=f"[start, end, label] inside the text of {length} characters",
        fix="fix the row",
    )
