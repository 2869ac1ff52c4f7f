"""Every setting with type, meaning and value: for `softcue config` and docs/configuration.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from softcue.configuration import (
    SECTIONS,
    describe_default_methods,
    find_method_name,
    preset,
    recipe_settings,
)
from softcue.errors import ConfigurationError, near_matches
from softcue.methods import METHODS
from softcue.methods.registry import BACKBONE_KINDS
from softcue.recipes import paper_recipe

Origin = Literal["default", "preset", "paper"]
TYPE_NAMES = {bool: "true or false", int: "whole number", float: "number", str: "text"}
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
SECTION_TITLES = {
    "backbone": "The frozen model.",
    "task": "What is learned, and from which rows.",
    "method": "What is trained. Each method has its own keys.",
    "readout": "How states become predictions.",
    "training": "The training loop.",
    "mixture": "Several tasks that share one prompt (`--tasks A,B`).",
    "selection": "Several methods to choose from (`--method auto`).",
}


@dataclass(frozen=True)
class Setting:
    """One setting of a run."""

    section: str
    key: str
    type: str
    default: Any
    value: Any  # the recipe's, else the default
    origin: Origin  # of the value
    meaning: str

    @property
    def path(self) -> str:
        """How it is written in an override."""
        return f"{self.section}.{self.key}"


def list_settings(
    where: str = "", method: str | None = None, kind: str = "encoder", recipe: str = "default"
) -> list[Setting]:
    """The settings of all sections, of one section or of one `section.key`, with the values a run would start from.

    Without a method, they are those of the default for the kind of backbone.

    Example:
        >>> [setting] = list_settings("training.epochs", "prompt-tuning", "encoder")
        >>> setting.type, setting.default, setting.value
        ('whole number ≥ 1', 20, 10)
    """
    _check_kind(kind)
    method = method or find_method_name({}, kind)
    method_class = METHODS.find(method)
    section, _, key = where.partition(".")
    if section and section not in SECTIONS:
        raise ConfigurationError(
            setting="section", got=section, expected="a section of the settings", fix=near_matches(section, SECTIONS)
        )
    models = {**SECTIONS, "method": method_class.Config}
    if key and key not in models[section].model_fields:
        raise ConfigurationError(
            setting="section",
            got=where,
            expected=f"a key of the section {section}",
            fix=near_matches(key, models[section].model_fields),
        )
    values = recipe_settings(recipe, method, kind)
    origin: Origin = "paper" if recipe == "paper" and paper_recipe(method, kind).paper else "preset"
    settings = []
    for name, model in models.items():
        if section in ("", name):
            for field_name, field in model.model_fields.items():
                if key in ("", field_name):
                    settings.append(_setting(name, field_name, field, values.get(name, {}), origin, method))
    return settings


def _check_kind(kind: str) -> None:
    if kind not in BACKBONE_KINDS:
        raise ConfigurationError(
            setting="backbone_kind", got=kind, expected="a kind of backbone", fix=near_matches(kind, BACKBONE_KINDS)
        )


def _setting(section: str, key: str, field: FieldInfo, values: dict[str, Any], origin: Origin, method: str) -> Setting:
    default = method if (section, key) == ("method", "name") else field.get_default(call_default_factory=True)
    value_origin: Origin = origin if key in values else "default"
    value = values.get(key, default)
    return Setting(section, key, describe_type(field), default, value, value_origin, field.description or "")


def describe_type(field: FieldInfo) -> str:
    """The type of a field in words, with its bounds.

    Example:
        >>> from softcue.training import TrainingConfig
        >>> describe_type(TrainingConfig.model_fields["optimizer"])
        'adafactor or adamw'
    """
    signs = [
        f"{sign} {getattr(item, name):g}"
        for item in field.metadata
        for name, sign in BOUNDS.items()
        if hasattr(item, name)
    ]
    arguments = get_args(field.annotation)
    if type(None) not in arguments or get_origin(field.annotation) is Literal:
        return " ".join([_type_name(field.annotation), ", ".join(signs)]).strip()
    [annotation] = [argument for argument in arguments if argument is not type(None)]
    return " ".join([_type_name(annotation), ", ".join(signs)]).strip() + ", or unset"


def _type_name(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        names = list(map(str, arguments))
        return f"{', '.join(names[:-1])} or {names[-1]}"
    if origin is Annotated:
        return _type_name(arguments[0])
    if origin is tuple:
        items = _type_name(arguments[0])
        return f"list of {items.replace('list', 'lists', 1) if items.startswith('list of ') else f'{items}s'}"
    if origin is dict:
        return "mapping of label to text"
    return TYPE_NAMES[annotation]


def format_value(value: Any) -> str:
    """A value as it is written in YAML.

    Example:
        >>> [format_value(value) for value in (True, None, "", 1e-05, (1, 2), {}, "auto")]
        ['true', 'unset', '(empty)', '0.00001', '[1, 2]', '{}', 'auto']
    """
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "unset"
    if isinstance(value, float):
        return f"{value:.10f}".rstrip("0") if 1e-6 < abs(value) < 1e-3 else f"{value:g}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(format_value, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {format_value(item)}" for key, item in value.items()) + "}"
    if value == "":
        return "(empty)"
    return str(value) if str(value).strip() == str(value) else repr(value)


# --- docs/configuration.md ---

INTRODUCTION = """\
# Configuration

