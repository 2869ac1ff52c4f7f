from __future__ import annotations

import gzip
import json
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest

from softcue.errors import ConfigurationError, DataError
from softcue.tasks import Label, Task, examples_from, stream_examples, stream_together, with_labels
from softcue.tasks.readers import read_rows
from softcue.types import Example, Span

OPEN = Task(name="open")  # its labels are still to be seen
CLOSED = Task(name="closed", labels={"spam": Label(words="spam"), "ham": Label(words="ham")})
SCORES = Task(name="scores", kind="regression", label="score")
PAIRS = Task(name="pairs", text=("first", "second"))
WRITING = Task(name="writing", kind="generation")


def message_of(source: Any, task: Task, needs_target: bool = True) -> str:
    with pytest.raises(DataError) as caught:
        examples_from(source, task, needs_target)
    return str(caught.value)


def test_texts_and_targets_come_from_the_columns_of_the_task() -> None:
    rows = [{"second": "b", "first": "a", "label": " x ", "other": 3}]
    assert examples_from(rows, PAIRS) == [Example(("a", "b"), "x")]


def test_prediction_rows_need_no_label_column() -> None:
    assert examples_from([{"text": "hi"}], CLOSED, needs_target=False) == [Example(("hi",), None)]


@pytest.mark.parametrize(
    ("value", "label"),
    [
        ("a", "a"),
        (3, "3"),
        (2.0, "2"),
        (2.5, "2.5"),
        (True, "true"),
        (numpy.bool_(False), "false"),
        (numpy.int64(7), "7"),
        (numpy.float32(4), "4"),
        (2**60 + 1, str(2**60 + 1)),
        ("nan", "nan"),
    ],
)
def test_labels_of_any_plain_type_become_text(value: object, label: str) -> None:
    assert examples_from([{"text": "hi", "label": value}], OPEN)[0].target == label


def test_class_numbers_of_a_data_frame_with_gaps_stay_integers() -> None:
    frame = pandas.DataFrame({"text": ["a", "b", "c"], "label": [0, 1, None]}).dropna()
    assert [row.target for row in examples_from(frame, OPEN)] == ["0", "1"]


@pytest.mark.parametrize("value", [2, 2.0, "2", " 2e0 "])
def test_scores_are_read_as_numbers(value: object) -> None:
    assert examples_from([{"text": "hi", "score": value}], SCORES) == [Example(("hi",), 2.0)]


@pytest.mark.parametrize("content", ["", "\n\n", "text,label\n", "text,label\r\n\r\n"])
def test_file_without_rows_is_an_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(content)
    assert message_of(path, OPEN) == (f"data: got '{path}'; expected at least one row below the header; check the file")


def test_no_rows_in_memory_are_an_error() -> None:
    for rows in ([], pandas.DataFrame({"text": [], "label": []})):
        assert message_of(rows, OPEN).startswith("data: got 'the rows given'; expected at least one row")


def test_missing_column_suggests_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("texts,label,extra\nhi,a,b\n")
    assert message_of(path, OPEN) == (
        f"{path}, column 'text': got 'no such column'; expected a column of that name; "
        "did you mean 'texts'? known: extra, label, texts"
    )


@pytest.mark.parametrize("value", ["", "   ", "\n", None, 3, float("nan"), pandas.NA, ["hi"]])
def test_empty_or_non_text_cell_is_an_error(value: object) -> None:
    message = message_of([{"text": "fine", "label": "a"}, {"text": value, "label": "a"}], OPEN)
    assert message.startswith("row 2, column 'text': got ")
    assert message.endswith("expected a text that is not empty; fill it in or remove the row")


@pytest.mark.parametrize("value", ["", " ", None, float("nan"), pandas.NA, pandas.NaT, ["a"], {"a": 1}])
@pytest.mark.parametrize("task", [OPEN, CLOSED, WRITING])
def test_missing_or_invalid_label_is_an_error(task: Task, value: object) -> None:
    message = message_of([{"text": "hi", "label": value}], task)
    assert message.startswith("row 1, column 'label': got ")
    if isinstance(value, list) and task.has_classes:
        assert message.endswith(
            "expected one label, or task.kind=multi-label for lists; fix the row, or pass `multi_label=True`"
        )
    else:
        hint = "; `multi_label=True` allows rows without a label" if task == OPEN else ""
        assert message.endswith(f"expected a label; fill it in or remove the row{hint}")


