"""Readers of rows: csv, tsv, jsonl, json (each also with .gz), parquet, hub data sets, tables in memory, dictionaries.

A reader yields (location, values). The location names file and line for error messages. A reader knows no task. If it
can continue after a bad row, it yields the error instead of the values. All files but .json are streamed.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, Self, TypeGuard

from softcue.errors import ConfigurationError, DataError, MissingExtraError, near_matches
from softcue.garbage_collection import collection_paused
from softcue.machine import GIGABYTE, read_memory
from softcue.tasks.formats import FORMATS, Format, Row

HUB_PREFIX = "hub:"
FIELD_LIMIT = 1 << 24  # characters in one csv field; the default of the csv module is 131,072
LINE_LIMIT = 1 << 26  # characters in one line: a small gz file without line ends must not fill the memory
SIZE_LIMIT = 1 << 33  # bytes of a gz file once decompressed
JSON_SIZE_LIMIT = 1 << 30  # bytes of a .json file, which is not streamed
JSON_BYTES = {"{": 250, "[": 80, ",": 40}  # in memory, about, for each of these characters in a .json file
BATCH_ROWS = 1024  # rows of a parquet file in memory at a time, at most
VALIDATION_NAMES = ("valid", "val", "dev")  # of a validation split, if none is called `validation`
UNDECODED = re.compile("[\udc80-\udcff]")  # how "surrogateescape" decodes bytes that are not UTF-8


class DataFrame(Protocol):
    """The part of a pandas DataFrame that softcue uses."""

    columns: Any

    def to_dict(self, orient: str) -> list[dict[str, object]]:
        """The rows as dictionaries."""
        ...


class Dataset(Protocol):
    """The part of a `datasets.Dataset` or `IterableDataset` that softcue uses."""

    features: Any

    def with_format(self, type: None) -> Self:  # noqa: A002
        """The rows with values of Python, not tensors."""
        ...

    def __iter__(self) -> Iterator[Any]: ...


# A DatasetDict is a mapping of split names to data sets.
Source = (
    str
    | Path
    | DataFrame
    | Dataset
    | Mapping[str, Dataset]
    | Sequence[Mapping[str, object]]
    | Iterator[Mapping[str, object]]
    | Sequence[str | Path]
)


class ClassId(int):
    """A class number in a `ClassLabel` column of a data set, with the name of the class.

    Example:
        >>> label = ClassId(1, "positive")
        >>> label == 1, label.name
        (True, 'positive')
    """

    name: str

    def __new__(cls, number: int, name: str) -> Self:
        """The class number with its name."""
        class_id = super().__new__(cls, number)
        class_id.name = name
        return class_id


def read_rows(source: Source, format: str = "") -> Iterator[Row]:  # noqa: A002
    """Yield every row of a source with its location; `format` names one of `FORMATS`.

    Example:
        >>> next(read_rows([{"text": "hello", "label": "greeting"}]))
        ('row 1', {'text': 'hello', 'label': 'greeting'})
    """
    if format and format not in FORMATS:
        raise ConfigurationError(
            setting="task.format", got=format, expected="a known format", fix=near_matches(format, FORMATS)
        )
    layout = FORMATS.get(format)
    if is_table(source):
        return _flatten(_number_rows(_table_rows(source)), layout)
    if isinstance(source, (str, Path)):
        return _read_address(source, layout)
    if _is_paths(source):
        return chain.from_iterable([_read_address(path, layout) for path in source])
    if not isinstance(source, Iterable) or isinstance(source, Mapping):
        raise DataError(
            setting="data",
            got=source,
            expected="a file, a DataFrame, a Dataset or a list of dictionaries",
            fix="pass rows such as [{'text': ..., 'label': ...}]",
        )
    return _flatten(_number_rows(source), layout)


def is_table(source: object) -> bool:
    """Whether a source is a table in memory: of pandas, polars, pyarrow or `datasets`. None of them is imported.

    Example:
        >>> is_table([{"text": "hello"}])
        False
    """
    is_pandas = hasattr(source, "columns") and hasattr(source, "to_dict")
    return is_pandas or _is_dataset(source) or splits_of(source) is not None or _is_a(source, "pyarrow", "Table")


def splits_of(source: object) -> Mapping[str, Dataset] | None:
    """The splits of a `datasets.DatasetDict`, `validation` also by its other usual names; None for anything else.

    Example:
        >>> splits_of({"text": "hello"}) is None
        True
    """
    if not isinstance(source, Mapping) or not _is_a(source, "datasets", "DatasetDict", "IterableDatasetDict"):
        return None
    splits = {str(name): split for name, split in source.items()}
    alias = next((name for name in VALIDATION_NAMES if name in splits), None)
    return splits if alias is None or "validation" in splits else splits | {"validation": splits[alias]}


def _is_a(value: object, package: str, *names: str) -> bool:
    """Whether a value is of one of these classes of a package, which need not be installed."""
    classes = type(value).__mro__
    return any(cls.__module__.partition(".")[0] == package and cls.__name__ in names for cls in classes)


def _is_dataset(source: object) -> TypeGuard[Dataset]:
    return _is_a(source, "datasets", "Dataset", "IterableDataset")


def _table_rows(table: Any) -> Iterable[object]:
    """The rows of a table as dictionaries."""
    if (splits := splits_of(table)) is not None:
        if len(table) != 1:
            raise DataError(
                setting="data",
                got=f"a DatasetDict with {', '.join(table)}",
                expected="the rows of one split",
                fix=f"pass one of them, such as data['{'test' if 'test' in table else next(iter(table), 'train')}']",
            )
        return _dataset_rows(next(iter(splits.values())))
    if _is_dataset(table):
        return _dataset_rows(table)
    if _is_a(table, "pyarrow", "Table"):
        return table.to_pylist()  # type: ignore[no-any-return]
    if _is_a(table, "polars", "DataFrame"):
        return table.to_dicts()  # type: ignore[no-any-return]
    return table.to_dict("records")  # type: ignore[no-any-return]


def _dataset_rows(dataset: Dataset) -> Iterator[object]:
    """The rows of a data set. Class numbers keep their names; classes inside a list are given by name."""
    features = dataset.features or {}
    for row in dataset.with_format(None):
        yield {column: _class_value(features.get(column), value) for column, value in row.items()}


def _class_value(feature: Any, value: object) -> object:
    named = _class_name(feature, value)
    return ClassId(value, named) if isinstance(value, int) and isinstance(named, str) else named


def name_of(source: Source) -> str:
    """The name of a source in messages."""
    if _is_paths(source):
        paths = [str(path) for path in source]
        return ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
    return str(source) if isinstance(source, (str, Path)) else "the rows given"


def has_header(source: Source) -> bool:
    """Whether all rows of a source have the same columns: it is a table in memory, or a csv, tsv or parquet file.

    Example:
        >>> has_header("rows.csv.gz"), has_header("rows.jsonl"), has_header([{"text": "hello"}])
        (True, False, False)
    """
    if isinstance(source, (str, Path)):
        return _suffix(Path(source)) in (".csv", ".tsv", ".parquet")
    return is_table(source)


def size_of(source: Source) -> int:
    """The bytes of the files of a source; 0 for rows in memory and hub names.

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


