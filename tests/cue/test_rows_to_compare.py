"""Which rows of a task other runtimes are compared on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from softcue.cue import rows_to_compare
from softcue.cue.rows_to_compare import read_rows_to_compare
from softcue.evaluation import EvaluationSet, read_evaluation_set
from softcue.tasks.catalogue import find_task
from softcue.tasks.task import Task

CUE: Any = SimpleNamespace(task=find_task("tickets"))


@pytest.mark.parametrize(
    ("most", "num_rows", "source"),
    [
        (0, 66 + 126, "tickets (validation) and tickets (test)"),
        (50, 50, "tickets (validation)"),
        (100, 100, "tickets (validation) and tickets (test)"),
        (1000, 66 + 126, "tickets (validation) and tickets (test)"),
    ],
)
def test_the_next_split_of_a_group_fills_up_what_the_first_one_lacks(most: int, num_rows: int, source: str) -> None:
    rows = read_rows_to_compare(CUE, None, (("validation", "test"), ("train",)), most)
    assert (len(rows.examples), rows.source) == (num_rows, source)
    assert len({example.texts for example in rows.examples}) == num_rows


def test_the_first_group_with_rows_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(task: Task, data: None, split: str, num_rows: int) -> EvaluationSet:
        if split != "train":
            raise FileNotFoundError(split)
        return read_evaluation_set(task, data, split=split, num_rows=num_rows)

    monkeypatch.setattr(rows_to_compare, "read_evaluation_set", read)
    rows = read_rows_to_compare(CUE, None, (("validation", "test"), ("train",)), 10)
    assert (len(rows.examples), rows.source) == (10, "tickets (train)")
    assert read_rows_to_compare(CUE, None, (("validation", "test"),), 10).examples == []
