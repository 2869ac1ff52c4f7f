"""Resolve the packages of all extras and pin each in constraints/extras.txt: python scripts/pin_extras.py [--check]

pip resolves them together, for the Python and the system that run this. The file has names and versions alone: no
address of an index and no path. `--check` only says whether every requirement of pyproject.toml has a pin that fits.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
BASE, PINNED = ROOT / "constraints.txt", ROOT / "constraints" / "extras.txt"
HEADER = """\
# Every package of every extra, pinned: pip install -c constraints/extras.txt -e '.[serve]'
# Written by `make constraints` for Python 3.11 on Linux. What must stay as it is stands in constraints.txt.
"""


def read_requirements() -> list[Requirement]:
    """The requirements of softcue and of all its extras, without those that name another extra of it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    requirements = {line: Requirement(line) for line in dict.fromkeys(lines)}
    return [requirement for requirement in requirements.values() if requirement.name != project["name"]]


def resolve(requirements: list[Requirement]) -> dict[str, str]:
    """Name -> version of everything that pip would install for these requirements."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        words = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        words += ["--disable-pip-version-check", "-c", str(BASE), "--report", report.name]
        subprocess.run([*words, *map(str, requirements)], check=True)
        installed = json.loads(Path(report.name).read_text("utf-8"))["install"]
    return {canonical_name(item["metadata"]["name"]): public_version(item["metadata"]["version"]) for item in installed}


def canonical_name(name: str) -> str:
    """The name of a package as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def public_version(version: str) -> str:
    """A version without its local part: `2.13.0+cpu` is another build of 2.13.0."""
    return Version(version).public


def read_pins() -> dict[str, str]:
    """Name -> version of the file."""
    lines = [line for line in PINNED.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    return dict(line.split("==") for line in lines)


def missing_pins() -> list[str]:
    """The requirements of pyproject.toml that have no pin, or one that does not fit."""
    pins = read_pins()
    requirements = [
        requirement
        for requirement in read_requirements()
        if requirement.marker is None or requirement.marker.evaluate()
    ]
    return [
        str(requirement)
        for requirement in requirements
        if (pin := pins.get(canonical_name(requirement.name))) is None or pin not in requirement.specifier
    ]


def main() -> None:
    """Write the file, or check it."""
    if "--check" in sys.argv[1:]:
        if missing := missing_pins():
            raise SystemExit(f"constraints/extras.txt has no pin for {', '.join(missing)}: run `make constraints`")
        return
    pins = resolve(read_requirements())
    PINNED.parent.mkdir(exist_ok=True)
    PINNED.write_text(HEADER + "".join(f"{name}=={pins[name]}\n" for name in sorted(pins)), "utf-8")


if __name__ == "__main__":
    main()
