"""The settings that `softcue tune` searches: named by the user, or those of a method around its preset."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import prod
from typing import Any

from pydantic import ValidationError

from softcue.backbones import Backbone
from softcue.configuration import Settings, merged, override, resolve
from softcue.errors import BackboneError, ConfigurationError, as_configuration_error
from softcue.methods.method import DeepConfig, PromptedConfig
from softcue.prompts import IDPG, DeepPrompt
from softcue.run import Run
from softcue.studies.study import DECIDED, Range, Search
from softcue.training.optimizers import group_parameters
from softcue.yaml_text import parse_yaml

Space = dict[str, list[Any] | Range]
LOG_FROM = 10  # a range whose ends differ by this factor is drawn evenly over the logarithm
RATE_FACTOR = 10  # between the preset's learning rate and the ends of its range
LENGTH_FACTORS = (0.25, 0.5, 1, 2)  # of the preset's prompt length
_RANGE = re.compile(r"\s*([^,\s]+?)\s*\.\.\s*([^,\s]+)\s*")
_WHOLE = re.compile(r"[+-]?\d+")
# Settings of the backbone that belong to a run: all others would need another loaded model.
_BACKBONE_KEYS_OF_RUN = ("backbone.max_length", "backbone.dropout")


def parse_values(key: str, text: str) -> list[Any] | Range:
    """Read `low..high` or `a,b,c`. A range is even over the logarithm from a factor of ten on; whole ends stay whole.

    Example:
        >>> parse_values("method.prompt_length", "5,10,20"), parse_values("method.layers", "[0, 1],[2, 3]")
        ([5, 10, 20], [[0, 1], [2, 3]])
        >>> parse_values("training.learning_rate", "0.001..0.1")
        Range(low=0.001, high=0.1, log=True, whole=False)
    """
    ends = _RANGE.fullmatch(text)
    if ends is None:
        return _parse_list(key, text)
    try:
        low, high = float(ends[1]), float(ends[2])
        is_log = low > 0 and high / low >= LOG_FROM
        is_whole = all(_WHOLE.fullmatch(end) for end in ends.groups())
        return Range(low=low, high=high, log=is_log, whole=is_whole)
    except ValueError as error:  # also pydantic's
        raise ConfigurationError(
            setting=key, got=text, expected="low..high with two numbers, the lower first", fix="correct the range"
        ) from error


def _parse_list(key: str, text: str) -> list[Any]:
    try:
        values = parse_yaml(f"[{text}]")
    except ValueError:
        values = None
    if not values or not isinstance(values, list):
        raise ConfigurationError(
            setting=key, got=text, expected="values a,b,c or a range low..high", fix="correct the values"
        )
    return [_as_number(value) for value in values]


def _as_number(value: Any) -> Any:
    """YAML reads 1e-3 as text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def read_space(space: Mapping[str, Any]) -> Space:
    """Check keys and form of a space whose values are lists, ranges, or text of the command line.

    Example:
        >>> read_space({"method.prompt_length": "5,10", "method.insert_layer": [0, 2]})
        {'method.prompt_length': [5, 10], 'method.insert_layer': [0, 2]}
    """
    for key in space:
        override(key, None)  # an unknown section is an error
        is_of_backbone = key.startswith("backbone.") and key not in _BACKBONE_KEYS_OF_RUN
        if key in DECIDED or is_of_backbone or key.startswith(("selection.", "mixture.")):
            raise ConfigurationError(
                setting=key,
                got="a search",
                expected="a setting with which all trials have the same backbone, rows and seeds",
                fix="leave it out of the search",
            )
    values = {key: parse_values(key, value) if isinstance(value, str) else value for key, value in space.items()}
    checked = _search(values, trials=1, seeds=1).space
    # Lists as JSON has them: proposals are found again in the file of a search.
    return {
        key: json.loads(json.dumps(choices, default=str)) if isinstance(choices, list) else choices
        for key, choices in checked.items()
    }


def _search(space: Mapping[str, Any], trials: int, seeds: int) -> Search:
    try:
        return Search(space=dict(space), trials=trials, seeds=seeds)
    except ValidationError as error:
        problem = as_configuration_error("search", error)
        got = ", ".join(space) if problem.setting == "search" else problem.got
        raise ConfigurationError(
            setting=problem.setting, got=got, expected=problem.expected, fix="correct the values"
        ) from error