def _flatten(rows: Iterator[Row], layout: Format | None) -> Iterator[Row]:
    """Convert the records of a format to flat rows; errors pass through."""
    for location, row in rows:
        if layout is None or isinstance(row, DataError):
            yield location, row
        else:
            yield from layout.flatten(location, row)


def _number_rows(rows: Iterable[object]) -> Iterator[Row]:
    for number, row in enumerate(rows, start=1):
        location = f"row {number}"
        yield (
            location,
            row
            if isinstance(row, Mapping)
            else DataError(
                setting=location,
                got=row,
                expected="a dictionary with a value per column",
                fix="pass rows such as {'text': ..., 'label': ...}",
            ),
        )


def _read_address(address: str | Path, layout: Format | None) -> Iterator[Row]:
    if str(address).startswith(HUB_PREFIX):
        return _flatten(_read_hub(str(address)), layout)
    path = Path(address)
    suffix = _suffix(path)
    has_text_lines = layout is not None and layout.lines is not None and suffix not in (".csv", *RECORD_SUFFIXES)
    is_json = layout is not None and suffix in layout.json_suffixes
    if not has_text_lines and not is_json and suffix not in READERS:
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
    if has_text_lines and layout is not None and layout.lines is not None:
        return layout.lines(_lines(path), str(path))
    return _flatten((_read_json if is_json else READERS[suffix])(path), layout)


