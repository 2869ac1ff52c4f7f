"""Every published format, in rows written for these tests: as its files have it, as the hub has it, and damaged."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from softcue.errors import ConfigurationError, DataError
from softcue.tasks import Label, Task, examples_from
from softcue.tasks.formats import FORMATS
from softcue.tasks.readers import read_rows
from softcue.types import Span


def rows_of(source: Any, name: str) -> list[dict[str, object]]:
    rows = [row for _, row in read_rows(source, name)]
    assert not [str(row) for row in rows if isinstance(row, DataError)]
    return [dict(row) for row in rows if not isinstance(row, DataError)]


def errors_of(source: Any, name: str) -> list[str]:
    return [str(row) for _, row in read_rows(source, name) if isinstance(row, DataError)]


def locations_of(source: Any, name: str) -> list[str]:
    return [location for location, _ in read_rows(source, name)]


def save(path: Path, content: object) -> Path:
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def test_unknown_format_suggests_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match=r"task.format: got 'squadd'; .* did you mean 'squad'\?"):
        read_rows([], "squadd")


# --- SQuAD and MRQA ---

CONTEXT = "The ferry to Visby leaves at noon. At noon the cafe closes."


def squad_question(*answers: tuple[str, int], **others: object) -> dict[str, object]:
    given = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": "q1", "question": "When?", "answers": given, **others}


def squad_file(*questions: object) -> dict[str, object]:
    return {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": list(questions)}]}]}


def test_squad_questions_become_rows_with_every_distinct_answer(tmp_path: Path) -> None:
    question = squad_question(("noon", 29), ("at noon", 26), ("noon", 29))
    path = save(tmp_path / "dev.json", squad_file(question, squad_question(("Visby", 13), id="q2")))
    assert rows_of(path, "squad") == [
        {"question": "When?", "context": CONTEXT, "id": "q1", "answers": ["noon", "at noon"], "starts": [29, 26]},
        {"question": "When?", "context": CONTEXT, "id": "q2", "answers": ["Visby"], "starts": [13]},
    ]
    assert locations_of(path, "squad")[1] == f"{path}, article 1, paragraph 1, question 2"


@pytest.mark.parametrize(
    ("answer", "start", "repaired"),
    [("noon", 30, 29), ("noon", 36, 38), ("noon", -5, 29), ("noon", 10**9, 38), ("midnight", 29, -1)],
)
def test_wrong_start_is_replaced_by_the_nearest_occurrence(answer: str, start: int, repaired: int) -> None:
    assert rows_of([squad_file(squad_question((answer, start)))], "squad")[0]["starts"] == [repaired]


@pytest.mark.parametrize("answers", [[], [{"text": " ", "answer_start": 0}], {"text": [], "answer_start": []}])
def test_unanswerable_question_is_a_bad_row_and_the_next_is_read(answers: object) -> None:
    source = [squad_file(squad_question() | {"answers": answers}, squad_question(("noon", 29)))]
    assert errors_of(source, "squad") == [
        "row 1, article 1, paragraph 1, question 1, key 'answers': got 'no answer'; expected a question that the "
        "context answers; leave out unanswerable questions (SQuAD 2)"
    ]
    assert len(locations_of(source, "squad")) == 2


def test_hub_rows_of_squad_have_parallel_lists() -> None:
    row = {"id": "7", "context": CONTEXT, "question": "Where to?", "title": "t"}
    answers = {"text": ["Visby", "to Visby"], "answer_start": [13, 10]}
    assert rows_of([row | {"answers": answers}], "squad") == [
        {"question": "Where to?", "context": CONTEXT, "id": "7", "answers": ["Visby", "to Visby"], "starts": [13, 10]}
    ]
    assert "1 texts and 0 starts" in errors_of([row | {"answers": {"text": ["a"], "answer_start": []}}], "squad")[0]


def test_question_without_answers_key_is_read_for_prediction() -> None:
    row = {"question": "When?", "context": CONTEXT}
    assert rows_of([row], "squad") == [row | {"id": ""}]


def test_flat_rows_pass_through() -> None:
    row = {"question": "When?", "context": CONTEXT, "id": "1", "answers": ["noon"], "starts": [29]}
    assert rows_of([row], "squad") == [row]


def mrqa_line(answers: list[str], detected: list[object]) -> dict[str, object]:
    question = {"qid": "a1", "question": "When?", "answers": answers, "detected_answers": detected}
    return {"context": CONTEXT, "qas": [question]}


def test_mrqa_lines_have_a_header_inclusive_ends_and_several_spans(tmp_path: Path) -> None:
    detected = {"text": "noon", "char_spans": [[29, 32], [38, 41]], "token_spans": [[6, 6], [9, 9]]}
    lines = [{"header": {"dataset": "toy", "split": "dev"}}, mrqa_line(["12 o'clock", "noon"], [detected])]
    path = save(tmp_path / "toy.jsonl.gz", "".join(json.dumps(line) + "\n" for line in lines))
    assert rows_of(path, "squad") == [
        {
            "question": "When?",
            "context": CONTEXT,
            "id": "a1",
            "answers": ["noon", "12 o'clock"],  # what stands in the context comes first
            "starts": [29, -1],
        }
    ]
    assert locations_of(path, "squad") == [f"{path}, line 2, question 1"]


def test_hub_rows_of_mrqa_are_read() -> None:
    detected = {"text": ["noon"], "char_spans": [{"start": [38], "end": [41]}]}
    row = {"context": CONTEXT, "question": "When?", "qid": "a1", "answers": ["noon"], "detected_answers": detected}
    assert rows_of([row], "squad")[0]["starts"] == [38]


def test_answer_given_as_text_alone_is_found_as_whole_words() -> None:
    row = {"context": "Somewhere over there we are here.", "question": "Where?", "answers": ["here", "some", "here."]}
    assert rows_of([row], "squad")[0]["starts"] == [28, -1, 28]


@pytest.mark.parametrize(
    ("record", "parts"),
    [
        (
            {"data": [{"title": "t"}]},
            ["row 1, article 1, key 'paragraphs': got 'no such key'; expected a key", "known: title"],
        ),
        ({"data": {}}, ["row 1, key 'data': got '{}'; expected a list"]),
        ({"data": ["x"]}, ["row 1, article 1: got 'x'; expected an object"]),
        (squad_file({"id": "1"}), ["question 1, key 'question': got 'no such key'"]),
        (squad_file({"question": 3}), ["key 'question': got 3; expected a text"]),
        (
            squad_file(squad_question() | {"answers": [{"text": "x"}]}),
            ["answer 1, key 'answer_start': got 'no such key'"],
        ),
        (squad_file(squad_question(("x", True))), ["key 'answer_start': got True; expected a whole number"]),
        (squad_file(squad_question() | {"answers": [3]}), ["answer 1: got 3; expected a text"]),
        (mrqa_line(["x"], [{"text": "x", "char_spans": []}]), ["at least one start"]),
        (mrqa_line(["x"], [{"text": "x"}]), ["key 'char_spans': got 'no such key'"]),
        ({"question": "When?"}, ["row 1, key 'context': got 'no such key'; expected a key of that name"]),
    ],
)
def test_error_of_a_damaged_question_names_location_and_key(record: object, parts: list[str]) -> None:
    [message] = errors_of([record], "squad")
    for part in parts:
        assert part in message


# --- MultiRC ---


def multirc_record(index: int = 3) -> dict[str, object]:
    first = {"question": "Who sang?", "answers": [{"text": "Mia", "label": 1}, {"text": "Bo", "label": 0}], "idx": 8}
    second = {"question": "Who danced?", "answers": [{"text": "Bo", "label": True}], "idx": 9}
    return {"idx": index, "passage": {"text": "Mia sang. <b>Bo</b> danced.", "questions": [first, second]}}


def test_multirc_answers_share_the_group_of_their_question() -> None:
    rows = rows_of([multirc_record()], "multirc")
    assert [(row["answer"], row["label"], row["group"]) for row in rows] == [
        ("Mia", "1", "3-8"),
        ("Bo", "0", "3-8"),
        ("Bo", "1", "3-9"),
    ]
    assert rows[0]["paragraph"] == "Mia sang. <b>Bo</b> danced."
    assert locations_of([multirc_record()], "multirc")[2] == "row 1, question 2, answer 1"


def test_multirc_without_numbers_still_groups_by_question() -> None:
    record: Any = multirc_record()
    del record["idx"], record["passage"]["questions"][0]["idx"]
    assert [row["group"] for row in rows_of([record], "multirc")] == ["row 1, question 1"] * 2 + ["row 1, question 2"]


@pytest.mark.parametrize(("label", "expected"), [("False", "0"), ("True", "1"), (1, "1"), (False, "0")])
def test_hub_rows_of_multirc_are_flat(label: object, expected: str) -> None:
    index = {"paragraph": 0, "question": 5, "answer": 2}
    row = {"paragraph": "p", "question": "q", "answer": "a", "label": label, "idx": index}
    assert rows_of([row], "multirc") == [
        {"paragraph": "p", "question": "q", "answer": "a", "group": "0-5", "label": expected}
    ]


def test_multirc_test_rows_have_no_label() -> None:
    record: Any = multirc_record()
    del record["passage"]["questions"][1]["answers"][0]["label"]
    assert "label" not in rows_of([record], "multirc")[2]


def test_damaged_multirc_question_leaves_the_others() -> None:
    record: Any = multirc_record()
    del record["passage"]["questions"][0]["answers"]
    assert errors_of([record], "multirc")[0].startswith("row 1, question 1, key 'answers': got 'no such key'")
    assert len(locations_of([record], "multirc")) == 2
    assert errors_of([{"text": "x"}], "multirc")[0].startswith("row 1, key 'paragraph': got 'no such key'")


# --- ReCoRD ---

NEWS = "Ana Lind runs Kiosk Nord.\n@highlight\nLind opened it in Bergen\n@highlight\nBergen likes it"


def record_of(query: str, *answers: str) -> dict[str, object]:
    entities = ["Kiosk Nord", "Ana Lind", "Bergen", "Bergen", "Lind"]
    starts = [NEWS.index(name) for name in entities]
    spans = [{"start": at, "end": at + len(name) - 1} for at, name in zip(starts, entities, strict=True)]
    given = [{"start": 0, "end": 0, "text": answer} for answer in answers]
    return {"idx": 1, "passage": {"text": NEWS, "entities": spans}, "qas": [{"query": query, "answers": given}]}


def test_record_has_the_text_of_t5_and_starts_in_that_text() -> None:
    [row] = rows_of([record_of("@placeholder is a town.", "Bergen", "Lind", "Bergen", "Oslo")], "record")
    text = "Ana Lind runs Kiosk Nord. Lind opened it in Bergen. Bergen likes it"
    assert row == {
        "query": "@placeholder is a town.",
        "passage": text,
        "entities": "Ana Lind, Bergen, Kiosk Nord, Lind",
        "options": ["Ana Lind", "Bergen", "Kiosk Nord", "Lind"],
        "group": "",
        "answers": ["Bergen", "Lind", "Oslo"],
        "starts": [text.index("Bergen"), 4, -1],
    }


def test_record_answers_are_found_at_word_boundaries() -> None:
    text, names = "Lindgren met Lind, then U.S. men", ["Lind", "U.S."]
    row = {"query": "q", "passage": text, "entities": names, "answers": [*names, "gren"]}
    assert rows_of([row], "record")[0]["starts"] == [13, 24, 4]


def test_record_without_answers_is_read_for_prediction() -> None:
    record: Any = record_of("q")
    del record["qas"][0]["answers"]
    assert "answers" not in rows_of([record], "record")[0]


def test_flat_record_rows_pass_through() -> None:
    row = {"query": "q", "passage": "text", "entities": "Ana, Bo", "options": ["Ana", "Bo"]}
    assert rows_of([row], "record") == [row]


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda record: record["passage"].pop("text"), "query 1, key 'text': got 'no such key'"),
        (lambda record: record["passage"].update(entities=[3]), "entity 1: got 3; expected an object"),
        (lambda record: record["passage"].update(entities=[{"start": 0}]), "entity 1, key 'end': got 'no such key'"),
        (lambda record: record.pop("qas"), "row 1, key 'qas': got 'no such key'"),
        (lambda record: record["qas"][0].pop("query"), "query 1, key 'query': got 'no such key'"),
        (lambda record: record.pop("passage"), "row 1, key 'passage': got 'no such key'"),
    ],
)
def test_error_of_a_damaged_record_names_the_key(change: Callable[[Any], object], part: str) -> None:
    record = record_of("q", "Lind")
    change(record)
    assert part in errors_of([record], "record")[0]


# --- WSC ---


def wsc_row(text: str, pronoun: str, index: int, label: object = True) -> dict[str, object]:
    target = {"span1_index": 0, "span1_text": "Tove", "span2_index": index, "span2_text": pronoun}
    return {"text": text, "target": target, "label": label, "idx": 0}


@pytest.mark.parametrize(
    ("text", "pronoun", "index", "marked"),
    [
        ("Tove saw him leave.", "him", 2, "Tove saw *him* leave."),
        ("Tove met him.", "him", 2, "Tove met *him*."),
        ("Tove knew he's late.", "he", 2, "Tove knew *he*'s late."),
        ('Tove said: "He is late."', "He", 2, 'Tove said: "*He* is late."'),
        ("Tove met him .", "him.", 2, "Tove met *him* ."),
        ("he knew that he and he won", "he", 3, "he knew that *he* and he won"),
        ("Tove wanted to use it , and sold it", "it", 3, "Tove wanted to use *it* , and sold it"),  # off by one
        ("Tove  gave it away", "it", 3, "Tove  gave *it* away"),  # two spaces part an empty word
        ("It is the item it was", "it", 4, "It is the item *it* was"),
    ],
)
def test_only_the_wsc_pronoun_is_marked(text: str, pronoun: str, index: int, marked: str) -> None:
    assert rows_of([wsc_row(text, pronoun, index)], "wsc") == [{"text": marked, "candidate": "Tove", "label": "true"}]


@pytest.mark.parametrize(
    ("label", "expected"), [(True, "true"), (False, "false"), (1, "true"), (0, "false"), ("True", "true")]
)
def test_hub_rows_of_wsc_are_flat(label: object, expected: str) -> None:
    row = {"text": "Tove met him.", "span1_index": 0, "span1_text": "Tove", "span2_index": 2, "span2_text": "him"}
    assert rows_of([row | {"label": label, "idx": 4}], "wsc")[0]["label"] == expected
    assert "label" not in rows_of([row], "wsc")[0]


@pytest.mark.parametrize(("pronoun", "index"), [("her", 2), ("him", 9), (".", 2)])
def test_missing_wsc_pronoun_is_a_bad_row(pronoun: str, index: int) -> None:
    [message] = errors_of([wsc_row("Tove met him here", pronoun, index)], "wsc")
    assert message.startswith(f"row 1, key 'span2_text': got '{pronoun}'; expected a word of the text at or near word")


def test_flat_wsc_rows_pass_through() -> None:
    row = {"text": "Tove met *him*.", "candidate": "Tove"}
    assert rows_of([row], "wsc") == [row]
    assert errors_of([{"text": "Tove met him."}], "wsc")[0].startswith("row 1, key 'span2_text': got 'no such key'")


# --- CoNLL ---


def test_conll_sentences_have_spans_over_characters(tmp_path: Path) -> None:
    path = save(
        tmp_path / "eng.train",
        "-DOCSTART- -X- O O\n\nTove NNP I-NP I-PER\nLund NNP I-NP I-PER\nleft VBD I-VP O\n\n\n"
        "Oslo NNP I-NP I-LOC\nBergen NNP I-NP B-LOC\nNord NNP I-NP I-ORG\n-DOCSTART- -X- -X- O\n. . O O",
    )
    assert rows_of(path, "conll") == [
        {"text": "Tove Lund left", "spans": [(0, 9, "PER")]},
        {"text": "Oslo Bergen Nord", "spans": [(0, 4, "LOC"), (5, 11, "LOC"), (12, 16, "ORG")]},
        {"text": ".", "spans": []},
    ]
    assert locations_of(path, "conll") == [f"{path}, line {line}" for line in (3, 8, 12)]


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ("I-A I-A O I-A", [(0, 3, "A"), (6, 7, "A")]),
        ("B-A I-A O B-A", [(0, 3, "A"), (6, 7, "A")]),
        ("B-A B-A I-A I-B", [(0, 1, "A"), (2, 5, "A"), (6, 7, "B")]),
        ("O O O O", []),
        ("I-A-1 I-A-1 I-A-2 O", [(0, 3, "A-1"), (4, 5, "A-2")]),
        ("B-A I-B I-B B-B", [(0, 1, "A"), (2, 5, "B"), (6, 7, "B")]),
    ],
)
def test_iob1_and_iob2_give_the_same_spans(tags: str, spans: list[object]) -> None:
    row = {"tokens": list("wxyz"), "ner_tags": tags.split()}
    assert rows_of([row], "conll") == [{"text": "w x y z", "spans": spans}]


@pytest.mark.parametrize("name", ["toy.tsv", "toy.conll.gz", "toy", "toy.txt"])
def test_conll_files_may_have_any_name_and_two_columns(tmp_path: Path, name: str) -> None:
    path = save(tmp_path / name, "Caf\u00e9\u00a0Nord\tB-ORG\r\nopens\tO\r\n\r\n")
    assert rows_of(path, "conll") == [{"text": "Caf\u00e9\u00a0Nord opens", "spans": [(0, 9, "ORG")]}]


def test_conll_words_alone_are_read_for_prediction(tmp_path: Path) -> None:
    assert rows_of(save(tmp_path / "words.txt", "Tove\nleft\n\nbye\n"), "conll") == [
        {"text": "Tove left"},
        {"text": "bye"},
    ]
    assert rows_of([{"tokens": ["Tove", "left"]}, {"text": "bye"}], "conll") == [
        {"text": "Tove left"},
        {"text": "bye"},
    ]


def test_conll_sentence_with_another_number_of_columns_is_one_bad_row(tmp_path: Path) -> None:
    path = save(tmp_path / "eng.testa", "a NN O O\n\nb NN O O\nc O O\nd O\n\ne NN O X\n\nf NN O O\n")
    assert errors_of(path, "conll") == [
        f"{path}, line 4: got '3 columns'; expected 4, as in the first row; fix the sentence or remove it",
        f"{path}, line 7, tag: got 'X'; expected O, B-NAME or I-NAME; convert the tags to IOB1 or IOB2",
    ]
    assert locations_of(path, "conll") == [f"{path}, line {line}" for line in (1, 3, 7, 9)]


@pytest.mark.parametrize(
    ("row", "part"),
    [
        ({"tokens": ["a"], "ner_tags": ["O", "O"]}, "row 1: got '1 words and 2 tags'; expected a tag for every word"),
        ({"tokens": ["a"], "ner_tags": [3]}, "row 1, key 'ner_tags': got 3; expected a text"),
        ({"words": ["a"]}, "row 1, key 'tokens': got 'no such key'"),
    ],
)
def test_error_of_a_damaged_tag_row_names_the_key(row: object, part: str) -> None:
    assert part in errors_of([row], "conll")[0]


# --- SemEval-2010 task 8 ---


def test_semeval_blocks_give_text_relation_and_number(tmp_path: Path) -> None:
    path = save(
        tmp_path / "TRAIN.TXT",
        '1\t"A <e1>lid</e1> of a "good" <e2>pot</e2>."\r\nComponent-Whole(e1,e2)\r\nComment: plain\r\n\r\n'
        '2\t"<e1>Rain</e1> and <e2>snow</e2>"\nOther\nComment:\n\n\n3\t"<e1>A</e1> <e2>b</e2>"\nOther\n',
    )
    assert rows_of(path, "semeval") == [
        {"text": 'A <e1>lid</e1> of a "good" <e2>pot</e2>.', "id": "1", "label": "Component-Whole(e1,e2)"},
        {"text": "<e1>Rain</e1> and <e2>snow</e2>", "id": "2", "label": "Other"},
        {"text": "<e1>A</e1> <e2>b</e2>", "id": "3", "label": "Other"},
    ]
    assert locations_of(path, "semeval") == [f"{path}, line {line}" for line in (1, 5, 10)]


@pytest.mark.parametrize("gap", ["", "\n"])
def test_semeval_test_file_has_no_relations(tmp_path: Path, gap: str) -> None:
    lines = [f'{number}\t"<e1>a</e1> <e2>b{number}</e2>"\n' for number in (8, 9)]
    rows = rows_of(save(tmp_path / "TEST.TXT", gap.join(lines)), "semeval")
    assert [set(row) for row in rows] == [{"text", "id"}] * 2


def test_damaged_semeval_blocks_are_reported_and_skipped(tmp_path: Path) -> None:
    good = '4\t"<e1>a</e1> <e2>b</e2>"\nOther\n\n'
    path = save(
        tmp_path / "T.TXT",
        f'Other\nComment:\n\n1\t"no entity"\nOther\n\n{good}5\t"<e1>a</e1> <e2>b</e2>"\nOther\nCause-Effect(e1,e2)\n',
    )
    messages = errors_of(path, "semeval")
    assert [message.split(":")[0] for message in messages] == [f"{path}, line {line}" for line in (1, 4, 10)]
    for message, part in zip(messages, ("a number, a tab", "<e1> exactly once", "one relation"), strict=True):
        assert part in message
    assert len(locations_of(path, "semeval")) == 4


def test_semeval_rows_of_the_hub_and_of_tables(tmp_path: Path) -> None:
    text = "A <e1>lid</e1> of a <e2>pot</e2>."
    assert rows_of([{"sentence": text, "relation": "Other"}, {"sentence": text}], "semeval") == [
        {"text": text, "label": "Other"},
        {"text": text},
    ]
    assert rows_of(save(tmp_path / "t.csv", f"text,label\n{text},Other\n"), "semeval") == [
        {"text": text, "label": "Other"}
    ]
    assert "</e2> exactly once" in errors_of([{"text": text.replace("</e2>", "")}], "semeval")[0]


# --- TACRED ---


def tacred_record(subject: tuple[int, int], object_: tuple[int, int]) -> dict[str, object]:
    record = {"id": "x", "token": ["Tove", "Lund", "works", "for", "Nord", "."], "relation": "per:employee_of"}
    record |= dict(zip(("subj_start", "subj_end"), subject, strict=True))
    record |= dict(zip(("obj_start", "obj_end"), object_, strict=True))
    return record | {"subj_type": "PERSON", "obj_type": "ORGANIZATION"}


def test_tacred_subject_and_object_are_marked(tmp_path: Path) -> None:
    path = save(tmp_path / "train.json", [tacred_record((0, 1), (4, 4)), tacred_record((4, 4), (0, 1))])
    assert rows_of(path, "tacred") == [
        {
            "text": f"<{first}>Tove Lund</{first}> works for <{second}>Nord</{second}> .",
            "subject_type": "PERSON",
            "object_type": "ORGANIZATION",
            "label": "per:employee_of",
        }
        for first, second in (("e1", "e2"), ("e2", "e1"))
    ]
    assert locations_of(path, "tacred")[0] == f"{path}, entry 1"


@pytest.mark.parametrize(
    ("subject", "object_"), [((0, 1), (1, 2)), ((0, 6), (4, 4)), ((1, 0), (4, 4)), ((-1, 0), (4, 4))]
)
def test_tacred_entities_outside_the_text_or_overlapping_are_bad_rows(subject: Any, object_: Any) -> None:
    assert "words among 0 to 5" in errors_of([tacred_record(subject, object_)], "tacred")[0]


def test_tacred_missing_key_is_named() -> None:
    record = tacred_record((0, 1), (4, 4))
    del record["obj_end"]
    assert errors_of([record], "tacred")[0].startswith(
        "row 1, key 'obj_end': got 'no such key'; expected a key of that name"
    )
    assert rows_of([{"text": "flat"}], "tacred") == [{"text": "flat"}]


# --- RACE ---

ARTICLE = {
    "id": "middle1.txt",
    "article": "Tove sells tea.",
    "questions": ["What does _ sell?", "Who sells?"],
    "options": [["tea", "milk", "ink", "air"], ["Bo", "Tove", "Ann", "Cy"]],
    "answers": ["A", "B"],
}


@pytest.mark.parametrize("name", ["1.txt", "1.json", "1.txt.gz"])
def test_race_article_files_hold_json(tmp_path: Path, name: str) -> None:
    path = save(tmp_path / name, ARTICLE)
    first, second = rows_of(path, "race")
    assert first == {
        "article": "Tove sells tea.",
        "question": "What does _ sell?",
        "option_a": "tea",
        "option_b": "milk",
        "option_c": "ink",
        "option_d": "air",
        "label": "A",
    }
    assert (second["option_b"], second["label"]) == ("Tove", "B")
    assert locations_of(path, "race")[1] == f"{path}, question 2"


def test_hub_rows_and_flat_rows_of_race_are_read() -> None:
    row = {"example_id": "m1", "article": "a", "question": "q", "options": list("wxyz"), "answer": "D"}
    [flat] = rows_of([row], "race")
    assert (flat["option_d"], flat["label"]) == ("z", "D")
    assert rows_of([flat], "race") == [flat]


def test_damaged_race_question_leaves_the_others() -> None:
    damaged = ARTICLE | {"options": [["tea", "milk", "ink"], ["Bo", "Tove", "Ann", "Cy"]]}
    assert errors_of([damaged], "race") == [
        "row 1, question 1, key 'options': got '3 options'; expected four; fix the record or remove it"
    ]
    assert len(locations_of([damaged], "race")) == 2
    assert (
        "question 2, key 'options': got 'no such key'" in errors_of([ARTICLE | {"options": [list("wxyz")]}], "race")[0]
    )
    assert "row 1, key 'options': got 'no such key'" in errors_of([{"questions": ["q"]}], "race")[0]


# --- all of them ---


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize(
    "record",
    [
        {},
        {"text": None},
        {"passage": 3},
        {"data": None},
        {"qas": [None]},
        {"token": 1},
        {"passage": {}, "qas": [{}]},
        {"questions": [None], "options": [], "article": 1},
        {"tokens": [1]},
        {"target": [], "text": 1},
        {"passage": {"questions": [{}]}},
    ],
)
def test_formats_never_crash_on_a_record(name: str, record: dict[str, object]) -> None:
    for location, row in read_rows([record], name):
        assert location.startswith("row 1")
        assert isinstance(row, DataError) or row == record


def test_formats_become_examples() -> None:
    span = Task(name="s", kind="span", format="squad", text=("question", "context"), label="answers")
    [example] = examples_from([squad_file(squad_question(("noon", 29), ("at noon", 26), ("never", 0)))], span)
    assert (example.target, example.answers) == ("noon", ("noon", "at noon", "never"))
    assert example.spans == (Span(29, 33), Span(26, 33))
    tags = Task(name="n", kind="tags", format="conll", labels={"PER": Label(words="person")})
    [example] = examples_from([{"tokens": ["Hi", "Tove"], "ner_tags": ["O", "I-PER"]}], tags)
    assert (example.texts, example.target, example.spans) == (("Hi Tove",), None, (Span(3, 7, "PER"),))
    labels = {"false": Label(words="no", also=("0",)), "true": Label(words="yes", also=("1",))}
    judged = Task(name="m", format="multirc", text=("question", "answer", "paragraph"), labels=labels)
    assert [(row.target, row.group) for row in examples_from([multirc_record()], judged)] == [
        ("true", "3-8"),
        ("false", "3-8"),
        ("true", "3-9"),
    ]
    gap = Task(name="r", kind="span", format="record", text=("query", "entities", "passage"), label="answers")
    assert examples_from([record_of("q", "Lind")], gap)[0].options == ("Ana Lind", "Bergen", "Kiosk Nord", "Lind")
