from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import ONE_OF_EACH_KIND, tiny, tiny_model, tiny_tokenizer

from softcue.backbones import Backbone, BackboneConfig, Fingerprint, load_backbone

LAYER_WEIGHT = {
    "bert": "bert.encoder.layer.2.intermediate.dense.weight",
    "t5": "decoder.block.1.layer.2.DenseReluDense.wi.weight",
    "gpt2": "transformer.h.1.mlp.c_fc.weight",
}
WORD_TABLE = {
    "bert": "bert.embeddings.word_embeddings.weight",
    "t5": "shared.weight",
    "gpt2": "transformer.wte.weight",
}

each_kind = pytest.mark.parametrize("model_type", ONE_OF_EACH_KIND)


def load(folder: Path, dtype: str = "float32") -> Backbone:
    return load_backbone(BackboneConfig.model_validate({"name": str(folder), "dtype": dtype}))


@pytest.fixture
def changed(model_folders: dict[str, Path], tmp_path: Path) -> Callable[..., Fingerprint]:
    """The fingerprint of a saved model after a change to one of its tensors or to its config."""

    def change(
        model_type: str, tensor: str = "", edit: Callable[[Any], Any] = lambda _: None, **config: Any
    ) -> Fingerprint:
        folder = shutil.copytree(model_folders[model_type], tmp_path / model_type)
        if tensor:
            tensors = {name: value.clone() for name, value in load_file(folder / "model.safetensors").items()}
            edit(tensors[tensor])
            save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | config))
        return load(folder).fingerprint

    return change


@each_kind
def test_saving_and_loading_keeps_the_fingerprint(model_folders: dict[str, Path], model_type: str) -> None:
    assert load(model_folders[model_type]).fingerprint == tiny(model_type).fingerprint


@each_kind
def test_bfloat16_has_the_same_fingerprint(model_folders: dict[str, Path], model_type: str) -> None:
    assert load(model_folders[model_type], "bfloat16").fingerprint == tiny(model_type).fingerprint


@each_kind
def test_use_does_not_change_the_fingerprint(model_type: str) -> None:
    backbone = Backbone(tiny_model(model_type), tiny_tokenizer(model_type), "used")
    texts = ["one text", "another, longer text"]
    backbone.tokenizer(texts, padding=True, truncation=True, max_length=5)  # sets state in the tokenizer
    assert backbone.fingerprint == tiny(model_type).fingerprint


def _change_one_number(table: torch.Tensor) -> None:
    table[123, 7] += 1.0


@each_kind
def test_one_changed_word_embedding_changes_the_weights_only(
    changed: Callable[..., Fingerprint], model_type: str
) -> None:
    fingerprint = changed(model_type, WORD_TABLE[model_type], _change_one_number)
    assert tiny(model_type).fingerprint.differences(fingerprint) == ["weights"]


@each_kind
def test_one_changed_layer_weight_changes_the_weights_only(
    changed: Callable[..., Fingerprint], model_type: str
) -> None:
    fingerprint = changed(model_type, LAYER_WEIGHT[model_type], lambda weight: weight.mul_(1.1))
    assert tiny(model_type).fingerprint.differences(fingerprint) == ["weights"]


@pytest.mark.parametrize(
    ("model_type", "config"),
    [
        ("bert", {"hidden_act": "relu"}),
        ("bert", {"layer_norm_eps": 1e-5}),
        ("bert", {"num_attention_heads": 2}),
        ("t5", {"layer_norm_epsilon": 1e-4}),
        ("t5", {"scale_decoder_outputs": False}),
        ("gpt2", {"activation_function": "relu"}),
    ],
)
def test_another_config_changes_the_config_only(
    changed: Callable[..., Fingerprint], model_type: str, config: dict[str, Any]
) -> None:
    assert tiny(model_type).fingerprint.differences(changed(model_type, **config)) == ["config"]


@pytest.mark.parametrize(
    "config",
    [
        {"_name_or_path": "elsewhere"},
        {"transformers_version": "4.1.0"},
        {"dtype": "bfloat16"},
        {"use_cache": False},
    ],
)
def test_settings_without_an_effect_keep_the_fingerprint(
    changed: Callable[..., Fingerprint], config: dict[str, Any]
) -> None:
    assert changed("bert", **config) == tiny("bert").fingerprint


def _with_a_new_word(tokenizer: Any) -> None:
    tokenizer.add_tokens(["invoice number"])


def _with_another_template(tokenizer: Any) -> None:
    from tokenizers import processors

    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 2)]
    )


def _with_lower_case(tokenizer: Any) -> None:
    from tokenizers import normalizers

    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()


@pytest.mark.parametrize("change", [_with_a_new_word, _with_another_template, _with_lower_case])
def test_another_tokenizer_changes_the_tokenizer_only(change: Callable[[Any], None]) -> None:
    tokenizer = tiny_tokenizer("bert")
    change(tokenizer)
    fingerprint = Backbone(tiny_model("bert"), tokenizer, "other").fingerprint
    assert tiny("bert").fingerprint.differences(fingerprint) == ["tokenizer"]


def test_every_family_has_its_own_fingerprint() -> None:
    fingerprints = {tiny(name).fingerprint for name in ("bert", "roberta", "gpt2", "t5")}
    assert len(fingerprints) == 4
