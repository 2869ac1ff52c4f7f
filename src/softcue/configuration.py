"""A run's configuration: its sections, merged from a recipe, a YAML file, flags and dotted overrides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from softcue.backbones import BackboneConfig
from softcue.errors import ConfigurationError, as_configuration_error, near_matches
from softcue.methods import DEFAULT_METHODS, METHODS, MethodConfig
from softcue.readouts import ReadoutConfig
from softcue.recipes import TaskForm, check_recipe, paper_recipe
from softcue.selection import SelectionConfig
from softcue.tasks.splits import TaskConfig
from softcue.tasks.task import REPAIR, UNICODE, is_unicode
from softcue.training import MixtureConfig, TrainingConfig
from softcue.yaml_text import TEXT_LIMIT, PlainLoader, StringLoader, parse_yaml

Settings = dict[str, Any]
Part = TypeVar("Part", bound=BaseModel)


SECTIONS: dict[str, type[BaseModel]] = {
    "backbone": BackboneConfig,
    "task": TaskConfig,
    "method": MethodConfig,
    "readout": ReadoutConfig,
    "training": TrainingConfig,
    "mixture": MixtureConfig,
    "selection": SelectionConfig,
}


# Settings of a recipe that count in steps: epochs that the user sets take their place.
STEP_KEYS = {"steps", "min_steps", "evaluate_every"}

# Keys of version 0.1 -> their names today.
RENAMED_KEYS = {
    "training.prompt_rate": "training.learning_rate",
    "training.network_rate": "training.network_learning_rate",
    "training.tensorboard": "training.report_to=tensorboard",
}


@dataclass(frozen=True)
class RunConfig:
    """The configuration of a run: everything it depends on besides the rows. What `auto` chose is in it, not how."""

    backbone: BackboneConfig
    task: TaskConfig
    method: MethodConfig
    readout: ReadoutConfig
    training: TrainingConfig
    mixture: MixtureConfig

    def as_settings(self) -> Settings:
        """Plain values, for YAML and JSON."""
        return {
            name: getattr(self, name).model_dump(mode="json") for name in (section.name for section in fields(self))
        }


def read_settings(path: str | Path) -> Settings:
    """Read the sections of a YAML file."""
    try:
        with Path(path).open("rb") as handle:
            settings = parse_yaml(handle.read(TEXT_LIMIT + 1).decode()) or {}
    except OSError as error:
        raise ConfigurationError(
            setting="configuration file", got=path, expected="a readable YAML file", fix=str(error)
        ) from error
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise ConfigurationError(setting="configuration file", got=path, expected="valid YAML", fix=reason) from error
    if not isinstance(settings, dict):
        raise ConfigurationError(
            setting="configuration file", got=path, expected="sections such as `training:`", fix="see the README"
        )
    return settings


def parse_overrides(words: Iterable[str]) -> Settings:
    """Parse dotted `section.key=value` words into nested settings; values are read as YAML.

    Example:
        >>> parse_overrides(["training.epochs=3", "method.prompt_length=20"])
        {'training': {'epochs': 3}, 'method': {'prompt_length': 20}}
    """
    settings: Settings = {}
    for word in words:
        path, equals, text = word.partition("=")
        if not equals or not _is_path(path):
            raise _bad_override(word)
        is_label_word = path.count(".") > 1  # task.label_words.0=negative
        try:
            # Words stay as they are written: `no` is a word for a label, not false.
            value = parse_yaml(text, StringLoader if is_label_word else PlainLoader)
        except ValueError as error:
            raise ConfigurationError(setting=path, got=text, expected="a plain value", fix="quote it") from error
        settings = merged(settings, override(path, value))
    return settings


def override(path: str, value: Any) -> Settings:
    """Turn one dotted path and its value into nested settings.

    Example:
        >>> override("task.label_words.0", "negative")
        {'task': {'label_words': {'0': 'negative'}}}
    """
    if not _is_path(path):
        raise _bad_override(path)
    section, _, key = path.partition(".")
    key, _, label = key.partition(".")
    return {section: {key: {label: value} if label else value}}


def _is_path(path: str) -> bool:
    section, _, key = path.partition(".")
    return bool(key) and section in SECTIONS


def _bad_override(word: str) -> ConfigurationError:
    return ConfigurationError(
        setting="override",
        got=word,
        expected="section.key=value, such as training.epochs=3",
        fix=f"sections: {near_matches(word.partition('.')[0], SECTIONS)}",
    )


def merged(*layers: Mapping[str, Any]) -> Settings:
    """Merge layers of settings. Later layers win, key by key in each section and label by label in `label_words`.

    Example:
        >>> merged({"training": {"epochs": 3, "seed": 1}}, {"training": {"epochs": 5}})
        {'training': {'epochs': 5, 'seed': 1}}
    """
    settings: Settings = {}
    for layer in layers:
        for section, values in layer.items():
            if section not in SECTIONS:
                advice = near_matches(str(section), SECTIONS)
                raise ConfigurationError(setting="section", got=section, expected="a known section", fix=advice)
            if not isinstance(values, Mapping):
                raise ConfigurationError(
                    setting=section,
                    got=values,
                    expected="keys and values below it",
                    fix="indent them under the section",
                )
            merged_values = settings.setdefault(section, {})
            for key, value in values.items():
                if isinstance(value, Mapping):
                    before = merged_values.get(key)
                    value = {**(before if isinstance(before, Mapping) else {}), **value}
                merged_values[key] = value
    return settings


def resolve(
    settings: Settings, kind: str | None = None, recipe: str = "default", form: TaskForm | None = None
) -> RunConfig:
    """Check settings and fill in defaults. With the backbone's kind, the recipe's settings for it lie below them.

    Where no method is named, it is the default of the backbone's kind. The paper's recipe also depends on the form of
    the task. Epochs that the user sets win over a recipe's steps.
    """
    names = _method_names(settings, kind)
    METHODS.find(names[0])  # an error if there is no such method
    resolve_selection(settings)
    below = recipe_settings(recipe, names[0], kind, form) if kind else {}
    whole = merged(_without_replaced(below, settings), _with_trackers(settings))
    return RunConfig(
        backbone=_checked("backbone", BackboneConfig, whole),
        task=_checked("task", TaskConfig, whole),
        method=_checked_method(names, whole, settings),
        readout=_checked("readout", ReadoutConfig, whole),
        training=_checked("training", TrainingConfig, whole),
        mixture=_checked("mixture", MixtureConfig, whole),
    )


def find_method_name(settings: Settings, kind: str) -> str:
    """The method that settings name, else the default on a kind of backbone.

    Example:
        >>> find_method_name({}, "encoder"), find_method_name({}, "decoder")
        ('p-tuning-v2', 'prompt-tuning')
    """
    return str(settings.get("method", {}).get("name", DEFAULT_METHODS[kind]))


def describe_default_methods() -> str:
    """The default on each kind of backbone, in words.

    Example:
        >>> describe_default_methods()
        'p-tuning-v2 on encoders, prompt-tuning on encoder-decoders and decoders'
    """
    kinds: dict[str, list[str]] = {}
    for kind, name in DEFAULT_METHODS.items():
        kinds.setdefault(name, []).append(f"{kind}s")
    return ", ".join(f"{name} on {' and '.join(where)}" for name, where in kinds.items())


def _method_names(settings: Settings, kind: str | None) -> list[str]:
    """The method of a run; several, if none is named and the kind of backbone is not known yet."""
    if kind is not None or "name" in settings.get("method", {}):
        return [find_method_name(settings, kind or "encoder")]
    return list(dict.fromkeys(DEFAULT_METHODS.values()))


def resolve_selection(settings: Settings) -> SelectionConfig:
    """Check the settings of a choice between methods and fill in defaults.

    Example:
        >>> resolve_selection({"selection": {"methods": "linear-probe,vip"}}).methods
        ('linear-probe', 'vip')
    """
    return _checked("selection", SelectionConfig, settings)


def settings_of_candidates(settings: Settings, kind: str | None = None) -> dict[str, Settings]:
    """The settings of a run of each method that `method.name=auto` tries on a kind of backbone.

    Example:
        >>> settings_of_candidates({"method": {"name": "auto"}, "selection": {"methods": ["vip"]}})
        {'vip': {'method': {'name': 'vip'}}}
    """
    for key, value in settings.get("method", {}).items():
        if key != "name":
            raise ConfigurationError(
                setting=f"method.{key}",
                got=value,
                expected="no setting of one method beside method.name=auto",
                fix="leave it out, or name the method",
            )
    shared = {section: values for section, values in settings.items() if section not in ("method", "selection")}
    return {name: {**shared, "method": {"name": name}} for name in resolve_selection(settings).methods_for(kind)}


@cache
def _presets() -> dict[str, dict[str, Settings]]:
    text = files("softcue.methods").joinpath("presets.yaml").read_text("utf-8")
    return yaml.safe_load(text)  # type: ignore[no-any-return]


def preset(method: str, kind: str) -> Settings:
    """The settings chosen for a method on a kind of backbone.

    Example:
        preset("prompt-tuning", "encoder")["training"]
    """
    presets = _presets().get(method) or (METHODS[method].presets if method in METHODS else {})
    return {section: dict(values) for section, values in presets.get(kind, {}).items()}


def recipe_settings(recipe: str, method: str, kind: str, form: TaskForm | None = None) -> Settings:
    """The settings of a recipe: the preset, or those of the method's paper. A method without a paper has its preset.

    Example:
        >>> recipe_settings("paper", "m-idpg-phm", "encoder")["method"]["rule"]
        'add'
    """
    if check_recipe(recipe) == "default":
        return preset(method, kind)
    paper = paper_recipe(method, kind, form or TaskForm())
    return paper.as_settings() if paper.paper else preset(method, kind)


def _without_replaced(recipe: Settings, settings: Settings) -> Settings:
    """A recipe without what the user's settings say in another way.

    Epochs take the place of its number of steps and of the evaluations it counts in steps, a learning rate that of a
    rate relative to words.
    """
    given = settings.get("training", {})
    replaced: set[str] = set()
    if "epochs" in given and "steps" not in given:
        replaced |= STEP_KEYS
    if "learning_rate" in given:
        replaced |= {"relative_rate"}
    training = {key: value for key, value in recipe.get("training", {}).items() if key not in replaced}
    return {**recipe, "training": training} if replaced else recipe


def _with_trackers(settings: Settings) -> Settings:
    """Settings with `training.tensorboard`, which config.yaml of earlier versions has, as `training.report_to`."""
    training = settings.get("training", {})
    if not isinstance(training, Mapping) or not isinstance(training.get("tensorboard"), bool):
        return settings
    rest = {key: value for key, value in training.items() if key != "tensorboard"}
    if training["tensorboard"] and not rest.get("report_to"):
        rest["report_to"] = ["tensorboard"]
    return {**settings, "training": rest}


def method_config(values: Mapping[str, Any]) -> MethodConfig:
    """A method's configuration from plain values; `name` is the method.

    Example:
        method_config({"name": "prompt-tuning", "prompt_length": 20}).prompt_length
    """
    return resolve({"method": dict(values)}).method


def _advice(section: str, key: str, model: type[BaseModel]) -> str:
    """What to write instead of an unknown key: its name today, another method that has it, or a similar key."""
    new_key = RENAMED_KEYS.get(f"{section}.{key}")
    if new_key:
        return f"it is called {new_key} now"
    if section == "method":
        owners = [name for name, owner in METHODS.built_in.items() if key in owner.Config.model_fields]
        if owners:
            return f"leave it out, or name a method that has it with method.name: {', '.join(owners)}"
    return near_matches(key, model.model_fields)


def _checked_method(names: Sequence[str], whole: Settings, settings: Settings) -> MethodConfig:
    """The settings of the method: of several that it may be, the first that they fit.

    An error says which method it is about, if the user has named none.
    """
    errors: list[ConfigurationError] = []
    for name in names:
        try:
            return _checked("method", METHODS[name].Config, merged(whole, {"method": {"name": name}}))
        except ConfigurationError as error:
            errors.append(error)
    first, *_ = errors
    if "name" in settings.get("method", {}):
        raise first
    default = names[0] if len(names) == 1 else describe_default_methods()
    raise ConfigurationError(
        setting=first.setting,
        got=first.got,
        expected=f"{first.expected} (no method is named, so it is {default})",
        fix=first.fix,
    ) from first


def _checked(section: str, model: type[Part], whole: Settings) -> Part:
    values = whole.get(section, {})
    unknown = [key for key in values if key not in model.model_fields]
    if unknown:
        raise ConfigurationError(
            setting=f"{section}.{unknown[0]}",
            got=values[unknown[0]],
            expected="a known key",
            fix=_advice(section, str(unknown[0]), model),
        )
    for key, value in values.items():
        if not is_unicode(value):  # a tokenizer would fail on it
            raise ConfigurationError(setting=f"{section}.{key}", got=repr(value)[:60], expected=UNICODE, fix=REPAIR)
        # pydantic would read true as 1
        if isinstance(value, bool) and model.model_fields[key].annotation in (int, float, int | None):
            raise ConfigurationError(
                setting=f"{section}.{key}", got=value, expected="a number", fix="correct the value"
            )
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise as_configuration_error(section, error) from error
