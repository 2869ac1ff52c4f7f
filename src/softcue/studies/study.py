"""A study: a grid of runs described in one YAML file, and the studies that come with softcue."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from softcue.configuration import merged, override, read_settings, resolve, settings_of_candidates
from softcue.errors import ConfigurationError, as_configuration_error, near_matches
from softcue.methods import METHODS
from softcue.recipes import check_recipe
from softcue.selection import AUTO
from softcue.tasks.catalogue import TASK_SUFFIXES

Axis = Literal["backbone", "trained_on", "task", "method", "regime", "variant"]
DEFAULT_SEEDS = 3
SCALES = ("full", "small")
# What a user may replace on the command line or in Python, and what `small:` of a study may replace.
REPLACEABLE = ("backbones", "tasks", "methods", "regimes", "seeds", "vary", "minutes")
IN_SMALL = (*REPLACEABLE, "settings", "given")
GIVEN = "given"  # the source of a backbone that is made from the one of the user
LISTS, MAPPINGS = ("backbones", "tasks", "methods", "regimes"), ("settings", "small")  # that changes are merged with
# What the axes of a study decide. As a setting it would, for example, give test rows to the trials of a search.
DECIDED = (
    *("backbone.name", "method.name", "mixture.tasks", "training.seed"),
    *("task.name", "task.few_shot", "task.sample_seed", "task.use_test_rows", "task.data"),
)
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_NAME = re.compile(r"\w[\w.-]{0,99}")
_STRICT = ConfigDict(frozen=True, extra="forbid")


class _Named(BaseModel):
    """Something with a name, which may stand alone: `prompt-tuning` is short for `{name: prompt-tuning}`."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    name: str = Field(min_length=1, description="its name in tables")
    settings: dict[str, Any] = Field(default_factory=dict, description="section.key: value, as `softcue config` lists")

    @model_validator(mode="before")
    @classmethod
    def _read_name(cls, value: object) -> object:
        return {"name": str(value)} if isinstance(value, (str, int, float)) else value

    @field_validator("settings")
    @classmethod
    def _check_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        return check_keys(settings)


def check_keys(settings: dict[str, Any]) -> dict[str, Any]:
    """Check that a study may set these: their sections exist, and no axis of the study decides them.

    Example:
        >>> check_keys({"training.steps": 9})
        {'training.steps': 9}
    """
    for key, value in settings.items():
        override(key, value)  # an unknown section is an error
        if key in DECIDED:
            raise ValueError(f"other settings than {key}, which the study decides itself")
    return settings


class Range(BaseModel):
    """The values of a setting between two numbers, for a search with optuna."""

    model_config = _STRICT

    low: float
    high: float
    log: bool = Field(False, description="draw evenly over the logarithm")
    whole: bool = Field(False, description="whole numbers only")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.low < self.high:
            raise ValueError("`low` below `high`")
        if self.log and self.low <= 0:
            raise ValueError("`low` above 0 with `log`")
        if self.whole and not (self.low.is_integer() and self.high.is_integer()):
            raise ValueError("whole numbers as `low` and `high` with `whole`")
        return self

    @property
    def ends(self) -> list[Any]:
        """The smallest and the largest value."""
        return [int(end) if self.whole else end for end in (self.low, self.high)]


def _kind_of_values(values: object) -> str:
    return "range" if isinstance(values, (Mapping, Range)) else "list"


Values = Annotated[
    Annotated[list[Any], Tag("list")] | Annotated[Range, Tag("range")], Discriminator(_kind_of_values)
]  # so that an error tells what is wrong with a range, not that it is no list


class Search(BaseModel):
    """Settings that are chosen on validation rows. The chosen ones are trained again with fresh seeds."""

    model_config = _STRICT

    space: dict[str, Values] = Field(description="section.key: a list of values, or a range")
    trials: int = Field(0, ge=0, description="settings to try, proposed by optuna; 0 tries the whole grid")
    seeds: int = Field(1, ge=1, description="runs of each trial; their mean validation score counts")

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_keys(dict(self.space))
        if not self.space:
            raise ValueError("settings below `space`")
        for key, values in self.space.items():
            if isinstance(values, Range) and not self.trials:
                raise ValueError(f"a number of trials, because {key} is a range")
            if isinstance(values, list):
                _check_values(key, values)
        return self


def _check_values(key: str, values: list[Any]) -> None:
    """Check that there are values, and that no two have the same name: each is a folder."""
    if not values:
        raise ValueError(f"values for {key}")
    names = [name_value(value) for value in values]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"different values for {key}, not {repeated[0]} twice")


