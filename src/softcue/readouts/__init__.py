"""What the backbone computed -> loss and prediction."""

from __future__ import annotations

from softcue.backbones import Backbone
from softcue.errors import ConfigurationError
from softcue.readouts.generation import Generation
from softcue.readouts.heads import Classifier, Regression
from softcue.readouts.label_words import LabelWords
from softcue.readouts.readout import Loss, Readout, ReadoutConfig
from softcue.tasks import Task

__all__ = ["Loss", "Readout", "ReadoutConfig", "make_readout"]

READOUTS: dict[str, type[Readout]] = {
    "classifier": Classifier,
    "regression": Regression,
    "label-words": LabelWords,
    "generation": Generation,
}
_FITS = {
    "classification": ("classifier", "label-words", "generation"),
    "regression": ("regression",),
    "generation": ("generation",),
}


def make_readout(config: ReadoutConfig, task: Task, backbone: Backbone) -> Readout:
    """The readout a configuration names; its own `config` has every `auto` settled, for the cue to record."""
    settled = _settled(config, task, backbone)
    if settled.name not in _FITS[task.kind]:
        raise ConfigurationError("readout.name", settled.name,
                                 f"one that fits {task.kind}: {', '.join(_FITS[task.kind])}",
                                 "change readout.name or task.kind")  # fmt: skip
    return READOUTS[settled.name](task, settled, backbone)


def _settled(config: ReadoutConfig, task: Task, backbone: Backbone) -> ReadoutConfig:
    can_compare = backbone.kind == "encoder" and len(task.text) == 2
    if config.pairs == "compare" and not can_compare:
        raise ConfigurationError("readout.pairs", "compare", "an encoder and a task that reads two texts",
                                 "leave it at auto")  # fmt: skip
    usual = "classifier" if backbone.kind == "encoder" else "generation"
    automatic = {
        "name": usual if task.kind == "classification" else task.kind,
        "pooling": backbone.natural_pooling,
        "pairs": "compare" if can_compare and backbone.compares_pairs else "joint",
        "decoding": "rank" if task.kind == "classification" else "greedy",
    }
    return config.model_copy(
        update={name: value for name, value in automatic.items() if getattr(config, name) == "auto"}
    )