def make_search(space: Mapping[str, list[Any] | Range], trials: int, seeds: int, start: Mapping[str, Any]) -> Search:
    """The search of a space in which `trials` counts the first trial too, whose settings are `start`.

    Lists that have no more combinations than there are trials are tried as a grid, and so are all lists with 0 trials.

    Example:
        >>> make_search({"method.prompt_length": [5, 10]}, 20, 1, {"method.prompt_length": 20}).trials
        0
    """
    search = _search(space, trials, seeds)
    num_trials = trials if is_inside(search.space, start) else trials - 1
    lists = [values for values in search.space.values() if isinstance(values, list)]
    is_grid = len(lists) == len(search.space) and (not trials or prod(map(len, lists)) <= num_trials)
    return search.model_copy(update={"trials": 0 if is_grid else num_trials})


def is_inside(space: Mapping[str, list[Any] | Range], settings: Mapping[str, Any]) -> bool:
    """Whether a search of the space could propose these settings.

    Example:
        >>> is_inside({"method.prompt_length": [5, 10]}, {"method.prompt_length": 20})
        False
    """
    return all(
        _is_between(values, settings[key]) if isinstance(values, Range) else settings[key] in values
        for key, values in space.items()
    )


def _is_between(values: Range, value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and values.low <= value <= values.high and not (values.whole and value % 1)


def check_space(space: Mapping[str, list[Any] | Range], settings: Settings, given: Settings) -> None:
    """Raise an error for an unknown setting, for one that is also given, and for values of a wrong kind.

    Example:
        >>> check_space({"method.prompt_length": [5, 10]}, {}, {})
    """
    for key, values in space.items():
        section, name = key.split(".")[:2]
        if name in given.get(section, {}):
            raise ConfigurationError(
                setting=key,
                got="a search",
                expected=f"no value beside it; it is set to {given[section][name]}",
                fix="leave one of the two out",
            )
        for value in values.ends if isinstance(values, Range) else values:
            resolve(merged(settings, override(key, value)))


def default_space(run: Run, given: Settings) -> Space:
    """What is searched unless the user names it: learning rates, prompt length and layers, around the run's settings.

    Only what the method has and what the user has not set: a value that is given is fixed.

    Example:
        default_space(request_run(task="tickets").make_run("cues/tickets", {}), {}).keys()
    """
    space = {**_rates(run), **_lengths(run), **_layers(run)}
    given_keys = {f"{section}.{name}" for section, values in given.items() for name in values}
    return {key: values for key, values in space.items() if key not in given_keys}


def _rates(run: Run) -> Space:
    """Ranges of the learning rates that parameters of the run have."""
    model, training = run.models[0], run.config.training
    if not model.method.needs_training or model.method.closed_form_solutions(model.readout, []) is not None:
        return {}
    groups = {name for name, parameters in group_parameters(model).items() if parameters}
    if "head_learning_rate" in groups and training.head_learning_rate is None:
        groups = groups - {"head_learning_rate"} | {"network_learning_rate"}
    rates = {name: getattr(training, name) for name in type(training).model_fields if name in groups}
    return {
        f"training.{name}": Range(low=_shorten(rate / RATE_FACTOR), high=_shorten(rate * RATE_FACTOR), log=True)
        for name, rate in rates.items()
        if rate
    }


def _shorten(number: float) -> float:
    """A number without the last digits, which are rounding."""
    return float(f"{number:.6g}")


def _lengths(run: Run) -> Space:
    config = run.config.method
    if not isinstance(config, PromptedConfig):
        return {}
    lengths = {max(1, round(factor * config.prompt_length)) for factor in LENGTH_FACTORS}
    return {"method.prompt_length": sorted(lengths)}


def _layers(run: Run) -> Space:
    """All layers, the lower or the upper half for prompts of layers; else whether prompts enter late."""
    method, backbone = run.models[0].method, run.backbone
    config, encoder = method.config, method.prompt_encoder()
    if isinstance(config, DeepConfig) and isinstance(encoder, (DeepPrompt, IDPG)) and config.rule != "kv":
        layers = list(encoder.prompted_layers.layers)
        if not config.layers and len(layers) > 1:
            middle = len(layers) // 2
            return {"method.layers": [[], layers[:middle], layers[middle:]]}
    if not isinstance(config, PromptedConfig):
        return {}
    third = backbone.num_layers // 3
    if config.insert_layer or not third or not _can_enter_at(backbone, third):
        return {}
    return {"method.insert_layer": [0, third]}


def _can_enter_at(backbone: Backbone, layer: int) -> bool:
    try:
        backbone.from_layer(layer)
    except BackboneError:
        return False
    return True
