"""One table: for each `model_type`, what kind it is, where its layers are, how it counts positions.

Adding a backbone family is one entry here and one tiny configuration in `tests/tiny.py`, whose conformance
tests then run for it. Nothing else in softcue asks for a model's type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from softcue.errors import BackboneError, near_matches
from softcue.tokens import Kind

WordHead = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True)
class Architecture:
    """Where things are in one family of models."""

    kind: Kind
    layers: str  # path, below the base model, of the layer list that reads the source text
    first_position: int | Literal["after padding"] | None  # None: the model takes no position numbers
    word_head: WordHead | None = None  # encoders only: hidden states -> logits over the vocabulary


def _bert_words(model: Any, hidden: Tensor) -> Tensor:
    return model.cls(hidden)  # type: ignore[no-any-return]


def _roberta_words(model: Any, hidden: Tensor) -> Tensor:
    return model.lm_head(hidden)  # type: ignore[no-any-return]


def _distilbert_words(model: Any, hidden: Tensor) -> Tensor:
    hidden = model.vocab_layer_norm(model.activation(model.vocab_transform(hidden)))
    return model.vocab_projector(hidden)  # type: ignore[no-any-return]


def _electra_words(model: Any, hidden: Tensor) -> Tensor:
    return model.generator_lm_head(model.generator_predictions(hidden))  # type: ignore[no-any-return]


def _modernbert_words(model: Any, hidden: Tensor) -> Tensor:
    return model.decoder(model.head(hidden))  # type: ignore[no-any-return]


ARCHITECTURES: dict[str, Architecture] = {
    "bert": Architecture("encoder", "encoder.layer", 0, _bert_words),
    "roberta": Architecture("encoder", "encoder.layer", "after padding", _roberta_words),
    "xlm-roberta": Architecture("encoder", "encoder.layer", "after padding", _roberta_words),
    "distilbert": Architecture("encoder", "transformer.layer", 0, _distilbert_words),
    "electra": Architecture("encoder", "encoder.layer", 0, _electra_words),
    "deberta-v2": Architecture("encoder", "encoder.layer", 0, _bert_words),
    "modernbert": Architecture("encoder", "layers", 0, _modernbert_words),
    "t5": Architecture("encoder-decoder", "encoder.block", None),
    "mt5": Architecture("encoder-decoder", "encoder.block", None),
    "bart": Architecture("encoder-decoder", "encoder.layers", None),
    "gpt2": Architecture("decoder", "h", 0),
    "llama": Architecture("decoder", "layers", 0),
    "mistral": Architecture("decoder", "layers", 0),
    "qwen2": Architecture("decoder", "layers", 0),
    "qwen3": Architecture("decoder", "layers", 0),
    "opt": Architecture("decoder", "decoder.layers", 0),
    "gpt_neox": Architecture("decoder", "layers", 0),
}


def architecture_of(model_type: str) -> Architecture:
    """The table's entry for a model type.

    Example:
        >>> architecture_of("t5").kind
        'encoder-decoder'
    """
    if model_type not in ARCHITECTURES:
        raise BackboneError(
            "backbone model_type", model_type, "one of the families in softcue/backbones/architectures.py",
            f"add an entry there (kind, layer path, positions; see CONTRIBUTING.md); "
            f"{near_matches(model_type, ARCHITECTURES)}",
        )  # fmt: skip
    return ARCHITECTURES[model_type]
