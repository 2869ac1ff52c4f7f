"""The recipes of the papers: the settings with which each method's paper trains it, with their sources.

Each recipe is a data file in `softcue/methods/recipes`, whose README describes the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from softcue.errors import ConfigurationError, near_matches

RECIPES = {
    "default": "the preset of the method for the kind of backbone",
    "paper": "the settings of the method's paper",
}
SECTION_ORDER = ("method", "backbone", "readout", "training")  # a recipe has settings of these sections
LARGE_SET = 100_000  # training rows, where no task is given


@dataclass(frozen=True)
class TaskForm:
    """What the settings of a paper depend on besides the kind of backbone.

    Example:
        >>> TaskForm(num_texts=2, num_rows=2_490).has({"texts": 2, "rows_below": 10_000})
        True
    """

    num_texts: int = 1
    task_kind: str = "classification"
    num_rows: int = LARGE_SET  # training rows
    has_several_tasks: bool = False
    is_few_shot: bool = False
    tunes_backbone: bool = False  # with the prompt: supplementary training

    def has(self, condition: Mapping[str, Any]) -> bool:
        """Whether all parts of a condition hold."""
        parts: dict[str, Callable[[Any], bool]] = {
            "texts": lambda number: self.num_texts == number,
            "rows_below": lambda number: self.num_rows < number,
            "task_kinds": lambda kinds: self.task_kind in kinds,
            "several_tasks": lambda expected: self.has_several_tasks == expected,
            "few_shot": lambda expected: self.is_few_shot == expected,
            "tune_backbone": lambda expected: self.tunes_backbone == expected,
        }
        return all(parts[name](value) for name, value in condition.items())


def describe_condition(condition: Mapping[str, Any]) -> str:
    """A condition of a recipe in words.

    Example:
        >>> describe_condition({"rows_below": 10_000})
        'with fewer than 10,000 training rows'
    """
    words: dict[str, Callable[[Any], str]] = {
        "texts": lambda number: f"with {number} texts",
        "rows_below": lambda number: f"with fewer than {number:,} training rows",
        "task_kinds": lambda kinds: f"for {' and '.join(kinds)}",
        "several_tasks": lambda expected: "for several tasks" if expected else "for one task",
        "few_shot": lambda expected: "in few-shot runs" if expected else "outside few-shot runs",
        "tune_backbone": lambda expected: "in supplementary training" if expected else "on the frozen backbone",
    }
    return " ".join(words[name](value) for name, value in condition.items())


@dataclass(frozen=True)
class RecipeSetting:
    """A value of a recipe, and where it comes from."""

    value: Any
    source: str  # the section, table or equation; "code": the authors' public code. If the paper is silent: the reason
    is_from_paper: bool = True  # False: chosen here, for the reason given
    searched: tuple[Any, ...] = ()  # values the authors chose from for each task
    cases: tuple[tuple[Mapping[str, Any], RecipeSetting], ...] = field(default=(), repr=False)  # (condition, setting)

    def at(self, form: TaskForm) -> RecipeSetting:
        """The setting for a form of task: the last case that fits, or this one."""
        fitting = [setting for condition, setting in self.cases if form.has(condition)]
        return replace(fitting[-1] if fitting else self, cases=self.cases)

    def agrees(self, value: Any) -> bool:
        """Whether a value is the paper's, or one of those it chose from."""
        return value == self.value or value in self.searched


@dataclass(frozen=True)
class Recipe:
    """The recipe of a method's paper on one kind of backbone."""

    method: str
    paper: str  # authors and year; empty: the method has no paper
    kind: str
    backbone: str  # the paper's backbone of this kind; empty: the paper has none
    note: str  # what differs from the paper on this kind of backbone
    settings: Mapping[str, RecipeSetting]  # section.key -> setting

    def as_settings(self) -> dict[str, dict[str, Any]]:
        """The values by section and key."""
        values: dict[str, dict[str, Any]] = {}
        for path, setting in self.settings.items():
            section, _, key = path.partition(".")
            values.setdefault(section, {})[key] = setting.value
        return values


def paper_recipe(method: str, kind: str = "", form: TaskForm | None = None) -> Recipe:
    """The recipe of a method's paper on a kind of backbone (without one: the first that the paper uses).

    Without a form of task, values that depend on it are those outside all cases. A method of another package has no
    recipe here.

    Example:
        >>> recipe = paper_recipe("prompt-tuning", "encoder-decoder")
        >>> recipe.backbone, recipe.settings["method.prompt_length"].value
        ('LM-adapted T5 1.1', 100)
        >>> recipe.as_settings()["training"]["steps"]
        30000
        >>> paper_recipe("m-idpg-phm", "encoder", TaskForm(num_rows=2_490)).settings["training.epochs"].value
        50
    """
    content: dict[str, Any] = _read(method) if method in recipe_names() else {"paper": ""}
    used_on: dict[str, str] = content.get("used_on", {})
    kind = kind or next(iter(used_on), "encoder")
    note, settings = _settings(content, kind)
    paths = sorted(settings, key=lambda path: SECTION_ORDER.index(path.partition(".")[0]))
    return Recipe(
        method=method,
        paper=content.get("kinds", {}).get(kind, {}).get("paper", content["paper"]),
        kind=kind,
        backbone=used_on.get(kind, ""),
        note=note,
        settings={path: settings[path].at(form) if form else settings[path] for path in paths},
    )


@cache
def recipe_names() -> tuple[str, ...]:
    """The methods that have a data file.

    Example:
        >>> "vip" in recipe_names()
        True
    """
    names = [entry.name for entry in files("softcue.methods").joinpath("recipes").iterdir()]
    return tuple(sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml")))


def check_recipe(name: object) -> str:
    """Return the name of a recipe if there is such a recipe; raise an error otherwise.

    Example:
        >>> check_recipe("paper")
        'paper'
    """
    if not isinstance(name, str) or name not in RECIPES:
        raise ConfigurationError(
            setting="recipe", got=name, expected="default or paper", fix=near_matches(str(name), RECIPES)
        )
    return name


@cache
def _read(name: str) -> dict[str, Any]:
    text = files("softcue.methods").joinpath(f"recipes/{name}.yaml").read_text("utf-8")
    return yaml.safe_load(text)  # type: ignore[no-any-return]


def _settings(content: Mapping[str, Any], kind: str) -> tuple[str, dict[str, RecipeSetting]]:
    """The note and the settings of a data file for one kind of backbone, after those of the file it extends."""
    of_kind = content.get("kinds", {}).get(kind, {})
    extended = of_kind.get("extends") or content.get("extends")
    note, settings = _settings(_read(extended), kind) if extended else ("", {})
    for given in (content.get("settings", {}), of_kind.get("settings", {})):
        settings |= {path: _setting(entry) for path, entry in given.items() if entry is not None}
        settings = {path: setting for path, setting in settings.items() if given.get(path, True) is not None}
    return of_kind.get("note", note), settings


def _setting(entry: Mapping[str, Any]) -> RecipeSetting:
    return RecipeSetting(
        value=entry["value"],
        source=entry["source"] if "source" in entry else entry["choice"],
        is_from_paper="source" in entry,
        searched=tuple(entry.get("searched", ())),
        cases=tuple((case["when"], _setting(case)) for case in entry.get("cases", ())),
    )