def test_error_of_a_null_label_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "hi", "label": "a"}\n{"text": "hi", "label": null}\n')
    assert message_of(path, OPEN).startswith(f"{path}, line 2, column 'label': got None; expected a label;")


@pytest.mark.parametrize("column", ["text", "label"])
def test_lone_surrogate_is_an_error(tmp_path: Path, column: str) -> None:
    path = tmp_path / "rows.jsonl"
    row = '{"text": "hi", "label": "a"}'
    path.write_text(row.replace('"hi"' if column == "text" else '"a"', '"half \\ud83d"'))
    message = message_of(path, OPEN)
    assert message.startswith(f"{path}, line 1, column '{column}': got ")
    assert "ud83d" in message
    assert message.endswith("expected text without lone surrogates; repair the escape sequence")
    message.encode("utf-8")


def test_unknown_label_in_validation_suggests_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "validation.csv"
    path.write_text("text,label\nhi,ham\nhi,spma\n")
    assert message_of(path, CLOSED) == (
        f"{path}, line 3, column 'label': got 'spma'; expected a label of the task or its training rows; "
        "did you mean 'spam'? known: ham, spam"
    )


@pytest.mark.parametrize("value", ["high", "", None, "nan", "inf", float("nan"), [1], 10**400])
def test_score_that_is_no_finite_number_is_an_error(value: object) -> None:
    message = message_of([{"text": "hi", "score": value}], SCORES)
    assert message.startswith("row 1, column 'score': got ")
    assert message.endswith("expected a finite number; fix the row, or set task.kind=classification")


def test_labels_are_taken_from_training_rows_in_sorted_order() -> None:
    rows = [Example(("x",), label) for label in "bca"]
    task = with_labels(OPEN, rows, {"b": "bee"})
    assert (task.label_names, task.label_words) == (("a", "b", "c"), ("a", "bee", "c"))


def test_declared_labels_keep_their_order_and_description() -> None:
    task = Task(name="t", labels={"z": Label(words="zed", description="last"), "a": Label(words="ay")})
    labelled = with_labels(task, [Example(("x",), "a"), Example(("x",), "z")], {"z": "zulu"})
    assert labelled.labels == {"z": Label(words="zulu", description="last"), "a": Label(words="ay")}


def test_words_for_an_unknown_label_are_an_error() -> None:
    rows = [Example(("x",), "spam"), Example(("x",), "ham")]
    with pytest.raises(DataError, match=r"task.label_words: got 'spm'; .*did you mean 'spam'\? known: ham, spam"):
        with_labels(OPEN, rows, {"spm": "junk"})


@pytest.mark.parametrize("task", [OPEN, CLOSED])
@pytest.mark.parametrize(("label", "kinds"), [("spam", "generation"), ("1", "regression or generation")])
def test_single_class_is_an_error(task: Task, label: str, kinds: str) -> None:
    with pytest.raises(DataError) as caught:
        with_labels(task, [Example(("x",), label)] * 3, {})
    assert str(caught.value) == (
        f"label column 'label': got '{label}'; expected at least two classes in training; "
        f"check the column, or set task.kind={kinds}"
    )


def test_other_values_of_a_label_are_read_as_the_label() -> None:
    task = Task(name="t", labels={"no": Label(words="no", also=("0", "false")), "yes": Label(words="yes", also=("1",))})
    rows = [{"text": "x", "label": value} for value in (0, "yes", 1.0, False)]
    assert [row.target for row in examples_from(rows, task)] == ["no", "yes", "yes", "no"]
    assert message_of([{"text": "x", "label": 2}], task).endswith("known: no, yes")


def test_labels_of_a_tagging_task_come_from_the_spans() -> None:
    task = Task(name="t", kind="tags")
    rows = [Example(("a b",), spans=(Span(0, 1, "B"), Span(2, 3, "A"))), Example(("c",))]
    assert with_labels(task, rows, {"A": "an A"}).label_words == ("an A", "B")
    assert with_labels(task, rows[:1], {}).label_names == ("A", "B")
    with pytest.raises(DataError, match="column 'spans': got 'no span'"):
        with_labels(task, rows[1:], {})


