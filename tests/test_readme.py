"""What the README shows must work as shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from softcue.cli.app import app

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
FENCED = "".join(README.split("```")[1::2])
COMMANDS = re.findall(r"^softcue (\S+)(.*?)(?:\s{2,}#.*)?$", FENCED, re.MULTILINE)


def test_the_ten_lines_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    block = re.search(r"## Ten lines\n```python\n(.*?)```", README, re.DOTALL)
    assert block is not None
    lines = [line for line in block[1].splitlines() if line.strip()]
    assert len(lines) <= 10
    monkeypatch.chdir(tmp_path)
    exec(compile(block[1], "README.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] in ("billing", "shipping")
    assert "validation" in printed[1]
    assert (tmp_path / "cues/mine/cue.json").is_file()


@pytest.mark.parametrize(("verb", "words"), COMMANDS, ids=lambda value: value.strip()[:30])
def test_commands_of_the_readme_exist_with_their_options(verb: str, words: str) -> None:
    command = get_command(app)
    known = command.commands  # type: ignore[attr-defined]
    for name in [verb, *re.findall(r"\| (\w+)", words)]:
        assert name in known
    chosen = known[verb]
    if hasattr(chosen, "commands"):  # client predict, bench train
        chosen = chosen.commands.get(words.split()[0], chosen)
    options = {option for parameter in chosen.params for option in parameter.opts}
    assert set(re.findall(r"--[a-z-]+", words)) <= options


def test_there_are_commands_to_check() -> None:
    assert len(COMMANDS) >= 6


def test_results_are_filled_in() -> None:
    assert not re.search(r"_TABLE\b", README)
