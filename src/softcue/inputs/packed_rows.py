"""Tokenized rows as a few arrays, mapped from a file: a row takes as many bytes as its numbers need."""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, chain, islice
from typing import Any, overload

import numpy
import torch
from torch import Tensor

from softcue.files import cache_folder
from softcue.types import RowLabel, TokenizedRow

MIN_PACKED_ROWS = 2000  # fewer rows stay objects: they are faster, and take little memory
SPILL_BYTES = 1 << 20  # of a column that stay in memory before they go to its file
ROWS_AT_ONCE = 1024  # that are objects while they are packed
Array = numpy.ndarray[Any, Any]

# Field of a row -> type code of its numbers. Fields of tokens have one entry for each id of the row.
TOKEN_FIELDS = {"segments": "b", "parts": "b", "offsets": "i", "token_labels": "i"}
ROW_FIELDS = {"insert_at": "i", "is_truncated": "B", "weight": "d"}


class PackedRows(Sequence[TokenizedRow]):
    """Tokenized rows in arrays. A row is made when it is asked for; it equals the row that was packed.

    `vectors` [N R] are the sentence vectors of the rows, and `plain` the inputs of M(x), where rows have them.

    Example:
        >>> rows = pack_rows([TokenizedRow((5, 6), None, 0, label=1), TokenizedRow((7,), None, 1, label=0)])
        >>> rows[1].ids, rows[1].label, rows.lengths.tolist()
        ((7,), 0, [2, 1])
    """

    def __init__(
        self,
        arrays: Mapping[str, Array],
        vectors: Tensor | None = None,
        plain: Sequence[TokenizedRow] | None = None,
    ) -> None:
        self.arrays = dict(arrays)
        self.vectors, self.plain = vectors, plain

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.arrays["ends"])

    def __eq__(self, other: object) -> bool:
        """Whether another sequence has the same rows."""
        if not isinstance(other, Sequence) or len(other) != len(self):
            return False
        return all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    @overload
    def __getitem__(self, index: int) -> TokenizedRow: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[TokenizedRow]: ...

    def __getitem__(self, index: int | slice) -> TokenizedRow | Sequence[TokenizedRow]:
        """A row, or a list of rows; the whole is not copied."""
        if isinstance(index, slice):
            numbers = range(*index.indices(len(self)))
            return self if numbers == range(len(self)) else [self[number] for number in numbers]
        row = range(len(self))[index]
        ends, arrays = self.arrays["ends"], self.arrays
        tokens = slice(int(ends[row - 1]) if row else 0, int(ends[row]))
        fields: dict[str, Any] = {
            name: tuple(arrays[name][tokens].tolist()) if name in arrays else None for name in TOKEN_FIELDS
        }
        if fields["offsets"] is not None:
            fields["offsets"] = tuple(map(tuple, fields["offsets"]))
        if "places" in arrays:
            fields["places"] = tuple(arrays["places"][row].tolist())
        if "target_ends" in arrays:
            start = int(arrays["target_ends"][row - 1]) if row else 0
            fields["target_ids"] = tuple(arrays["target_ids"][start : int(arrays["target_ends"][row])].tolist())
        return TokenizedRow(
            tuple(arrays["ids"][tokens].tolist()),
            insert_at=int(arrays["insert_at"][row]),
            label=self._label(row),
            is_truncated=bool(arrays["is_truncated"][row]),
            weight=float(arrays["weight"][row]) if "weight" in arrays else 1.0,
            representation=None if self.vectors is None else self.vectors[row],
            plain=None if self.plain is None else self.plain[row],
            **fields,
        )

    def _label(self, row: int) -> RowLabel | None:
        if "labels" not in self.arrays:
            return None
        label = self.arrays["labels"][row]
        if label.ndim:
            return tuple(label.tolist())
        return int(label) if self.arrays["has_class"][row] else float(label)

    @cached_property
    def lengths(self) -> Array:
        """The number of tokens of each row, targets included. [N]"""
        lengths = numpy.diff(self.arrays["ends"], prepend=0)
        if "target_ends" in self.arrays:
            lengths = lengths + numpy.diff(self.arrays["target_ends"], prepend=0)
        return lengths.astype(numpy.int32)

    def __getstate__(self) -> dict[str, Any]:
        """What goes to another process: the numbers, not the file."""
        arrays = {name: numpy.array(values) for name, values in self.arrays.items()}
        return {"arrays": arrays, "vectors": self.vectors, "plain": self.plain}


