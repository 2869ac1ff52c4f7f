"""How the settings of a run differ from those of the method's paper, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from softcue.recipes import Recipe, RecipeSetting, check_recipe
from softcue.settings_docs import format_value

# The settings that say most, in the order in which a line has them; the others follow.
MAIN_SETTINGS = (
    "method.prompt_length",
    "method.rule",
    "method.codes",
    "method.dedicated",
    "training.optimizer",
    "training.learning_rate",
    "training.network_learning_rate",
    "training.steps",
    "training.epochs",
    "training.batch_size",
)
MAX_DIFFERENCES = 8  # in one line

# How a value is written in a sentence, where its key and the value alone would not say it.
PHRASES = {
    "method.prompt_length": "{} vectors",
    "method.codes": "codes: {}",
    "method.draws": "{} draws",
    "method.insert_at": "prompt at {}",
    "method.init": "initial vectors: {}",
    "method.codes_from": "initial codes: {}",
    "method.temperature": "constant {}",
    "method.rule": "{}",
    "method.depth": "{} layer",
    "method.generator": "{} generator",
    "method.sharing": "{} sharing",
    "method.input": "input of deeper layers: {}",
    "method.pooling": "M(x) by {} pooling",
    "method.representation_dropout": "dropout in M(x): {}",
    "method.scale": "contextualiser in units of {}",
    "readout.pooling": "{} pooling",
    "readout.head": "{} head",
    "readout.decoding": "{} decoding",
    "training.optimizer": "{}",
    "training.evaluate_every": "evaluated every {}",
    "training.schedule": "{} learning rate",
    "training.batch_size": "batches of {}",
}
WORDS: dict[str, dict[Any, str]] = {
    "method.rule": {
        "add": "added states",
        "replace": "replaced states",
        "kv": "keys and values",
        "parallel": "an attention of their own",
    },
    "method.hard_prompt": {"": "none", "task": "labels and description"},
    "method.codes": {0: "ten per vector"},
    "method.scale": {0: "the backbone's word vectors"},
    "readout.decoding": {"greedy": "free", "rank": "ranked"},
    "training.evaluate_every": {0: "epoch"},
}
NUMBER_TYPES = (int, float)


@dataclass(frozen=True)
class RecipeSummary:
    """Which recipe a run uses, and where its settings are not the paper's."""

    method: str
    recipe: str
    paper: str  # empty: there is none, as for baselines of softcue and methods of other packages
    backbone: str  # the paper's, of this kind
    note: str  # what differs on this kind of backbone whatever the settings
    differences: tuple[str, ...]

    @property
    def line(self) -> str:
        """One line for the run; of many differences the first ones."""
        shown = list(self.differences[:MAX_DIFFERENCES])
        if left_out := len(self.differences) - len(shown):
            shown.append(f"and {left_out} more (softcue methods {self.method})")
        return self._sentence(shown)

    @property
    def text(self) -> str:
        """The same with every difference."""
        return self._sentence(list(self.differences))

    def _sentence(self, differences: list[str]) -> str:
        head = f"{self.method}, {self.recipe} recipe"
        if not self.paper:
            return f"{self.method}, default recipe: there is no recipe of a paper"
        as_in_paper = f"as in {self.paper} (on {self.backbone})" if self.backbone else f"settings of {self.paper}"
        said = ", ".join(differences) or as_in_paper
        return f"{head}: {said}" + (f"; {self.note}" if self.note else "")


def summarise(recipe: str, paper: Recipe, values: Mapping[str, Mapping[str, Any]]) -> RecipeSummary:
    """Compare the settings of a run, by section and key, with those of the paper.

    Example:
        >>> from softcue.recipes import paper_recipe
        >>> paper = paper_recipe("m-idpg-phm", "encoder")
        >>> values = paper.as_settings()
        >>> changed = {**values, "method": {**values["method"], "prompt_length": 20, "rule": "kv"}}
        >>> summarise("default", paper, changed).line
        'm-idpg-phm, default recipe: 20 vectors (paper 5), keys and values (paper: added states)'
        >>> summarise("paper", paper, values).line
        'm-idpg-phm, paper recipe: as in Wu et al. 2022 (on RoBERTa-large)'
    """
    differences = []
    main = [path for path in MAIN_SETTINGS if path in paper.settings]
    for path in dict.fromkeys([*main, *paper.settings]):
        section, _, key = path.partition(".")
        setting, value = paper.settings[path], values[section][key]
        if path in ("training.steps", "training.epochs"):
            differences += _compare_length(path, setting, values["training"])
        elif setting.is_from_paper and not setting.agrees(value):
            differences.append(_difference(path, value, setting.value))
    return RecipeSummary(
        paper.method, check_recipe(recipe), paper.paper, paper.backbone, paper.note, tuple(differences)
    )


def _compare_length(path: str, setting: RecipeSetting, training: Mapping[str, Any]) -> list[str]:
    """How long the run trains, against the paper's steps or epochs. Steps win over epochs."""
    unit = "steps" if training.get("steps") else "epochs"
    paper_unit = path.partition(".")[2]
    if not setting.is_from_paper or (unit == paper_unit and setting.agrees(training[unit])):
        return []
    return [f"{training[unit]:,} {unit} (paper: {setting.value:,} {paper_unit})"]


def _difference(path: str, value: Any, paper_value: Any) -> str:
    is_number = isinstance(paper_value, NUMBER_TYPES) and not isinstance(paper_value, bool)
    words = _words(path, paper_value)
    return f"{_phrase(path, value)} (paper{' ' if is_number else ': '}{words})"


def _phrase(path: str, value: Any) -> str:
    key = path.partition(".")[2].replace("_", " ")
    return PHRASES.get(path, f"{key} {{}}").format(_words(path, value))


def _words(path: str, value: Any) -> str:
    if value in (words := WORDS.get(path, {})) and not isinstance(value, bool):
        return words[value]
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else format_value(value)
