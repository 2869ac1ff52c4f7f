"""A run's configuration: six sections, merged from presets, a YAML file, flags and dotted overrides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from softcue.backbones import BackboneConfig
from softcue.errors import ConfigurationError, near_matches
from softcue.methods import METHODS, MethodConfig
from softcue.readouts import ReadoutConfig
from softcue.tasks.task import TaskKind, text_columns
from softcue.training import MixtureConfig, TrainingConfig

Settings = dict[str, Any]
Part = TypeVar("Part", bound=BaseModel)


class TaskConfig(BaseModel):
    """Which task: one that comes with softcue, or columns of the user's own files."""

    # A column or a label may be called 1, which YAML reads as a number.
    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    name: str = Field("", description="a task of `softcue tasks`, a task file (.yaml), or a name for one's own")
    data: str = Field("", description="a folder with a task's published files; else its rows come from the hub")
    train: str = Field("", description="training rows: csv, tsv, json, jsonl (also .gz), parquet, hub:NAME@SPLIT")
    validation: str = Field("", description="validation rows; without them a share of the training rows is held out")
    test: str = Field("", description="test rows, scored once at the end")
    text: tuple[str, ...] = Field((), description="the column to read, or several of them")
    label: str = Field("", description="the column with the answer")
    format: str = Field("", description="how the files are laid out: squad, conll, semeval, ...; empty: a row each")
    kind: TaskKind | None = Field(None, description="classification, regression, generation, span, tags or referent")
    label_words: dict[str, str] = Field(default_factory=dict, description="label -> the words for it")
    label_descriptions: dict[str, str] = Field(
        default_factory=dict, description="label -> what it means, in a sentence"
    )
    metric: str = Field("", description="what early stopping watches")
    template: str = Field("", description="source text for text-to-text backbones, with {column} fields")
    train_rows: int = Field(0, ge=0, description="use only this many training rows (seeded sample); 0 uses all")
    validation_rows: int = Field(0, ge=0, description="use only this many validation rows; 0 uses all")
    test_rows: int = Field(0, ge=0, description="use only this many test rows; 0 uses all")
    few_shot: int = Field(
        0, ge=0, description="train on this many rows and validate on others (validation_rows, else 1000); 0 is off"
    )
    stratified: bool = Field(False, description="every class gets its share of few_shot or train_rows")
    swap_pairs: bool = Field(False, description="every training pair also with its two texts swapped")
    validation_share: float = Field(0.15, gt=0, lt=1, description="held out of training if validation is empty")
    skip_bad_rows: bool = Field(False, description="leave out rows that cannot be used instead of stopping")
    sample_seed: int = Field(0, ge=0, description="decides which rows are sampled or held out")

    @field_validator("text", mode="before")
    @classmethod
    def _listed(cls, columns: object) -> object:
        """`a,b` on the command line is two columns."""
        if isinstance(columns, str):
            return [column.strip() for column in columns.split(",")] if columns else []
        return [columns] if isinstance(columns, int) else columns

    @field_validator("text")
    @classmethod
    def _one_or_two(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        return text_columns(columns) if columns else ()


SECTIONS: dict[str, type[BaseModel]] = {
    "backbone": BackboneConfig,
    "task": TaskConfig,
    "method": MethodConfig,
    "readout": ReadoutConfig,
    "training": TrainingConfig,
    "mixture": MixtureConfig,
}


@dataclass(frozen=True)
class RunConfig:
    """Everything a run depends on, besides the rows themselves."""

    backbone: BackboneConfig
    task: TaskConfig
    method: MethodConfig
    readout: ReadoutConfig
    training: TrainingConfig
    mixture: MixtureConfig

    def as_settings(self) -> Settings:
        """Plain values, for YAML and JSON."""
        return {name: getattr(self, name).model_dump(mode="json") for name in SECTIONS}


def read_settings(path: str | Path) -> Settings:
    """The sections of a YAML file."""
    try:
        found = yaml.safe_load(Path(path).read_text("utf-8")) or {}
    except OSError as error:
        raise ConfigurationError("configuration file", path, "a readable YAML file", str(error)) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigurationError("configuration file", path, "valid YAML", reason) from error
    if not isinstance(found, dict):
        raise ConfigurationError("configuration file", path, "sections such as `training:`", "see the README")
    return found


def parse_overrides(words: Iterable[str]) -> Settings:
    """Dotted `section.key=value` words as nested settings; values are read as YAML.

    Example:
        >>> parse_overrides(["training.epochs=3", "method.prompt_length=20"])
        {'training': {'epochs': 3}, 'method': {'prompt_length': 20}}
    """
    found: Settings = {}
    for word in words:
        path, equals, text = word.partition("=")
        if not equals or not _is_path(path):
            raise _bad_override(word)
        is_label_word = path.count(".") > 1  # task.label_words.0=negative
        try:
            # Words stay as they are written: `no` is a word for a label, not false.
            value = yaml.load(text, yaml.BaseLoader if is_label_word else yaml.SafeLoader)
        except yaml.YAMLError as error:
            raise ConfigurationError(path, text, "a plain value", "quote it") from error
        found = merged(found, override(path, value))
    return found


def override(path: str, value: Any) -> Settings:
    """One dotted path and its value as nested settings.

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
        "override", word, "section.key=value, such as training.epochs=3",
        f"sections: {near_matches(word.partition('.')[0], SECTIONS)}",
    )  # fmt: skip


def merged(*layers: Mapping[str, Any]) -> Settings:
    """Later layers win, key by key within each section, and label by label within `label_words`.

    Example:
        >>> merged({"training": {"epochs": 3, "seed": 1}}, {"training": {"epochs": 5}})
        {'training': {'epochs': 5, 'seed': 1}}
    """
    found: Settings = {}
    for layer in layers:
        for section, values in layer.items():
            if section not in SECTIONS:
                known = near_matches(str(section), SECTIONS)
                raise ConfigurationError("section", section, "a known section", known)
            if not isinstance(values, Mapping):
                raise ConfigurationError(section, values, "keys and values below it", "indent them under the section")
            under = found.setdefault(section, {})
            for key, value in values.items():
                if isinstance(value, Mapping):
                    before = under.get(key)
                    value = {**(before if isinstance(before, Mapping) else {}), **value}
                under[key] = value
    return found


def resolve(settings: Settings, kind: str | None = None) -> RunConfig:
    """Checked configuration. With the backbone's kind known, the method's preset for it lies underneath."""
    method_name = str(settings.get("method", {}).get("name", "prompt-tuning"))
    if method_name not in METHODS:
        raise ConfigurationError("method.name", method_name, "a known method", near_matches(method_name, METHODS))
    under = preset(method_name, kind) if kind else {}
    whole = merged(under, settings, {"method": {"name": method_name}})
    return RunConfig(
        backbone=_checked("backbone", BackboneConfig, whole),
        task=_checked("task", TaskConfig, whole),
        method=_checked("method", METHODS[method_name].Config, whole),
        readout=_checked("readout", ReadoutConfig, whole),
        training=_checked("training", TrainingConfig, whole),
        mixture=_checked("mixture", MixtureConfig, whole),
    )


@cache
def _presets() -> dict[str, dict[str, Settings]]:
    text = files("softcue.methods").joinpath("presets.yaml").read_text("utf-8")
    return yaml.safe_load(text)  # type: ignore[no-any-return]


def preset(method: str, kind: str) -> Settings:
    """The settings with which a method learns out of the box on a kind of backbone."""
    return _presets().get(method, {}).get(kind, {})


def method_config(values: Mapping[str, Any]) -> MethodConfig:
    """A method's configuration from plain values, by the name among them."""
    return resolve({"method": dict(values)}).method


def _checked(section: str, model: type[Part], whole: Settings) -> Part:
    values = whole.get(section, {})
    unknown = [key for key in values if key not in model.model_fields]
    if unknown:
        raise ConfigurationError(f"{section}.{unknown[0]}", values[unknown[0]], "a known key",
                                 near_matches(str(unknown[0]), model.model_fields))  # fmt: skip
    for key, value in values.items():  # pydantic would take true for 1
        if isinstance(value, bool) and model.model_fields[key].annotation in (int, float, int | None):
            raise ConfigurationError(f"{section}.{key}", value, "a number", "correct the value")
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise as_configuration_error(section, error) from error


def as_configuration_error(section: str, error: ValidationError) -> ConfigurationError:
    """Pydantic's first complaint in our words."""
    first = error.errors()[0]
    path = ".".join([section, *(str(part) for part in first["loc"])])
    expected = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    value = first["input"]
    if not first["loc"] and isinstance(value, Mapping):  # a complaint about keys that do not go together
        value = value.get("name", ", ".join(map(str, value)))
    return ConfigurationError(path, value, expected, "correct the value")
