"""The benchmarks stay outside the installed package."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = sorted((ROOT / "src").rglob("*.py"))
BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.py"))
SCRIPTS = [path.stem for path in BENCHMARKS if path.parent.name == "tables" and "__main__" in path.read_text("utf-8")]


def public_classes(paths: list[Path]) -> list[str]:
    trees = [ast.parse(path.read_text("utf-8")) for path in paths]
    names = [node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return [name for name in names if not name.startswith("_")]


def test_the_package_imports_neither_benchmarks_nor_mocks() -> None:
    unwanted = re.compile(r"^\s*(from|import) (benchmarks|unittest)\b", re.MULTILINE)
    assert [path for path in SOURCE if unwanted.search(path.read_text("utf-8"))] == []


def test_no_class_of_the_benchmarks_has_a_name_of_the_package() -> None:
    names = public_classes(BENCHMARKS)
    assert len(names) == len(set(names)) > 10
    assert not set(names) & set(public_classes(SOURCE))


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_of_the_tables_has_help(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [name, "--help"])
    with pytest.raises(SystemExit) as end:
        import_module(f"benchmarks.tables.{name}").main()
    assert end.value.code == 0
    assert f"python -m benchmarks.tables.{name}" in capsys.readouterr().out


def test_commands_of_the_makefile_and_the_docs_exist() -> None:
    files = [ROOT / name for name in ("Makefile", "README.md", "docs/benchmarks.md", "docs/results.md")]
    text = "\n".join(path.read_text("utf-8") for path in files)
    modules = set(re.findall(r"-m (benchmarks[\w.]*)", text))
    paths = {ROOT / path for path in re.findall(r"[` ](benchmarks/[\w/-]+\.(?:py|yaml))", text)}
    assert len(modules) > 2 and len(paths) > 5
    for module in modules:
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module
    assert all(path.is_file() for path in paths)
    assert "softcue bench" not in text
