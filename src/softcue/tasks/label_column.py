"""The label column of a user's rows: the type of its labels, and whether it holds classes or numbers to predict.

Inside softcue a label is text. What the text no longer shows is recorded here while the training rows are read.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from numbers import Integral, Number, Real

from softcue.errors import DataError
from softcue.tasks.readers import ClassId
from softcue.tasks.task import LabelType, Task

MAX_CLASSES = 20  # more different numbers with fractions than this are no classes
MAX_OTHERS = 0.05  # share of the rows of a regression that may hold something else, such as "n/a"; they are bad rows


def label_type_of(value: object) -> LabelType:
    """The type of a label in a table: of Python, numpy, pandas or pyarrow.

    Example:
        >>> [label_type_of(value) for value in ("billing", 3, 0.5, True)]
        ['text', 'integer', 'float', 'boolean']
    """
    if type(value).__name__ in ("bool", "bool_"):  # of Python and of numpy
        return "boolean"
    if isinstance(value, Integral):
        return "integer"
    return "float" if isinstance(value, Number) else "text"


def cell_text(value: object) -> str:
    """A label of a table as text; empty for values that are no label: null, gaps of a DataFrame, lists and objects.

    Example:
        >>> [cell_text(value) for value in (" billing ", 3, 1.0, True, float("nan"), None)]
        ['billing', '3', '1', 'true', '', '']
    """
    if label_type_of(value) == "boolean":
        return str(value).lower()
    if isinstance(value, Decimal):  # of a parquet file
        value = float(value)
    if isinstance(value, Real) and not isinstance(value, Integral) and float(value).is_integer():
        value = int(float(value))  # a DataFrame column with gaps turns class numbers into floats
    is_scalar = isinstance(value, str) or (isinstance(value, Number) and value == value)
    return str(value).strip() if is_scalar else ""


def list_in(value: object) -> list[object] | None:
    """A list cell of a file or a table, also an array, a tuple or a set; None for anything else.

    Example:
        >>> list_in(("a", "b")), list_in({"b", "a"}), list_in("a")
        (['a', 'b'], ['a', 'b'], None)
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    return list(value) if isinstance(value, (list, tuple)) else None


def written_list(text: str) -> list[object] | None:
    """The texts or whole numbers of a list that is written as JSON, as in a cell of a csv file; None for other texts.

    Example:
        >>> written_list('["water", "heat"]'), written_list("[]"), written_list("water")
        (['water', 'heat'], [], None)
    """
    text = text.strip()
    if not (text.startswith("[") and text.endswith("]")):
        return None
    try:
        items = json.loads(text)
    except (ValueError, RecursionError):
        return None
    is_plain = all(isinstance(item, (str, int)) and not isinstance(item, bool) for item in items)
    return list(items) if is_plain else None


def is_gap(value: object) -> bool:
    """Whether a cell is empty: null, or what a DataFrame has in its place.

    Example:
        >>> [is_gap(value) for value in (None, float("nan"), 0, "")]
        [True, True, False, False]
    """
    if value is None or list_in(value) is not None:
        return value is None
    try:
        return bool(value != value)
    except TypeError:  # pandas.NA is neither equal to itself nor different
        return True


def labels_in(value: object, task: Task) -> list[object]:
    """The labels in a cell of the label column: the cell itself, or those of a multi-label row.

    These are the items of a list, also of one written as JSON, or what stands between the task's separators in a text.
    An empty cell has none.

    Example:
        >>> task = Task(name="t", kind="multi-label")
        >>> labels_in("billing; shipping", task), labels_in([2, 5], task), labels_in("", task)
        (['billing', 'shipping'], [2, 5], [])
        >>> labels_in('["billing", "shipping"]', task)
        ['billing', 'shipping']
    """
    if task.kind != "multi-label":
        return [value]
    if isinstance(value, str):
        if (written := written_list(value)) is not None:
            return written
        return [part for part in map(str.strip, value.split(task.separator)) if part]
    items = list_in(value)
    if items is None:
        return [] if is_gap(value) else [value]
    return items


class LabelColumn:
    """The facts about a column of labels, collected row by row.

    Example:
        >>> column = LabelColumn("stars")
        >>> for number, stars in enumerate([1, 5, 5, 2], start=1):
        ...     column.add(f"row {number}", stars)
        >>> column.label_type(), column.holds_numbers()
        ('integer', False)
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.class_names: dict[str, str] = {}  # class number -> its name, of a `datasets.ClassLabel` column
        self._first_of_type: dict[LabelType, str] = {}  # type -> place and value of its first label
        self._num_rows = self._num_numbers = 0
        self._has_fraction = False
        self._numbers: set[float] = set()

    def add(self, location: str, value: object) -> None:
        """Record the label of one row."""
        self._num_rows += 1
        label_type = label_type_of(value)
        self._first_of_type.setdefault(label_type, f"{value!r} in {location}")
        if isinstance(value, ClassId):
            self.class_names[cell_text(value)] = value.name
        number = math.nan if label_type == "boolean" else _number_in(value)
        if math.isfinite(number):
            self._num_numbers += 1
            self._numbers.add(number)
            self._has_fraction = self._has_fraction or not number.is_integer()

    @property
    def num_distinct(self) -> int:
        """The number of different numbers in the column."""
        return len(self._numbers)

    def holds_numbers(self) -> bool:
        """Whether the column holds numbers to predict, not classes.

        It does if some numbers have a fraction, and if there are more than 20 different numbers or more different
        numbers than half of the rows. Text such as "0.37" is a number. Up to 5 % of the rows may hold something else.

        Example:
            >>> half_stars = LabelColumn("stars")
            >>> for number in range(100):
            ...     half_stars.add(f"row {number}", 0.5 + number % 10 / 2)
            >>> half_stars.holds_numbers()     # ten different labels, each ten times
            False
        """
        num_others = self._num_rows - self._num_numbers
        is_spread = self.num_distinct > MAX_CLASSES or 2 * self.num_distinct > self._num_rows
        return self._has_fraction and is_spread and num_others <= MAX_OTHERS * self._num_rows and self.num_distinct > 2

    def label_type(self) -> LabelType:
        """The one type of all labels. Integers among floats count as floats; any other mixture is an error.

        `1` and `"1"`, or `True` and `1`, are different labels for the user. They would become one label, or come back
        as something that is not equal to what was in the table.
        """
        types = dict(self._first_of_type)
        if "float" in types:
            types.pop("integer", None)
        if len(types) > 1:
            raise DataError(
                setting=f"column '{self.name}'",
                got=" and ".join(f"{name} ({first})" for name, first in types.items()),
                expected="labels of one type",
                fix="convert them, such as with str()",
            )
        return next(iter(types), "text")


def is_number(label: str) -> bool:
    """Whether the text of a label is a finite number.

    Example:
        >>> is_number("2.5"), is_number("billing"), is_number("nan")
        (True, False, False)
    """
    return math.isfinite(_number_in(label))


def _number_in(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan
