"""Lists of methods, tasks and backbones that print as a table, and packages that can be called for such a list.

`softcue.methods` is a package and, in Python and notebooks, also a function: `softcue.methods()` lists the methods.
A module object can be called if its class has `__call__`; `make_callable` gives it one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from importlib import import_module
from types import ModuleType
from typing import Any, Generic, Protocol, TypeVar, overload

from softcue.drawing import html_table, text_table
from softcue.errors import ConfigurationError, near_matches

MAX_CELL = 88  # characters of a cell in text


class Named(Protocol):
    """A record with a name; dataclasses of methods, tasks and backbones."""

    @property
    def name(self) -> str:
        """What the user types."""


Record = TypeVar("Record", bound=Named)


class Listing(Sequence[Record], Generic[Record]):
    """Records by number or by name. It prints as a table, in a notebook as HTML.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Fruit:
        ...     name: str
        ...     colour: str
        >>> fruits = Listing([Fruit("plum", "blue"), Fruit("lime", "green")])
        >>> fruits
        name  colour
        plum  blue
        lime  green
        >>> fruits["lime"].colour, fruits[0].name, "fig" in fruits, fruits.names
        ('green', 'plum', False, ['plum', 'lime'])
    """

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = tuple(records)

    @property
    def names(self) -> list[str]:
        """The names of the records."""
        return [record.name for record in self._records]

    @overload
    def __getitem__(self, key: int | str) -> Record: ...
    @overload
    def __getitem__(self, key: slice) -> Listing[Record]: ...

    def __getitem__(self, key: int | str | slice) -> Record | Listing[Record]:
        if isinstance(key, slice):
            return Listing(self._records[key])
        if isinstance(key, int):
            return self._records[key]
        for record in self._records:
            if record.name == key:
                return record
        raise ConfigurationError(
            setting="name", got=key, expected="a name of this list", fix=near_matches(str(key), self.names)
        )

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def __contains__(self, key: object) -> bool:
        return key in self.names or key in self._records

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Listing) and self._records == other._records

    def __hash__(self) -> int:
        return hash(tuple(self.names))

    def __repr__(self) -> str:
        if not self._records:
            return "(nothing)"
        return text_table(self._columns(), [[_shorten(cell) for cell in row] for row in self._rows()])

    def _repr_html_(self) -> str:
        return html_table(self._columns(), self._rows())

    def _columns(self) -> list[str]:
        """The fields of the records that a table shows: all but those with `repr=False`."""
        return [field.name for field in fields(self._records[0]) if field.repr] if self._records else []  # type: ignore[arg-type]

    def _rows(self) -> list[list[str]]:
        return [[_cell(getattr(record, column)) for column in self._columns()] for record in self._records]


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (tuple, list)):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {number}" for key, number in value.items())
    return "-" if value is None else str(value)


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_CELL else text[: MAX_CELL - 3] + "..."


def make_callable(package: str, function: Callable[[], Listing[Any]]) -> None:
    """Let a package be called: `package()` returns what `function()` returns. The package stays a module.

    Example:
        make_callable("softcue.methods", list_methods)
        softcue.methods()            # the list
        softcue.methods.METHODS      # the package's names, as before
    """

    def call(self: ModuleType) -> Listing[Any]:
        return function()

    def import_again(self: ModuleType) -> tuple[Any, ...]:
        return import_module, (package,)

    call.__doc__ = function.__doc__
    # With __reduce__ a function that names the package can still be copied or sent to another process.
    methods = {"__call__": call, "__reduce__": import_again, "__doc__": function.__doc__}
    sys.modules[package].__class__ = type("CallablePackage", (ModuleType,), methods)
