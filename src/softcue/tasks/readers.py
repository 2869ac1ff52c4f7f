"""Sources to rows: csv, tsv, jsonl, json (each also with .gz), parquet, hub data sets, DataFrames, dictionaries.

A reader yields (place, values): the place names file and line for error messages. It knows no task. Where it can go
on after a bad row, it yields the error in place of the values. Files are read piece by piece, but for .json.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TypeGuard, runtime_checkable

from softcue.errors import ConfigurationError, DataError, MissingExtraError, near_matches
from softcue.tasks.formats import FORMATS, Format, Row

HUB_PREFIX = "hub:"
FIELD_LIMIT = 1 << 24  # characters in one csv field; the csv module's own limit is 131,072
LINE_LIMIT = 1 << 26  # characters in one line, so that a small gz file without line ends cannot fill the memory
SIZE_LIMIT = 1 << 33  # bytes of a gz file once decompressed
WHOLE_LIMIT = 1 << 30  # bytes of a .json file, which has to be read whole
BATCH_ROWS = 1024  # of a parquet file
UNDECODED = re.compile("[\udc80-\udcff]")  # what Python's "surrogateescape" makes of bytes that are no UTF-8


@runtime_checkable
class DataFrame(Protocol):
    """What we use of a pandas (or like) DataFrame."""

    def to_dict(self, orient: str) -> list[dict[str, object]]:
        """The rows as dictionaries."""
        ...


Source = str | Path | DataFrame | Sequence[Mapping[str, object]] | Sequence[str | Path]


def read_rows(source: Source, format: str = "") -> Iterator[Row]:  # noqa: A002
    """Every row of a source, with the place it came from; `format` names one of `FORMATS`.

    Example:
        >>> next(read_rows([{"text": "hello", "label": "greeting"}]))
        ('row 1', {'text': 'hello', 'label': 'greeting'})
    """
    if format and format not in FORMATS:
        raise ConfigurationError(
            setting="task.format", got=format, expected="a known format", fix=near_matches(format, FORMATS)
        )
    layout = FORMATS.get(format)
    if isinstance(source, DataFrame):
        return _flat(_numbered(source.to_dict("records")), layout)
    if isinstance(source, (str, Path)):
        return _read_address(source, layout)
    if _is_paths(source):
        return chain.from_iterable([_read_address(path, layout) for path in source])
    if not isinstance(source, Iterable) or isinstance(source, Mapping):
        raise DataError(
            setting="data",
            got=source,
            expected="a file, a DataFrame or a list of dictionaries",
            fix="pass rows such as [{'text': ..., 'label': ...}]",
        )
    return _flat(_numbered(source), layout)


def name_of(source: Source) -> str:
    """What to call a source in messages."""
    if _is_paths(source):
        paths = [str(path) for path in source]
        return ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
    return str(source) if isinstance(source, (str, Path)) else "the rows given"


def size_of(source: Source) -> int:
    """Bytes of a source's files; 0 for rows in memory and hub names.

    Example:
        >>> size_of([{"text": "hello"}])
        0
    """
    paths = [source] if isinstance(source, (str, Path)) else source if _is_paths(source) else []
    return sum(Path(path).stat().st_size for path in paths if Path(path).is_file())


def _is_paths(source: object) -> TypeGuard[Sequence[str | Path]]:
    if not isinstance(source, Sequence) or isinstance(source, str):
        return False
    return bool(source) and all(isinstance(item, (str, Path)) for item in source)


def _flat(rows: Iterator[Row], layout: Format | None) -> Iterator[Row]:
    for place, row in rows:
        if layout is None or isinstance(row, DataError):
            yield place, row
        else:
            yield from layout.flatten(place, row)


def _numbered(rows: Iterable[object]) -> Iterator[Row]:
    for number, row in enumerate(rows, start=1):
        place = f"row {number}"
        yield (
            place,
            row
            if isinstance(row, Mapping)
            else DataError(
                setting=place,
                got=row,
                expected="a dictionary with a value per column",
                fix="pass rows such as {'text': ..., 'label': ...}",
            ),
        )


def _read_address(address: str | Path, layout: Format | None) -> Iterator[Row]:
    if str(address).startswith(HUB_PREFIX):
        return _flat(_read_hub(str(address)), layout)
    path = Path(address)
    suffix = _suffix(path)
    has_own_lines = layout is not None and layout.lines is not None and suffix not in (".csv", *RECORD_SUFFIXES)
    is_json = layout is not None and suffix in layout.json_suffixes
    if not has_own_lines and not is_json and suffix not in READERS:
        raise DataError(
            setting="data file",
            got=path,
            expected="a name ending in .csv, .tsv, .jsonl, .json (all also with .gz) or .parquet",
            fix="rename or convert it",
        )
    if not path.is_file():
        siblings = sorted(file.name for file in path.parent.glob("*") if _suffix(file) in READERS)
        hint = near_matches(path.name, siblings[:50]) if siblings else "check the path"
        raise DataError(setting="data file", got=path, expected="an existing file", fix=hint)
    if has_own_lines and layout is not None and layout.lines is not None:
        return layout.lines(_lines(path), str(path))
    return _flat((_read_json if is_json else READERS[suffix])(path), layout)


def _suffix(path: Path) -> str:
    """How the name ends, without .gz; parquet files compress themselves."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    is_packed = suffixes[-1:] == [".gz"]
    found = "".join(suffixes[-2:-1] if is_packed else suffixes[-1:])
    return ".parquet.gz" if is_packed and found == ".parquet" else found