# --- other names, chosen rows ---


def test_columns_may_have_other_names_tried_in_order() -> None:
    task = Task(name="t", columns={"text": ("sentence", "review"), "label": ("gold",)})
    rows = [{"review": "c", "sentence": "b", "text": "a", "label": "x"}, {"review": "c", "sentence": "b", "gold": "y"}]
    assert [(row.texts, row.target) for row in examples_from(rows, task)] == [(("a",), "x"), (("b",), "y")]
    assert message_of([{"txt": "a"}], task) == (
        "row 1, column 'text': got 'no such column'; expected a column of that name or 'sentence' or 'review'; "
        "did you mean 'txt'? known: txt"
    )


def test_rows_are_selected_by_the_values_of_a_column() -> None:
    task = Task(name="t", where={"tag": ("r1", "2", "true")}, columns={"tag": ("round",)})
    tags: list[dict[str, object]] = [{"tag": "r1"}, {"tag": "r2"}, {"tag": 2.0}, {}, {"tag": True}, {"round": "r3"}]
    tags.append({"tag": None})
    rows = [{"text": str(number), "label": "x", **tag} for number, tag in enumerate(tags)]
    assert [row.texts[0] for row in examples_from(rows, task)] == ["0", "2", "3", "4"]


def test_unselected_rows_are_not_checked() -> None:
    task = Task(name="t", where={"label": ("a", "b")}, labels=CLOSED.labels | {"a": Label(words="a")})
    rows = [{"text": "x", "label": "-"}, {"text": "", "label": "-1"}, {"text": "y", "label": "a"}]
    assert examples_from(rows, task) == [Example(("y",), "a")]


# --- answers, spans, tags, groups, options ---

ASKING = Task(name="asking", kind="span", text=("question", "context"), label="answers")
TAGGING = Task(name="tagging", kind="tags", label="spans", labels={"PER": Label(words="person", also=("PERSON",))})
QUESTION: dict[str, object] = {"question": "Where?", "context": "In Oslo, in Oslo."}


def test_answers_in_the_text_have_spans() -> None:
    rows = [QUESTION | {"answers": ["Oslo", "in Oslo", "Norway"], "starts": [12, 9, -1]}]
    assert examples_from(rows, ASKING) == [
        Example(("Where?", "In Oslo, in Oslo."), "Oslo", ("Oslo", "in Oslo", "Norway"), (Span(12, 16), Span(9, 16)))
    ]


@pytest.mark.parametrize("answers", ["Oslo", ["Oslo"], ("Oslo",), numpy.array(["Oslo"])])
def test_answers_without_starts_are_searched_in_the_text(answers: object) -> None:
    [row] = examples_from([QUESTION | {"answers": answers}], ASKING)
    assert (row.target, row.spans) == ("Oslo", (Span(3, 7),))


def test_answers_may_be_in_the_label_column() -> None:
    task = ASKING.model_copy(update={"label": "reply"})
    assert examples_from([QUESTION | {"reply": "Oslo"}], task)[0].answers == ("Oslo",)


def test_prediction_rows_need_no_answers() -> None:
    assert examples_from([QUESTION], ASKING, needs_target=False) == [Example(("Where?", "In Oslo, in Oslo."))]
    assert examples_from([{"text": "Ann"}], TAGGING, needs_target=False) == [Example(("Ann",))]


@pytest.mark.parametrize(
    ("cells", "part"),
    [
        ({}, "row 1, column 'answers': got 'no such column'; expected a column of that name"),
        ({"answers": []}, "row 1, column 'answers': got '[]'; expected at least one answer"),
        ({"answers": None}, "row 1, column 'answers': got None; expected at least one answer"),
        ({"answers": ["a", " "]}, "row 1, column 'answers': got ' '; expected texts that are not empty"),
        ({"answers": ["Oslo"], "starts": [4]}, "column 'starts': got 4; expected the start of 'Oslo' in the text"),
        ({"answers": ["Oslo"], "starts": ["3"]}, "column 'starts': got '3'; expected the start of 'Oslo'"),
        ({"answers": ["Oslo"], "starts": []}, "column 'starts': got '[]'; expected a list of 1"),
        ({"answers": ["Oslo"], "starts": 3}, "column 'starts': got None; expected a list of 1"),
    ],
)
def test_invalid_answers_are_an_error(cells: dict[str, object], part: str) -> None:
    assert part in message_of([QUESTION | cells], ASKING)


