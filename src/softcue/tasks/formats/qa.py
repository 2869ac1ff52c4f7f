"""Questions about a text: SQuAD and MRQA, MultiRC, ReCoRD, RACE."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from softcue.errors import DataError
from softcue.tasks.formats.records import (
    Record,
    Row,
    check_object,
    check_type,
    innermost_records,
    normalize_label,
    required,
    row_or_error,
    text_list,
)

SQUAD_STEPS = (("data", "article"), ("paragraphs", "paragraph"), ("qas", "question"))
OPTION_COLUMNS = ("option_a", "option_b", "option_c", "option_d")


def squad(location: str, record: Record) -> Iterator[Row]:
    """SQuAD json, a line of MRQA jsonl, or a flat row: question, context, answers, starts, id.

    Example:
        >>> answers = {"text": ["Oslo"], "answer_start": [3]}
        >>> list(squad("row 1", {"question": "Where?", "context": "In Oslo.", "answers": answers, "id": "7"}))
        [('row 1', {'question': 'Where?', 'context': 'In Oslo.', 'id': '7', 'answers': ['Oslo'], 'starts': [3]})]
    """
    if "header" in record and "context" not in record:
        return  # the first line of an MRQA file
    if "data" not in record and "qas" not in record:
        yield row_or_error(location, _question, record, record)
        return
    for item_location, records in innermost_records(
        location, record, SQUAD_STEPS if "data" in record else SQUAD_STEPS[-1:]
    ):
        if isinstance(records, DataError):
            yield item_location, records
        else:
            yield row_or_error(item_location, _question, *records[-2:])


def _question(location: str, paragraph: Record, item: Record) -> Record:
    context = required(location, paragraph, "context", str)
    row: dict[str, object] = {"question": required(location, item, "question", str), "context": context}
    row["id"] = str(item.get("id", item.get("qid", "")))
    if "answers" not in item and "detected_answers" not in item:
        return row  # a row to predict
    starts: dict[str, int] = {}
    for text, start in [*_detected_answers(location, item), *_answers(location, item)]:
        if text.strip():
            starts.setdefault(text, _find_answer(context, text, start))
    if not starts:
        raise DataError(
            setting=f"{location}, key 'answers'",
            got="no answer",
            expected="a question that the context answers",
            fix="leave out unanswerable questions (SQuAD 2)",
        )
    return row | {"answers": list(starts), "starts": list(starts.values())}


def _answers(location: str, item: Record) -> Iterator[tuple[str, int | None]]:
    """Yield texts and given starts of the answers: objects (SQuAD), parallel lists (hub) or texts alone (MRQA)."""
    given = item.get("answers", [])
    if isinstance(given, str):  # a single answer in a cell of a csv file
        yield given, None
        return
    if isinstance(given, Mapping):
        item_location = f"{location}, key 'answers'"
        texts = text_list(item_location, given, "text")
        yield from _pair_up(item_location, texts, required(item_location, given, "answer_start", list))
        return
    answers = required(location, item, "answers", list) if "answers" in item else []
    if answers and "starts" in item:
        yield from _pair_up(location, text_list(location, item, "answers"), required(location, item, "starts", list))
        return
    for number, answer in enumerate(answers, start=1):
        item_location = f"{location}, answer {number}"
        if isinstance(answer, Mapping):
            yield required(item_location, answer, "text", str), required(item_location, answer, "answer_start", int)
        else:
            yield check_type(item_location, answer, str), None


def _pair_up(location: str, texts: list[str], starts: list[object]) -> Iterator[tuple[str, int]]:
    if len(texts) != len(starts):
        raise DataError(
            setting=location,
            got=f"{len(texts)} texts and {len(starts)} starts",
            expected="a start for every answer",
            fix="fix the record or remove it",
        )
    for text, start in zip(texts, starts, strict=True):
        yield text, check_type(location, start, int)


def _detected_answers(location: str, item: Record) -> Iterator[tuple[str, int]]:
    """Yield MRQA's answers as the context has them. They come first, because an alias need not be in the context."""
    given = item.get("detected_answers") or []
    location = f"{location}, key 'detected_answers'"
    if isinstance(given, Mapping):  # parallel lists, as on the hub
        spans = [check_object(location, span) for span in required(location, given, "char_spans", list)]
        starts = [_first(location, required(location, span, "start", list)) for span in spans]
        yield from _pair_up(location, text_list(location, given, "text"), starts)
        return
    for answer in check_type(location, given, list):
        entry = check_object(location, answer)
        span = _first(location, required(location, entry, "char_spans", list))
        yield required(location, entry, "text", str), check_type(location, _first(location, span), int)


