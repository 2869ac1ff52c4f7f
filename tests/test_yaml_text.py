"""YAML of users is bounded, and whatever is wrong with it is one line; so are values in messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from softcue.configuration import parse_overrides, read_settings
from softcue.errors import ConfigurationError, SoftcueError
from softcue.tasks.catalogue import find_task
from softcue.yaml_text import MOST_LEVELS, PlainLoader, parse_yaml

LEVELS = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
LEVELS += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
BAD = {
    "aliases": ("\n".join(LEVELS), "stands for more than"),
    "merged aliases": ("\n".join([*LEVELS, "b: {<<: [*a11]}"]), "stands for more than"),
    "itself": ("a: &a [*a]", "stands for more than"),
    "levels": ("[" * 5000, "levels"),
    "many levels": ("a: " + "[" * 150 + "]" * 150, "levels"),
    "no integer": ("a: !!int x", "invalid literal"),
    "no time": ("a: !!timestamp x", "does not fit its tag"),
    "no truth": ("a: !!bool x", "does not fit its tag"),
    "no date": ("a: 2001-99-99", "month"),
    "a tag": ("a: !!python/object:os.system {}", "could not determine a constructor"),
}


@pytest.mark.parametrize(("text", "reason"), BAD.values(), ids=BAD.keys())
def test_bad_yaml_is_one_error_of_one_line(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        parse_yaml(text)
    assert "\n" not in str(caught.value)
    file = tmp_path / "run.yaml"
    file.write_text(text)
    for read in (read_settings, find_task):
        with pytest.raises(ConfigurationError, match="valid YAML") as shown:
            read(file)
        assert "\n" not in str(shown.value)


@pytest.mark.parametrize("text", ["!!int x", "!!timestamp x", "2001-99-99", "[" * 5000])
def test_bad_value_of_an_override_is_one_error(text: str) -> None:
    with pytest.raises(ConfigurationError, match="a plain value"):
        parse_overrides([f"training.epochs={text}"])


def test_scanner_stops_at_the_first_bracket_too_many() -> None:
    class CountingLoader(PlainLoader):
        num_brackets = 0

        def fetch_flow_collection_start(self, token_class: Any) -> None:
            CountingLoader.num_brackets += 1
            super().fetch_flow_collection_start(token_class)

    with pytest.raises(ValueError, match="levels"):
        parse_yaml("[" * 5000, CountingLoader)
    assert CountingLoader.num_brackets == MOST_LEVELS + 1  # each looks at all that are open


def test_aliases_within_bounds_are_read() -> None:
    assert parse_yaml("a: &a [1, 2]\nb: *a\nc: {<<: {d: 1}}") == {"a": [1, 2], "b": [1, 2], "c": {"d": 1}}


def test_values_in_messages_are_cut_before_they_are_written_out() -> None:
    bomb: list[object] = ["x"]
    for _ in range(40):
        bomb = [bomb] * 9
    for value in (bomb, {"a": bomb}, (bomb,), 10**6000, [10**6000], "x" * 10**6):
        message = str(SoftcueError(setting="key", got=value, expected="less", fix="cut it"))
        assert len(message) < 300


@pytest.mark.parametrize(
    "value", [[], [1, "a'b"], ("a",), ("a", 2.5), {"a": [1, {2}], 3: None}, {1}, "", "a\nb", Path("x"), b"x", [b"x"]]
)
def test_small_values_are_shown_as_python_writes_them(value: object) -> None:
    assert f"got {str(value)!r};" in str(SoftcueError(setting="key", got=value, expected="less", fix="cut it"))
