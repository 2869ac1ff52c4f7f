"""Tiny random backbones of every supported family, made from configurations: nothing is downloaded."""

from __future__ import annotations

import copy
from functools import cache, partial
from typing import Any

import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from softcue.backbones import Backbone
from softcue.tasks import examples_from, library_task
from softcue.types import BackboneKind

VOCABULARY = 400
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 96,
    "pad_token_id": 0,
}
SPECIAL = ["<pad>", "</s>", "<s>", "<unk>", "<mask>"]
_BART: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 96,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
    "forced_bos_token_id": None,
}
_T5: dict[str, Any] = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 3,
    "num_heads": 4,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}
_ENDS: dict[str, Any] = {"bos_token_id": 2, "eos_token_id": 1}
_GPT: dict[str, Any] = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 96, **_ENDS}
_LLAMA: dict[str, Any] = {**SIZES, **_ENDS, "num_key_value_heads": 2}
_WINDOWS: dict[str, Any] = {  # two layers with a sliding window, one without
    "head_dim": 8,
    "sliding_window": 64,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
_EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}

# Every family that the tests know, by kind: the settings of a tiny model. softcue itself has no such list.
FAMILIES: dict[BackboneKind, dict[str, dict[str, Any]]] = {
    "encoder": {
        "bert": SIZES,
        "roberta": {**SIZES, **_ENDS},
        "xlm-roberta": {**SIZES, **_ENDS},
        "distilbert": {
            "dim": 32,
            "n_layers": 3,
            "n_heads": 4,
            "hidden_dim": 48,
            "max_position_embeddings": 96,
            "pad_token_id": 0,
        },
        "electra": {**SIZES, "embedding_size": 24},
        "deberta-v2": {
            **SIZES,
            "relative_attention": True,
            "pos_att_type": ["c2p", "p2c"],
            "type_vocab_size": 0,
            "position_biased_input": False,
            "position_buckets": 16,
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
        },
        "modernbert": {
            **SIZES,
            **_ENDS,
            "cls_token_id": 2,
            "sep_token_id": 1,
            "global_attn_every_n_layers": 2,
            "local_attention": 64,
        },
        "albert": {**SIZES, **_ENDS, "embedding_size": 24},
        "mpnet": {**SIZES, **_ENDS, "pad_token_id": 1},
        "camembert": {**SIZES, **_ENDS},
        "roformer": SIZES,
        "nomic_bert": SIZES,
        "ernie": SIZES,
        "deberta": {
            **SIZES,
            "relative_attention": True,
            "pos_att_type": ["c2p", "p2c"],
            "type_vocab_size": 0,
            "position_biased_input": False,
        },
    },
    "encoder-decoder": {
        "t5": _T5,
        "mt5": _T5,
        "bart": _BART,
        "umt5": _T5,
        "longt5": {**_T5, "local_radius": 16},
        "mbart": {**_BART, "scale_embedding": True},
        "pegasus": {**_BART, "scale_embedding": True},
        "marian": {**_BART, "scale_embedding": True, "decoder_vocab_size": VOCABULARY},
    },
    "decoder": {
        "gpt2": _GPT,
        "llama": {**_LLAMA, "head_dim": 8},
        "mistral": {**_LLAMA, "head_dim": 8},
        "qwen2": _LLAMA,
        "qwen3": {**_LLAMA, "head_dim": 8},
        "opt": {
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "ffn_dim": 48,
            "num_attention_heads": 4,
            "max_position_embeddings": 96,
            "word_embed_proj_dim": 32,
            "pad_token_id": 0,
            **_ENDS,
        },
        "gpt_neox": {**SIZES, **_ENDS},
        "gpt_neo": {
            "hidden_size": 32,
            "num_layers": 3,
            "num_heads": 4,
            "max_position_embeddings": 96,
            "window_size": 64,
            "attention_types": [[["global", "local"], 1], [["global"], 1]],
            **_ENDS,
        },
        "gptj": {**_GPT, "rotary_dim": 4},
        "bloom": {"hidden_size": 32, "n_layer": 3, "n_head": 4, **_ENDS},
        "falcon": {**SIZES, **_ENDS, "multi_query": True, "alibi": True, "parallel_attn": True, "ffn_hidden_size": 48},
        "phi": {**_LLAMA, "partial_rotary_factor": 0.5},
        "phi3": _LLAMA,
        "gemma": {**_LLAMA, "head_dim": 8},
        "gemma2": {**_LLAMA, **_WINDOWS},
        "gemma3_text": {**_LLAMA, **_WINDOWS},
        "mixtral": {**_LLAMA, "num_local_experts": 4, **_EXPERTS},
        "olmo2": _LLAMA,
        "granite": {**_LLAMA, "residual_multiplier": 0.5, "embedding_multiplier": 3.0},
        "smollm3": {**_LLAMA, "no_rope_layers": [1, 0, 1]},
        "stablelm": _LLAMA,
        "starcoder2": _LLAMA,
    },
}
KINDS: dict[str, BackboneKind] = {name: kind for kind, names in FAMILIES.items() for name in names}
ENCODERS, ENCODER_DECODERS, DECODERS = (list(names) for names in FAMILIES.values())
ONE_OF_EACH_KIND = ["bert", "t5", "gpt2"]
# families whose quirks differ, for tests that would take too long on all
UNLIKE = [
    *("bert", "roberta", "distilbert", "electra", "modernbert", "albert", "t5", "bart"),
    *("gpt2", "llama", "qwen3", "opt", "gpt_neox", "phi3", "gemma3_text"),
]