Every setting of a run. This page is written by `softcue config --docs`; `make check` compares it.

A setting is written `section.key=value` on the command line, as `{"section.key": value}` in `softcue.train(...,
overrides=...)`, or below its section in a YAML file. Values come from the defaults below, then the recipe, then the
YAML file, then options, arguments and overrides; later ones win. The recipe is the preset of the method for the kind of
backbone, or with `--recipe paper` (`recipe: paper` in a YAML file) the settings of the method's paper. An option and an
override that give one setting two values are an error. Each run writes all its values to `config.yaml`.

`softcue config [SECTION] --method M --backbone-kind K --recipe R` prints the values that a run starts from.
"""

METHOD_NAME = (
    "`method.name` is the name of the method. If none is named, it is the default on the kind of backbone "
    f"({describe_default_methods()}); with `training.init_from`, the method of that cue.\n"
)

PRESETS = """\
## Presets
The values that a method starts from on each kind of backbone. `-`: the default above. `softcue methods NAME` shows the
paper's values beside them, which `--recipe paper` takes.
"""


def configuration_page() -> str:
    """The text of docs/configuration.md: every key of every section and method, and the presets."""
    parts = [INTRODUCTION]
    for section, model in SECTIONS.items():
        parts.append(f"## {section}\n{SECTION_TITLES[section]}\n")
        if section != "method":
            rows = [
                _doc_row(key, field, f"`{format_value(_default(field))}`") for key, field in model.model_fields.items()
            ]
            parts.append(_markdown(["key", "type", "default", "meaning"], rows))
            continue
        parts.append(METHOD_NAME)
        parts += [_methods_part(names) for names in _methods_with_the_same_keys()]
    parts.append(PRESETS)
    parts += [_presets_part(names) for names in _methods_with_the_same_presets()]
    return "\n".join(parts)


def _default(field: FieldInfo) -> Any:
    return field.get_default(call_default_factory=True)


def _methods_with_the_same_keys() -> list[list[str]]:
    """The methods, grouped by their keys with types and meanings. Their defaults may differ."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, method in METHODS.built_in.items():
        facts = tuple((key, describe_type(field), field.description) for key, field in _own_fields(method.Config))
        groups.setdefault(facts, []).append(name)
    return list(groups.values())


def _own_fields(config: type[BaseModel]) -> list[tuple[str, FieldInfo]]:
    return [(key, field) for key, field in config.model_fields.items() if key != "name"]


def _methods_part(names: Sequence[str]) -> str:
    heading = f"### method: {', '.join(names)}\n"
    configs = {name: METHODS.built_in[name].Config for name in names}
    rows = []
    for key, field in _own_fields(configs[names[0]]):
        defaults = {name: format_value(_default(config.model_fields[key])) for name, config in configs.items()}
        rows.append(_doc_row(key, field, _join_defaults(defaults)))
    if not rows:
        return f"{heading}No keys besides `name`.\n"
    return f"{heading}{_markdown(['key', 'type', 'default', 'meaning'], rows)}"


def _join_defaults(defaults: dict[str, str]) -> str:
    """One default, or each default with the methods that have it."""
    values = list(dict.fromkeys(defaults.values()))
    if len(values) == 1:
        return f"`{values[0]}`"
    by_value = {value: [name for name, other in defaults.items() if other == value] for value in values}
    return "; ".join(f"`{value}` ({', '.join(names)})" for value, names in by_value.items())


def _doc_row(key: str, field: FieldInfo, default: str) -> list[str]:
    return [f"`{key}`", describe_type(field), default, field.description or ""]


def _methods_with_the_same_presets() -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for name in METHODS.built_in:
        groups.setdefault(repr([preset(name, kind) for kind in BACKBONE_KINDS]), []).append(name)
    return list(groups.values())


def _presets_part(names: Sequence[str]) -> str:
    heading = f"### preset: {', '.join(names)}\n"
    presets = {kind: preset(names[0], kind) for kind in BACKBONE_KINDS}
    paths = dict.fromkeys(
        (section, key) for values in presets.values() for section, keys in values.items() for key in keys
    )
    if not paths:
        return f"{heading}None: the defaults.\n"
    rows = []
    for section, key in paths:
        cells = [
            f"`{format_value(values[section][key])}`" if key in values.get(section, {}) else "-"
            for values in presets.values()
        ]
        rows.append([f"`{section}.{key}`", *cells])
    return f"{heading}{_markdown(['key', *BACKBONE_KINDS], rows)}"


def _markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for row in rows:
        cells = [cell.replace("|", r"\|") for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
