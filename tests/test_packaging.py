"""The package: what it declares, what its wheel holds, and that the wheel works on its own."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import softcue

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "softcue"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
# Imported name -> the package that brings it, where they differ
PACKAGES = {"sklearn": "scikit-learn", "yaml": "pyyaml", "mlflow": "mlflow-skinny"}
# Packages that come with a declared one, in the version it needs
BROUGHT_BY = {
    "pydantic-core": "pydantic",
    "starlette": "fastapi",
    "tokenizers": "transformers",
    "huggingface-hub": "transformers",
    "fsspec": "torch",
    "pandas": "datasets",
}
# The parts of softcue that only an extra's users import
PARTS_OF_EXTRAS = {"serving/http": "serve", "serving/ray.py": "serve"}


def package_of(requirement: str) -> str:
    """The normalised name of the package in a requirement."""
    match = re.match(r"[\w.-]+", requirement)
    assert match is not None, requirement
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def packages_of(*extras: str) -> set[str]:
    """The packages that softcue and these extras declare."""
    optional = PROJECT["optional-dependencies"]
    return {
        package_of(line) for line in [*PROJECT["dependencies"], *(line for name in extras for line in optional[name])]
    }


def imports_of(nodes: list[ast.stmt], is_late: bool = False) -> Iterator[tuple[str, bool]]:
    """The packages that statements import, and whether only when a function is called or a type is checked."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], is_late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module).partition(".")[0], is_late
        late = is_late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        late = late or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
        for name in ("body", "orelse", "finalbody", "handlers"):
            yield from imports_of(getattr(node, name, []), late)


def test_declared_dependencies_cover_all_imports() -> None:
    everything = packages_of(*PROJECT["optional-dependencies"])
    for file in sorted(SOURCE.rglob("*.py")):
        place = file.relative_to(SOURCE).as_posix()
        always = packages_of(*(extra for part, extra in PARTS_OF_EXTRAS.items() if place.startswith(part)))
        for name, is_late in imports_of(ast.parse(file.read_text("utf-8")).body):
            if name == "softcue" or name in sys.stdlib_module_names:
                continue
            package = PACKAGES.get(name, package_of(name))
            package = BROUGHT_BY.get(package, package)
            assert package in (everything if is_late else always), f"{place} imports {name}"


@pytest.mark.parametrize(("package", "owner"), BROUGHT_BY.items())
def test_packages_that_are_not_declared_are_brought_by_their_owner(package: str, owner: str) -> None:
    required = importlib.metadata.requires(owner) or []
    assert package in {package_of(line) for line in required if "extra ==" not in line}


def test_the_version_is_the_same_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert PROJECT["version"] == softcue.__version__ == citation["version"]


def test_the_citation_has_what_its_format_asks_for() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software"
    assert citation["message"] and citation["title"] and citation["license"] == PROJECT["license"]
    for entry in [citation, *citation["references"]]:
        assert entry["title"] and entry["authors"]
        assert all("name" in author or {"family-names", "given-names"} <= set(author) for author in entry["authors"])
    assert all(reference["type"] == "conference-paper" for reference in citation["references"])


def test_every_extra_is_in_the_guide() -> None:
    guide = (ROOT / "docs/guide.md").read_text("utf-8").partition("## Extras")[2]
    named = set(
        re.findall(r"`([a-z-]+)`", "".join(line.split("|")[1] for line in guide.splitlines() if line.startswith("| `")))
    )
    assert named >= set(PROJECT["optional-dependencies"]) - {"browser"}


def build_wheel(work: Path) -> Path:
    """Build the wheel from a copy of the sources, as `make dist` does."""
    sources = work / "sources"
    sources.mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    shutil.copytree(ROOT / "src", sources / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", work]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    subprocess.run([*pip, sources], env=environment, check=True, capture_output=True)
    [wheel] = work.glob("*.whl")
    return wheel


@pytest.mark.processes
def test_a_wheel_that_is_built_twice_has_the_same_bytes_and_all_files(tmp_path: Path) -> None:
    first, second = build_wheel(tmp_path / "first"), build_wheel(tmp_path / "second")
    assert first.name == second.name and first.read_bytes() == second.read_bytes()
    names = set(zipfile.ZipFile(first).namelist())
    in_source = {
        file.relative_to(ROOT / "src").as_posix()
        for file in SOURCE.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".md"
    }
    assert in_source <= names
    assert not [name for name in names - in_source if not re.match(r"softcue-[\d.]+\.dist-info/", name)]
    assert [name for name in names if name.endswith("licenses/LICENSE")]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_installed_wheel_runs_the_demo_outside_the_repository(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path / "build")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel], check=True)
    # The other packages are those of this environment; the folders themselves, not the links in them to sources.
    folders = [path for path in sys.path if path.endswith("site-packages")]
    [installed] = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (installed / "others.pth").write_text("\n".join(folders) + "\n", "utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*words: str) -> str:
        ended = subprocess.run(
            [tmp_path / "venv" / "bin" / "softcue", *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    place = subprocess.run(
        [python, "-c", "import softcue; print(softcue.__file__)"], cwd=tmp_path, env=environment, capture_output=True
    )
    assert Path(place.stdout.decode().strip()).is_relative_to(tmp_path / "venv")
    assert "urgency" in run("demo", "--seeds", "1", "--output-dir", "cues")
    assert run("predict", "cues/tickets", "My invoice is wrong.").strip()