def pack_rows(rows: Iterable[TokenizedRow]) -> PackedRows:
    """Pack rows one by one. Columns of more than a megabyte go to files without names in the folder of the caches.

    Rows must not have sentence vectors yet (`with_vectors`). Either all rows have a field or none has it.

    Example:
        >>> pack_rows(TokenizedRow((number,), None, 0) for number in range(3))[2].ids
        (2,)
    """
    columns: dict[str, _Column] = {}
    width, end, target_end = 0, 0, 0

    def add(name: str, code: str, values: Iterable[Any]) -> None:
        if name not in columns:
            columns[name] = _Column(code)
        columns[name].extend(values)

    remaining = iter(rows)
    while chunk := list(islice(remaining, ROWS_AT_ONCE)):
        ends = list(accumulate((len(row.ids) for row in chunk), initial=end))
        target_ends = list(accumulate((len(row.target_ids) for row in chunk), initial=target_end))
        end, target_end = ends[-1], target_ends[-1]
        add("ends", "q", ends[1:])
        add("ids", "i", chain.from_iterable(row.ids for row in chunk))
        add("target_ends", "q", target_ends[1:])
        add("target_ids", "i", chain.from_iterable(row.target_ids for row in chunk))
        for name, code in ROW_FIELDS.items():
            add(name, code, [getattr(row, name) for row in chunk])
        for name, code in TOKEN_FIELDS.items():
            if present := [values for row in chunk if (values := getattr(row, name)) is not None]:
                tokens = chain.from_iterable(present)
                add(name, code, chain.from_iterable(tokens) if name == "offsets" else tokens)
        if places := [row.places for row in chunk if row.places is not None]:
            add("places", "i", chain.from_iterable(places))
        if labels := [row.label for row in chunk if row.label is not None]:
            width = len(labels[-1]) if isinstance(labels[-1], tuple) else 0
            add("labels", "d", chain.from_iterable(label if isinstance(label, tuple) else (label,) for label in labels))
            add("has_class", "B", [isinstance(label, int) for label in labels])
    arrays = {name: column.finish() for name, column in columns.items()}
    arrays.setdefault("ends", numpy.zeros(0, numpy.int64))
    if "weight" in arrays and (arrays["weight"] == 1.0).all():
        del arrays["weight"]
    if not target_end:
        arrays.pop("target_ends", None)
        arrays.pop("target_ids", None)
    if "offsets" in arrays:
        arrays["offsets"] = arrays["offsets"].reshape(-1, 2)
    if "places" in arrays:
        arrays["places"] = arrays["places"].reshape(len(arrays["ends"]), -1)  # [N P]
    if width:
        arrays["labels"] = arrays["labels"].reshape(-1, width)  # [N C]
    return PackedRows(arrays)


def collect_rows(rows: Iterable[TokenizedRow], num_rows: int) -> Sequence[TokenizedRow]:
    """Few rows as a list, many rows packed.

    Example:
        >>> len(collect_rows(iter([TokenizedRow((1,), None, 0)]), 1))
        1
    """
    return pack_rows(rows) if num_rows >= MIN_PACKED_ROWS else list(rows)


def join_rows(parts: Sequence[Sequence[TokenizedRow]]) -> Sequence[TokenizedRow]:
    """The rows of all parts, one part after the other.

    Example:
        >>> len(join_rows([[TokenizedRow((1,), None, 0)], [TokenizedRow((2,), None, 0)]]))
        2
    """
    if len(parts) == 1:
        return parts[0]
    packed = [part for part in parts if isinstance(part, PackedRows)]
    if any("weight" in part.arrays for part in packed):
        packed = [PackedRows({**part.arrays, "weight": weights_of(part)}, part.vectors, part.plain) for part in packed]
    if len(packed) < len(parts) or any(part.arrays.keys() != packed[0].arrays.keys() for part in packed):
        return list(chain.from_iterable(parts))
    arrays = {}
    for name, first in packed[0].arrays.items():
        column, end = _Column(first.dtype.char), 0
        for part in packed:
            values = part.arrays[name]
            column.append(values + end if name in ("ends", "target_ends") else values)
            end += int(values[-1]) if name in ("ends", "target_ends") and len(values) else 0
        arrays[name] = column.finish().reshape(-1, *first.shape[1:])
    vectors = [part.vectors for part in packed if part.vectors is not None]
    plain = [part.plain for part in packed if part.plain is not None]
    return PackedRows(arrays, torch.cat(vectors) if vectors else None, join_rows(plain) if plain else None)


