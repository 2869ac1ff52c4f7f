"""The pages of docs/: their commands and settings exist, their code is valid, and the tutorial runs."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from docs_blocks import PAGES, ROOT, blocks, commands_of, free_port, page_name, run_commands, stop
from typer.main import get_command

import softcue
from softcue.cli.app import app
from softcue.methods import METHODS
from softcue.settings_docs import SECTIONS
from softcue.tasks import list_tasks

COMMANDS = list(dict.fromkeys(command for page in PAGES for command in commands_of(page.read_text("utf-8"))))
LIST_OR_TABLE = re.compile(r"[-*] |\d+\. |\|")
# Software of others that pages name; what is installed here is imported, the rest is only named.
OF_EXTRAS = ("lm_eval", "mlflow")  # packages of pages that not every installation has
OTHERS = ("sklearn", "pathlib")
pages = pytest.mark.parametrize("page", PAGES, ids=page_name)


def script(name: str) -> Any:
    """A module of scripts/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- commands ---


@cache
def all_commands() -> dict[str, Any]:
    return get_command(app).commands  # type: ignore[attr-defined,no-any-return]


@cache
def known_tasks() -> set[str]:
    return set(list_tasks().names)


@pytest.mark.parametrize(("verb", "words"), COMMANDS, ids=lambda value: value.strip()[:30])
def test_documented_commands_exist_with_their_options(verb: str, words: str) -> None:
    commands = all_commands()
    if verb.startswith("-"):  # softcue --install-completion
        return
    for name in [verb, *re.findall(r"\| (\w+)", words)]:
        assert name in commands
    command = commands[verb]
    if hasattr(command, "commands"):  # client predict, backbones pull
        command = command.commands.get(words.split()[0] if words.split() else "", command)
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert set(re.findall(r"(?<=\s)--[a-z][a-z0-9-]+", words)) <= {*options, "--help"}


@pytest.mark.parametrize(("verb", "words"), COMMANDS, ids=lambda value: value.strip()[:30])
def test_documented_commands_name_methods_tasks_and_settings_that_exist(verb: str, words: str) -> None:
    for name in ",".join(re.findall(r"--methods? ([a-z0-9,-]+)", words)).split(","):
        assert not name or name in {*METHODS.built_in, "auto", "my-method"}, name
    for name in re.findall(r"--task ([a-z0-9-]+)(?=\s|$)", words):
        assert verb == "client" or name in known_tasks(), name
    for section, key in re.findall(r"\b([a-z]+)\.([a-z_]+)=", words):
        keys = {key for method in METHODS.built_in.values() for key in method.Config.model_fields}
        assert key in (keys if section == "method" else SECTIONS[section].model_fields), f"{section}.{key}"


def test_many_pages_have_commands() -> None:
    assert len(COMMANDS) > 60
    assert len([page for page in PAGES if commands_of(page.read_text("utf-8"))]) > 25


@pytest.mark.processes
def test_the_tutorial_runs_from_its_first_command_to_its_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/tutorial.md").read_text("utf-8")
    lines = "\n".join(blocks(page, "bash")).replace("\\\n", " ").splitlines()
    assert sum(line.startswith("softcue") for line in lines) == 9
    server = run_commands(lines, f"127.0.0.1:{free_port()}")
    try:
        assert server is not None and server.poll() is None
        [code] = blocks(page, "python")
        exec(compile(code, "tutorial.md", "exec"), {})
    finally:
        stop(server)
    assert capsys.readouterr().out.split()[0] in ("kitchen", "rooms", "travel")
    assert (tmp_path / "predictions.csv").is_file() and (tmp_path / "page/index.html").is_file()


# --- code ---


@pages
def test_python_blocks_compile_and_use_names_of_softcue_that_exist(page: Path) -> None:
    for code in blocks(page.read_text("utf-8"), "python"):
        tree = ast.parse(code)
        for node in ast.walk(tree):
            check_imports(node)
            if isinstance(node, ast.Attribute) and (names := dotted(node)) and names[0] == "softcue":
                find(names)
            if isinstance(node, ast.Call) and (names := dotted(node.func)) and names[0] == "softcue":
                check_arguments(find(names), node)


def check_imports(node: ast.AST) -> None:
    modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    for module in modules:
        is_left_out = module in OF_EXTRAS and importlib.util.find_spec(module) is None
        assert is_left_out or importlib.import_module(module)
    if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in ("softcue", *OTHERS):
        module = importlib.import_module(node.module)
        for alias in node.names:
            assert hasattr(module, alias.name), f"{node.module}.{alias.name}"


def dotted(node: ast.AST) -> list[str]:
    """The names of `a.b.c`; nothing for other expressions."""
    if isinstance(node, ast.Name):
        return [node.id]
    inner = dotted(node.value) if isinstance(node, ast.Attribute) else []
    return [*inner, node.attr] if isinstance(node, ast.Attribute) and inner else []