def _first(location: str, value: object) -> object:
    items = check_type(location, value, list)
    if not items:
        raise DataError(setting=location, got=value, expected="at least one start", fix="fix the record or remove it")
    return items[0]


def _find_answer(text: str, answer: str, given_start: int | None) -> int:
    """The start of an answer in a text: the given one if it is right, else the nearest to it; -1 if there is none."""
    if given_start is None:
        return _find_words(text, answer)
    if given_start >= 0 and text.startswith(answer, given_start):
        return given_start
    starts = [match.start() for match in re.finditer(f"(?={re.escape(answer)})", text)]
    return min(starts, key=lambda start: abs(start - given_start), default=-1)


def _find_words(text: str, answer: str) -> int:
    """The first start of an answer as whole words, else as any characters; -1 if there is none."""
    match = re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", text)
    return match.start() if match else text.find(answer)


def multirc(location: str, record: Record) -> Iterator[Row]:
    """A MultiRC passage, or one answer of it as a flat row: paragraph, question, answer, label, group.

    Example:
        >>> question = {"question": "Who?", "answers": [{"text": "Ann", "label": 1}], "idx": 4}
        >>> list(multirc("line 1", {"passage": {"text": "Ann won.", "questions": [question]}, "idx": 2}))[0][1]
        {'paragraph': 'Ann won.', 'question': 'Who?', 'answer': 'Ann', 'group': '2-4', 'label': '1'}
    """
    passage = record.get("passage")
    if not isinstance(passage, Mapping):
        yield row_or_error(location, _flat_answer, record)
        return
    for item_location, records in innermost_records(
        location, passage, (("questions", "question"), ("answers", "answer"))
    ):
        if isinstance(records, DataError):
            yield item_location, records
        else:
            yield row_or_error(item_location, _answer, record, *records)


def _answer(location: str, record: Record, passage: Record, question: Record, answer: Record) -> Record:
    has_ids = "idx" in record and "idx" in question
    row: dict[str, object] = {
        "paragraph": required(location, passage, "text", str),
        "question": required(location, question, "question", str),
        "answer": required(location, answer, "text", str),
        "group": f"{record['idx']}-{question['idx']}" if has_ids else location.rpartition(", answer")[0],
    }
    return row | _truth(answer)


def _flat_answer(location: str, record: Record) -> Record:
    row: dict[str, object] = {key: required(location, record, key, str) for key in ("paragraph", "question", "answer")}
    index = record.get("idx")
    if isinstance(index, Mapping):
        row["group"] = f"{required(location, index, 'paragraph', int)}-{required(location, index, 'question', int)}"
    elif "group" in record:
        row["group"] = record["group"]
    return row | _truth(record)


def _truth(answer: Record) -> dict[str, object]:
    # A test set has no labels. A task that needs them reports the missing column.
    return {"label": normalize_label(answer["label"], {"true": "1", "false": "0"})} if "label" in answer else {}