# --- bytes to lines ---


class _Bytes(io.RawIOBase):
    """The bytes of a file, decompressed if its name says so; every failure is a DataError."""

    def __init__(self, path: Path, limit: int | None = None) -> None:
        self._path = path
        self._is_packed = path.suffix.lower() == ".gz"
        self._limit = limit or (SIZE_LIMIT if self._is_packed else None)
        self._num_read = 0
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise self._unreadable(error) from error
        self._content = gzip.GzipFile(fileobj=self._file) if self._is_packed else self._file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._content.read(len(buffer))
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(
                setting="data file", got=self._path, expected="an undamaged gz file", fix=f"fetch it again: {error}"
            ) from error
        except OSError as error:
            raise self._unreadable(error) from error
        self._num_read += len(data)
        if self._limit is not None and self._num_read > self._limit:
            unpacked = " once decompressed" if self._is_packed else ""
            raise DataError(
                setting="data file",
                got=self._path,
                expected=f"at most {self._limit:,} bytes{unpacked}",
                fix="split it into several files, as .jsonl or .parquet",
            )
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if hasattr(self, "_content"):
            self._content.close()
            self._file.close()
        super().close()

    def _unreadable(self, error: OSError) -> DataError:
        return DataError(
            setting="data file", got=self._path, expected="a readable file", fix=f"check it: {error.strerror}"
        )


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
        line = error.object[: error.start].count(b"\n") + 1
        raise _no_utf8(name, line, error.object[error.start]) from error


def _no_utf8(name: str, line: int, byte: int) -> DataError:
    return DataError(
        setting=f"{name}, line {line}",
        got=f"byte 0x{byte:02x}",
        expected="UTF-8 text",
        fix="convert it, for example: iconv -f latin1 -t utf-8 IN > OUT",
    )


def _lines(path: Path, newline: str = "\n") -> Iterator[tuple[int, str]]:
    """The lines of a text file with their numbers, each with its end; an empty `newline` takes any line end."""
    content = io.BufferedReader(_Bytes(path))
    with io.TextIOWrapper(content, "utf-8-sig", "surrogateescape", newline) as stream:
        for number, line in enumerate(iter(lambda: stream.readline(LINE_LIMIT), ""), start=1):
            if not line.isascii() and (undecoded := UNDECODED.search(line)):
                raise _no_utf8(str(path), number, ord(undecoded.group()) - 0xDC00)
            if len(line) >= LINE_LIMIT and not line.endswith(("\n", "\r")):
                raise DataError(
                    setting=f"{path}, line {number}",
                    got=line[:60],
                    expected=f"lines of less than {LINE_LIMIT:,} characters",
                    fix="check the line ends",
                )
            yield number, line


# --- files to rows ---


def _read_csv(path: Path) -> Iterator[Row]:
    return _read_delimited(path, delimiter=",", quoting=csv.QUOTE_MINIMAL)


def _read_tsv(path: Path) -> Iterator[Row]:
    # GLUE's tsv files hold raw quotes, so a quote is an ordinary character here.
    return _read_delimited(path, delimiter="\t", quoting=csv.QUOTE_NONE)