def with_vectors(rows: Sequence[TokenizedRow], vectors: Tensor) -> Sequence[TokenizedRow]:
    """The rows with their sentence vectors [N R].

    Example:
        with_vectors(rows, sentence_vectors_of(representation, backbone, task, examples))
    """
    if isinstance(rows, PackedRows):
        return PackedRows(rows.arrays, vectors, rows.plain)
    return [replace(row, representation=vector) for row, vector in zip(rows, vectors, strict=True)]


def with_plain(rows: Sequence[TokenizedRow], plain: Sequence[TokenizedRow]) -> Sequence[TokenizedRow]:
    """The rows with the inputs of their M(x).

    Example:
        with_plain(rows, plain_rows(backbone, task, examples))
    """
    if isinstance(rows, PackedRows):
        return PackedRows(rows.arrays, rows.vectors, plain)
    return [replace(row, plain=plain_row) for row, plain_row in zip(rows, plain, strict=True)]


def lengths_of(rows: Sequence[TokenizedRow]) -> Array:
    """The number of tokens of each row, targets included. [N]

    Example:
        >>> lengths_of([TokenizedRow((5, 6), None, 0, target_ids=(1,))]).tolist()
        [3]
    """
    if isinstance(rows, PackedRows):
        return rows.lengths
    return numpy.array([len(row.ids) + len(row.target_ids) for row in rows], dtype=numpy.int32)


def weights_of(rows: Sequence[TokenizedRow]) -> Array:
    """The weight of each row. [N]

    Example:
        >>> weights_of([TokenizedRow((5, 6), None, 0, weight=2.0)]).tolist()
        [2.0]
    """
    if isinstance(rows, PackedRows):
        return rows.arrays["weight"] if "weight" in rows.arrays else numpy.ones(len(rows))
    return numpy.array([row.weight for row in rows], dtype=numpy.float64)


def num_truncated(rows: Sequence[TokenizedRow]) -> int:
    """How many rows were cut.

    Example:
        >>> num_truncated([TokenizedRow((5, 6), None, 0, is_truncated=True)])
        1
    """
    if isinstance(rows, PackedRows):
        return int(numpy.count_nonzero(rows.arrays["is_truncated"]))
    return sum(row.is_truncated for row in rows)


class _Column:
    """Numbers of one type that are appended: a few in memory, many in a file."""

    def __init__(self, code: str) -> None:
        self._values = array(code)
        self._file: Any = None
        self._num_bytes = 0  # in the file
        self._can_spill = True

    def extend(self, values: Iterable[Any]) -> None:
        self._values.extend(values)
        if len(self._values) * self._values.itemsize >= SPILL_BYTES and self._can_spill:
            self._spill()

    def append(self, values: Array) -> None:
        for chunk in iterate_chunks(values):
            self._values.frombytes(chunk)
            self.extend(())

    def _spill(self) -> None:
        try:
            if self._file is None:
                cache_folder().mkdir(parents=True, exist_ok=True)
                # Not in the system's folder for temporary files, which is often memory.
                self._file = tempfile.TemporaryFile(dir=cache_folder(), buffering=0)  # noqa: SIM115 - `finish` closes it
            data = memoryview(self._values.tobytes())
            while data:
                data = data[self._file.write(data) :]
        except OSError:  # a full or read-only disk costs memory, not the run
            written = b""
            if self._file is not None:
                with self._file as file:
                    written = os.pread(file.fileno(), self._num_bytes, 0)
            self._values = array(self._values.typecode, written + self._values.tobytes())
            self._file, self._can_spill = None, False
            return
        self._num_bytes += len(self._values) * self._values.itemsize
        del self._values[:]

    def finish(self) -> Array:
        if self._file is not None and self._values:
            self._spill()
        if self._file is None:
            return numpy.array(self._values)
        with self._file as file:  # the map stays
            return numpy.memmap(file, dtype=self._values.typecode, mode="r")


def iterate_chunks(values: Array) -> Iterator[bytes]:
    """The bytes of an array, a megabyte at a time.

    Example:
        >>> b"".join(iterate_chunks(numpy.zeros(3, numpy.uint8)))
        b'\\x00\\x00\\x00'
    """
    flat = values.reshape(-1)
    step = max(1, SPILL_BYTES // flat.itemsize)
    for start in range(0, len(flat), step):
        yield flat[start : start + step].tobytes()
