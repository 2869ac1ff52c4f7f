"""Examples in a file instead of memory, for training files of many millions of rows."""

from __future__ import annotations

import json
import os
import tempfile
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

from softcue.files import cache_folder
from softcue.types import Example, Span

BLOCK = 1 << 16  # bytes that are read or written at once: their examples are in memory for a moment
DEFAULT = Example(())


class _OpenFile:
    """A file that is closed when no sequence needs it any more."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


class StoredExamples(Sequence[Example]):
    """A sequence of examples that are read from a file when they are asked for; in memory a row takes 8 bytes.

    The file has no name: it is gone when the process ends. A slice shares it. Made by `store_examples`.

    Example:
        >>> examples = store_examples(Example((f"text {number}",), "a") for number in range(9))
        >>> len(examples), examples[8].texts, [example.target for example in examples[:2]]
        (9, ('text 8',), ['a', 'a'])
    """

    def __init__(self, file: _OpenFile, ends: array[int], numbers: Sequence[int]) -> None:
        self._file = file
        self._ends = ends  # of each record in the file
        self._numbers = numbers  # of the records that belong to this sequence

    def __len__(self) -> int:
        """The number of examples."""
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> Example: ...

    @overload
    def __getitem__(self, index: slice) -> StoredExamples: ...

    def __getitem__(self, index: int | slice) -> Example | StoredExamples:
        """An example, or a part of the sequence."""
        if isinstance(index, slice):
            return StoredExamples(self._file, self._ends, self._numbers[index])
        number = self._numbers[index]
        start = self._ends[number - 1] if number else 0
        return next(_decode(os.pread(self._file.descriptor, self._ends[number] - start, start)))

    def __iter__(self) -> Iterator[Example]:
        """All examples, read in blocks where they lie one after the other."""
        if not (isinstance(self._numbers, range) and self._numbers.step == 1 and self._numbers):
            yield from (self[index] for index in range(len(self)))
            return
        number, last = self._numbers[0], self._numbers[-1]
        while number <= last:
            start = self._ends[number - 1] if number else 0
            end = max(number + 1, bisect_right(self._ends, start + BLOCK, number, last + 1))
            yield from _decode(os.pread(self._file.descriptor, self._ends[end - 1] - start, start))
            number = end

    def take(self, indices: Iterable[int]) -> StoredExamples:
        """The examples at these indices, in the same file.

        Example:
            >>> store_examples([Example(("a",)), Example(("b",))]).take([1])[0].texts
            ('b',)
        """
        return StoredExamples(self._file, self._ends, array("q", (self._numbers[index] for index in indices)))


def store_examples(examples: Iterable[Example]) -> StoredExamples:
    """Write examples to a file without a name, in the folder of the caches, and return them as a sequence.

    Example:
        >>> store_examples([Example(("Where is it?",), 0.5)])[0]
        Example(texts=('Where is it?',), target=0.5, answers=(), spans=(), group='', options=(), offset=0, labels=())
    """
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    # Not in the system's folder for temporary files, which is often memory.
    with tempfile.TemporaryFile(dir=folder, buffering=BLOCK) as file:
        ends, end = array("q"), 0
        for example in examples:
            record = _encode(example)
            file.write(record)
            end += len(record)
            ends.append(end)
        file.flush()
        return StoredExamples(_OpenFile(os.dup(file.fileno())), ends, range(len(ends)))


def collect_as(examples: Sequence[Example], others: Iterable[Example]) -> Sequence[Example]:
    """Other examples in a sequence of the same kind: in a file if these are in one, else a list.

    Example:
        >>> collect_as([], iter([Example(("a",))]))[0].texts
        ('a',)
    """
    return store_examples(others) if isinstance(examples, StoredExamples) else list(others)


def take(examples: Sequence[Example], indices: Iterable[int]) -> Sequence[Example]:
    """The examples at these indices, in a sequence of the same kind.

    Example:
        >>> take([Example(("a",)), Example(("b",))], [1])[0].texts
        ('b',)
    """
    if isinstance(examples, StoredExamples):
        return examples.take(indices)
    return [examples[index] for index in indices]


def _encode(example: Example) -> bytes:
    """A record: texts and target, and the other fields where they are not the usual ones, and a comma."""
    others = {name: value for name, value in vars(example).items() if value != getattr(DEFAULT, name)}
    record = [others.pop("texts"), others.pop("target", None)]
    if "spans" in others:
        others["spans"] = [(span.start, span.end, span.label) for span in example.spans]
    return json.dumps([*record, others] if others else record, separators=(",", ":")).encode() + b","


def _decode(records: bytes) -> Iterator[Example]:
    """The examples of records that lie one after the other."""
    for texts, target, *others in json.loads(b"[%b]" % records[:-1]):  # one call for all is faster than one for each
        if not others:
            yield Example(tuple(texts), target)
            continue
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in others[0].items()
        }
        if "spans" in fields:
            fields["spans"] = tuple(Span(*span) for span in fields["spans"])
        yield Example(tuple(texts), target, **fields)
