"""Files to rows: csv, tsv, jsonl, parquet, hub data sets, DataFrames and lists of dictionaries.

A reader yields (place, values): the place names file and line for error messages. It knows no task.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from softcue.errors import DataError, MissingExtraError, near_matches

HUB_PREFIX = "hub:"
FIELD_LIMIT = 1 << 24  # characters in one csv field; the csv module's own limit is 131,072
SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")

Row = tuple[str, Mapping[str, object]]


@runtime_checkable
class DataFrame(Protocol):
    """What we use of a pandas (or like) DataFrame."""

    def to_dict(self, orient: str) -> list[dict[str, object]]:
        """The rows as dictionaries."""
        ...


Source = str | Path | DataFrame | Sequence[Mapping[str, object]]


def read_rows(source: Source) -> Iterator[Row]:
    """Every row of a source, with the place it came from.

    Example:
        >>> next(read_rows([{"text": "hello", "label": "greeting"}]))
        ('row 1', {'text': 'hello', 'label': 'greeting'})
    """
    if isinstance(source, DataFrame):
        return _numbered(source.to_dict("records"))
    if not isinstance(source, (str, Path)):
        if not isinstance(source, Iterable) or isinstance(source, Mapping):
            raise DataError("data", source, "a file, a DataFrame or a list of dictionaries",
                            "pass rows such as [{'text': ..., 'label': ...}]")  # fmt: skip
        return _numbered(source)
    if str(source).startswith(HUB_PREFIX):
        return _read_hub(str(source))
    path = Path(source)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError("data file", path, "a name ending in .csv, .tsv, .jsonl or .parquet",
                        "rename or convert it")  # fmt: skip
    if not path.is_file():
        siblings = sorted(file.name for file in path.parent.glob("*") if file.suffix.lower() in SUFFIXES)
        hint = near_matches(path.name, siblings[:50]) if siblings else "check the path"
        raise DataError("data file", path, "an existing file", hint)
    readers = dict(zip(SUFFIXES, (_read_csv, _read_tsv, _read_jsonl, _read_parquet), strict=True))
    return readers[suffix](path)


def name_of(source: Source) -> str:
    """What to call a source in messages."""
    return str(source) if isinstance(source, (str, Path)) else "the rows given"


def _numbered(rows: Iterable[Mapping[str, object]]) -> Iterator[Row]:
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise DataError(f"row {number}", row, "a dictionary with a value per column",
                            "pass rows such as {'text': ..., 'label': ...}")  # fmt: skip
        yield f"row {number}", row


def decoded(data: bytes, name: str) -> str:
    """Bytes of a file (or standard input) as text; a byte order mark is dropped.

    Example:
        >>> decoded(b"\\xef\\xbb\\xbftext", "rows.csv")
        'text'
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # the codec counts from behind a byte order mark
        bad = error.object[error.start]
        line = error.object[: error.start].count(b"\n") + 1
        raise DataError(f"{name}, line {line}", f"byte 0x{bad:02x}", "UTF-8 text",
                        "convert it, for example: iconv -f latin1 -t utf-8 IN > OUT") from error  # fmt: skip


def _content(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError("data file", path, "a readable file", f"check it: {error.strerror}") from error
    return decoded(data, str(path))


def _read_csv(path: Path) -> Iterator[Row]:
    return _read_delimited(path, delimiter=",", quoting=csv.QUOTE_MINIMAL)


def _read_tsv(path: Path) -> Iterator[Row]:
    # GLUE's tsv files hold raw quotes, so a quote is an ordinary character here.
    return _read_delimited(path, delimiter="\t", quoting=csv.QUOTE_NONE)


def _read_delimited(path: Path, delimiter: str, quoting: int) -> Iterator[Row]:
    csv.field_size_limit(FIELD_LIMIT)
    reader = csv.reader(io.StringIO(_content(path), newline=""), delimiter=delimiter, quoting=quoting,  # type: ignore[arg-type]
                        strict=quoting == csv.QUOTE_MINIMAL)  # fmt: skip
    header: list[str] = []
    first_line = 1  # of the row at hand; a quoted field may run over several lines
    try:
        for cells in reader:
            place, first_line = f"{path}, line {first_line}", reader.line_num + 1
            if not cells:
                continue  # a blank line
            if not header:
                header = _header(place, cells)
                continue
            if len(cells) != len(header):
                raise DataError(place, f"{len(cells)} fields", f"{len(header)}, as in the header",
                                "quote or fix that line")  # fmt: skip
            yield place, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise DataError(f"{path}, line {first_line}", str(error), "well-formed fields",
                        "fix the quoting of that line") from error  # fmt: skip


def _header(place: str, names: list[str]) -> list[str]:
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"{place}, column", name, "a name of its own for every column", "rename one")
    return names


def _read_jsonl(path: Path) -> Iterator[Row]:
    for number, line in enumerate(_content(path).split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(place, line[:60], "one JSON object per line", f"fix it: {error}") from error
        if not isinstance(value, dict):
            raise DataError(place, line[:60], "a JSON object", "write {...} on every line")
        yield place, value


def _read_parquet(path: Path) -> Iterator[Row]:
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except Exception as error:  # pyarrow has many kinds; all mean an unreadable file
        raise DataError("data file", path, "a readable parquet file", f"write it again: {error}") from error
    for number, row in enumerate(table.to_pylist(), start=1):
        yield f"{path}, row {number}", row


def _read_hub(address: str) -> Iterator[Row]:
    """`hub:NAME[#CONFIG]@SPLIT`, through the `datasets` package; class numbers become class names."""
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError("datasets", "hub") from error
    name, at, split = address.removeprefix(HUB_PREFIX).partition("@")
    name, _, configuration = name.partition("#")
    if not name or not at or not split:
        raise DataError("hub data set", address, "hub:NAME@SPLIT or hub:NAME#CONFIG@SPLIT",
                        "for example hub:stanfordnlp/sst2@train")  # fmt: skip
    try:
        table: Any = datasets.load_dataset(name, configuration or None, split=split)
    except Exception as error:  # network, permission and name errors come in many kinds
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError("hub data set", address, "a data set that can be downloaded or is cached",
                        f"check name and network, or pass a local file: {first_line}") from error  # fmt: skip
    for number, row in enumerate(table, start=1):
        named = {column: _class_name(table.features[column], value) for column, value in row.items()}
        yield f"{address}, row {number}", named


def _class_name(feature: Any, value: object) -> object:
    is_class = hasattr(feature, "int2str") and isinstance(value, int) and value >= 0
    return feature.int2str(value) if is_class else value
