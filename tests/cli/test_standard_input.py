"""Standard input is read as it comes: what is there is predicted before more is awaited."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator

import pytest

from softcue.cli.predict import StandardInput, _in_chunks, _input_rows
from softcue.errors import DataError
from softcue.tasks import Task, stream_together

ONE, TWO = Task(name="one"), Task(name="two", text=("first", "second"))


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.FileIO]:
    """The other end of standard input."""
    reading, writing = os.pipe()
    with open(reading, "rb") as stream, open(writing, "wb", buffering=0) as other_end:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream, "utf-8"))
        yield other_end


def test_rows_are_there_before_the_input_ends(pipe: io.FileIO) -> None:
    lines = StandardInput()
    chunks = _in_chunks(stream_together(_input_rows(lines, [ONE]), [ONE]), lines.has_more)
    pipe.write(b"un\ndeux\n\ntr")
    assert [row[0].texts for row in next(chunks)] == [("un",), ("deux",)]
    pipe.write("ois é\r\nquatre".encode())
    assert [row[0].texts for row in next(chunks)] == [("trois é",)]
    pipe.close()
    assert [row[0].texts for row in next(chunks)] == [("quatre",)]
    assert next(chunks, None) is None


def test_chunks_are_bounded(pipe: io.FileIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softcue.serving.prediction_lines.ROWS_AT_ONCE", 2)
    pipe.write(b"a\nb\nc\nd\ne\n")
    pipe.close()
    lines = StandardInput()
    chunks = _in_chunks(stream_together(_input_rows(lines, [ONE]), [ONE]), lines.has_more)
    assert list(map(len, chunks)) == [2, 2, 1]


def test_lines_keep_their_numbers_from_block_to_block(pipe: io.FileIO) -> None:
    rows = _input_rows(StandardInput(), [ONE])
    pipe.write(b'{"text": "a"}\n\n')
    assert next(rows) == {"text": "a"}
    pipe.write(b"{broken\n")
    with pytest.raises(DataError, match="standard input, line 3"):
        next(rows)
    lines = iter(StandardInput())
    pipe.write(b"fine\n")
    assert next(lines) == (1, "fine")
    pipe.write(b"fine\ncaf\xe9\n")
    with pytest.raises(DataError, match=r"standard input, line 3.*0xe9"):
        next(lines)


def test_a_line_serves_tasks_of_one_text_or_of_two_but_has_all_of_them(pipe: io.FileIO) -> None:
    pipe.write(b"a\tb\nonly one\n")
    rows = _input_rows(StandardInput(), [TWO])
    assert next(rows) == {"first": "a", "second": "b"}
    with pytest.raises(DataError, match=r"row 2.*2 text"):
        next(rows)