@pytest.mark.parametrize(
    "spans",
    [
        [(4, 8, "PER"), (0, 3, "PERSON")],
        [[0, 3, "PER"], [4, 8, "PER"]],
        [{"start": 0, "end": 3, "label": "PER"}, {"start": 4, "end": 8, "label": "PER"}],
    ],
)
def test_tags_become_spans_in_order(spans: object) -> None:
    [row] = examples_from([{"text": "Ann Lund", "spans": spans}], TAGGING)
    assert (row.target, row.spans) == (None, (Span(0, 3, "PER"), Span(4, 8, "PER")))


@pytest.mark.parametrize(
    ("spans", "part"),
    [
        ([(0, 9, "PER")], "expected [start, end, label] inside the text of 8 characters"),
        ([(-1, 3, "PER")], "inside the text"),
        ([(3, 3, "PER")], "inside the text"),
        ([(0, 3)], "inside the text"),
        ([(0, 3, "")], "inside the text"),
        ([3], "inside the text"),
        ([(0, 5, "PER"), (4, 8, "PER")], "got '0 to 5 and 4 to 8'; expected spans that do not overlap"),
        ([(0, 3, "LOC")], "got 'LOC'; expected a label of the task or its training rows; known: PER"),
        ("PER", "got 'PER'; expected a list of [start, end, label]"),
    ],
)
def test_invalid_tags_are_an_error(spans: object, part: str) -> None:
    message = message_of([{"text": "Ann Lund", "spans": spans}], TAGGING)
    assert message.startswith("row 1, column 'spans': ")
    assert part in message


def test_free_text_may_have_several_right_answers() -> None:
    rows: list[dict[str, object]] = [
        {"text": "x", "label": "one", "answers": ["one", "1"]},
        {"text": "x", "label": "two", "answers": "two or 2"},
        {"text": "x", "answers": ["three"]},
    ]
    assert [(row.target, row.answers) for row in examples_from(rows, WRITING)] == [
        ("one", ("one", "1")),
        ("two", ()),
        ("three", ("three",)),
    ]


def test_group_and_options_are_read_from_formats_that_have_them() -> None:
    multirc = Task(name="t", format="multirc", text=("question", "answer", "paragraph"))
    row = {
        "question": "q",
        "answer": "a",
        "paragraph": "p",
        "label": 1,
        "idx": {"paragraph": 3, "question": 5, "answer": 0},
    }
    assert examples_from([row], multirc)[0].group
    record = Task(name="t", format="record", kind="span", text=("query", "passage"))
    entities = {"query": "who?", "passage": "Ann met Bob.", "entities": ["Ann", "Bob"], "answers": ["Bob"]}
    assert examples_from([entities], record)[0].options == ("Ann", "Bob")


def test_referent_rows_have_labels() -> None:
    labels = {"false": Label(words="no"), "true": Label(words="yes")}
    task = Task(name="t", kind="referent", text=("text", "candidate"), labels=labels, positive="true")
    assert examples_from([{"text": "x", "candidate": "y", "label": True}], task)[0].target == "true"
    assert "a label of the task" in message_of([{"text": "x", "candidate": "y", "label": "maybe"}], task)


# --- many bad rows ---


def mixed(num_bad: int, num_good: int = 3) -> list[dict[str, object]]:
    return [{"text": "fine", "label": "a"}] * num_good + [{"text": "", "label": "a"}] * num_bad


def test_several_bad_rows_are_reported_together() -> None:
    assert message_of(mixed(2), OPEN).splitlines() == [
        "data: got 'the rows given'; expected no bad rows; 2 bad rows; fix them, or leave them out with "
        "`skip_bad_rows=True`",
        "  row 4, column 'text': got ''; expected a text that is not empty",
        "  row 5, column 'text': got ''; expected a text that is not empty",
    ]


def test_bad_rows_are_reported_for_the_setting_that_names_their_file() -> None:
    with pytest.raises(DataError, match=r"^validation: got 'the rows given'; expected no bad rows"):
        examples_from(mixed(2), OPEN, setting="validation")


