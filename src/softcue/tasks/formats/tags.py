"""Words with a tag each, as in CoNLL-2003: to a text and the spans of characters that the tags mark."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from softcue.errors import DataError
from softcue.tasks.formats.records import Lines, Record, Row, attempt, texts_of

DOCUMENT_START = "-DOCSTART-"
Cells = tuple[int, list[str]]  # the line's number and its columns


def conll_lines(lines: Lines, name: str) -> Iterator[Row]:
    """Files of one word per line (first column its text, last its tag), a blank line after every sentence.

    Example:
        >>> lines = [(1, "Ann B-PER"), (2, "won O"), (3, "")]
        >>> list(conll_lines(lines, "toy.conll"))
        [('toy.conll, line 1', {'text': 'Ann won', 'spans': [(0, 3, 'PER')]})]
    """
    width = 0
    for sentence in _sentences(lines):
        place = f"{name}, line {sentence[0][0]}"
        width = width or len(sentence[0][1])
        odd = next((cells for cells in sentence if len(cells[1]) != width), None)
        if odd:
            yield (
                place,
                DataError(
                    setting=f"{name}, line {odd[0]}",
                    got=f"{len(odd[1])} columns",
                    expected=f"{width}, as in the first row",
                    fix="fix the sentence or remove it",
                ),
            )
        elif width == 1:  # words alone, to be tagged
            yield place, {"text": " ".join(cells[0] for _, cells in sentence)}
        else:
            words, tags = ([cells[column] for _, cells in sentence] for column in (0, -1))
            yield attempt(place, tagged, words, tags)


def _sentences(lines: Lines) -> Iterator[list[Cells]]:
    sentence: list[Cells] = []
    for number, line in lines:
        # not str.split, which takes a no-break space inside a word for a gap
        cells = [cell for cell in re.split(r"[ \t\r\n]+", line) if cell]
        if cells and cells[0] != DOCUMENT_START:
            sentence.append((number, cells))
        elif sentence:
            yield sentence
            sentence = []
    if sentence:
        yield sentence


def conll(place: str, record: Record) -> Iterator[Row]:
    """A row of tokens and tags, as on the hub: text, spans.

    Example:
        >>> list(conll("row 1", {"tokens": ["Ann", "won"], "ner_tags": ["B-PER", "O"]}))
        [('row 1', {'text': 'Ann won', 'spans': [(0, 3, 'PER')]})]
    """
    yield (place, record) if "tokens" not in record and "text" in record else attempt(place, _from_tokens, record)


def _from_tokens(place: str, record: Record) -> Record:
    words = texts_of(place, record, "tokens")
    if "ner_tags" not in record:
        return {"text": " ".join(words)}  # to be tagged
    return tagged(place, words, texts_of(place, record, "ner_tags"))


def tagged(place: str, words: Sequence[str], tags: Sequence[str]) -> Record:
    """Words joined by spaces, and where the tags' pieces stand in that text; IOB1 and IOB2 alike.

    Example:
        >>> tagged("row 1", ["New", "York", "Oslo"], ["I-LOC", "I-LOC", "B-LOC"])
        {'text': 'New York Oslo', 'spans': [(0, 8, 'LOC'), (9, 13, 'LOC')]}
    """
    if len(words) != len(tags):
        raise DataError(
            setting=place,
            got=f"{len(words)} words and {len(tags)} tags",
            expected="a tag for every word",
            fix="fix the record or remove it",
        )
    spans: list[tuple[int, int, str]] = []
    before, start = "O", 0
    for word, tag in zip(words, tags, strict=True):
        mark, _, label = tag.partition("-")
        if tag != "O" and (mark not in ("B", "I") or not label):
            raise DataError(
                setting=f"{place}, tag", got=tag, expected="O, B-NAME or I-NAME", fix="convert the tags to IOB1 or IOB2"
            )
        end = start + len(word)
        if mark == "I" and before.partition("-")[2] == label:
            spans[-1] = (spans[-1][0], end, label)
        elif tag != "O":
            spans.append((start, end, label))
        before, start = tag, end + 1
    return {"text": " ".join(words), "spans": spans}
