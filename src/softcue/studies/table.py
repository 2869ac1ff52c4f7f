"""Tables in the manner of a DataFrame: columns by name, numbers as numbers, shown as text or HTML."""

from __future__ import annotations

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal, overload

from softcue.drawing import html_table, text_table
from softcue.errors import ConfigurationError, MissingExtraError, near_matches


def show_value(value: Any) -> str:
    """A value as text: thousands are separated, fractions have a decimal, true is yes.

    Example:
        >>> show_value(7680), show_value(84.127), show_value(True)
        ('7,680', '84.1', 'yes')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{round(value, 1) + 0.0:.1f}" if isinstance(value, float) else str(value)  # never -0.0


@dataclass(frozen=True)
class Column:
    """A column of a table: its values, and how they are shown."""

    name: str
    values: Sequence[Any]
    heading: str = ""  # where the table is shown; without one, the name
    show: Callable[[Any], str] = show_value  # None is shown as a dash in any case
    is_shown: bool = True

    def cells(self) -> list[str]:
        """The values as text."""
        return ["-" if value is None else self.show(value) for value in self.values]


class TableLike(ABC):
    """What tables and comparisons share: `len` counts rows, iteration and `[name]` give columns, as in pandas."""

    @abstractmethod
    def table_columns(self) -> Sequence[Column]:
        """The columns with their values."""

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.table_columns()]

    def keys(self) -> list[str]:
        """The names of the columns, so that `dict(table)` holds the columns by name."""
        return self.columns

    def __len__(self) -> int:
        return len(self.table_columns()[0].values)

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __getitem__(self, name: str) -> list[Any]:
        for column in self.table_columns():
            if column.name == name:
                return list(column.values)
        raise ConfigurationError(
            setting="column", got=name, expected="a column of this table", fix=near_matches(str(name), self.columns)
        )

    def __array__(self, *arguments: Any, **options: Any) -> Any:
        # pandas.DataFrame(table) asks for an array; without an error it would make a frame of column names.
        raise TypeError("a table of words and numbers is no array: take `to_pandas()` or `dict(table)`")

    @overload
    def to_dict(self, orient: Literal["list"] = "list") -> dict[str, list[Any]]: ...
    @overload
    def to_dict(self, orient: Literal["records"]) -> list[dict[str, Any]]: ...

    def to_dict(self, orient: Literal["list", "records"] = "list") -> dict[str, list[Any]] | list[dict[str, Any]]:
        """The columns by name, or with `orient="records"` a dictionary for each row.

        Example:
            >>> table = Table([Column("method", ["vip"]), Column("mean", [84.1])])
            >>> table.to_dict(), table.to_dict("records")
            ({'method': ['vip'], 'mean': [84.1]}, [{'method': 'vip', 'mean': 84.1}])
        """
        if orient not in ("list", "records"):
            raise ConfigurationError(setting="orient", got=orient, expected="list or records", fix="take one of them")
        columns = {column.name: list(column.values) for column in self.table_columns()}
        if orient == "list":
            return columns
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def to_pandas(self) -> Any:
        """The table as a `pandas.DataFrame`; a number that is not there is NaN.

        Example:
            table.to_pandas().sort_values("seconds")
        """
        try:
            import pandas
        except ImportError as error:
            raise MissingExtraError("pandas", "hub") from error
        columns = self.to_dict()
        return pandas.DataFrame(
            {name: [float("nan") if value is None else value for value in columns[name]] for name in columns}
        )

    def to_csv(self) -> str:
        """The table as text of a csv file, with all digits.

        Example:
            >>> Table([Column("method", ["vip", "probe"]), Column("spread", [1.25, None])]).to_csv().split()
            ['method,spread', 'vip,1.25', 'probe,']
        """
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        columns = self.table_columns()
        writer.writerow(column.name for column in columns)
        writer.writerows(zip(*(column.values for column in columns), strict=True))
        return buffer.getvalue()

    @property
    def num_text_columns(self) -> int:
        """How many of the shown columns, from the left, hold words."""
        columns = [column for column in self.table_columns() if column.is_shown]
        is_text = [any(isinstance(value, str) for value in column.values) for column in columns]
        return is_text.index(False) if False in is_text else len(is_text)

    def shown(self) -> tuple[list[str], list[list[str]]]:
        """Headings and rows of the shown columns, as text.

        Example:
            >>> Table([Column("mean", [84.127], "accuracy, mean"), Column("folder", ["a"], is_shown=False)]).shown()
            (['accuracy, mean'], [['84.1']])
        """
        columns = [column for column in self.table_columns() if column.is_shown]
        rows = zip(*(column.cells() for column in columns), strict=True)
        return [column.heading or column.name for column in columns], [list(row) for row in rows]


class Table(TableLike):
    """A table of given columns. It prints as text, in a notebook as HTML.

    Example:
        >>> table = Table([Column("method", ["vip", "probe"]), Column("mean", [84.127, 9.0])])
        >>> table
        method  mean
        vip     84.1
        probe    9.0
        >>> table["mean"], list(table), len(table)
        ([84.127, 9.0], ['method', 'mean'], 2)
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = tuple(columns)

    def table_columns(self) -> Sequence[Column]:
        """The columns with their values."""
        return self._columns

    def __repr__(self) -> str:
        return text_table(*self.shown())

    def _repr_html_(self) -> str:
        return html_table(*self.shown())


class TitledTable(TableLike):
    """A table with a title above it, and sentences and notes below. It prints as text, in a notebook as HTML."""

    @property
    @abstractmethod
    def title(self) -> str:
        """What the table shows, on which rows."""

    @property
    @abstractmethod
    def sentences(self) -> list[str]:
        """What the table says, in plain words."""

    @property
    @abstractmethod
    def notes(self) -> list[str]:
        """What a reader of the table should know."""

    @property
    @abstractmethod
    def baselines(self) -> Table:
        """Predictions without training on the same rows: shown below the table, in its columns of the same names."""

    def shown(self) -> tuple[list[str], list[list[str]]]:
        """Headings and rows of the shown columns, as text, with the baselines as the last rows."""
        headings, rows = super().shown()
        names = [column.name for column in self.table_columns() if column.is_shown]
        cells = {column.name: column.cells() for column in self.baselines.table_columns()}
        baselines = [
            [cells[name][row] if name in cells else "-" for name in names] for row in range(len(self.baselines))
        ]
        return headings, [*rows, *baselines]

    def __repr__(self) -> str:
        return "\n".join([self.title, text_table(*self.shown()), *self.sentences, *self.notes])

    def _repr_html_(self) -> str:
        notes = "".join(f"<p><small>{escape(note)}</small></p>" for note in self.notes)
        title = f"<p><b>{escape(self.title)}</b></p>"
        return f"{title}{html_table(*self.shown())}{html_list(self.sentences)}{notes}"


def html_list(sentences: Sequence[str]) -> str:
    """Sentences as a list of a page; nothing if there are none.

    Example:
        >>> html_list(["a < b"]), html_list([])
        ('<ul><li>a &lt; b</li></ul>', '')
    """
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f"<ul>{items}</ul>" if items else ""
