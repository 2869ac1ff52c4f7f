"""Words with one tag each, as in CoNLL-2003, to a text and its labelled character spans."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from softcue.errors import DataError
from softcue.tasks.formats.records import Lines, Record, Row, row_or_error, text_list

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
        location = f"{name}, line {sentence[0][0]}"
        width = width or len(sentence[0][1])
        wrong = next((cells for cells in sentence if len(cells[1]) != width), None)
        if wrong:
            yield (
                location,
                DataError(
                    setting=f"{name}, line {wrong[0]}",
                    got=f"{len(wrong[1])} columns",
                    expected=f"{width}, as in the first row",
                    fix="fix the sentence or remove it",
                ),
            )
        elif width == 1:  # words without tags: a row to predict
            yield location, {"text": " ".join(cells[0] for _, cells in sentence)}
        else:
            words, tags = ([cells[column] for _, cells in sentence] for column in (0, -1))
            yield row_or_error(location, join_tagged, words, tags)


def _sentences(lines: Lines) -> Iterator[list[Cells]]:
    sentence: list[Cells] = []
    for number, line in lines:
        # Not str.split, which also splits at a no-break space inside a word.
        cells = [cell for cell in re.split(r"[ \t\r\n]+", line) if cell]
        if cells and cells[0] != DOCUMENT_START:
            sentence.append((number, cells))
        elif sentence:
            yield sentence
            sentence = []
    if sentence:
        yield sentence


def conll(location: str, record: Record) -> Iterator[Row]:
    """A row of tokens and tags, as on the hub: text, spans.

    Example:
        >>> list(conll("row 1", {"tokens": ["Ann", "won"], "ner_tags": ["B-PER", "O"]}))
        [('row 1', {'text': 'Ann won', 'spans': [(0, 3, 'PER')]})]
    """
    yield (
        (location, record)
        if "tokens" not in record and "text" in record
        else row_or_error(location, _from_tokens, record)
    )


def _from_tokens(location: str, record: Record) -> Record:
    words = text_list(location, record, "tokens")
    if "ner_tags" not in record:
        return {"text": " ".join(words)}  # a row to predict
    return join_tagged(location, words, text_list(location, record, "ner_tags"))


def join_tagged(location: str, words: Sequence[str], tags: Sequence[str]) -> Record:
    """Join words by spaces and turn their tags (IOB1 or IOB2) into labelled character spans.

    Example:
        >>> join_tagged("row 1", ["New", "York", "Oslo"], ["I-LOC", "I-LOC", "B-LOC"])
        {'text': 'New York Oslo', 'spans': [(0, 8, 'LOC'), (9, 13, 'LOC')]}
    """
    if len(words) != len(tags):
        raise DataError(
            setting=location,
            got=f"{len(words)} words and {len(tags)} tags",
            expected="a tag for every word",
            fix="fix the record or remove it",
        )
    spans: list[tuple[int, int, str]] = []
    previous_tag, start = "O", 0
    for word, tag in zip(words, tags, strict=True):
        prefix, _, label = tag.partition("-")
        if tag != "O" and (prefix not in ("B", "I") or not label):
            raise DataError(
                setting=f"{location}, tag",
                got=tag,
                expected="O, B-NAME or I-NAME",
                fix="convert the tags to IOB1 or IOB2",
            )
        end = start + len(word)
        if prefix == "I" and previous_tag.partition("-")[2] == label:
            spans[-1] = (spans[-1][0], end, label)
        elif tag != "O":
            spans.append((start, end, label))
        previous_tag, start = tag, end + 1
    return {"text": " ".join(words), "spans": spans}
