"""Messages stay one short line, whatever names and values come from a file."""

from __future__ import annotations

import pytest

from softcue.errors import MOST_CHARACTERS, SoftcueError, near_matches


@pytest.mark.parametrize("part", ["setting", "got", "expected", "fix"])
def test_long_part_of_a_message_is_cut(part: str) -> None:
    parts = {"setting": "column", "got": "x", "expected": "y", "fix": "z"}
    error = SoftcueError(**{**parts, part: "9" * 50_000})  # type: ignore[arg-type]
    assert len(str(error)) < MOST_CHARACTERS + 100
    assert "..." in str(error)


def test_long_names_are_not_listed() -> None:
    assert near_matches("label", ["text", "labels"]) == "did you mean 'labels'? known: labels, text"
    assert near_matches("label", ["text", "9" * 5000]) == "check the name"
