"""What the shell offers after the tab key. Nothing here loads torch: names are read from data files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

SOFTCUE = Path(__file__).parents[1]
SECTIONS = ("backbone", "task", "method", "readout", "training", "mixture", "selection")
METHOD_ENTRY_POINTS = "softcue.methods"


def method_names() -> list[str]:
    """The names of softcue's methods and of those that installed packages add.

    Example:
        >>> "vip" in method_names()
        True
    """
    from importlib.metadata import entry_points

    names = sorted(file.stem for file in (SOFTCUE / "methods" / "recipes").glob("*.yaml"))
    return [*names, *(plugin.name for plugin in entry_points(group=METHOD_ENTRY_POINTS) if plugin.name not in names)]


def task_names() -> list[str]:
    """The names of the tasks that come with softcue.

    Example:
        >>> "tickets" in task_names()
        True
    """
    return sorted(file.stem for file in (SOFTCUE / "tasks" / "library").glob("*.yaml"))


def backbone_names() -> list[str]:
    """The short names of backbones.

    Example:
        >>> "minilm" in backbone_names()
        True
    """
    return _top_level_keys(SOFTCUE / "backbones" / "loading" / "aliases.yaml")


def complete_method(incomplete: str) -> list[str]:
    """Names of methods."""
    return _matching(method_names(), incomplete)


def complete_method_or_auto(incomplete: str) -> list[str]:
    """Names of methods, and `auto`, which tries several.

    Example:
        >>> complete_method_or_auto("a")
        ['auto', 'adapter']
    """
    return _matching(["auto", *method_names()], incomplete)


def complete_task(incomplete: str) -> list[str]:
    """Names of tasks."""
    return _matching(task_names(), incomplete)


def complete_tasks(incomplete: str) -> list[str]:
    """Names of tasks behind the last comma.

    Example:
        >>> complete_tasks("rte,urg")
        ['rte,urgency']
    """
    before, comma, last = incomplete.rpartition(",")
    taken = before.split(",")
    return [f"{before}{comma}{name}" for name in _matching(task_names(), last) if name not in taken]


def complete_backbone(incomplete: str) -> list[str]:
    """Short names of backbones."""
    return _matching(backbone_names(), incomplete)


def complete_section(incomplete: str) -> list[str]:
    """Sections of the settings."""
    return _matching(SECTIONS, incomplete)


def _matching(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _top_level_keys(file: Path) -> list[str]:
    """The keys of a YAML file that are not indented; parsing all of it would take longer than the shell should wait."""
    lines = file.read_text("utf-8").splitlines()
    return [line.partition(":")[0] for line in lines if line and line[0] not in " #-}"]
