"""Texts with marked words: the pronoun of WSC, the two entities of SemEval-2010 task 8 and TACRED."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from softcue.errors import DataError
from softcue.tasks.formats.records import Lines, Record, Row, normalize_label, required, row_or_error, text_list

MAX_DISTANCE = 3  # words between the index that a WSC row gives and its pronoun; in SuperGLUE one row is off by one
ENTITIES = ("<e1>", "</e1>", "<e2>", "</e2>")
Block = list[tuple[int, str]]


def wsc(location: str, record: Record) -> Iterator[Row]:
    """A WSC row, nested or flat: text with its pronoun between stars, candidate, label.

    Example:
        >>> row = {"text": "Bo hit Cy. He ran.", "span1_text": "Bo", "span2_text": "He", "span2_index": 3, "label": 1}
        >>> list(wsc("row 1", row))
        [('row 1', {'text': 'Bo hit Cy. *He* ran.', 'candidate': 'Bo', 'label': 'true'})]
    """
    yield row_or_error(location, _referent, record)


def _referent(location: str, record: Record) -> Record:
    target = record.get("target", record)
    if "candidate" in record or not isinstance(target, Mapping):
        return record  # already flat, in softcue's columns
    text, pronoun = required(location, record, "text", str), required(location, target, "span2_text", str)
    row: dict[str, object] = {
        "text": _mark_pronoun(location, text, pronoun, required(location, target, "span2_index", int)),
        "candidate": required(location, target, "span1_text", str),
    }
    if "label" in record:
        row["label"] = normalize_label(record["label"], {"1": "true", "0": "false", "true": "true", "false": "false"})
    return row


def _mark_pronoun(location: str, text: str, pronoun: str, index: int) -> str:
    """Put stars around the pronoun near word `index`; words are separated by single spaces."""
    bare = re.escape(pronoun.strip(" .,;:!?\"'"))
    matches = list(re.finditer(rf"(?<!\w){bare}(?!\w)", text)) if bare else []
    distances = [abs(text.count(" ", 0, match.start()) - index) for match in matches]
    if not matches or min(distances) > MAX_DISTANCE:
        raise DataError(
            setting=f"{location}, key 'span2_text'",
            got=pronoun,
            expected=f"a word of the text at or near word {index}",
            fix="fix the record or remove it",
        )
    start, end = matches[distances.index(min(distances))].span()
    return f"{text[:start]}*{text[start:end]}*{text[end:]}"


def semeval_lines(lines: Lines, name: str) -> Iterator[Row]:
    r"""SemEval-2010 task 8: a numbered sentence, its relation, a comment, a blank line; the relation may be missing.

    Example:
        >>> lines = [(1, '7\t"An <e1>arm</e1> of a <e2>chair</e2>."'), (2, "Component-Whole(e1,e2)"), (3, "Comment:")]
        >>> list(semeval_lines(lines, "toy.txt"))[0][1]["label"]
        'Component-Whole(e1,e2)'
    """
    block: Block = []
    for number, line in lines:
        text = line.strip()
        if block and (not text or re.match(r"\d+\t", text)):
            yield row_or_error(f"{name}, line {block[0][0]}", _relation, block)
            block = []
        if text:
            block.append((number, text))
    if block:
        yield row_or_error(f"{name}, line {block[0][0]}", _relation, block)


def _relation(location: str, block: Block) -> Record:
    number, tab, sentence = block[0][1].partition("\t")
    if not tab or not number.isdigit():
        raise DataError(
            setting=location,
            got=block[0][1][:60],
            expected="a number, a tab and a sentence",
            fix="fix the block or remove it",
        )
    sentence = sentence.strip()
    if len(sentence) > 1 and sentence[0] == sentence[-1] == '"':
        sentence = sentence[1:-1]
    relations = [line for _, line in block[1:] if not line.startswith("Comment:")]
    if len(relations) > 1:
        raise DataError(
            setting=location,
            got=relations[1][:60],
            expected="one relation below the sentence",
            fix="fix the block or remove it",
        )
    row = _check_entities(location, {"text": sentence, "id": number})
    return row | {"label": relations[0]} if relations else row


def _check_entities(location: str, row: dict[str, object]) -> dict[str, object]:
    """The row, if its text marks both entities exactly once."""
    for tag in ENTITIES:
        if str(row["text"]).count(tag) != 1:
            raise DataError(
                setting=location,
                got=str(row["text"])[:60],
                expected=f"{tag} exactly once",
                fix="mark both entities or remove the row",
            )
    return row


def semeval(location: str, record: Record) -> Iterator[Row]:
    """A flat row, as on the hub (sentence, relation): text, label.

    Example:
        >>> row = {"sentence": "An <e1>arm</e1> of a <e2>chair</e2>.", "relation": "Component-Whole(e1,e2)"}
        >>> list(semeval("row 1", row))
        [('row 1', {'text': 'An <e1>arm</e1> of a <e2>chair</e2>.', 'label': 'Component-Whole(e1,e2)'})]
    """
    yield row_or_error(location, _flat_relation, record)


def _flat_relation(location: str, record: Record) -> Record:
    if "text" in record:
        return _check_entities(location, {**record, "text": required(location, record, "text", str)})
    row = _check_entities(location, {"text": required(location, record, "sentence", str)})
    return row | {"label": required(location, record, "relation", str)} if "relation" in record else row


def tacred(location: str, record: Record) -> Iterator[Row]:
    """A TACRED record: text with <e1> around the subject and <e2> around the object, their types, label.

    Example:
        >>> row = {"token": ["Ann", "won"], "subj_start": 0, "subj_end": 0, "obj_start": 1, "obj_end": 1,
        ...        "subj_type": "PERSON", "obj_type": "TITLE", "relation": "no_relation"}
        >>> next(tacred("row 1", row))[1]["text"]
        '<e1>Ann</e1> <e2>won</e2>'
    """
    yield (
        (location, record)
        if "token" not in record and "text" in record
        else row_or_error(location, _two_entities, record)
    )


def _two_entities(location: str, record: Record) -> Record:
    words = text_list(location, record, "token")
    taken: set[int] = set()
    for key, opening, closing in (("subj", *ENTITIES[:2]), ("obj", *ENTITIES[2:])):
        start, end = required(location, record, f"{key}_start", int), required(location, record, f"{key}_end", int)
        inside = set(range(start, end + 1))
        if not 0 <= start <= end < len(words) or inside & taken:
            raise DataError(
                setting=f"{location}, key '{key}_start'",
                got=f"words {start} to {end}",
                expected=f"words among 0 to {len(words) - 1} that the other entity does not have",
                fix="fix the record or remove it",
            )
        taken |= inside
        words[start] = opening + words[start]
        words[end] += closing
    row: dict[str, object] = {"text": " ".join(words)}
    for name, key in (("subject_type", "subj_type"), ("object_type", "obj_type")):
        row[name] = required(location, record, key, str)
    return row | ({"label": required(location, record, "relation", str)} if "relation" in record else {})