def _suffix(path: Path) -> str:
    """The suffix without .gz, in lower case. A .parquet.gz is not supported: parquet has its own compression."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    is_compressed = suffixes[-1:] == [".gz"]
    suffix = "".join(suffixes[-2:-1] if is_compressed else suffixes[-1:])
    return ".parquet.gz" if is_compressed and suffix == ".parquet" else suffix


# --- bytes to lines ---


class _Bytes(io.RawIOBase):
    """The bytes of a file, decompressed if its name ends in .gz. Every failure is a DataError."""

    def __init__(self, path: Path, limit: int | None = None) -> None:
        self._path = path
        self._is_compressed = path.suffix.lower() == ".gz"
        self._limit = limit or (SIZE_LIMIT if self._is_compressed else None)
        self._num_read = 0
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise self._unreadable(error) from error
        self._content = gzip.GzipFile(fileobj=self._file) if self._is_compressed else self._file

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
            condition = " once decompressed" if self._is_compressed else ""
            raise DataError(
                setting="data file",
                got=self._path,
                expected=f"at most {self._limit:,} bytes{condition}",
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


def decoded(data: bytes, name: str, first_line: int = 1) -> str:
    """Decode the bytes of a file or of standard input, from that line on; a byte order mark of the first is dropped.

    Example:
        >>> decoded(b"\\xef\\xbb\\xbftext", "rows.csv")
        'text'
    """
    try:
        return data.decode("utf-8-sig" if first_line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        # The position counts from after the byte order mark.
        line = error.object[: error.start].count(b"\n") + first_line
        raise _utf8_error(name, line, error.object[error.start]) from error


def _utf8_error(name: str, line: int, byte: int) -> DataError:
    return DataError(
        setting=f"{name}, line {line}",
        got=f"byte 0x{byte:02x}",
        expected="UTF-8 text",
        fix="convert it, for example: iconv -f latin1 -t utf-8 IN > OUT",
    )


def _lines(path: Path, newline: str = "\n") -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file with their numbers and line ends; an empty `newline` accepts any line end."""
    content = io.BufferedReader(_Bytes(path))
    with io.TextIOWrapper(content, "utf-8-sig", "surrogateescape", newline) as stream:
        for number, line in enumerate(iter(lambda: stream.readline(LINE_LIMIT), ""), start=1):
            if not line.isascii() and (undecoded := UNDECODED.search(line)):
                raise _utf8_error(str(path), number, ord(undecoded.group()) - 0xDC00)
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
    # The tsv files of GLUE hold raw quotes, so a quote is an ordinary character.
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
    first_line = 1  # of the current row; a quoted field may span several lines
    while True:
        location = f"{path}, line {first_line}"
        try:
            cells = next(reader, None)
        except csv.Error as error:
            row_error = DataError(
                setting=location, got=str(error), expected="well-formed fields", fix="fix the quoting of that line"
            )
            if not header or "expected after" not in str(error):  # after an open quote the next row cannot be located
                raise row_error from error
            yield location, row_error
            cells = []
        first_line = reader.line_num + 1
        if cells is None:
            return
        if not cells:
            continue  # a blank line
        if not header:
            header = _header(location, cells)
        elif len(cells) != len(header):
            yield (
                location,
                DataError(
                    setting=location,
                    got=f"{len(cells)} fields",
                    expected=f"{len(header)}, as in the header",
                    fix="quote or fix that line",
                ),
            )
        else:
            yield location, dict(zip(header, cells, strict=True))


def _header(location: str, names: list[str]) -> list[str]:
    for name, count in Counter(names).items():
        if count > 1:
            raise DataError(
                setting=f"{location}, column", got=name, expected="a different name for every column", fix="rename one"
            )
    return names


def _read_jsonl(path: Path) -> Iterator[Row]:
    for number, line in _lines(path):
        if line.strip():
            location = f"{path}, line {number}"
            yield location, _json_object(location, line.rstrip("\r\n"))