def tiny_model(model_type: str, **settings: Any) -> Any:
    """A model with random weights, large enough that outputs clearly differ between inputs.

    It is in float32 also if the first test that needs it computes in float64: tests share it.
    """
    torch.manual_seed(11)
    number_format = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        model = _new_model(model_type, **settings)
    finally:
        torch.set_default_dtype(number_format)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(std=0.25)
    # Word embeddings and output words are tied in these models; they must stay tied.
    model.tie_weights()
    return model.eval()


def _new_model(model_type: str, **settings: Any) -> Any:
    kind = KINDS[model_type]
    config = hf.AutoConfig.for_model(model_type, **{"vocab_size": VOCABULARY, **FAMILIES[kind][model_type], **settings})
    auto_classes = {
        "encoder": hf.AutoModelForMaskedLM,
        "encoder-decoder": hf.AutoModelForSeq2SeqLM,
        "decoder": hf.AutoModelForCausalLM,
    }
    return auto_classes[kind].from_config(config)


@cache
def _trained_tokenizer() -> str:
    """A byte-level BPE tokenizer with 400 tokens, trained on the sample messages, as JSON."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    task = library_task("tickets")
    tokenizer.train_from_iterator([row.texts[0] for row in examples_from(task.train, task)], trainer)
    return tokenizer.to_str()


def tiny_tokenizer(model_type: str) -> Any:
    """A tokenizer with the same vocabulary for all families; special tokens are where each kind expects them."""
    tokenizer = Tokenizer.from_str(_trained_tokenizer())
    kind = KINDS[model_type]
    ids = [(token, SPECIAL.index(token)) for token in ("<s>", "</s>")]
    pad, end = "<pad>", "</s>"
    if model_type == "mpnet":  # its code has 1 as the number of padding, whatever its configuration says
        pad, end = end, pad
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A <pad>", pair="<s> $A <pad> $B:1 <pad>:1", special_tokens=[ids[0], ("<pad>", 0)]
        )
    elif kind == "encoder" or model_type == "bart":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=ids
        )
    elif kind == "encoder-decoder":
        tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=ids)
    elif model_type == "opt":  # a decoder whose tokenizer adds a leading token
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=ids)
    names = ["input_ids", "attention_mask"] + (["token_type_ids"] if model_type in ("bert", "electra") else [])
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        eos_token=end,
        bos_token="<s>",
        unk_token="<unk>",
        mask_token="<mask>",
        cls_token="<s>",
        sep_token=end,
        model_input_names=names,
        model_max_length=96,
    )


@cache
def tiny(model_type: str) -> Backbone:
    """A tiny backbone, shared by all tests. It is frozen, and a test checks that use does not change it."""
    return Backbone(tiny_model(model_type), tiny_tokenizer(model_type), f"tiny-{model_type}")


@cache
def tiny_float64(model_type: str) -> Backbone:
    """The tiny backbone with weights in float64. Use it with the fixture `float64`, which keeps the rest in float64."""
    backbone = tiny(model_type)
    return Backbone(in_float64(copy.deepcopy(backbone.model)), backbone.tokenizer, backbone.name)


def in_float64(model: Any) -> Any:
    """The model with weights in float64. T5's norm computes its variance in float32 whatever they are: not here."""
    model.double()
    for module in model.modules():
        if isinstance(module, hf.models.t5.modeling_t5.T5LayerNorm):
            module.forward = partial(_norm, module)  # type: ignore[method-assign]
    return model


def _norm(module: Any, states: torch.Tensor) -> torch.Tensor:
    variance = states.square().mean(dim=-1, keepdim=True)
    return module.weight * states * torch.rsqrt(variance + module.variance_epsilon)  # type: ignore[no-any-return]
