"""The parts that all formats share: rows with their locations, checked access to records, walks through nesting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from softcue.errors import DataError, near_matches

Record = Mapping[str, object]
Row = tuple[str, Record | DataError]  # the location (file and line), and the values or an error
Lines = Iterable[tuple[int, str]]  # numbered from 1

Value = TypeVar("Value", str, int, list[Any])
TYPE_NAMES: dict[type, str] = {str: "a text", int: "a whole number", list: "a list"}


@dataclass(frozen=True)
class Format:
    """The conversion of one published format to flat rows: `flatten` for records, `lines` for its own text files."""

    flatten: Callable[[str, Record], Iterator[Row]]
    lines: Callable[[Lines, str], Iterator[Row]] | None = None
    json_suffixes: tuple[str, ...] = ()  # other file suffixes that hold JSON


def missing_key_error(
    location: str, record: Record, key: str, other_names: Sequence[str] = (), noun: str = "key"
) -> DataError:
    """The error for a key or column that a record does not have; it lists those that exist.

    Example:
        >>> str(missing_key_error("row 1", {"txt": "hello"}, "text", noun="column"))
        "row 1, column 'text': got 'no such column'; expected a column of that name; did you mean 'txt'? known: txt"
    """
    alternatives = f" or {' or '.join(map(repr, other_names))}" if other_names else ""
    return DataError(
        setting=f"{location}, {noun} '{key}'",
        got=f"no such {noun}",
        expected=f"a {noun} of that name{alternatives}",
        fix=near_matches(key, map(str, record)),
    )


def required(location: str, record: Record, key: str, expected_type: type[Value]) -> Value:
    """The value of a required key.

    Example:
        >>> required("row 1", {"text": "hello"}, "text", str)
        'hello'
    """
    if key not in record:
        raise missing_key_error(location, record, key)
    return check_type(f"{location}, key '{key}'", record[key], expected_type)


def check_type(setting: str, value: object, expected_type: type[Value]) -> Value:
    """The value, if it has that type; arrays and tuples count as lists.

    Example:
        >>> check_type("row 1, key 'tokens'", ("two", "words"), list)
        ['two', 'words']
    """
    if expected_type is list and hasattr(value, "tolist"):
        value = value.tolist()
    elif expected_type is list and isinstance(value, tuple):
        value = list(value)
    if not isinstance(value, expected_type) or isinstance(value, bool):
        raise DataError(
            setting=setting, got=value, expected=TYPE_NAMES[expected_type], fix="fix the record or remove it"
        )
    return value


def check_object(setting: str, value: object) -> Record:
    """The value, if it has keys.

    Example:
        >>> check_object("row 1, key 'target'", {"span1_text": "Ann"})
        {'span1_text': 'Ann'}
    """
    if not isinstance(value, Mapping):
        raise DataError(setting=setting, got=value, expected="an object", fix="fix the record or remove it")
    return value


def text_list(location: str, record: Record, key: str) -> list[str]:
    """A list of texts.

    Example:
        >>> text_list("row 1", {"tokens": ["two", "words"]}, "tokens")
        ['two', 'words']
    """
    return [check_type(f"{location}, key '{key}'", value, str) for value in required(location, record, key, list)]


def row_or_error(location: str, make: Callable[..., Record], *arguments: object) -> Row:
    """Make a row, or return its error, so that the next row is still read.

    Example:
        >>> row_or_error("row 1", lambda location, text: {"text": text}, "hello")
        ('row 1', {'text': 'hello'})
    """
    try:
        return location, make(location, *arguments)
    except DataError as error:
        return location, error


def innermost_records(
    location: str, record: object, steps: Sequence[tuple[str, str]], parents: tuple[Record, ...] = ()
) -> Iterator[tuple[str, tuple[Record, ...] | DataError]]:
    """Yield every innermost record with its parents; a step is a key that holds a list, and the name of its items.

    Example:
        >>> list(innermost_records("file", {"qas": [{"id": 1}]}, [("qas", "question")]))
        [('file, question 1', ({'qas': [{'id': 1}]}, {'id': 1}))]
    """
    try:
        current = check_object(location, record)
        items = required(location, current, steps[0][0], list) if steps else []
    except DataError as error:
        yield location, error
        return
    if not steps:
        yield location, (*parents, current)
    for number, item in enumerate(items, start=1):
        yield from innermost_records(f"{location}, {steps[0][1]} {number}", item, steps[1:], (*parents, current))


def normalize_label(value: object, names: Mapping[str, str]) -> str:
    """A label as text, with the names that this format uses for true and false.

    Example:
        >>> normalize_label(True, {"true": "1", "false": "0"})
        '1'
    """
    text = str(value).strip()
    return names.get(text.lower(), text)