def _read_delimited(path: Path, delimiter: str, quoting: int) -> Iterator[Row]:
    csv.field_size_limit(FIELD_LIMIT)
    lines = (line for _, line in _lines(path, newline=""))
    reader = csv.reader(
        lines,
        delimiter=delimiter,
        quoting=quoting,  # type: ignore[arg-type]
        strict=quoting == csv.QUOTE_MINIMAL,
    )
    header: list[str] = []
    first_line = 1  # of the row at hand; a quoted field may run over several lines
    while True:
        place = f"{path}, line {first_line}"
        try:
            cells = next(reader, None)
        except csv.Error as error:
            found = DataError(
                setting=place, got=str(error), expected="well-formed fields", fix="fix the quoting of that line"
            )
            if not header or "expected after" not in str(error):  # a quote left open: no telling where the next row is
                raise found from error
            yield place, found
            cells = []
        first_line = reader.line_num + 1
        if cells is None:
            return
        if not cells:
            continue  # a blank line
        if not header:
            header = _header(place, cells)
        elif len(cells) != len(header):
            yield (
                place,
                DataError(
                    setting=place,
                    got=f"{len(cells)} fields",
                    expected=f"{len(header)}, as in the header",
                    fix="quote or fix that line",
                ),
            )
        else:
            yield place, dict(zip(header, cells, strict=True))


def _header(place: str, names: list[str]) -> list[str]:
    for name in names:
        if names.count(name) > 1:
            raise DataError(
                setting=f"{place}, column", got=name, expected="a name of its own for every column", fix="rename one"
            )
    return names


def _read_jsonl(path: Path) -> Iterator[Row]:
    for number, line in _lines(path):
        if line.strip():
            place = f"{path}, line {number}"
            yield place, _json_object(place, line.rstrip("\r\n"))


def _json_object(place: str, line: str) -> Mapping[str, object] | DataError:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        return DataError(setting=place, got=line[:60], expected="one JSON object per line", fix=f"fix it: {error}")
    return (
        value
        if isinstance(value, dict)
        else DataError(setting=place, got=line[:60], expected="a JSON object", fix="write {...} on every line")
    )


def _read_json(path: Path) -> Iterator[Row]:
    with io.BufferedReader(_Bytes(path, WHOLE_LIMIT)) as stream:
        text = decoded(stream.read(), str(path))
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise DataError(
            setting=f"{path}, line {line}",
            got=text.split("\n")[line - 1][:60],
            expected="one JSON value in the whole file",
            fix=f"fix it, or name it .jsonl if every line is an object: {error}",
        ) from error
    if isinstance(value, dict) and not all(isinstance(item, dict) for item in value.values()):
        yield str(path), value  # one record, for a format to take apart
        return
    if not isinstance(value, (dict, list)):
        raise DataError(setting="data file", got=path, expected="a list of objects", fix="write [{...}, {...}]")
    named = value.items() if isinstance(value, dict) else enumerate(value, start=1)
    for name, item in named:
        place = f"{path}, entry {name}"
        yield (
            place,
            item
            if isinstance(item, dict)
            else DataError(setting=place, got=item, expected="a JSON object", fix="write {...} there"),
        )


def _read_parquet(path: Path) -> Iterator[Row]:
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(BATCH_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", row
    except Exception as error:  # pyarrow has many kinds; all mean an unreadable file
        raise DataError(
            setting="data file", got=path, expected="a readable parquet file", fix=f"write it again: {error}"
        ) from error


READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".parquet": _read_parquet,
}
RECORD_SUFFIXES = (".jsonl", ".json", ".parquet")  # never a format's own lines


def _read_hub(address: str) -> Iterator[Row]:
    """`hub:NAME[#CONFIG]@SPLIT`, through the `datasets` package; class numbers become class names."""
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError("datasets", "hub") from error
    name, at, split = address.removeprefix(HUB_PREFIX).partition("@")
    name, _, configuration = name.partition("#")
    if not name or not at or not split:
        raise DataError(
            setting="hub data set",
            got=address,
            expected="hub:NAME@SPLIT or hub:NAME#CONFIG@SPLIT",
            fix="for example hub:stanfordnlp/sst2@train",
        )
    try:
        table: Any = datasets.load_dataset(name, configuration or None, split=split)
    except Exception as error:  # network, permission and name errors come in many kinds
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(
            setting="hub data set",
            got=address,
            expected="a data set that can be downloaded or is cached",
            fix=f"check name and network, or pass a local file: {first_line}",
        ) from error
    for number, row in enumerate(table, start=1):
        named = {column: _class_name(table.features[column], value) for column, value in row.items()}
        yield f"{address}, row {number}", named


def _class_name(feature: Any, value: object) -> object:
    if isinstance(value, list) and hasattr(feature, "feature"):  # such as a tag for every word
        return [_class_name(feature.feature, item) for item in value]
    is_class = hasattr(feature, "int2str") and isinstance(value, int) and value >= 0
    return feature.int2str(value) if is_class else value
