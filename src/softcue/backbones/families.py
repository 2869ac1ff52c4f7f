"""One table: for each `model_type`, what kind it is, where its layers and sub-layers are, how it counts positions.

Adding a backbone family is one entry here and one tiny configuration in `tests/tiny.py`, whose conformance
tests then run for it. Nothing else in softcue asks for a model's type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from softcue.errors import BackboneError, near_matches
from softcue.types import BackboneKind

WordHead = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True)
class KeysValues:
    """Where a layer's keys and values come out: two modules, or one for queries, keys and values together."""

    key: str
    value: str
    packing: Literal["apart", "in a row", "by head"] = "apart"  # [q k v], or q, k, v within each head


@dataclass(frozen=True)
class Stack:
    """A list of layers, and in each the modules whose output enters a residual sum: attention, feed-forward."""

    layers: str
    sublayers: tuple[str, ...]


@dataclass(frozen=True)
class Family:
    """Where things are in one family of models."""

    kind: BackboneKind
    reader: Stack  # paths, below the base model, of the layers that read the source text
    first_position: int | Literal["after padding"] | None  # None: the model takes no position numbers
    keys_values: KeysValues | None = None  # None: keys cannot be set from outside
    word_head: WordHead | None = None  # encoders only: hidden states -> logits over the vocabulary
    writer: Stack | None = None  # encoder-decoders only: the layers that write


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


_BERT = Stack("encoder.layer", ("attention.output.dropout", "output.dropout"))
_BERT_KEYS = KeysValues("attention.self.key", "attention.self.value")
_T5 = Stack("encoder.block", ("layer.0.dropout", "layer.1.dropout"))
_T5_WRITER = Stack("decoder.block", ("layer.0.dropout", "layer.2.dropout"))
_T5_KEYS = KeysValues("layer.0.SelfAttention.k", "layer.0.SelfAttention.v")
_LLAMA = Stack("layers", ("self_attn.o_proj", "mlp.down_proj"))
_PROJECTIONS = KeysValues("self_attn.k_proj", "self_attn.v_proj")

FAMILIES: dict[str, Family] = {
    "bert": Family("encoder", _BERT, 0, _BERT_KEYS, _bert_words),
    "roberta": Family("encoder", _BERT, "after padding", _BERT_KEYS, _roberta_words),
    "xlm-roberta": Family("encoder", _BERT, "after padding", _BERT_KEYS, _roberta_words),
    "distilbert": Family(
        "encoder",
        Stack("transformer.layer", ("attention.out_lin", "ffn.dropout")),
        0,
        KeysValues("attention.k_lin", "attention.v_lin"),
        _distilbert_words,
    ),
    "electra": Family("encoder", _BERT, 0, _BERT_KEYS, _electra_words),
    # its key projection serves relative positions as well, so keys cannot be told apart there
    "deberta-v2": Family("encoder", _BERT, 0, None, _bert_words),
    "modernbert": Family(
        "encoder",
        Stack("layers", ("attn.out_drop", "mlp.Wo")),
        0,
        KeysValues("attn.Wqkv", "attn.Wqkv", "in a row"),
        _modernbert_words,
    ),
    "t5": Family("encoder-decoder", _T5, None, _T5_KEYS, writer=_T5_WRITER),
    "mt5": Family("encoder-decoder", _T5, None, _T5_KEYS, writer=_T5_WRITER),
    "bart": Family(
        "encoder-decoder",
        Stack("encoder.layers", ("self_attn.out_proj", "fc2")),
        None,
        _PROJECTIONS,
        writer=Stack("decoder.layers", ("self_attn.out_proj", "fc2")),
    ),
    "gpt2": Family(
        "decoder",
        Stack("h", ("attn.resid_dropout", "mlp.dropout")),
        0,
        KeysValues("attn.c_attn", "attn.c_attn", "in a row"),
    ),
    "llama": Family("decoder", _LLAMA, 0, _PROJECTIONS),
    "mistral": Family("decoder", _LLAMA, 0, _PROJECTIONS),
    "qwen2": Family("decoder", _LLAMA, 0, _PROJECTIONS),
    "qwen3": Family("decoder", _LLAMA, 0, _PROJECTIONS),
    "opt": Family("decoder", Stack("decoder.layers", ("self_attn.out_proj", "fc2")), 0, _PROJECTIONS),
    "gpt_neox": Family(
        "decoder",
        Stack("layers", ("post_attention_dropout", "post_mlp_dropout")),
        0,
        KeysValues("attention.query_key_value", "attention.query_key_value", "by head"),
    ),
}


def family_of(model_type: str) -> Family:
    """The table's entry for a model type.

    Example:
        >>> family_of("t5").kind
        'encoder-decoder'
    """
    if model_type not in FAMILIES:
        raise BackboneError(
            setting="backbone model_type",
            got=model_type,
            expected="one of the families in softcue/backbones/architectures.py",
            fix=f"add an entry there (kind, layer path, positions; see CONTRIBUTING.md); "
            f"{near_matches(model_type, FAMILIES)}",
        )
    return FAMILIES[model_type]