def test_rows_without_a_label_hint_at_sets_of_labels() -> None:
    rows = [*mixed(1), {"text": "x", "label": None}]
    hint = "fix them (`multi_label=True` allows rows without a label), or leave them out"
    assert hint in message_of(rows, OPEN)
    assert "multi_label" not in message_of(rows, CLOSED)


def test_at_most_ten_bad_rows_are_shown_with_the_total() -> None:
    message = message_of(mixed(12), OPEN)
    assert "; 12 bad rows, of which these are the first 10; fix them" in message
    assert message.count("column 'text'") == 10
    assert "row 13" in message and "row 14" not in message
    assert "`skip_bad_rows=True`" in message
    assert "; 10 bad rows; fix them" in message_of(mixed(10), OPEN)


def test_unreadable_and_invalid_rows_are_reported_together(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("text,label\na,b,c\nhi,\nhi,a\n")
    message = message_of(path, OPEN)
    headline, first, second = message.splitlines()
    assert headline.startswith(f"data: got '{path}'; expected no bad rows; 2 bad rows; fix them")
    assert first == f"  {path}, line 2: got '3 fields'; expected 2, as in the header"
    assert second == f"  {path}, line 3, column 'label': got ''; expected a label"


def test_skip_bad_rows_leaves_bad_rows_out_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="skipped") as caught:
        examples = examples_from(mixed(12, 488), OPEN, skip_bad_rows=True)
    assert len(examples) == 488
    [message] = [str(warning.message) for warning in caught]
    headline, *lines = message.splitlines()
    assert headline == "skipped 12 of 500 rows; the first are:"
    assert lines[0] == "  row 489, column 'text': got ''; expected a text that is not empty"
    assert len(lines) == 10


def test_good_rows_give_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(examples_from(mixed(0), OPEN, skip_bad_rows=True)) == 3


@pytest.mark.parametrize("num_bad", [1, 11])
def test_only_bad_rows_are_an_error_even_when_skipping(num_bad: int) -> None:
    with pytest.raises(DataError) as caught:
        examples_from(mixed(num_bad, 0), OPEN, skip_bad_rows=True)
    assert str(caught.value).startswith("data: got 'the rows given'; expected at least one row that is not bad; ")
    assert f"{num_bad} bad row" in str(caught.value)


def test_column_missing_from_the_first_row_is_reported_once() -> None:
    for skip in (False, True):
        with pytest.raises(DataError) as caught:
            examples_from([{"txt": "x", "label": "a"}] * 20, OPEN, skip_bad_rows=skip)
        assert str(caught.value).startswith(
            "row 1, column 'text': got 'no such column'; expected a column of that name"
        )


def test_column_missing_from_a_later_row_is_a_bad_row() -> None:
    rows = [*mixed(0), {"text": "x"}]
    assert message_of(rows, OPEN).startswith("row 4, column 'label': got 'no such column'")
    with pytest.warns(UserWarning, match="skipped 1 of 4 rows"):
        assert len(examples_from(rows, OPEN, skip_bad_rows=True)) == 3


# --- streams ---


def test_stream_gives_the_same_examples_one_by_one() -> None:
    assert list(stream_examples(mixed(0), OPEN)) == examples_from(mixed(0), OPEN)


def test_stream_stops_at_the_first_bad_row_with_its_own_message() -> None:
    stream = stream_examples([*mixed(0, 1), *mixed(3, 0), *mixed(0, 1)], OPEN)
    assert next(stream) == Example(("fine",), "a")
    with pytest.raises(DataError, match=r"^row 2, column 'text'"):
        next(stream)


def test_stream_warns_at_its_end_when_skipping() -> None:
    stream = stream_examples([*mixed(2), *mixed(0, 1)], OPEN, skip_bad_rows=True)
    assert [next(stream).target for _ in range(4)] == ["a"] * 4
    with pytest.warns(UserWarning, match="skipped 2 of 6 rows"):
        assert next(stream, None) is None


def test_stream_without_rows_is_an_error() -> None:
    with pytest.raises(DataError, match="expected at least one row"):
        list(stream_examples([], OPEN))


