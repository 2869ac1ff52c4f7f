"""Questions about a text: SQuAD and MRQA, MultiRC, ReCoRD, RACE."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from softcue.errors import DataError
from softcue.tasks.formats.records import Record, Row, an_object, attempt, needed, of_kind, plain_label, texts_of, walk

SQUAD_STEPS = (("data", "article"), ("paragraphs", "paragraph"), ("qas", "question"))
OPTION_COLUMNS = ("option_a", "option_b", "option_c", "option_d")


def squad(place: str, record: Record) -> Iterator[Row]:
    """SQuAD json, a line of MRQA jsonl, or a flat row: question, context, answers, starts, id.

    Example:
        >>> answers = {"text": ["Oslo"], "answer_start": [3]}
        >>> list(squad("row 1", {"question": "Where?", "context": "In Oslo.", "answers": answers, "id": "7"}))
        [('row 1', {'question': 'Where?', 'context': 'In Oslo.', 'id': '7', 'answers': ['Oslo'], 'starts': [3]})]
    """
    if "header" in record and "context" not in record:
        return  # MRQA's first line
    if "data" not in record and "qas" not in record:
        yield attempt(place, _question, record, record)
        return
    for where, chain in walk(place, record, SQUAD_STEPS if "data" in record else SQUAD_STEPS[-1:]):
        yield (where, chain) if isinstance(chain, DataError) else attempt(where, _question, *chain[-2:])


def _question(place: str, paragraph: Record, item: Record) -> Record:
    context = needed(place, paragraph, "context", str)
    row: dict[str, object] = {"question": needed(place, item, "question", str), "context": context}
    row["id"] = str(item.get("id", item.get("qid", "")))
    if "answers" not in item and "detected_answers" not in item:
        return row  # a question to be answered
    found: dict[str, int] = {}
    for text, start in [*_detected(place, item), *_answers(place, item)]:
        if text.strip():
            found.setdefault(text, _start(context, text, start))
    if not found:
        raise DataError(
            setting=f"{place}, key 'answers'",
            got="no answer",
            expected="a question that the context answers",
            fix="leave out unanswerable questions (SQuAD 2)",
        )
    return row | {"answers": list(found), "starts": list(found.values())}


def _answers(place: str, item: Record) -> Iterator[tuple[str, int | None]]:
    """Texts and given places of the answers: objects (SQuAD), lists side by side (hub) or texts alone (MRQA)."""
    given = item.get("answers", [])
    if isinstance(given, str):  # the one answer in a cell of a csv file
        yield given, None
        return
    if isinstance(given, Mapping):
        where = f"{place}, key 'answers'"
        yield from _paired(where, texts_of(where, given, "text"), needed(where, given, "answer_start", list))
        return
    answers = needed(place, item, "answers", list) if "answers" in item else []
    if answers and "starts" in item:
        yield from _paired(place, texts_of(place, item, "answers"), needed(place, item, "starts", list))
        return
    for number, answer in enumerate(answers, start=1):
        where = f"{place}, answer {number}"
        if isinstance(answer, Mapping):
            yield needed(where, answer, "text", str), needed(where, answer, "answer_start", int)
        else:
            yield of_kind(where, answer, str), None


def _paired(place: str, texts: list[str], starts: list[object]) -> Iterator[tuple[str, int]]:
    if len(texts) != len(starts):
        raise DataError(
            setting=place,
            got=f"{len(texts)} texts and {len(starts)} places",
            expected="a place for every answer",
            fix="fix the record or remove it",
        )
    for text, start in zip(texts, starts, strict=True):
        yield text, of_kind(place, start, int)


def _detected(place: str, item: Record) -> Iterator[tuple[str, int]]:
    """MRQA's answers as they stand in the context; these come first, since aliases need not stand there at all."""
    given = item.get("detected_answers") or []
    where = f"{place}, key 'detected_answers'"
    if isinstance(given, Mapping):  # of the hub: lists side by side
        spans = [an_object(where, span) for span in needed(where, given, "char_spans", list)]
        starts = [_first(where, needed(where, span, "start", list)) for span in spans]
        yield from _paired(where, texts_of(where, given, "text"), starts)
        return
    for answer in of_kind(where, given, list):
        found = an_object(where, answer)
        span = _first(where, needed(where, found, "char_spans", list))
        yield needed(where, found, "text", str), of_kind(where, _first(where, span), int)


def _first(where: str, value: object) -> object:
    items = of_kind(where, value, list)
    if not items:
        raise DataError(setting=where, got=value, expected="at least one place", fix="fix the record or remove it")
    return items[0]


def _start(text: str, piece: str, near: int | None) -> int:
    """Where a piece stands in a text: at the place given, else the nearest to it; -1 if nowhere."""
    if near is None:
        return _word_start(text, piece)
    if near >= 0 and text.startswith(piece, near):
        return near
    places = [match.start() for match in re.finditer(f"(?={re.escape(piece)})", text)]
    return min(places, key=lambda place: abs(place - near), default=-1)


def _word_start(text: str, piece: str) -> int:
    """Where a piece first stands in a text as whole words, or else at all; -1 if nowhere."""
    match = re.search(rf"(?<!\w){re.escape(piece)}(?!\w)", text)
    return match.start() if match else text.find(piece)


