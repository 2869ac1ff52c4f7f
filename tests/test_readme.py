"""The README: its code runs, and its commands exist. tests/test_docs.py has the other pages."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from docs_blocks import ROOT, commands_of, free_port, run_commands, stop

from softcue.cli.demo import TASKS as DEMO_TASKS

README = (ROOT / "README.md").read_text("utf-8")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def block(heading: str, language: str = "") -> str:
    """The first code block below a heading of the README."""
    section = README.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    match = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert match is not None, heading
    return match[1]


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150


def test_the_install_line_names_the_constraints_and_extras_that_exist() -> None:
    words = shlex.split(block("Install"))
    assert words[:4] == ["pip", "install", "-c", "constraints.txt"]
    assert (ROOT / "constraints.txt").is_file()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    [requirement] = re.findall(r"^\.\[(.*)\]$", words[-1])
    assert set(requirement.split(",")) <= set(extras)


@pytest.mark.parametrize("line", block("Two commands").splitlines())
def test_the_two_commands_are_targets_that_install_what_they_need(line: str) -> None:
    make, target = line.partition("#")[0].split()
    assert make == "make"
    steps = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", target, "VENV=no-such-venv"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "CONSTRAINTS"))},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    lines = steps.splitlines()
    [makes_venv] = [number for number, step in enumerate(lines) if step.endswith("-m venv no-such-venv")]
    installs = [number for number, step in enumerate(lines) if "pip install" in step]
    assert makes_venv < installs[0]
    assert all("-c constraints.txt" in lines[number] for number in installs)
    assert lines[-1].startswith("no-such-venv/bin/")


def test_the_ten_lines_run_and_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = block("Ten lines", "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        names: dict[str, object] = {}
        exec(compile(code, "README.md", "exec"), names)
        printed = capsys.readouterr().out.splitlines()
        assert printed[0] in ("billing", "shipping")
        assert "2 rows: fewer than 30" in "\n".join(printed[1:])
        assert (tmp_path / "cues/mine/cue.json").is_file()
        train, validation = names["train"], names["validation"]
        assert isinstance(train, list) and isinstance(validation, list)
        assert not any(row in train for row in validation)


@pytest.mark.processes
def test_the_commands_run_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    lines = block("Command line").splitlines()
    assert len(lines) >= 8
    stop(run_commands(lines, f"127.0.0.1:{free_port()}"))
    assert (tmp_path / "predictions.csv").read_text("utf-8").count("\n") == 10
    assert "<svg" in (tmp_path / "page/index.html").read_text("utf-8")


def test_the_commands_work_beside_the_cues_of_the_demo() -> None:
    folders = re.findall(r"--output-dir (cues/\S+)", block("Command line"))
    assert folders and not set(folders) & {f"cues/{task}" for task in DEMO_TASKS}


def test_there_are_commands_to_check() -> None:
    assert len(commands_of(README)) >= 6


def test_results_are_filled_in() -> None:
    assert not re.search(r"_TABLE\b", README)


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")], ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text("utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/glossary.md", "docs/extending.md"])
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