def name_value(value: object) -> str:
    """A value as part of a name: short, and different for different values.

    Example:
        >>> name_value(1e-05), name_value(0.30000001), name_value("words")
        ('1e-05', '0.30000001', 'words')
    """
    short = f"{value:.4g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)


class StudyMethod(_Named):
    """A line of the table: a method with its recipe and settings."""

    method: str = Field("", description="a method of `softcue methods`; empty: the name")
    function: str = Field(
        "",
        description="module:function of a Python function that trains other software on the same rows, to compare with "
        "(`softcue.studies.peers`); it is imported and called, so run such studies of people you trust",
    )
    recipe: str = Field("", description="default or paper; empty: that of the study")
    search: Search | None = None
    tasks: tuple[str, ...] = Field((), description="train it on these tasks only; empty: on all")
    regimes: tuple[str, ...] = Field((), description="train it in these regimes only; empty: in all")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.function:
            if self.method or self.recipe or self.search or not _FUNCTION.fullmatch(self.function):
                raise ValueError("module:function, and no method, recipe or search beside it")
            return self
        self.method_keys()  # an unknown method is an error
        if self.recipe:
            check_recipe(self.recipe)
        return self

    @property
    def method_name(self) -> str:
        """The name of the method in `softcue methods`, or auto."""
        return self.method or self.name

    def method_keys(self) -> list[str]:
        """The keys that the method has in the section `method`.

        `auto` has none: those it tries have their presets. Other software has none either.
        """
        has_keys = self.method_name != AUTO and not self.function
        return list(METHODS.find(self.method_name).Config.model_fields) if has_keys else []


class StudyTask(_Named):
    """A task to train on, and the tasks it is scored on."""

    task: str = Field("", description="a task of `softcue tasks` or a task file (.yaml); empty: the name")
    score_on: tuple[str, ...] = Field((), description="tasks to score the cue on besides its own: out of domain")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if {self.name, self.source} & set(self.score_on) or len(set(self.score_on)) < len(self.score_on):
            raise ValueError("different tasks below `score_on`, and not its own")
        return self

    @property
    def source(self) -> str:
        """The name or file of the task."""
        return self.task or self.name


class Adaptation(BaseModel):
    """An LM adaptation (`softcue adapt`) that makes a backbone before the runs on it begin."""

    model_config = ConfigDict(frozen=True, extra="allow")

    text: str = Field("", description="a folder of plain text; empty: that of the command (--text)")
    steps: int = Field(ge=1)


class StudyBackbone(_Named):
    """A backbone: an alias, a folder, a hub id."""

    backbone: str = Field("", description="its source; empty: the name; given: each backbone that the user gives")
    adapt: Adaptation | None = None

    @model_validator(mode="before")
    @classmethod
    def _name_folder(cls, value: object) -> object:
        """A folder or file is called by its last part in tables."""
        if isinstance(value, str) and os.path.exists(value):  # also with a name that no file can have
            path = Path(value).resolve()
            return {"name": path.name, "backbone": str(path)}
        return value

    @property
    def source(self) -> str:
        """What `--backbone` takes."""
        return self.backbone or self.name


class Regime(_Named):
    """How many rows are used, or that all tasks share one prompt."""

    few_shot: int = Field(
        0, ge=0, description="K training rows; each seed has its own sample, the same for all methods"
    )
    joint: bool = Field(False, description="one prompt for all tasks")


class TableLayout(BaseModel):
    """How a report lays out the scores."""

    model_config = _STRICT

    rows: tuple[Axis, ...] = ("method",)
    columns: tuple[Axis, ...] = ("task",)
    blocks: tuple[Axis, ...] = Field((), description="a table for each value, as K = 100, 500 and 1000")
    tasks: tuple[str, ...] = Field((), description="show the scores on these tasks only; empty: on all")
    curves: bool = Field(False, description="also draw validation scores against steps")


class Reference(BaseModel):
    """The numbers of a paper, shown beside ours when asked."""

    model_config = _STRICT

    source: str = Field(min_length=1, description="the paper, the table and its backbone")
    scores: dict[str, dict[str, Any]] = Field(description="line of the table -> column -> score, as printed")
    blocks: dict[str, dict[str, dict[str, Any]]] = Field(default_factory=dict, description="the same for each block")