def _json_object(location: str, line: str) -> Mapping[str, object] | DataError:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        return DataError(setting=location, got=line[:60], expected="one JSON object per line", fix=f"fix it: {error}")
    return (
        value
        if isinstance(value, dict)
        else DataError(setting=location, got=line[:60], expected="a JSON object", fix="write {...} on every line")
    )


def _read_json(path: Path) -> Iterator[Row]:
    limit = memory_limit()
    with io.BufferedReader(_Bytes(path, min(JSON_SIZE_LIMIT, limit))) as stream:
        text = decoded(stream.read(), str(path))
    num_bytes = len(text) + sum(text.count(character) * size for character, size in JSON_BYTES.items())
    if num_bytes > limit:
        raise DataError(
            setting="data file",
            got=path,
            expected=f"rows that fit into half of the available memory, {limit >> 20:,} MiB",
            fix=f"it needs about {num_bytes >> 20:,} MiB: write it as .jsonl or .parquet, which are streamed",
        )
    try:
        value = _parse_json(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise DataError(
            setting=f"{path}, line {line}",
            got=text.split("\n")[line - 1][:60],
            expected="one JSON value in the whole file",
            fix=f"fix it, or name it .jsonl if every line is an object: {error}",
        ) from error
    if isinstance(value, dict) and not all(isinstance(item, dict) for item in value.values()):
        yield str(path), value  # a single record, for a format to flatten
        return
    if not isinstance(value, (dict, list)):
        raise DataError(setting="data file", got=path, expected="a list of objects", fix="write [{...}, {...}]")
    entries = value.items() if isinstance(value, dict) else enumerate(value, start=1)
    for name, item in entries:
        location = f"{path}, entry {name}"
        yield (
            location,
            item
            if isinstance(item, dict)
            else DataError(setting=location, got=item, expected="a JSON object", fix="write {...} there"),
        )


def _parse_json(text: str) -> object:
    """Parse a whole file. The garbage collector would look at every list that is made, again and again."""
    with collection_paused():
        return json.loads(text)


def _read_parquet(path: Path) -> Iterator[Row]:
    import pyarrow.parquet

    number, num_bytes = 0, 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(_batch_rows(file.metadata.row_group(group)), row_groups=[group]):
                    num_bytes += batch.nbytes
                    if num_bytes > SIZE_LIMIT:
                        raise OSError(f"it has more than {SIZE_LIMIT:,} bytes once decompressed")
                    for row in batch.to_pylist():
                        number += 1
                        yield f"{path}, row {number}", row
    except Exception as error:  # pyarrow raises many kinds; all mean an unreadable file
        raise DataError(
            setting="data file", got=path, expected="a readable parquet file", fix=f"write it again: {error}"
        ) from error


def _batch_rows(group: Any) -> int:
    """The rows to decode at once. Each of them may repeat the largest value, which is at most the whole group."""
    return int(max(1, min(BATCH_ROWS, memory_limit() // max(1, group.total_byte_size))))


def memory_limit() -> int:
    """The bytes that a file may take in memory: half of what is available, as far as the system tells.

    Example:
        >>> memory_limit() > 0
        True
    """
    available = read_memory().available
    return SIZE_LIMIT if available is None else min(SIZE_LIMIT, int(available * GIGABYTE / 2))


READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".parquet": _read_parquet,
}
RECORD_SUFFIXES = (".jsonl", ".json", ".parquet")  # these never hold the text lines of a format


def _read_hub(address: str) -> Iterator[Row]:
    """Yield the rows of `hub:NAME[#CONFIG]@SPLIT` through the `datasets` package, with class names for class ids."""
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
    except Exception as error:  # network, permission and name errors have many types
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(
            setting="hub data set",
            got=address,
            expected="a data set that can be downloaded or is cached",
            fix=f"check name and network, or pass a local file: {first_line}",
        ) from error
    for number, row in enumerate(table, start=1):
        values = {column: _class_name(table.features[column], value) for column, value in row.items()}
        yield f"{address}, row {number}", values


def _class_name(feature: Any, value: object) -> object:
    if isinstance(value, list) and hasattr(feature, "feature"):  # such as one tag per word
        return [_class_name(feature.feature, item) for item in value]
    is_class = hasattr(feature, "int2str") and isinstance(value, int) and value >= 0
    return feature.int2str(value) if is_class else value
