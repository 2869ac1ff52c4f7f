from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from tiny import KINDS, SIZES, VOCABULARY, tiny, tiny_model, tiny_tokenizer
from toy import make_model

from softcue.backbones import Backbone, load_backbone
from softcue.backbones.checks import check_backbone
from softcue.backbones.structure import Structure
from softcue.backbones.tracing import find_structure, structure_of
from softcue.errors import BackboneError
from softcue.types import BackboneKind

LLAMA: dict[str, Any] = {**SIZES, "vocab_size": VOCABULARY, "bos_token_id": 2, "eos_token_id": 1}
# Families that are in no list of the tests, with the settings of a tiny model.
UNLISTED: dict[str, tuple[BackboneKind, dict[str, Any]]] = {
    "megatron-bert": ("encoder", {**SIZES, "vocab_size": VOCABULARY}),
    "data2vec-text": ("encoder", {**LLAMA, "pad_token_id": 1}),
    "eurobert": ("encoder", {**LLAMA, "num_key_value_heads": 2}),
    "m2m_100": (
        "encoder-decoder",
        {
            "vocab_size": VOCABULARY,
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "pad_token_id": 0,
            "eos_token_id": 1,
            "decoder_start_token_id": 1,
        },
    ),
    "cohere": ("decoder", {**LLAMA, "num_key_value_heads": 2}),
    "codegen": ("decoder", {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4}),
    "gpt_bigcode": ("decoder", {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4}),
    "nemotron": ("decoder", {**LLAMA, "num_key_value_heads": 2}),
    "olmoe": ("decoder", {**LLAMA, "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2}),
    "lfm2": ("decoder", {**LLAMA, "num_key_value_heads": 2, "layer_types": ["conv", "full_attention", "conv"]}),
}


def make_tiny(model_type: str, settings: dict[str, Any], auto_class: Any) -> Any:
    torch.manual_seed(3)
    model = auto_class.from_config(hf.AutoConfig.for_model(model_type, **settings))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(std=0.25)
    model.tie_weights()
    return model.eval()


@pytest.mark.parametrize("model_type", UNLISTED)
def test_a_family_that_nobody_listed_passes_its_checks(model_type: str) -> None:
    kind, settings = UNLISTED[model_type]
    assert model_type not in KINDS
    auto_classes = {
        "encoder": hf.AutoModelForMaskedLM,
        "encoder-decoder": hf.AutoModelForSeq2SeqLM,
        "decoder": hf.AutoModelForCausalLM,
    }
    model = make_tiny(model_type, settings, auto_classes[kind])
    like = {"encoder": "bert", "encoder-decoder": "t5", "decoder": "gpt2"}[kind]
    backbone = Backbone(model, tiny_tokenizer(like), model_type)
    assert backbone.kind == kind
    failed = {check.name: check.detail for check in check_backbone(backbone) if not check.passed}
    if model_type == "lfm2":  # its convolutions have neither keys nor values, and a cache of their own
        assert failed.keys() <= {"keys and values", "cached decoding", "shared prefix"}
        assert "keys and values" in failed
    else:
        assert failed == {}


EXPECTED_SUBLAYERS = {
    "bert": ("attention.output.dropout", "output.dropout"),
    "phi": ("self_attn.dense", "mlp"),  # it uses one dropout twice in a layer
    "gptj": ("attn.resid_dropout", "mlp"),  # both branches read the same norm
    "gemma2": ("post_attention_layernorm", "post_feedforward_layernorm"),  # norms behind the sub-layers
    "albert": ("albert_layers.0.attention.output_dropout", "albert_layers.0.ffn_output"),
    "mixtral": ("self_attn.o_proj", "mlp"),
}


@pytest.mark.parametrize("model_type", EXPECTED_SUBLAYERS)
def test_sublayers_are_the_modules_whose_output_enters_a_residual_sum(model_type: str) -> None:
    assert {layer.sublayers for layer in tiny(model_type).structure.source.layers} == {EXPECTED_SUBLAYERS[model_type]}


@pytest.mark.parametrize("model_type", ["dots1", "afmoe"])
def test_experts_and_shared_experts_are_one_sublayer(model_type: str) -> None:
    experts = {
        "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1},
        "afmoe": {"num_experts": 4, "num_shared_experts": 1, "num_dense_layers": 1},
    }
    settings = {**LLAMA, "num_key_value_heads": 2, "head_dim": 8, "num_experts_per_tok": 2, **experts[model_type]}
    source = structure_of(make_tiny(model_type, settings, hf.AutoModelForCausalLM)).source
    assert len({layer.sublayers for layer in source.layers}) == 1  # of layers with and without experts
    assert len(source.layers[2].sublayers) == 2


def test_a_layer_whose_output_is_not_on_the_residual_stream_has_no_known_sublayers() -> None:
    settings = {**LLAMA, "entity_vocab_size": 9, "entity_emb_size": 8}  # LUKE cuts words out of words and entities
    structure = structure_of(make_tiny("luke", settings, hf.AutoModelForMaskedLM))
    assert "residual sum" in structure.why_no_sublayers


def test_cross_attention_is_told_from_the_other_sublayers() -> None:
    for model_type, cross_attention in (("t5", "layer.1.dropout"), ("bart", "encoder_attn.out_proj")):
        decoder = tiny(model_type).structure.decoder
        assert decoder is not None
        assert {layer.cross_attention for layer in decoder.layers} == {cross_attention}


def test_keys_and_values_are_columns_of_fused_projections() -> None:
    heads = [(start + 8, start + 16) for start in range(0, 96, 24)]  # queries, keys, values of each of four heads
    expected = {
        "gpt2": [(32, 64)],
        "phi3": [(32, 48)],  # four heads of queries, two of keys
        "gpt_neox": heads,
        "bloom": heads,
        "falcon": [(32, 40)],  # one head of keys for all queries
    }
    for model_type, columns in expected.items():
        keys = tiny(model_type).structure.source.layers[0].keys
        assert keys is not None
        assert list(keys.columns) == columns, model_type


def test_a_shared_layer_runs_once_for_each_of_its_places() -> None:
    backbone = tiny("albert")
    assert backbone.num_layers == 3
    assert len(set(backbone.layers)) == 1
    assert backbone.structure.source.list_path is None


def test_the_first_position_is_that_of_the_model_s_own_numbering() -> None:
    positions = {name: tiny(name).first_position for name in ("bert", "roberta", "mpnet", "roformer", "bloom")}
    assert positions == {"bert": 0, "roberta": 1, "mpnet": 2, "roformer": None, "bloom": None}


@pytest.mark.parametrize("model_type", ["gemma", "gemma3_text", "mbart", "pegasus"])
def test_a_prompt_of_words_has_the_scale_with_which_words_enter(model_type: str) -> None:
    backbone = tiny(model_type)
    assert backbone.word_factor == pytest.approx(32**0.5, rel=1e-5)
    ids = torch.tensor([7, 9])
    assert torch.equal(backbone.word_input_states[ids], backbone.embed(ids))
    assert float(backbone.word_table[ids].norm()) < 0.3 * float(backbone.embed(ids).norm())
    prompt = next(iter(make_model(backbone, "prompt-tuning").method.prompt_parameters()))
    words = backbone.embed(torch.arange(5, VOCABULARY)).norm(dim=1)
    assert float(prompt.detach().norm(dim=1).mean()) == pytest.approx(float(words.mean()), rel=0.4)


def test_a_decoder_that_reads_in_both_directions_is_an_encoder() -> None:
    settings = {**LLAMA, "num_key_value_heads": 2, "head_dim": 8, "use_bidirectional_attention": True}
    model = make_tiny("gemma3_text", settings, hf.AutoModelForCausalLM)
    backbone = Backbone(model, tiny_tokenizer("bert"), "bidirectional")
    assert (backbone.kind, backbone.word_head) == ("encoder", None)
    assert [check.name for check in check_backbone(backbone) if not check.passed] == []


def test_the_encoder_of_a_t5_alone_is_an_encoder(tmp_path: Path) -> None:
    config = tiny_model("t5").config
    torch.manual_seed(0)
    hf.T5EncoderModel(config).save_pretrained(tmp_path)
    tiny_tokenizer("t5").save_pretrained(tmp_path)
    backbone = load_backbone(str(tmp_path))
    assert (backbone.kind, backbone.num_layers, type(backbone.model).__name__) == ("encoder", 3, "T5EncoderModel")


def test_a_decoder_without_output_words_is_a_backbone_for_classifiers(tmp_path: Path) -> None:
    settings = {**LLAMA, "num_key_value_heads": 2, "tie_word_embeddings": False}
    make_tiny("mistral", settings, hf.AutoModel).save_pretrained(tmp_path)  # as e5-mistral is
    tiny_tokenizer("gpt2").save_pretrained(tmp_path)
    backbone = load_backbone(str(tmp_path))
    assert (backbone.kind, type(backbone.model).__name__) == ("decoder", "MistralModel")
    assert backbone.limits == {"cached decoding": "by its structure: it has no output words"}


def test_a_model_without_a_list_of_layers_is_an_error_of_one_line() -> None:
    settings = {**SIZES, "vocab_size": VOCABULARY, "attention_window": 8, "max_position_embeddings": 100}
    model = make_tiny("longformer", settings, hf.AutoModelForMaskedLM)
    with pytest.raises(BackboneError, match="take another backbone: no list of layers") as raised:
        find_structure(model)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("num_words", [37, 41, 185, 222])
def test_the_kind_does_not_depend_on_the_size_of_the_vocabulary(num_words: int) -> None:
    for model_type, auto_class, kind in (
        ("bert", hf.AutoModel, "encoder"),
        ("llama", hf.AutoModelForCausalLM, "decoder"),
    ):
        settings = {**LLAMA, "vocab_size": num_words}
        assert find_structure(make_tiny(model_type, settings, auto_class)).kind == kind


def test_a_vocabulary_that_is_too_small_is_an_error_of_one_line() -> None:
    model = make_tiny("bert", {**LLAMA, "vocab_size": 8}, hf.AutoModel)
    with pytest.raises(BackboneError, match="vocabulary has 5 words that are not special"):
        find_structure(model)


def test_a_base_model_that_returns_no_states_is_an_error_of_one_line() -> None:
    settings = {**LLAMA, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size_mlp": 48, "num_local_experts": 2}
    model = make_tiny("llama4_text", settings, hf.AutoModelForCausalLM)  # it is its own base model
    with pytest.raises(BackboneError, match="returns no hidden states"):
        find_structure(model)


def test_an_encoder_decoder_may_have_two_configurations_and_two_widths() -> None:
    sizes = {**LLAMA, "num_key_value_heads": 2, "head_dim": 8}
    decoder = {**sizes, "hidden_size": 48, "cross_attention_hidden_size": 32, "num_hidden_layers": 2}
    settings = {"encoder": sizes, "decoder": decoder, "vocab_size": VOCABULARY, "decoder_start_token_id": 2}
    model = make_tiny("t5gemma", settings, hf.AutoModelForSeq2SeqLM)
    backbone = Backbone(model, tiny_tokenizer("t5"), "t5gemma")
    assert (backbone.hidden_width, backbone.key_width) == (32, 16)
    assert {check.name for check in check_backbone(backbone) if not check.passed} == {"sub-layers"}
    assert "differ in width" in backbone.structure.why_no_sublayers


def test_tracing_leaves_the_model_as_it_was() -> None:
    model = tiny_model("llama").train()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
    random_state = torch.get_rng_state()
    find_structure(model)
    assert model.training
    assert hooks == sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
    assert torch.equal(torch.get_rng_state(), random_state)
    for name, value in model.state_dict().items():
        assert torch.equal(value, weights[name])


@pytest.mark.parametrize("model_type", ["bert", "t5", "gpt_neox", "albert"])
def test_a_structure_is_the_same_after_json(model_type: str) -> None:
    structure = structure_of(tiny_model(model_type))
    assert Structure.model_validate_json(structure.model_dump_json()) == structure