class Study(BaseModel):
    """A grid: backbones x tasks x methods x regimes x variants x seeds.

    Example:
        >>> study = Study(name="mine", backbones=["minilm"], tasks=["tickets"], methods=["linear-probe", "vip"])
        >>> [method.name for method in study.methods], study.seeds
        (['linear-probe', 'vip'], 3)
    """

    model_config = _STRICT

    name: str = Field(description="of its folder: letters, digits, `_`, and inside also `.` and `-`")
    title: str = ""
    description: str = ""
    recipe: str = Field("default", description="default: presets. paper: the papers' settings.")
    backbones: tuple[StudyBackbone, ...] = Field(min_length=1)
    tasks: tuple[StudyTask, ...] = Field(min_length=1)
    methods: tuple[StudyMethod, ...] = Field(min_length=1)
    regimes: tuple[Regime, ...] = Field((Regime(name="full"),), min_length=1)
    vary: dict[str, list[Any]] = Field(default_factory=dict, description="section.key: [values], the axis `variant`")
    seeds: int = Field(DEFAULT_SEEDS, ge=1, description="runs of each cell")
    settings: dict[str, Any] = Field(default_factory=dict, description="for all runs")
    minutes: float = Field(0, ge=0, description="a run that takes longer is stopped and counts as failed; 0: no limit")
    threads: int = Field(1, ge=1, description="of each run; their number changes the rounding of sums")
    ensembles: tuple[Literal["vote", "mean"], ...] = Field((), description="also join the cues of all seeds")
    keep_below_mb: float = Field(50, ge=0, description="cues that are larger are removed when they are scored")
    layout: TableLayout = TableLayout()
    reference: Reference | None = None
    small: dict[str, Any] = Field(default_factory=dict, description="what --scale small replaces")
    scale: Literal["full", "small"] = "full"
    data: str = Field("", description="the folder of the tasks' published files")
    text: str = Field("", description="the folder of plain text for LM adaptation")

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError("at most 100 letters, digits, `_`, `.` and `-`, beginning with a letter or digit")
        return name

    @field_validator("settings")
    @classmethod
    def _check_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        return check_keys(settings)

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_recipe(self.recipe)
        names_by_kind: dict[str, list[str]] = {kind: [entry.name for entry in getattr(self, kind)] for kind in LISTS}
        names_by_kind["ensembles"] = list(self.ensembles)
        for kind, names in names_by_kind.items():
            if repeated := [name for name in names if names.count(name) > 1]:
                raise ValueError(f"{kind} with different names, not '{repeated[0]}' twice")
        if len(self.vary) > 1:
            raise ValueError("at most one setting below `vary`")
        check_keys(dict(self.vary))
        for key, values in self.vary.items():
            _check_values(key, values)
        if any(regime.joint for regime in self.regimes) and len(self.tasks) < 2:
            raise ValueError("several tasks for a regime with `joint`")
        for method, regime in itertools.product(self.methods, self.regimes):
            is_meant = not method.regimes or regime.name in method.regimes
            if (method.method_name == AUTO or method.function) and regime.joint and is_meant:
                raise ValueError(f"other `regimes` for '{method.name}' than '{regime.name}': it is for one task")
        if not any(self._has_runs(method) for method in self.methods):
            raise ValueError("tasks and regimes of the study for a method at least: none has a run")
        self._check_settings_of_methods()
        return self

    def _has_runs(self, method: StudyMethod) -> bool:
        """Whether the tasks and regimes that a method is for are in the study."""
        tasks = [task.name for task in self.tasks]
        regimes = [regime for regime in self.regimes if not method.regimes or regime.name in method.regimes]
        has_task = not method.tasks or not set(tasks).isdisjoint(method.tasks)
        has_all_tasks = not method.tasks or set(tasks) <= set(method.tasks)
        return any(has_all_tasks if regime.joint else has_task for regime in regimes)

    def _check_settings_of_methods(self) -> None:
        """Raise an error now rather than in each run if a setting is unknown or has a wrong value."""
        variants = [{key: value} for key, values in self.vary.items() for value in values] or [{}]
        for method, variant in itertools.product(self.methods, variants):
            space = method.search.space if method.search else {}
            tried = {key: values.ends if isinstance(values, Range) else values for key, values in space.items()}
            first = {key: values[0] for key, values in tried.items()}
            for key, value in [(key, value) for key, values in tried.items() for value in values] or [("", None)]:
                settings = {**self.settings_for(method), **variant, **first, **({key: value} if key else {})}
                self._check_resolved(method, settings)
        for key in self.settings:
            if not any(_has_setting(method, key) for method in self.methods):
                fields = {name for method in self.methods for name in method.method_keys()}
                raise ConfigurationError(
                    setting=key,
                    got=self.settings[key],
                    expected="a setting that a method of the study has",
                    fix=near_matches(key.partition(".")[2], fields),
                )

    def _check_resolved(self, method: StudyMethod, settings: Mapping[str, Any]) -> None:
        layers = [override(key, value) for key, value in settings.items()]
        whole = merged({} if method.function else {"method": {"name": method.method_name}}, *layers)
        is_auto = method.method_name == AUTO
        for settings_of_run in settings_of_candidates(whole).values() if is_auto else [whole]:
            resolve(settings_of_run)

    def settings_for(self, method: StudyMethod) -> dict[str, Any]:
        """The settings for all runs as far as a method has them, and those of the method itself.

        Example:
            >>> values = {"name": "s", "backbones": ["minilm"], "tasks": ["tickets"], "methods": ["adapter", "vip"]}
            >>> study = Study(**values, settings={"method.prompt_length": 20, "training.steps": 9})
            >>> study.settings_for(study.methods[0])
            {'training.steps': 9}
        """
        shared = {key: value for key, value in self.settings.items() if _has_setting(method, key)}
        return {**shared, **method.settings}

    @property
    def heading(self) -> str:
        """The title, or the name."""
        return self.title or self.name


