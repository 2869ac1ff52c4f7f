"""Which rows of a task other runtimes are compared on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from softcue.cue.rows_to_compare import read_rows_to_compare
from softcue.tasks.catalogue import find_task

CUE: Any = SimpleNamespace(task=find_task("tickets"))


@pytest.mark.parametrize(
    ("most", "num_rows", "source"),
    [
        (0, 66, "tickets (validation)"),
        (50, 50, "tickets (validation)"),
        (100, 100, "tickets (validation) and tickets (test)"),
        (1000, 66 + 126 + 252, "tickets (validation) and tickets (test) and tickets (train)"),
    ],
)
def test_the_next_split_fills_up_what_the_first_one_lacks(most: int, num_rows: int, source: str) -> None:
    rows = read_rows_to_compare(CUE, None, ("validation", "test", "train"), most)
    assert (len(rows.examples), rows.source) == (num_rows, source)
    assert len({example.texts for example in rows.examples}) == num_rows


def test_a_task_without_rows_here_has_none() -> None:
    elsewhere = SimpleNamespace(task=find_task("sst2"))
    assert read_rows_to_compare(elsewhere, None, ("train",), 10).examples == []  # type: ignore[arg-type]
