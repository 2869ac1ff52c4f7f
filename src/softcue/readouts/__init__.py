"""Readouts: they turn the backbone's output into a loss and predictions."""

from __future__ import annotations

from softcue.backbones import Backbone
from softcue.errors import BackboneError, ConfigurationError
from softcue.inputs.formatter import ANSWER_PREFIX
from softcue.readouts.generation import Generation
from softcue.readouts.heads import Classifier, LabelSetClassifier, Regression
from softcue.readouts.label_words import LabelWords
from softcue.readouts.readout import Readout, ReadoutConfig
from softcue.readouts.spans_and_tags import SpanHead, TagHead
from softcue.tasks import Task

__all__ = ["Readout", "ReadoutConfig", "automatic_answer_prefix", "make_readout"]

# kind of task -> name of a readout -> its class; the first is the default where the backbone does not write the target
READOUTS: dict[str, dict[str, type[Readout]]] = {
    "classification": {"classifier": Classifier, "label-words": LabelWords, "generation": Generation},
    "multi-label": {"classifier": LabelSetClassifier},
    "regression": {"regression": Regression, "generation": Generation},
    "generation": {"generation": Generation},
    "span": {"span": SpanHead, "generation": Generation},
    "tags": {"tags": TagHead, "generation": Generation},
    "referent": {"classifier": Classifier, "label-words": LabelWords, "generation": Generation},
}


def make_readout(config: ReadoutConfig, task: Task, backbone: Backbone) -> Readout:
    """Make the readout that a configuration names. In its `config` no `auto` is left, for the cue to record.

    Example:
        readout = make_readout(ReadoutConfig(), library_task("tickets"), backbone)
    """
    resolved = _resolve_auto(config, task, backbone)
    if task.kind == "referent" and backbone.kind != "encoder" and resolved.name != "generation":
        raise ConfigurationError(
            setting="readout.name",
            got=resolved.name,
            expected="generation on a backbone that writes text",
            fix="leave it at auto: it is not shown the candidate",
        )
    readouts = READOUTS[task.kind]
    if resolved.name not in readouts:
        reason = ": a set of labels needs a probability of each label, and words give one label"
        raise ConfigurationError(
            setting="readout.name",
            got=resolved.name,
            expected=f"one that fits {task.kind}: {', '.join(readouts)}",
            fix="change readout.name or task.kind" + (reason if task.kind == "multi-label" else ""),
        )
    if resolved.name in ("generation", "label-words"):
        check = "word head" if backbone.kind == "encoder" else "cached decoding"
        advice = "set readout.name=classifier: this backbone writes no text"
        backbone.require(check, "readout.name", resolved.name, "classifier", advice)
    if resolved.pooling == "mask":
        _check_mask(resolved, backbone)
    if resolved.sentinel and resolved.name not in ("generation", "label-words"):
        raise ConfigurationError(
            setting="readout.sentinel",
            got="true",
            expected="a readout whose targets are words: generation or label-words",
            fix=f"{resolved.name} is a head: set readout.sentinel=false",
        )
    return readouts[resolved.name](task, resolved, backbone)


def automatic_answer_prefix(backbone_kind: str) -> str:
    """What `readout.answer_prefix=auto` means, and what the cue records for it.

    Example:
        >>> automatic_answer_prefix("decoder"), automatic_answer_prefix("encoder-decoder")
        ('\\nAnswer:', '')
    """
    return ANSWER_PREFIX if backbone_kind == "decoder" else ""


def _check_mask(config: ReadoutConfig, backbone: Backbone) -> None:
    """Check that the backbone has a mask token for a head that reads its state, and that the head reads only that."""
    if backbone.kind != "encoder" or backbone.tokenizer.mask_token is None:
        raise BackboneError(
            setting="readout.pooling",
            got="mask",
            expected="an encoder with a mask token",
            fix=f"leave readout.pooling at auto with {backbone.name}",
        )
    if config.head_start == "solved":
        raise ConfigurationError(
            setting="readout.head_start",
            got="solved",
            expected="random or words with readout.pooling=mask",
            fix="a linear probe reads pooled states: set another readout.pooling",
        )
    if config.pairs == "compare":
        raise ConfigurationError(
            setting="readout.pairs",
            got="compare",
            expected="joint with readout.pooling=mask",
            fix="leave readout.pairs at auto: one mask stands between the two texts",
        )


def _resolve_auto(config: ReadoutConfig, task: Task, backbone: Backbone) -> ReadoutConfig:
    can_compare = backbone.kind == "encoder" and task.num_sentences == 2
    if config.pairs == "compare" and not can_compare:
        raise ConfigurationError(
            setting="readout.pairs",
            got="compare",
            expected="an encoder and a task that reads two texts",
            fix="leave it at auto",
        )
    # A backbone that writes text also writes scores, if they are on a scale. Other scores, and sets, need a head.
    has_text = "generation" in READOUTS[task.kind] and not (task.kind == "regression" and task.scale is None)
    automatic = {
        "name": "generation" if has_text and backbone.kind != "encoder" else next(iter(READOUTS[task.kind])),
        "pooling": backbone.default_pooling,
        "pairs": "compare" if can_compare and backbone.should_compare_pairs and config.pooling != "mask" else "joint",
        "stop": "",
        "answer_prefix": automatic_answer_prefix(backbone.kind),
        "decoding": "rank" if task.kind in ("classification", "regression") else "greedy",
    }
    resolved: dict[str, object] = {name: value for name, value in automatic.items() if getattr(config, name) == "auto"}
    if config.pooling == "measured":  # before there are rows to measure on
        resolved["pooling"] = backbone.default_pooling
    if config.head_start == "auto":
        reads_vector = resolved.get("name", config.name) in ("classifier", "regression")
        is_linear = config.head == "linear" and config.pooling != "mask"
        resolved["head_start"] = "solved" if reads_vector and is_linear else "random"
    resolved["max_new_tokens"] = config.max_new_tokens or (96 if task.kind == "tags" else 32)
    return config.model_copy(update=resolved)
