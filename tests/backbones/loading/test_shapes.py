from __future__ import annotations

import json
import math
import re
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import KINDS, ONE_OF_EACH_KIND, tiny, tiny_model, tiny_tokenizer

from softcue.backbones import Backbone, load_backbone
from softcue.backbones.loading.shapes import backbone_like, list_shapes
from softcue.errors import BackboneError
from softcue.readouts import ReadoutConfig, make_readout
from softcue.tasks import library_task

# Parameters of the model that load_backbone would build, from published counts of the real weights. For ELECTRA it is
# KerasHub's 13,548,800 without the dense layer that it adds.
TOTALS = {
    "roberta-base": 124_697_433,
    "roberta-large": 355_412_057,
    "bert-base-uncased": 109_514_298,
    "bert-large-uncased": 335_174_458,
    "minilm": 22_713_216,
    "distilbert-base-uncased": 66_985_530,
    "electra-small": 13_483_008,
    "deberta-v3-base": 183_831_552,
    "modernbert-base": 149_655_232,
    "t5-small": 76_961_152,
    "t5-base": 247_577_856,
    "t5-large": 783_150_080,
    "t5-xl": 2_849_757_184,
    "t5-xxl": 11_135_332_352,
    "bart-base": 139_420_416,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-xl": 1_557_611_200,
    "opt-1.3b": 1_315_758_080,
    "smollm2": 134_515_008,
    "llama-3.2-1b": 1_235_814_400,
    "llama-2-7b": 6_738_415_616,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "qwen2.5-0.5b": 494_032_768,
    "pythia-160m": 162_322_944,
}
# Base models with their pooler, which masked-word models leave out: a square matrix and a bias.
WITH_POOLER = {"bert-base-uncased": 109_482_240, "bert-large-uncased": 335_141_888, "roberta-large": 355_359_744}


def count(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@cache
def known_shape(name: str) -> Backbone:
    """A shape that tests share and do not change."""
    return backbone_like(name)


def shapes_of(module: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}


def error_message(name: str | Path) -> str:
    with pytest.raises(BackboneError) as caught:
        backbone_like(str(name))
    message = str(caught.value)
    assert "\n" not in message
    return message


def change_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_every_known_shape_has_a_total_to_be_checked_against() -> None:
    assert set(list_shapes()) == set(TOTALS)


@pytest.mark.parametrize("name", TOTALS)
def test_a_shape_has_as_many_parameters_as_the_published_model(name: str) -> None:
    assert count(known_shape(name).model) == TOTALS[name]


@pytest.mark.parametrize("name", WITH_POOLER)
def test_the_base_of_a_masked_word_model_lacks_only_the_pooler(name: str) -> None:
    backbone = known_shape(name)
    assert backbone.word_head is not None
    assert count(backbone.base) + (backbone.hidden_width + 1) * backbone.hidden_width == WITH_POOLER[name]


@pytest.mark.parametrize("name", TOTALS)
def test_a_shape_takes_no_memory_and_has_the_attributes_methods_use(name: str) -> None:
    backbone = known_shape(name)
    tensors = [*backbone.model.parameters(), *backbone.model.buffers()]
    assert all(tensor.is_meta and not tensor.requires_grad for tensor in tensors)
    assert backbone.name == name
    assert backbone.device.type == "meta"
    assert backbone.dtype == torch.float32
    assert backbone.num_layers >= 6
    assert backbone.word_table.shape == (backbone.model.config.vocab_size, backbone.width)
    assert backbone.max_length >= 512
    assert backbone.max_target_length >= 512
    assert isinstance(backbone.tokenizer.pad_token_id, int)
    if backbone.kind == "encoder-decoder":
        assert backbone.start_id in (0, 2)
        assert backbone.target_prefix == ()


@pytest.mark.parametrize(
    ("name", "kind", "width", "hidden", "layers", "longest"),
    [
        ("roberta-large", "encoder", 1024, 1024, 24, 512),
        ("electra-small", "encoder", 128, 256, 12, 512),
        ("t5-xxl", "encoder-decoder", 4096, 4096, 24, 512),
        ("bart-base", "encoder-decoder", 768, 768, 6, 1024),
        ("gpt2-xl", "decoder", 1600, 1600, 48, 1024),
        ("smollm2", "decoder", 576, 576, 30, 8192),
    ],
)
def test_sizes(name: str, kind: str, width: int, hidden: int, layers: int, longest: int) -> None:
    backbone = known_shape(name)
    sizes = (backbone.kind, backbone.width, backbone.hidden_width, backbone.num_layers, backbone.max_length)
    assert sizes == (kind, width, hidden, layers, longest)


def test_a_shape_pools_as_its_model_does() -> None:
    assert {name: known_shape(name).default_pooling for name in ("minilm", "modernbert-base", "roberta-base")} == {
        "minilm": "mean",
        "modernbert-base": "mean",
        "roberta-base": "cls",
    }


@pytest.mark.parametrize("name", ["roberta-large", "t5-xxl"])
def test_a_shape_is_built_fast_and_without_output(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    backbone_like(name)  # transformers' own import takes seconds, once
    began = time.process_time()  # other processes may use the cores
    backbone_like(name)
    assert time.process_time() - began < 3
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "readout", "numbers"),
    [
        ("roberta-large", "classifier", 1024),
        ("roberta-large", "label-words", 0),
        ("t5-xxl", "auto", 0),
        ("gpt2", "generation", 0),
        ("gpt2", "classifier", 768),
    ],
)
def test_readouts_can_be_built_and_counted_on_a_shape(name: str, readout: str, numbers: int) -> None:
    task = library_task("tickets")
    labels = {key: label.model_copy(update={"words": key}) for key, label in task.labels.items()}
    task = task.model_copy(update={"labels": labels})
    made = make_readout(ReadoutConfig.model_validate({"name": readout}), task, known_shape(name))
    assert count(made) == (numbers + 1) * len(labels) * (numbers > 0)


