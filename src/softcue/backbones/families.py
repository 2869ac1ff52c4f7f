"""The table of model families: for each `model_type`, where its parts are and how it differs from the other families.

Adding a family is one entry here and one tiny configuration in `tests/tiny.py`, whose conformance tests then run for
it. The other modules ask for the fields of a family. None of them compares a `model_type`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn import functional

from softcue.errors import BackboneError, near_matches
from softcue.types import BackboneKind


@dataclass(frozen=True)
class WordHead:
    """The masked-word head of a family in two parts: the layers before its last one, and the last one."""

    state: Callable[[Any, Tensor], Tensor]  # (model, hidden states) -> states that are compared with the words
    logits: Callable[[Any, Tensor], Tensor]  # (model, these states) -> logits over the vocabulary


@dataclass(frozen=True)
class KeyValueModules:
    """The modules of a layer that compute keys and values: two, or one for queries, keys and values together."""

    key: str
    value: str
    # How the output holds keys and values: alone, as [q k v], or as q, k, v within each head.
    packing: Literal["separate", "concatenated", "within heads"] = "separate"
    width_attribute: str = "out_features"  # the module's attribute with its output width; GPT-2's Conv1D has `nf`


@dataclass(frozen=True)
class Stack:
    """A list of layers and, in each layer, the modules whose output enters a residual sum: attention, feed-forward."""

    layers: str  # path below the base model
    sublayers: tuple[str, ...]  # paths below a layer
    # OPT's feed-forward runs on all positions of the batch as one axis: its output is [B*S D] instead of [B S D].
    flattens_feed_forward: bool = False
    cross_attention: str | None = None  # path below a layer, of the same kind, in the decoder of an encoder-decoder


@dataclass(frozen=True)
class Family:
    """Where the parts of one family of models are, and what is particular to the family."""

    kind: BackboneKind
    source_stack: Stack  # the layers that run on the source text
    first_position: int | Literal["after padding"] | None  # None: the model takes no position numbers
    key_value_modules: KeyValueModules | None = None  # None: keys cannot be set from outside
    word_head: WordHead | None = None  # encoders only
    decoder_stack: Stack | None = None  # encoder-decoders only
    why_no_keys: str = ""  # the reason, where `key_value_modules` is None
    # Classes, beside those that end in ForMaskedLM, whose checkpoints hold weights of the masked-word head. ELECTRA's
    # ForPreTraining holds none.
    word_head_classes: tuple[str, ...] = ()
    # Path below a layer. In T5 the first layer's attention computes the relative position bias for all layers, so a
    # model without its first layer needs the bias in another one.
    position_bias: str | None = None
    # Attribute beside the layer list. In DeBERTa a convolution over the word embeddings follows the first layer, so a
    # model without its first layer must not run it.
    after_first_layer: str | None = None
    # A key of config.json that is false where input and output words are not tied. transformers 5 builds every T5 tied
    # and unties T5 1.1 only when its checkpoint holds two tables; it saves what a 1.1 config said of tying here.
    tied_words_key: str | None = None


_BERT_WORDS = WordHead(
    lambda model, hidden: model.cls.predictions.transform(hidden),
    lambda model, state: model.cls.predictions.decoder(state),
)
_ROBERTA_WORDS = WordHead(
    lambda model, hidden: model.lm_head.layer_norm(functional.gelu(model.lm_head.dense(hidden))),
    lambda model, state: model.lm_head.decoder(state),
)
_DISTILBERT_WORDS = WordHead(
    lambda model, hidden: model.vocab_layer_norm(model.activation(model.vocab_transform(hidden))),
    lambda model, state: model.vocab_projector(state),
)
_ELECTRA_WORDS = WordHead(
    lambda model, hidden: model.generator_predictions(hidden),
    lambda model, state: model.generator_lm_head(state),
)
_MODERNBERT_WORDS = WordHead(
    lambda model, hidden: model.head(hidden),
    lambda model, state: model.decoder(state),
)

_BERT_STACK = Stack("encoder.layer", ("attention.output.dropout", "output.dropout"))
_BERT_KEYS = KeyValueModules("attention.self.key", "attention.self.value")
_LLAMA_STACK = Stack("layers", ("self_attn.o_proj", "mlp.down_proj"))
_PROJECTIONS = KeyValueModules("self_attn.k_proj", "self_attn.v_proj")
_ROBERTA = Family("encoder", _BERT_STACK, "after padding", _BERT_KEYS, _ROBERTA_WORDS)
_LLAMA = Family("decoder", _LLAMA_STACK, 0, _PROJECTIONS)
_T5 = Family(
    "encoder-decoder",
    Stack("encoder.block", ("layer.0.dropout", "layer.1.dropout")),
    None,
    KeyValueModules("layer.0.SelfAttention.k", "layer.0.SelfAttention.v"),
    decoder_stack=Stack("decoder.block", ("layer.0.dropout", "layer.2.dropout"), cross_attention="layer.1.dropout"),
    position_bias="layer.0.SelfAttention",
    tied_words_key="scale_decoder_outputs",
)

FAMILIES: dict[str, Family] = {
    "bert": Family("encoder", _BERT_STACK, 0, _BERT_KEYS, _BERT_WORDS, word_head_classes=("BertForPreTraining",)),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "distilbert": Family(
        "encoder",
        Stack("transformer.layer", ("attention.out_lin", "ffn.dropout")),
        0,
        KeyValueModules("attention.k_lin", "attention.v_lin"),
        _DISTILBERT_WORDS,
    ),
    "electra": Family("encoder", _BERT_STACK, 0, _BERT_KEYS, _ELECTRA_WORDS),
    "deberta-v2": Family(
        "encoder",
        _BERT_STACK,
        0,
        None,
        _BERT_WORDS,
        why_no_keys="its key projection also serves relative positions",
        after_first_layer="conv",
    ),
    "modernbert": Family(
        "encoder",
        Stack("layers", ("attn.out_drop", "mlp.Wo")),
        0,
        KeyValueModules("attn.Wqkv", "attn.Wqkv", "concatenated"),
        _MODERNBERT_WORDS,
    ),
    "t5": _T5,
    "mt5": _T5,
    "bart": Family(
        "encoder-decoder",
        Stack("encoder.layers", ("self_attn.out_proj", "fc2")),
        None,
        _PROJECTIONS,
        decoder_stack=Stack("decoder.layers", ("self_attn.out_proj", "fc2"), cross_attention="encoder_attn.out_proj"),
    ),
    "gpt2": Family(
        "decoder",
        Stack("h", ("attn.resid_dropout", "mlp.dropout")),
        0,
        KeyValueModules("attn.c_attn", "attn.c_attn", "concatenated", width_attribute="nf"),
    ),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "opt": Family(
        "decoder",
        Stack("decoder.layers", ("self_attn.out_proj", "fc2"), flattens_feed_forward=True),
        0,
        _PROJECTIONS,
    ),
    "gpt_neox": Family(
        "decoder",
        Stack("layers", ("post_attention_dropout", "post_mlp_dropout")),
        0,
        KeyValueModules("attention.query_key_value", "attention.query_key_value", "within heads"),
    ),
}


def family_of(model_type: str) -> Family:
    """Return the table's entry for a model type.

    Example:
        >>> family_of("t5").kind
        'encoder-decoder'
    """
    if model_type not in FAMILIES:
        raise BackboneError(
            setting="backbone model_type",
            got=model_type,
            expected="one of the families in softcue/backbones/families.py",
            fix=f"add an entry there (kind, layer path, positions; see CONTRIBUTING.md); "
            f"{near_matches(model_type, FAMILIES)}",
        )
    return FAMILIES[model_type]


def source_layers(model: Any) -> nn.ModuleList:
    """Return the layers of a transformers model that run on the source text.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> model = BertModel(BertConfig(hidden_size=24, num_hidden_layers=3))
        >>> len(source_layers(model))
        3
    """
    path = family_of(model.config.model_type).source_stack.layers
    layers: nn.ModuleList = model.base_model.get_submodule(path)
    return layers
