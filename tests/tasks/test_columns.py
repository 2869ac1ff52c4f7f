"""Columns of a file under other names than a task reads."""

from __future__ import annotations

import pytest

from softcue.errors import ConfigurationError
from softcue.tasks import examples_from, library_task
from softcue.tasks.columns import parse_columns, rename_columns


def test_rows_that_a_task_leaves_out_are_left_out_under_another_column_name() -> None:
    [task] = rename_columns([library_task("snli")], {"gold": "label"})
    rows = [
        {"premise": "A dog runs.", "hypothesis": "An animal moves.", "gold": "entailment"},
        {"premise": "A dog runs.", "hypothesis": "It is late.", "gold": "-"},
    ]
    assert [example.target for example in examples_from(rows, task)] == ["entailment"]


def test_a_column_that_may_be_empty_may_be_so_under_another_name() -> None:
    task = library_task("multirc").model_copy(update={"format": ""})
    [renamed] = rename_columns([task], {"reply": "answer"})
    row = dict.fromkeys(renamed.text, "words") | {"reply": "", "label": "false"}
    assert examples_from([row], renamed)[0].target == "false"


def test_columns_can_change_places() -> None:
    [task] = rename_columns([library_task("tickets")], parse_columns(["text=label", "label=text"]))
    assert (task.text, task.label) == (("label",), "text")


def test_columns_the_other_way_round_are_an_error_that_says_so() -> None:
    with pytest.raises(ConfigurationError) as caught:
        rename_columns([library_task("tickets")], parse_columns(["text=message"]))
    assert str(caught.value) == (
        "column: got 'text=message'; expected FILE=CUE with a column that the cue reads; it is the other way round: "
        "--column message=text, the file's column first"
    )
    with pytest.raises(ConfigurationError, match=r"did you mean 'text'\?"):
        rename_columns([library_task("tickets")], parse_columns(["message=txt"]))


@pytest.mark.parametrize(("name", "columns"), [("tickets", {"label": "text"}), ("same-request", {"second": "first"})])
def test_one_column_is_not_read_twice(name: str, columns: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="read twice; the cue also reads"):
        rename_columns([library_task(name)], columns)


def test_texts_to_predict_may_be_in_a_column_with_the_name_of_the_label() -> None:
    [task] = rename_columns([library_task("tickets")], {"label": "text"}, needs_target=False)
    assert task.text == ("label",)