def multirc(place: str, record: Record) -> Iterator[Row]:
    """A MultiRC passage, or one answer of it as a flat row: paragraph, question, answer, label, group.

    Example:
        >>> question = {"question": "Who?", "answers": [{"text": "Ann", "label": 1}], "idx": 4}
        >>> list(multirc("line 1", {"passage": {"text": "Ann won.", "questions": [question]}, "idx": 2}))[0][1]
        {'paragraph': 'Ann won.', 'question': 'Who?', 'answer': 'Ann', 'group': '2-4', 'label': '1'}
    """
    passage = record.get("passage")
    if not isinstance(passage, Mapping):
        yield attempt(place, _flat_answer, record)
        return
    for where, chain in walk(place, passage, (("questions", "question"), ("answers", "answer"))):
        yield (where, chain) if isinstance(chain, DataError) else attempt(where, _answer, record, *chain)


def _answer(place: str, record: Record, passage: Record, question: Record, answer: Record) -> Record:
    known = "idx" in record and "idx" in question
    row: dict[str, object] = {
        "paragraph": needed(place, passage, "text", str),
        "question": needed(place, question, "question", str),
        "answer": needed(place, answer, "text", str),
        "group": f"{record['idx']}-{question['idx']}" if known else place.rpartition(", answer")[0],
    }
    return row | _truth(answer)


def _flat_answer(place: str, record: Record) -> Record:
    row: dict[str, object] = {key: needed(place, record, key, str) for key in ("paragraph", "question", "answer")}
    index = record.get("idx")
    if isinstance(index, Mapping):
        row["group"] = f"{needed(place, index, 'paragraph', int)}-{needed(place, index, 'question', int)}"
    elif "group" in record:
        row["group"] = record["group"]
    return row | _truth(record)


def _truth(answer: Record) -> dict[str, object]:
    # a test set has no labels; whoever needs one will miss the column
    return {"label": plain_label(answer["label"], {"true": "1", "false": "0"})} if "label" in answer else {}


def record(place: str, item: Record) -> Iterator[Row]:
    """A ReCoRD passage, or one query of it as a flat row: query, passage, entities, options, answers, starts.

    Example:
        >>> row = {"query": "@placeholder won.", "passage": "Ann beat Bo", "entities": ["Bo", "Ann"], "answers": ["Bo"]}
        >>> [(row["entities"], row["starts"]) for _, row in record("row 1", row)]
        [('Ann, Bo', [9])]
    """
    passage = item.get("passage")
    if not isinstance(passage, Mapping):
        yield attempt(place, _flat_query, item)
        return
    for where, chain in walk(place, item, (("qas", "query"),)):
        yield (where, chain) if isinstance(chain, DataError) else attempt(where, _query, passage, chain[-1])


def _query(place: str, passage: Record, item: Record) -> Record:
    text = needed(place, passage, "text", str)
    entities: set[str] = set()
    for number, span in enumerate(needed(place, passage, "entities", list), start=1):
        where = f"{place}, entity {number}"
        found = an_object(where, span)
        entities.add(text[needed(where, found, "start", int) : needed(where, found, "end", int) + 1])
    return _query_row(place, text, entities - {""}, item)


def _flat_query(place: str, record: Record) -> Record:
    text = needed(place, record, "passage", str)
    if isinstance(record.get("entities"), str):
        return record  # flat in our own columns
    return _query_row(place, text, set(texts_of(place, record, "entities")), record)


def _query_row(place: str, text: str, entities: set[str], item: Record) -> Record:
    # the wording of T5 (Raffel et al. 2020), whose copy of the data has the entities in sorted order
    text = re.sub(r"([.?!\"'])\n@highlight\n", r"\1 ", text).replace("\n@highlight\n", ". ")
    options = sorted(entities)
    row: dict[str, object] = {
        "query": needed(place, item, "query", str),
        "passage": text,
        "entities": ", ".join(options),
        "options": options,
        "group": "",
    }
    if "answers" not in item:
        return row
    given = needed(place, item, "answers", list)
    texts = [
        needed(place, answer, "text", str) if isinstance(answer, Mapping) else of_kind(place, answer, str)
        for answer in given
    ]
    answers = list(dict.fromkeys(texts))
    return row | {"answers": answers, "starts": [_word_start(text, answer) for answer in answers]}


def race(place: str, record: Record) -> Iterator[Row]:
    """A RACE article, or one question of it as a flat row: article, question, option_a to option_d, label.

    Example:
        >>> row = {"article": "Ann won.", "question": "Who?", "options": ["Ann", "Bo", "Cy", "Di"], "answer": "A"}
        >>> [(row["option_d"], row["label"]) for _, row in race("row 1", row)]
        [('Di', 'A')]
    """
    if "questions" not in record:
        yield attempt(place, _flat_choice, record)
        return
    try:
        questions, options = (needed(place, record, key, list) for key in ("questions", "options"))
        answers = needed(place, record, "answers", list) if "answers" in record else []
    except DataError as error:
        yield place, error
        return
    for index, question in enumerate(questions):
        item = {"article": record.get("article"), "question": question}
        item |= {"options": options[index]} if index < len(options) else {}
        item |= {"answer": answers[index]} if index < len(answers) else {}
        yield attempt(f"{place}, question {index + 1}", _flat_choice, item)


def _flat_choice(place: str, record: Record) -> Record:
    if "options" not in record and OPTION_COLUMNS[0] in record:
        return record  # flat in our own columns
    row: dict[str, object] = {key: needed(place, record, key, str) for key in ("article", "question")}
    options = texts_of(place, record, "options")
    if len(options) != len(OPTION_COLUMNS):
        raise DataError(
            setting=f"{place}, key 'options'",
            got=f"{len(options)} options",
            expected="four",
            fix="fix the record or remove it",
        )
    row |= zip(OPTION_COLUMNS, options, strict=True)
    return row | ({"label": needed(place, record, "answer", str)} if "answer" in record else {})
