"""The rules of the house: import direction, where transformers may be imported, what no module may contain."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "softcue"
# Data flows from left to right; a package imports only from itself and from those before it.
FLOW = [
    *("errors", "devices", "types", "files", "garbage_collection", "yaml_text", "randomness", "phm"),
    *("drawing", "listing", "machine"),
    "ray_cluster",
    *("tasks", "inputs", "prompts", "backbones", "sentence_vectors", "readouts", "methods"),
    *(
        "inference",
        "evaluation",
        "training",
        "adaptation",
        "selection",
        "recipes",
        "configuration",
        "settings_docs",
        "recipe_summary",
        "planning",
        "cue",
        "run",
        "auto_run",
        "api",
        "sklearn",
        "interop",
        "inspection",
        "studies",
        "serving",
        "cli",
    ),
]
MODULES = sorted(SOURCE.rglob("*.py"))


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported_packages(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "softcue":
            names |= {alias.name for alias in node.names} & set(FLOW)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("softcue."):
            names.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            names |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("softcue.")}
    return names


def test_a_package_imports_only_from_those_before_it() -> None:
    wrong = []
    for path in MODULES:
        package = package_of(path)
        if package in ("__init__", "__main__"):
            continue
        assert package in FLOW, f"put {package} into FLOW where it belongs"
        later = {other for other in imported_packages(path) if FLOW.index(other) > FLOW.index(package)}
        wrong += [f"{path.relative_to(SOURCE)} imports {other}" for other in sorted(later)]
    assert not wrong


def test_only_backbones_import_models_of_transformers() -> None:
    for path in MODULES:
        if package_of(path) != "backbones":
            assert not re.search(r"^\s*(from|import) transformers", path.read_text("utf-8"), re.MULTILINE), path


def test_shared_code_never_asks_for_a_methods_name() -> None:
    from softcue.methods import METHODS

    names = re.compile(rf"""["']({"|".join(METHODS)})["']""")
    for package in ("training", "backbones", "prompts", "readouts", "inference", "serving"):
        for path in (SOURCE / package).rglob("*.py"):
            assert not names.search(path.read_text("utf-8")), path


def test_no_source_file_pickles() -> None:
    # vLLM reads tensors as torch.save writes them. This file writes them and opens none.
    writer = SOURCE / "serving" / "vllm" / "client.py"
    picklers = {"pickle", "dill", "shelve", "joblib", "cloudpickle", "marshal"}
    calls = []
    for file in MODULES:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            match node:
                case ast.Import(names=names):
                    wrong = any(name.name.split(".")[0] in picklers for name in names)
                case ast.ImportFrom(module=module, names=names):
                    wrong = (module or "").split(".")[0] in picklers or (
                        module == "torch" and any(name.name in ("load", "save") for name in names)
                    )
                case ast.Attribute(value=ast.Name(id="torch"), attr="save") if file == writer:
                    wrong = False
                case ast.Attribute(value=ast.Name(id="torch"), attr="load" | "save"):
                    wrong = True
                case ast.Call(func=ast.Attribute(value=ast.Name(id="numpy"), attr="load"), keywords=keywords):
                    wrong = "allow_pickle=False" not in [f"{word.arg}={ast.unparse(word.value)}" for word in keywords]
                case ast.keyword(arg="allow_pickle", value=value):  # False, or handed on from the user's word
                    wrong = ast.unparse(value) not in ("False", "allow_pickle", "settings.allow_pickle")
                case _:
                    wrong = False
            if wrong:
                calls.append(f"{file}: {ast.unparse(node)}")
    assert not calls


def test_the_formatter_is_switched_off_only_for_tables() -> None:
    skipped = [path for path in MODULES for _ in re.findall(r"# fmt: (?:skip|off)", path.read_text("utf-8"))]
    assert len(skipped) <= 20, skipped


def test_no_two_classes_of_the_package_have_the_same_name() -> None:
    places: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    assert not {name: where for name, where in places.items() if len(where) > 1}


def test_no_variable_has_a_name_that_says_nothing() -> None:
    vague = {"found", "own", "one", "known", "heard", "asked", "told"}
    wrong = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            is_assigned = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in vague
            if is_assigned or (isinstance(node, ast.arg) and node.arg in vague):
                wrong.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert not wrong


def test_literal_code_of_the_papers_knows_nothing_of_the_package() -> None:
    paths = sorted((ROOT / "tests" / "paper").glob("literal_*.py"))
    assert paths
    allowed = {*sys.stdlib_module_names, "torch"}  # not even test helpers, which import the package
    wrong = []
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [node.module or "."] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            wrong += [f"{path.name} imports {name}" for name in names if name.split(".")[0] not in allowed]
    assert not wrong
