"""The README and the guide: their code runs, and their commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from softcue.cli.app import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
GUIDE = (ROOT / "docs" / "guide.md").read_text("utf-8")
COMMAND = re.compile(r"^softcue (\S+)(.*?)(?:\s{2,}#.*)?$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def commands_of(page: str) -> list[tuple[str, str]]:
    return COMMAND.findall("".join(page.split("```")[1::2]))


COMMANDS = list(dict.fromkeys(commands_of(README) + commands_of(GUIDE)))


def test_the_ten_lines_run_and_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    block = re.search(r"## Ten lines\n```python\n(.*?)```", README, re.DOTALL)
    assert block is not None
    lines = [line for line in block[1].splitlines() if line.strip()]
    assert len(lines) <= 10
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        names: dict[str, object] = {}
        exec(compile(block[1], "README.md", "exec"), names)
        printed = capsys.readouterr().out.splitlines()
        assert printed[0] in ("billing", "shipping")
        assert "validation" in printed[1]
        assert (tmp_path / "cues/mine/cue.json").is_file()
        train, validation = names["train"], names["validation"]
        assert isinstance(train, list) and isinstance(validation, list)
        assert not any(row in train for row in validation)


@pytest.mark.parametrize(("verb", "words"), COMMANDS, ids=lambda value: value.strip()[:30])
def test_documented_commands_exist_with_their_options(verb: str, words: str) -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for name in [verb, *re.findall(r"\| (\w+)", words)]:
        assert name in commands
    command = commands[verb]
    if hasattr(command, "commands"):  # client predict, backbones pull
        command = command.commands.get(words.split()[0], command)
    options = {option for parameter in command.params for option in parameter.opts}
    assert set(re.findall(r"--[a-z-]+", words)) <= options


def test_there_are_commands_to_check() -> None:
    assert len(commands_of(README)) >= 6


def test_results_are_filled_in() -> None:
    assert not re.search(r"_TABLE\b", README)


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")], ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text("utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/glossary.md", "CONTRIBUTING.md"])
def test_named_modules_exist(page: str) -> None:
    paths = set(re.findall(r"`(?:src/)?(softcue/[\w/.]+)`", (ROOT / page).read_text("utf-8")))
    missing = sorted(path for path in paths if not (ROOT / "src" / path).exists())
    assert not missing
    modules_now = re.findall(r"^\|[^|]*\|([^|]*)\|$", (ROOT / page).read_text("utf-8"), re.MULTILINE)
    for module in re.findall(r"`(softcue\.[\w.]+)`", " ".join(modules_now)):
        path = ROOT / "src" / module.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").is_file(), module


def test_functions_of_the_walks_are_in_their_modules() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    walks = re.findall(r"`(softcue/[\w/]+\.py)`:\s+`([\w.]+)`", page)
    table = [(path, name) for name, path in re.findall(r"^\| `(\w+)` \| `(softcue/[\w/]+\.py)`", page, re.MULTILINE)]
    assert len(walks) > 10 and len(table) > 10
    for path, name in walks + table:
        source = (ROOT / "src" / path).read_text("utf-8")
        for part in name.split("."):
            assert re.search(rf"\b(?:def|class) {part}\b", source), f"{name} in {path}"