@pytest.mark.parametrize(("suffix", "num_rows"), [(".jsonl", 10_000), (".csv", 2000)])  # 50 and 10 MB
def test_large_compressed_file_is_streamed_in_little_memory(tmp_path: Path, suffix: str, num_rows: int) -> None:
    path, text = tmp_path / f"rows{suffix}.gz", "word " * 1000
    line = json.dumps({"text": text, "label": "a"}) if suffix == ".jsonl" else f"{text},a"
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write("" if suffix == ".jsonl" else "text,label\n")
        for _ in range(num_rows):
            file.write(line + "\n")
    tracemalloc.start()
    num_found = sum(1 for _ in stream_examples(path, OPEN))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert num_found == num_rows
    assert peak < 3e6


def test_group_and_options_columns_of_a_user_are_ignored() -> None:
    row = {"text": "hi", "label": "a", "group": "north", "options": ["x", "y"]}
    assert examples_from([row], Task(name="t"))[0] == Example(("hi",), "a")


def test_unselected_rows_are_still_read_for_prediction() -> None:
    task = Task(name="t", where={"tag": ("r1",)}, without={"label": ("-",)})
    rows = [
        {"text": "one", "label": "a", "tag": "r1"},
        {"text": "two", "label": "-", "tag": "r1"},
        {"text": "six", "label": "b", "tag": "r2"},
    ]
    assert [row.texts[0] for row in examples_from(rows, task)] == ["one"]
    assert [row.texts[0] for row in examples_from(rows, task, needs_target=False)] == ["one", "two", "six"]


def test_row_that_is_bad_for_one_of_several_tasks_is_left_out_for_all() -> None:
    tasks = [Task(name="a"), Task(name="b", text=("message",))]
    rows = [
        {"text": "1", "message": "one"},
        {"text": "", "message": "two"},
        {"text": "3", "message": ""},
        {"text": "4", "message": "four"},
    ]
    with pytest.raises(DataError, match=r"2 bad rows;.*\n  row 2, column 'text'.*\n  row 3, column 'message'"):
        list(stream_together(rows, tasks))
    with pytest.warns(UserWarning, match="skipped 2 of 4 rows"):
        examples = list(stream_together(rows, tasks, skip_bad_rows=True))
    assert [[example.texts[0] for example in row] for row in examples] == [["1", "one"], ["4", "four"]]


@pytest.mark.parametrize(("kept_bytes", "num_reads"), [(1 << 24, 1), (1000, 2)])
def test_small_files_are_read_once_and_large_ones_twice(
    kept_bytes: int, num_reads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("text\none\ntwo\nthree\n")
    reads: list[object] = []

    def counted(source: Any, *arguments: Any) -> Any:
        reads.append(source)
        return read_rows(source, *arguments)

    monkeypatch.setattr("softcue.tasks.rows.KEPT_BYTES", kept_bytes)
    monkeypatch.setattr("softcue.tasks.rows.read_rows", counted)
    examples = [example.texts for (example,) in stream_together(file, [Task(name="a")])]
    assert examples == [("one",), ("two",), ("three",)]
    assert len(reads) == num_reads


def test_tasks_with_different_formats_cannot_read_one_file() -> None:
    with pytest.raises(ConfigurationError, match="have the same format"):
        list(stream_together([{"text": "1"}], [Task(name="a"), Task(name="b", format="conll")]))


def test_column_that_may_be_empty_must_still_be_text() -> None:
    task = Task(name="t", text=("question", "answer"), may_be_empty=("answer",))
    assert examples_from([{"question": "why?", "answer": "", "label": "no"}], task)[0].texts == ("why?", "")
    for bad in ({"question": "", "answer": "x", "label": "no"}, {"question": "why?", "answer": None, "label": "no"}):
        with pytest.raises(DataError, match="a text that is not empty"):
            examples_from([bad], task)


def test_rows_that_can_be_read_only_once_are_checked_as_they_come() -> None:
    rows = iter([{"text": "one"}, {"text": "two"}, {"text": " "}, {"text": "four"}])
    examples = stream_together(rows, [Task(name="a")])
    assert [next(examples)[0].texts for _ in range(2)] == [("one",), ("two",)]
    with pytest.raises(DataError, match="row 3, column 'text'"):
        next(examples)
    rows = iter([{"text": "one"}, {"text": " "}, {"text": "three"}])
    with pytest.warns(UserWarning, match="skipped 1 of 3 rows"):
        assert len(list(stream_together(rows, [Task(name="a")], skip_bad_rows=True))) == 2
