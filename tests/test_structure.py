"""The way data flows is the way packages import: each only from those before it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "softcue"
FLOW = [
    "errors", "types", "files", "draws", "phm", "tasks", "tokens", "prompts", "backbones", "representations",
    "token_cache", "readouts", "methods", "evaluation", "training", "configuration", "data", "record", "card", "cue",
    "recording", "api", "inspection", "serving", "benchmarks", "cli",
]  # fmt: skip
MODULES = sorted(SOURCE.rglob("*.py"))


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("softcue."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {name.name.split(".")[1] for name in node.names if name.name.startswith("softcue.")}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_package_imports_only_from_those_before_it(path: Path) -> None:
    package = package_of(path)
    if package in ("__init__", "__main__"):
        return
    assert package in FLOW, f"put {package} into FLOW where it belongs"
    later = {other for other in imported(path) if FLOW.index(other) > FLOW.index(package)}
    assert not later, f"{path.relative_to(SOURCE)} imports {later}, which come later in the flow"


def test_only_backbones_and_benchmarks_import_models_of_transformers() -> None:
    for path in MODULES:
        if package_of(path) not in ("backbones", "benchmarks"):
            assert not re.search(r"^\s*(from|import) transformers", path.read_text("utf-8"), re.MULTILINE), path


def test_shared_code_never_asks_for_a_methods_name() -> None:
    from softcue.methods import METHODS

    names = re.compile(rf"""["']({"|".join(METHODS)})["']""")
    for package in ("training", "backbones", "prompts", "readouts"):
        for path in (SOURCE / package).rglob("*.py"):
            assert not names.search(path.read_text("utf-8")), path


def test_nothing_is_pickled() -> None:
    for path in MODULES:
        text = path.read_text("utf-8")
        assert not re.search(r"torch\.(load|save)\(|^\s*import pickle|pickle\.(load|dump)", text, re.MULTILINE), path


def test_modules_stay_small() -> None:
    long = {
        str(path.relative_to(SOURCE)): count for path in MODULES if (count := path.read_text("utf-8").count("\n")) > 350
    }
    assert not long


def test_every_package_file_is_in_the_readme_tree() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    missing = {package_of(path) for path in MODULES if f"{package_of(path)}" not in readme}
    assert not missing - {"__init__", "__main__"}