def test_backbones_of_one_shape_share_nothing() -> None:
    first, second = backbone_like("minilm"), backbone_like("minilm")
    first.model.config.architectures.append("changed")
    assert second.model.config.architectures == backbone_like("minilm").model.config.architectures == ["BertModel"]


def test_an_unknown_name_is_an_error_with_the_nearest_and_all_names() -> None:
    message = error_message("roberta-lage")
    assert "did you mean 'roberta-large'?" in message
    assert all(name in message for name in list_shapes())
    assert "folder with config.json" in message


@pytest.mark.parametrize("name", ["", "\0", "x" * 5000, "no/such/folder", "~"])
def test_names_that_no_shape_can_have_are_errors(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    assert "known: " in error_message(name)


@pytest.mark.parametrize("model_type", ONE_OF_EACH_KIND)
def test_a_folder_gives_the_shape_of_the_model_in_it(model_type: str, model_folders: dict[str, Path]) -> None:
    folder = model_folders[model_type]
    like, loaded = backbone_like(str(folder)), load_backbone(str(folder))
    assert type(like.model) is type(loaded.model)
    assert shapes_of(like.model) == shapes_of(loaded.model)
    for name in ("kind", "width", "hidden_width", "num_layers", "max_target_length", "default_pooling", "folder"):
        assert getattr(like, name) == getattr(loaded, name), name


@pytest.mark.parametrize("model_type", KINDS)
def test_a_folder_needs_only_a_config_of_any_family(model_type: str, tmp_path: Path) -> None:
    model = tiny_model(model_type)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(tmp_path)
    like, loaded = backbone_like(str(tmp_path)), tiny(model_type)
    assert shapes_of(like.model) == shapes_of(model)
    assert (like.kind, like.num_layers, len(like.sublayers)) == (loaded.kind, loaded.num_layers, len(loaded.sublayers))
    assert like.structure.key_width == loaded.structure.key_width
    assert like.first_position == loaded.first_position


@pytest.mark.parametrize("mark", ["tie_word_embeddings", "scale_decoder_outputs"])
def test_an_untied_t5_is_counted_as_it_is_loaded(mark: str, tmp_path: Path) -> None:
    tiny_model("t5").save_pretrained(tmp_path)
    tiny_tokenizer("t5").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        {**tensors, "lm_head.weight": tensors["shared.weight"] + 1},
        tmp_path / "model.safetensors",
        metadata={"format": "pt"},
    )
    change_config(tmp_path, **{mark: False})
    like, loaded = backbone_like(str(tmp_path)).model, load_backbone(str(tmp_path)).model
    assert shapes_of(like) == shapes_of(loaded)
    assert "lm_head.weight" in shapes_of(like)


def test_a_chat_models_several_end_tokens(tmp_path: Path) -> None:
    model = tiny_model("llama")
    model.config.save_pretrained(tmp_path)
    change_config(tmp_path, eos_token_id=[7, 8], pad_token_id=None)
    tokenizer = backbone_like(str(tmp_path)).tokenizer
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (7, 7)


def test_code_in_a_folder_is_never_run(tmp_path: Path) -> None:
    model = tiny_model("bert")
    model.config.save_pretrained(tmp_path)
    change_config(tmp_path, auto_map={"AutoModel": "code.Model", "AutoModelForMaskedLM": "code.Model"})
    (tmp_path / "code.py").write_text("raise SystemExit('ran')")
    assert backbone_like(str(tmp_path)).width == 32


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "check it: "),
        ("[]", "check it: "),
        ("{}", "model_type"),
        ('{"model_type": "robert"}', "did you mean 'roberta'?"),
        ('{"model_type": "bert", "hidden_size": 30, "num_attention_heads": 4}', "check it: "),
        ('{"model_type": "bert", "hidden_size": "wide"}', "check it: "),
    ],
)
def test_a_folder_with_a_broken_config_is_an_error(text: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    assert expected in error_message(tmp_path)


def test_made_up_words_keep_their_number_and_are_no_special_tokens() -> None:
    tokenizer = backbone_like("t5-small").tokenizer
    first, second = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("a b a", "b c"))
    assert first[0] == first[2] != first[1] == second[0] != second[1]
    assert not set(first + second) & set(tokenizer.all_special_ids)
    assert tokenizer.model_max_length > math.exp(50)


def test_the_shapes_are_packed_into_the_wheel() -> None:
    root = Path(__file__).parents[3]
    assert re.search(r'^softcue = \[.*"\*\*/\*\.yaml".*\]$', (root / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    assert (root / "src/softcue/backbones/loading/shapes.yaml").is_file()