def _has_setting(method: StudyMethod, key: str) -> bool:
    """Whether a method has a setting. Those of other sections do not depend on it."""
    section, _, name = key.partition(".")
    return section != "method" or name in method.method_keys()


def list_studies() -> list[str]:
    """The names of the studies that come with softcue.

    Example:
        >>> "quick" in list_studies()
        True
    """
    return sorted(path.name.removesuffix(".yaml") for path in _library().iterdir() if path.name.endswith(".yaml"))


def read_study(source: str | Path, *, scale: str = "full", **changes: Any) -> Study:
    """Read a study by its name or from a YAML file. `changes` replace its fields, with `settings` added to its own.

    Example:
        >>> read_study("quick", seeds=1, methods=["linear-probe"]).methods[0].name
        'linear-probe'
    """
    text = str(source)
    if text in list_studies():
        values = yaml.safe_load((_library() / f"{text}.yaml").read_text("utf-8"))
    elif os.path.isfile(text):
        values = read_settings(text)
        _check_forms(values)
        values = _locate_tasks(values, Path(text).parent)
    else:
        raise ConfigurationError(
            setting="study",
            got=text,
            expected="a study of `softcue study list`, or a YAML file",
            fix=near_matches(text, list_studies()),
        )
    return make_study({"name": _slug(Path(text).stem), **values}, scale, changes)


