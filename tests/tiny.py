"""Tiny random backbones of every supported family, made from configurations: nothing is downloaded."""

from __future__ import annotations

import copy
from functools import cache, partial
from typing import Any

import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from softcue.backbones import Backbone
from softcue.backbones.families import FAMILIES
from softcue.tasks import examples_from, library_task

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
ENCODERS = [name for name, family in FAMILIES.items() if family.kind == "encoder"]
ENCODER_DECODERS = [name for name, family in FAMILIES.items() if family.kind == "encoder-decoder"]
DECODERS = [name for name, family in FAMILIES.items() if family.kind == "decoder"]
ONE_OF_EACH_KIND = ["bert", "t5", "gpt2"]


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
    sizes = {"vocab_size": VOCABULARY, **SIZES, **settings}
    ends = {"bos_token_id": 2, "eos_token_id": 1}
    match model_type:
        case "bert":
            return hf.BertForMaskedLM(hf.BertConfig(**sizes))
        case "roberta":
            return hf.RobertaForMaskedLM(hf.RobertaConfig(**sizes, **ends))
        case "xlm-roberta":
            return hf.XLMRobertaForMaskedLM(hf.XLMRobertaConfig(**sizes, **ends))
        case "distilbert":
            return hf.DistilBertForMaskedLM(
                hf.DistilBertConfig(
                    vocab_size=VOCABULARY,
                    dim=32,
                    n_layers=3,
                    n_heads=4,
                    hidden_dim=48,
                    max_position_embeddings=96,
                    pad_token_id=0,
                )
            )
        case "electra":
            return hf.ElectraForMaskedLM(hf.ElectraConfig(**sizes, embedding_size=24))
        case "deberta-v2":
            return hf.DebertaV2ForMaskedLM(
                hf.DebertaV2Config(
                    **sizes,
                    relative_attention=True,
                    pos_att_type=["c2p", "p2c"],
                    type_vocab_size=0,
                    position_biased_input=False,
                    position_buckets=16,
                    share_att_key=True,
                    norm_rel_ebd="layer_norm",
                )
            )
        case "modernbert":
            return hf.ModernBertForMaskedLM(
                hf.ModernBertConfig(
                    **sizes, **ends, cls_token_id=2, sep_token_id=1, global_attn_every_n_layers=2, local_attention=64
                )
            )
        case "t5" | "mt5":
            config_class, model_class = {
                "t5": (hf.T5Config, hf.T5ForConditionalGeneration),
                "mt5": (hf.MT5Config, hf.MT5ForConditionalGeneration),
            }[model_type]
            return model_class(
                config_class(
                    vocab_size=VOCABULARY,
                    d_model=32,
                    d_kv=8,
                    d_ff=48,
                    num_layers=3,
                    num_heads=4,
                    pad_token_id=0,
                    eos_token_id=1,
                    decoder_start_token_id=0,
                )
            )
        case "bart":
            return hf.BartForConditionalGeneration(
                hf.BartConfig(
                    vocab_size=VOCABULARY,
                    d_model=32,
                    encoder_layers=3,
                    decoder_layers=2,
                    encoder_attention_heads=4,
                    decoder_attention_heads=4,
                    encoder_ffn_dim=48,
                    decoder_ffn_dim=48,
                    max_position_embeddings=96,
                    pad_token_id=0,
                    bos_token_id=2,
                    eos_token_id=1,
                    decoder_start_token_id=1,
                    forced_eos_token_id=None,
                )
            )
        case "gpt2":
            return hf.GPT2LMHeadModel(
                hf.GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=3, n_head=4, n_positions=96, **ends)
            )
        case "opt":
            return hf.OPTForCausalLM(
                hf.OPTConfig(
                    vocab_size=VOCABULARY,
                    hidden_size=32,
                    num_hidden_layers=3,
                    ffn_dim=48,
                    num_attention_heads=4,
                    max_position_embeddings=96,
                    word_embed_proj_dim=32,
                    pad_token_id=0,
                    **ends,
                )
            )
        case "gpt_neox":
            return hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**sizes, **ends))
        case "llama" | "mistral" | "qwen2" | "qwen3":
            prefix = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}[model_type]
            config = getattr(hf, f"{prefix}Config")(**sizes, **ends, num_key_value_heads=2, head_dim=8)
            return getattr(hf, f"{prefix}ForCausalLM")(config)
    raise AssertionError(f"tests/tiny.py needs a configuration for {model_type}")


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
    kind = FAMILIES[model_type].kind
    ids = [(token, SPECIAL.index(token)) for token in ("<s>", "</s>")]
    if kind == "encoder" or model_type == "bart":
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
        pad_token="<pad>",
        eos_token="</s>",
        bos_token="<s>",
        unk_token="<unk>",
        mask_token="<mask>",
        cls_token="<s>",
        sep_token="</s>",
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