def record(location: str, item: Record) -> Iterator[Row]:
    """A ReCoRD passage, or one query of it as a flat row: query, passage, entities, options, answers, starts.

    Example:
        >>> row = {"query": "@placeholder won.", "passage": "Ann beat Bo", "entities": ["Bo", "Ann"], "answers": ["Bo"]}
        >>> [(row["entities"], row["starts"]) for _, row in record("row 1", row)]
        [('Ann, Bo', [9])]
    """
    passage = item.get("passage")
    if not isinstance(passage, Mapping):
        yield row_or_error(location, _flat_query, item)
        return
    for item_location, records in innermost_records(location, item, (("qas", "query"),)):
        if isinstance(records, DataError):
            yield item_location, records
        else:
            yield row_or_error(item_location, _query, passage, records[-1])


def _query(location: str, passage: Record, item: Record) -> Record:
    text = required(location, passage, "text", str)
    entities: set[str] = set()
    for number, span in enumerate(required(location, passage, "entities", list), start=1):
        item_location = f"{location}, entity {number}"
        entity = check_object(item_location, span)
        entities.add(
            text[required(item_location, entity, "start", int) : required(item_location, entity, "end", int) + 1]
        )
    return _query_row(location, text, entities - {""}, item)


def _flat_query(location: str, record: Record) -> Record:
    text = required(location, record, "passage", str)
    if isinstance(record.get("entities"), str):
        return record  # already flat, in softcue's columns
    return _query_row(location, text, set(text_list(location, record, "entities")), record)


def _query_row(location: str, text: str, entities: set[str], item: Record) -> Record:
    # The input format of T5 (Raffel et al. 2020), whose copy of the data has the entities in sorted order.
    text = re.sub(r"([.?!\"'])\n@highlight\n", r"\1 ", text).replace("\n@highlight\n", ". ")
    options = sorted(entities)
    row: dict[str, object] = {
        "query": required(location, item, "query", str),
        "passage": text,
        "entities": ", ".join(options),
        "options": options,
        "group": "",
    }
    if "answers" not in item:
        return row
    given = required(location, item, "answers", list)
    texts = [
        required(location, answer, "text", str) if isinstance(answer, Mapping) else check_type(location, answer, str)
        for answer in given
    ]
    answers = list(dict.fromkeys(texts))
    return row | {"answers": answers, "starts": [_find_words(text, answer) for answer in answers]}


def race(location: str, record: Record) -> Iterator[Row]:
    """A RACE article, or one question of it as a flat row: article, question, option_a to option_d, label.

    Example:
        >>> row = {"article": "Ann won.", "question": "Who?", "options": ["Ann", "Bo", "Cy", "Di"], "answer": "A"}
        >>> [(row["option_d"], row["label"]) for _, row in race("row 1", row)]
        [('Di', 'A')]
    """
    if "questions" not in record:
        yield row_or_error(location, _flat_choice, record)
        return
    try:
        questions, options = (required(location, record, key, list) for key in ("questions", "options"))
        answers = required(location, record, "answers", list) if "answers" in record else []
    except DataError as error:
        yield location, error
        return
    for index, question in enumerate(questions):
        item = {"article": record.get("article"), "question": question}
        item |= {"options": options[index]} if index < len(options) else {}
        item |= {"answer": answers[index]} if index < len(answers) else {}
        yield row_or_error(f"{location}, question {index + 1}", _flat_choice, item)


def _flat_choice(location: str, record: Record) -> Record:
    if "options" not in record and OPTION_COLUMNS[0] in record:
        return record  # already flat, in softcue's columns
    row: dict[str, object] = {key: required(location, record, key, str) for key in ("article", "question")}
    options = text_list(location, record, "options")
    if len(options) != len(OPTION_COLUMNS):
        raise DataError(
            setting=f"{location}, key 'options'",
            got=f"{len(options)} options",
            expected="four",
            fix="fix the record or remove it",
        )
    row |= zip(OPTION_COLUMNS, options, strict=True)
    return row | ({"label": required(location, record, "answer", str)} if "answer" in record else {})
