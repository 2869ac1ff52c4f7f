"""What the formats share: rows with their places, checked access to records, walks through nested ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from softcue.errors import DataError, near_matches

Record = Mapping[str, object]
Row = tuple[str, Record | DataError]  # the place (file and line) and the values, or why there are none
Lines = Iterable[tuple[int, str]]  # numbered from 1

Kind = TypeVar("Kind", str, int, list[Any])
KIND_NAMES: dict[type, str] = {str: "a text", int: "a whole number", list: "a list"}


@dataclass(frozen=True)
class Format:
    """How one published format becomes flat rows: `flatten` for records, `lines` where it has its own text files."""

    flatten: Callable[[str, Record], Iterator[Row]]
    lines: Callable[[Lines, str], Iterator[Row]] | None = None
    json_suffixes: tuple[str, ...] = ()  # other file names that hold JSON


def needed(place: str, record: Record, key: str, kind: type[Kind]) -> Kind:
    """The value of a key that the format cannot do without.

    Example:
        >>> needed("row 1", {"text": "hello"}, "text", str)
        'hello'
    """
    if key not in record:
        raise DataError(
            setting=f"{place}, key", got=key, expected="a key of the record", fix=near_matches(key, map(str, record))
        )
    return of_kind(f"{place}, key '{key}'", record[key], kind)


def of_kind(where: str, value: object, kind: type[Kind]) -> Kind:
    """The value, if it is of that kind; arrays and tuples count as lists.

    Example:
        >>> of_kind("row 1, key 'tokens'", ("two", "words"), list)
        ['two', 'words']
    """
    if kind is list and hasattr(value, "tolist"):
        value = value.tolist()
    elif kind is list and isinstance(value, tuple):
        value = list(value)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise DataError(setting=where, got=value, expected=KIND_NAMES[kind], fix="fix the record or remove it")
    return value


def an_object(where: str, value: object) -> Record:
    """The value, if it has keys.

    Example:
        >>> an_object("row 1, key 'target'", {"span1_text": "Ann"})
        {'span1_text': 'Ann'}
    """
    if not isinstance(value, Mapping):
        raise DataError(setting=where, got=value, expected="an object", fix="fix the record or remove it")
    return value


def texts_of(place: str, record: Record, key: str) -> list[str]:
    """A list of texts.

    Example:
        >>> texts_of("row 1", {"tokens": ["two", "words"]}, "tokens")
        ['two', 'words']
    """
    return [of_kind(f"{place}, key '{key}'", value, str) for value in needed(place, record, key, list)]


def attempt(place: str, make: Callable[..., Record], *arguments: object) -> Row:
    """A row, or the error in its stead, so that the next one is still read.

    Example:
        >>> attempt("row 1", lambda place, text: {"text": text}, "hello")
        ('row 1', {'text': 'hello'})
    """
    try:
        return place, make(place, *arguments)
    except DataError as error:
        return place, error


def walk(
    place: str, record: object, steps: Sequence[tuple[str, str]], above: tuple[Record, ...] = ()
) -> Iterator[tuple[str, tuple[Record, ...] | DataError]]:
    """Every innermost record with those it stands in; a step is a key that holds a list and the name of its items.

    Example:
        >>> list(walk("file", {"qas": [{"id": 1}]}, [("qas", "question")]))
        [('file, question 1', ({'qas': [{'id': 1}]}, {'id': 1}))]
    """
    try:
        found = an_object(place, record)
        items = needed(place, found, steps[0][0], list) if steps else []
    except DataError as error:
        yield place, error
        return
    if not steps:
        yield place, (*above, found)
    for number, item in enumerate(items, start=1):
        yield from walk(f"{place}, {steps[0][1]} {number}", item, steps[1:], (*above, found))


def plain_label(value: object, names: Mapping[str, str]) -> str:
    """A label as text, in the names this format uses for yes and no.

    Example:
        >>> plain_label(True, {"true": "1", "false": "0"})
        '1'
    """
    text = str(value).strip()
    return names.get(text.lower(), text)