def _locate_tasks(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Values whose task files have full paths: a study goes on from any working folder, and on other machines.

    They are looked for from the working folder, as all commands do, and then from the folder of the study.
    """

    def locate(name: Any) -> Any:
        if not isinstance(name, str) or Path(name).suffix.lower() not in TASK_SUFFIXES:
            return name
        places = [Path(name), folder / name]
        return next((str(place.resolve()) for place in places if os.path.isfile(place)), name)

    tasks: list[Any] = []
    for entry in values.get("tasks", ()):
        task = dict(entry) if isinstance(entry, Mapping) else {"name": entry}
        source = task.get("task") or task["name"]
        if (located := locate(source)) != source:
            task["task"] = located
        if isinstance(task.get("score_on"), list):
            task["score_on"] = [locate(name) for name in task["score_on"]]
        tasks.append(task if isinstance(entry, Mapping) or "task" in task else entry)
    result = {**values, "tasks": tasks} if "tasks" in values else dict(values)
    layout = values.get("layout")
    if isinstance(layout, Mapping) and isinstance(layout.get("tasks"), list):
        names = [entry["name"] if isinstance(entry, Mapping) else entry for entry in tasks]
        shown = [name if name in names else locate(name) for name in layout["tasks"]]
        result["layout"] = {**layout, "tasks": shown}
    return result


def make_study(values: Mapping[str, Any], scale: str = "full", changes: Mapping[str, Any] | None = None) -> Study:
    """Make a study from plain values at a scale, with changes.

    Example:
        >>> values = {"name": "s", "backbones": ["minilm"], "tasks": ["tickets"], "methods": ["vip"], "seeds": 5}
        >>> make_study({**values, "small": {"seeds": 2}}, "small").seeds
        2
    """
    whole = dict(values)
    _check_forms(whole)
    small = dict(whole.get("small") or {})
    _check_forms(small, "small.")
    if scale not in SCALES:
        raise ConfigurationError(setting="scale", got=scale, expected="full or small", fix="correct the value")
    if scale == "small":
        if not small:
            raise ConfigurationError(
                setting="scale",
                got=scale,
                expected="a study with a part `small:`",
                fix="write one, with what it replaces: settings, seeds, tasks, ...",
            )
        unknown = set(small) - set(IN_SMALL)
        if unknown:
            raise ConfigurationError(
                setting=f"study.small.{min(unknown)}",
                got=small[min(unknown)],
                expected="a part that may be smaller",
                fix=near_matches(min(unknown), IN_SMALL),
            )
        whole = _with_changes(whole, small)
    wanted = {key: value for key, value in (changes or {}).items() if value is not None}
    whole = _fill_given(_with_changes(whole, _as_given(whole, wanted)))
    try:
        # A study that was written at its small scale stays one.
        return Study.model_validate({**whole, "scale": scale if scale != "full" else whole.get("scale", scale)})
    except ValidationError as error:
        raise as_configuration_error("study", error) from error


def _check_forms(values: Mapping[str, Any], part: str = "") -> None:
    """Check what must be a list or a mapping before it can be changed. A missing part is an error later, or none."""
    for key in LISTS:
        entries = values.get(key, [])
        if not isinstance(entries, (list, tuple)):
            raise ConfigurationError(
                setting=f"study.{part}{key}", got=entries, expected="a list", fix=f"write `{key}: [...]`"
            )
        for entry in entries:
            if isinstance(entry, Mapping) and "name" not in entry:
                raise ConfigurationError(
                    setting=f"study.{part}{key}",
                    got=", ".join(map(str, entry)),
                    expected="entries with a name",
                    fix="add `name:`",
                )
    for key in MAPPINGS:
        if not isinstance(values.get(key) or {}, Mapping):
            raise ConfigurationError(
                setting=f"study.{part}{key}",
                got=values[key],
                expected="keys with values",
                fix=f"write `{key}: {{training.epochs: 5}}`",
            )


def _with_changes(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Values with changes. Settings are merged; a name among entries of the study means that entry."""
    result = {**values, **changes}
    result["settings"] = {**(values.get("settings") or {}), **(changes.get("settings") or {})}
    for kind in LISTS:
        if kind in changes and kind in values:
            result[kind] = _choose_entries(values[kind], changes[kind])
    return result


def _as_given(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes whose backbones are the `given` ones, if the study makes its backbones from those of the user.

    Names among the study's entries choose entries, here as elsewhere.
    """
    entries = [entry for entry in values.get("backbones") or () if isinstance(entry, Mapping)]
    if "backbones" not in changes or not any(entry.get("backbone") == GIVEN for entry in entries):
        return dict(changes)
    names = [entry["name"] for entry in entries]
    chosen = [choice for choice in changes["backbones"] if isinstance(choice, Mapping) or str(choice) in names]
    given = [str(choice) for choice in changes["backbones"] if choice not in chosen]
    result = {key: value for key, value in changes.items() if key != "backbones"}
    return result | ({"backbones": chosen} if chosen else {}) | ({"given": given} if given else {})


def _fill_given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values with the given backbones as sources. With several of them, each entry is there for each of them."""
    result = dict(values)
    sources = result.pop("given", None) or ()
    backbones: list[Any] = []
    for entry in result.get("backbones") or ():
        if not isinstance(entry, Mapping) or entry.get("backbone") != GIVEN:
            backbones.append(entry)
            continue
        if not sources:
            raise ConfigurationError(
                setting="backbone", got="", expected="a backbone to begin with", fix="give one, or set `given:`"
            )
        for source in sources:
            name = entry["name"] if len(sources) == 1 else f"{source} {entry['name']}"
            backbones.append({**entry, "name": name, "backbone": source})
    return {**result, "backbones": backbones}


def _choose_entries(entries: Sequence[Any], chosen: Sequence[Any]) -> list[Any]:
    """Replace each name by the entry of that name, if there is one."""
    by_name = {entry["name"] if isinstance(entry, Mapping) else str(entry): entry for entry in entries}
    return [by_name.get(str(choice), choice) if not isinstance(choice, Mapping) else choice for choice in chosen]


def _slug(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "study"


def _library() -> Any:
    return files("softcue.studies").joinpath("library")