def find(names: list[str]) -> Any:
    """What a dotted name of softcue means."""
    found: Any = softcue
    for position, name in enumerate(names[1:], start=2):
        if not hasattr(found, name):
            importlib.import_module(".".join(names[:position]))  # a module that nothing has imported yet
        found = getattr(found, name)
    return found


def check_arguments(function: Any, call: ast.Call) -> None:
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    given = {keyword.arg for keyword in call.keywords if keyword.arg}
    assert given <= set(parameters), f"{function.__name__}: {given - set(parameters)}"


@pages
def test_yaml_toml_and_json_blocks_can_be_read(page: Path) -> None:
    text = page.read_text("utf-8")
    for read, language in ((yaml.safe_load, "yaml"), (tomllib.loads, "toml"), (json.loads, "json")):
        for code in blocks(text, language):
            assert read(code), code


# --- pages ---


@pages
def test_lists_and_tables_have_an_empty_line_before_them(page: Path) -> None:
    """Without one, code hosts show a list and the site shows a paragraph."""
    before, in_code, in_list = "", False, False
    for number, line in enumerate(page.read_text("utf-8").splitlines(), start=1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code and LIST_OR_TABLE.match(line):
            begins = not before.strip() or before.startswith(("#", "<!--")) or before.lstrip().startswith("```")
            goes_on = before.startswith("|") if line.startswith("|") else in_list
            assert begins or goes_on, f"line {number}: {line[:60]}"
        if not line.strip() or line.startswith("#"):
            in_list = False
        in_list = in_list or (not in_code and bool(LIST_OR_TABLE.match(line)))
        before = line


def test_pages_of_methods_are_what_the_script_writes() -> None:
    for path, text in script("methods_docs").pages().items():
        assert path.read_text("utf-8") == text, f"{path.name}: python scripts/methods_docs.py"


def test_every_method_has_a_page_with_all_its_parts() -> None:
    headings = ["When to use it", "Settings", "Trainable and stored parameters", "Preset against paper", "Results here"]
    for name in METHODS.built_in:
        page = (ROOT / "docs" / "methods" / f"{name}.md").read_text("utf-8")
        positions = [page.index(f"\n## {heading}\n") for heading in headings]
        assert positions == sorted(positions), name
        assert page.startswith(f"# {name}\n") and "```text\n" in page and ".svg)" in page
        assert len(re.findall(r"\.\s", page.split("\n\n")[1] + " ")) >= 3, f"{name}: the idea in three sentences"


def test_the_results_of_a_method_are_lines_of_the_page_of_results() -> None:
    results = (ROOT / "docs/results.md").read_text("utf-8").splitlines()
    part = script("methods_docs").results_part("p-tuning-v2")
    lines = [line for line in part.splitlines() if line.startswith("| p-tuning-v2")]
    assert len(lines) >= 3 and set(lines) <= set(results)


def test_a_page_without_its_marks_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    methods_docs = script("methods_docs")
    (tmp_path / "vip.md").write_text("# vip\n")
    monkeypatch.setattr(methods_docs, "FOLDER", tmp_path)
    with pytest.raises(SystemExit, match=r"vip\.md has no part <!-- settings -->"):
        methods_docs.page_of("vip")


def test_pictures_have_no_text_that_only_one_scheme_shows() -> None:
    for picture in (ROOT / "docs/images/methods").glob("*.svg"):
        text = picture.read_text("utf-8")
        assert "prefers-color-scheme: dark" in text and 'role="img"' in text and "aria-label" in text


# --- the site ---


def test_examples_of_docstrings_become_code() -> None:
    pytest.importorskip("griffe")
    fence = script("griffe_examples").fence_examples
    text = "Add.\n\nExample:\n    add(1, 2)[0]\n\n    add(3, 4)\n\nRaises:\n    ValueError: no."
    code = "Example:\n    ```python\n    add(1, 2)[0]\n\n    add(3, 4)\n    ```\n\nRaises:"
    assert code in fence(text) and fence(text).endswith("ValueError: no.")
    assert "```pycon" in fence("Add.\n\nExample:\n    >>> add(1, 2)\n    3")
    assert fence("An Example: not one.") == "An Example: not one."


@pytest.mark.processes
def test_the_site_is_built_without_a_warning_and_asks_no_other_host(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    loaded = r"<(?:script|img|link|iframe)\b[^>]*(?:src|href)=\"?(?:https?:)?//[^\s>\"]+"
    for page in (tmp_path / "site").rglob("*.html"):
        assert not re.findall(loaded, page.read_text("utf-8")), page.name
    for sheet in (tmp_path / "site").rglob("*.css"):
        assert not re.findall(r"url\(['\"]?(?:https?:)?//", sheet.read_text("utf-8")), sheet.name
    index = json.loads((tmp_path / "site/search/search_index.json").read_text("utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"] if "codebook" in entry["text"]}
    assert "methods/vip.html" in found
