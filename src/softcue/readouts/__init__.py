"""What the backbone computed -> loss and prediction."""

from __future__ import annotations

from softcue.backbones import Backbone
from softcue.errors import ConfigurationError
from softcue.readouts.generation import Generation
from softcue.readouts.heads import Classifier, Regression
from softcue.readouts.label_words import LabelWords
from softcue.readouts.readout import Loss, Readout, ReadoutConfig
from softcue.readouts.spans_and_tags import SpanHead, TagHead
from softcue.tasks import Task

__all__ = ["Loss", "Readout", "ReadoutConfig", "make_readout"]

READOUTS: dict[str, type[Readout]] = {
    "classifier": Classifier,
    "regression": Regression,
    "label-words": LabelWords,
    "generation": Generation,
    "span": SpanHead,
    "tags": TagHead,
}
_FITS = {
    "classification": ("classifier", "label-words", "generation"),
    "regression": ("regression", "generation"),
    "generation": ("generation",),
    "span": ("span", "generation"),
    "tags": ("tags", "generation"),
    "referent": ("classifier", "label-words", "generation"),
}
_USUAL_HEAD = {"classification": "classifier", "referent": "classifier"}  # of an encoder; else as the kind is called


def make_readout(config: ReadoutConfig, task: Task, backbone: Backbone) -> Readout:
    """The readout a configuration names; its own `config` has every `auto` settled, for the cue to record."""
    settled = _settled(config, task, backbone)
    if task.kind == "referent" and backbone.kind != "encoder" and settled.name != "generation":
        raise ConfigurationError(
            setting="readout.name",
            got=settled.name,
            expected="generation on a backbone that writes text",
            fix="leave it at auto: it is not shown the candidate",
        )
    if settled.name not in _FITS[task.kind]:
        raise ConfigurationError(
            setting="readout.name",
            got=settled.name,
            expected=f"one that fits {task.kind}: {', '.join(_FITS[task.kind])}",
            fix="change readout.name or task.kind",
        )
    return READOUTS[settled.name](task, settled, backbone)


def _settled(config: ReadoutConfig, task: Task, backbone: Backbone) -> ReadoutConfig:
    can_compare = backbone.kind == "encoder" and task.num_sentences == 2
    if config.pairs == "compare" and not can_compare:
        raise ConfigurationError(
            setting="readout.pairs",
            got="compare",
            expected="an encoder and a task that reads two texts",
            fix="leave it at auto",
        )
    # Scores that can be written as text are; others need a head on any backbone.
    writes = backbone.kind != "encoder" and not (task.kind == "regression" and task.scale is None)
    automatic = {
        "name": "generation" if writes else _USUAL_HEAD.get(task.kind, task.kind),
        "pooling": backbone.natural_pooling,
        "pairs": "compare" if can_compare and backbone.compares_pairs else "joint",
        "decoding": "rank" if task.kind in ("classification", "regression") else "greedy",
    }
    settled: dict[str, object] = {name: value for name, value in automatic.items() if getattr(config, name) == "auto"}
    settled["max_new_tokens"] = config.max_new_tokens or (96 if task.kind == "tags" else 32)
    return config.model_copy(update=settled)
