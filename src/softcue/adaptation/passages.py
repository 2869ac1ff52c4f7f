"""Plain text as a stream of passages: files, .gz files, folders, rows of data files, and data sets of the hub.

Nothing is held in memory but the passage that is read. A document becomes one or more passages, which are cut between
words; joined again they are the document.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from softcue.errors import DataError, MissingExtraError
from softcue.tasks.readers import HUB_PREFIX, read_rows

PASSAGE_CHARACTERS = 2000
ROW_SUFFIXES = (".jsonl", ".csv", ".tsv", ".parquet")  # each row is a document
TEXT_SUFFIXES = (".txt", ".text", ".md")
DIGEST_BYTES = 1 << 20  # of each file, to recognise it


class TextSources:
    """The texts of an adaptation: names of files, of folders and of hub data sets (hub:NAME@SPLIT), in a fixed order.

    Example:
        passages = iter(TextSources(["books", "hub:allenai/c4#en@train"]))
    """

    def __init__(self, names: str | Path | Sequence[str | Path], text_column: str = "text") -> None:
        listed = [names] if isinstance(names, (str, Path)) else list(names)
        if not listed:
            raise DataError(setting="text", got=listed, expected="at least one file, folder or hub name", fix="name it")
        self.text_column = text_column
        self.addresses = [address for name in listed for address in _expand(name)]

    def __iter__(self) -> Iterator[str]:
        """Yield the passages of all sources, each time from the beginning."""
        for address in self.addresses:
            if isinstance(address, Path) and not _has_rows(address):
                yield from cut_passages(_read_blocks(address))
            else:
                for text in self._row_texts(address):
                    yield from cut_passages([text])

    def digest(self) -> str:
        """A digest of names of hub data sets, and of the size and first megabyte of each file."""
        digest = hashlib.sha256(self.text_column.encode())
        for address in self.addresses:
            if isinstance(address, str):
                digest.update(address.encode())
                continue
            with address.open("rb") as handle:
                digest.update(f"{address.stat().st_size} ".encode() + handle.read(DIGEST_BYTES))
        return digest.hexdigest()

    def _row_texts(self, address: str | Path) -> Iterator[str]:
        rows = _stream_hub(address) if isinstance(address, str) else read_rows(address)
        for location, row in rows:
            if isinstance(row, DataError):
                raise row
            text = row.get(self.text_column)
            if not isinstance(text, str):
                raise DataError(
                    setting=location,
                    got=", ".join(map(str, row)),
                    expected=f"a text in column '{self.text_column}'",
                    fix="name the column: `text_column=NAME`",
                )
            yield text


def cut_passages(blocks: Iterable[str]) -> Iterator[str]:
    """Cut the text of a document, which comes in blocks, into passages that end between words.

    Example:
        >>> [len(passage) for passage in cut_passages(["word " * 500])]
        [1999, 501]
    """
    rest = ""
    for block in blocks:
        rest += block
        while len(rest) > PASSAGE_CHARACTERS:
            cut = _last_space(rest[:PASSAGE_CHARACTERS])
            if cut == 0:  # no space to cut at: a very long word, or a script without spaces
                cut = PASSAGE_CHARACTERS
            yield rest[:cut]
            rest = rest[cut:]
    if rest.strip():
        yield rest


def _last_space(text: str) -> int:
    """The place of the last space after the first word, or 0."""
    start = len(text) - len(text.lstrip())
    return next((place for place in range(len(text) - 1, start, -1) if text[place].isspace()), 0)


def _expand(name: str | Path) -> list[str | Path]:
    """The files of a folder in the order of their names; a file or a hub name as it is."""
    if isinstance(name, str) and name.startswith(HUB_PREFIX):
        return [name]
    path = Path(name).expanduser()
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(
            setting="text", got=name, expected="a file, a folder of texts, or hub:NAME@SPLIT", fix="check the path"
        )
    files = sorted(file for file in path.rglob("*") if file.is_file() and _suffix(file) in TEXT_SUFFIXES + ROW_SUFFIXES)
    if not files:
        raise DataError(
            setting="text",
            got=name,
            expected=f"files ending in {', '.join(TEXT_SUFFIXES + ROW_SUFFIXES)} (or .gz) below it",
            fix="name the files themselves: any name is read as plain text",
        )
    return list(files)


def _suffix(path: Path) -> str:
    return Path(path.stem).suffix.lower() if path.suffix.lower() == ".gz" else path.suffix.lower()


def _has_rows(path: Path) -> bool:
    return _suffix(path) in ROW_SUFFIXES


def _read_blocks(path: Path) -> Iterator[str]:
    """Yield the text of a file in blocks of a few thousand characters."""
    try:
        with (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rt", encoding="utf-8-sig") as handle:
            while block := handle.read(4 * PASSAGE_CHARACTERS):
                yield block
    except UnicodeDecodeError as error:
        raise DataError(
            setting="text",
            got=path,
            expected="UTF-8 text",
            fix="convert it, for example: iconv -f latin1 -t utf-8 IN > OUT",
        ) from error
    except (EOFError, zlib.error, OSError) as error:
        raise DataError(
            setting="text", got=path, expected="a readable, undamaged file", fix=f"check it: {error}"
        ) from error


def _stream_hub(address: str) -> Iterator[tuple[str, Any]]:
    """Yield the rows of `hub:NAME[#CONFIG]@SPLIT` as they arrive, without keeping the data set on disk."""
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError("datasets", "hub") from error
    name, _, split = address.removeprefix(HUB_PREFIX).partition("@")
    name, _, configuration = name.partition("#")
    if not name or not split:
        raise DataError(
            setting="text",
            got=address,
            expected="hub:NAME@SPLIT or hub:NAME#CONFIG@SPLIT",
            fix="for example hub:allenai/c4#en@train",
        )
    try:
        rows = datasets.load_dataset(name, configuration or None, split=split, streaming=True)
        for number, row in enumerate(rows, start=1):
            yield f"{address}, row {number}", row
    except DataError:
        raise
    except Exception as error:  # network, permission and name errors have many types
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(
            setting="text",
            got=address,
            expected="a data set that can be streamed or is cached",
            fix=f"check name and network, or pass a local file: {first_line}",
        ) from error
