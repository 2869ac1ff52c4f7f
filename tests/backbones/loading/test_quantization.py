from __future__ import annotations

import copy
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from tiny import tiny_model, tiny_tokenizer
from tolerance import REORDERED_PROBABILITIES, REORDERED_STEPS
from torch import nn
from toy import EXAMPLES, TASK, make_model

import softcue
from softcue import Cue
from softcue.backbones import Backbone, BackboneConfig, load_backbone
from softcue.backbones.loading import placement
from softcue.backbones.quantized_linear import QuantizedLinear, num_weights
from softcue.configuration import method_config
from softcue.cue.cue_file import CueBackbone, CueFile
from softcue.errors import BackboneError, MissingExtraError
from softcue.methods import METHODS
from softcue.training import TaskData, Trainer, TrainingConfig

pytest.importorskip("torchao")
CPU = torch.device("cpu")
# The largest error of a weight, relative to the largest one of its row: half a step of 255, or two of 15.
LARGEST_ERROR = {8: 1.001 / 255, 4: 2 / 15}


def load(folder: Path, quantization: str = "none", **settings: str) -> Backbone:
    values = {"name": str(folder), "dtype": "float32", "quantization": quantization, **settings}
    return load_backbone(BackboneConfig.model_validate(values))


def quantized_linears(backbone: Backbone) -> dict[str, QuantizedLinear]:
    modules = backbone.model.named_modules()
    return {name: module for name, module in modules if isinstance(module, QuantizedLinear)}


@pytest.fixture(scope="module")
def llama_int4(llama: Path) -> Backbone:
    return load(llama, "int4")


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("width", [64, 48])
def test_rounded_weights_are_near_the_real_ones(bits: int, width: int) -> None:
    torch.manual_seed(3)
    linear = nn.Linear(width, 20).requires_grad_(False)
    linear.weight.data[3] *= 100  # a large row costs the others nothing
    quantized = QuantizedLinear.of(linear, bits, torch.float32, CPU)
    errors = (quantized.weight - linear.weight).abs().amax(dim=1) / linear.weight.abs().amax(dim=1)
    assert float(errors.max()) <= LARGEST_ERROR[bits]
    assert quantized.codes.element_size() * quantized.codes.numel() == 20 * width * bits // 8
    assert num_weights(quantized) == num_weights(linear)


@pytest.mark.parametrize("bits", [8, 4])
def test_products_and_gradients_are_those_of_the_rounded_matrix(bits: int) -> None:
    torch.manual_seed(4)
    quantized = QuantizedLinear.of(nn.Linear(32, 6), bits, torch.float32, CPU)
    plain = nn.Linear(32, 6)
    plain.weight.data, plain.bias.data = quantized.weight, quantized.bias.data
    states = torch.randn(2, 3, 32, requires_grad=True)
    outputs = [module(states) for module in (quantized, plain)]
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(*(torch.autograd.grad(output.square().sum(), states)[0] for output in outputs))
    torch.testing.assert_close(quantized(states.detach()), outputs[1])


def test_no_unpacked_matrix_is_kept_for_the_backward_pass() -> None:
    quantized = QuantizedLinear.of(nn.Linear(64, 64), 8, torch.float32, CPU)
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda value: kept.append(value) or value, lambda value: value):
        quantized(torch.randn(2, 64, requires_grad=True)).sum()
    assert not any(value.is_floating_point() and value.shape == (64, 64) for value in kept)
    assert any(value is quantized.codes for value in kept)  # itself, no copy


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("family", ["bert", "t5", "llama"])
def test_loaded_backbones_are_quantized_in_their_layers_and_pass_their_checks(
    model_folders: dict[str, Path], llama: Path, family: str, quantization: str
) -> None:
    folder = llama if family == "llama" else model_folders[family]
    whole, backbone = load(folder), load(folder, quantization)
    assert backbone.quantization == quantization
    assert backbone.limits.keys() == whole.limits.keys()
    assert len(quantized_linears(backbone)) >= 9
    head = backbone.model.get_output_embeddings()
    assert not isinstance(head, QuantizedLinear)
    assert backbone.word_table.dtype == torch.float32
    assert torch.equal(backbone.word_table, whole.word_table)
    assert backbone.fingerprint == whole.fingerprint  # it is of the files
    assert num_weights(backbone.model) == num_weights(whole.model)


def unpacked(backbone: Backbone) -> Backbone:
    """The same backbone with plain linear modules, whose matrices are the rounded ones."""
    model = copy.deepcopy(backbone.model)
    for name, quantized in quantized_linears(backbone).items():
        plain = nn.Linear(quantized.in_features, quantized.out_features, bias=quantized.bias is not None)
        plain.weight.data = quantized.weight
        if quantized.bias is not None:
            plain.bias.data = quantized.bias.data
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, plain)
    return Backbone(model, backbone.tokenizer, backbone.name)


def losses_of(backbone: Backbone, method: str) -> list[float]:
    """The losses of three training steps: those after the first depend on gradients."""
    losses: list[float] = []

    def listen(kind: str, values: dict[str, Any]) -> None:
        if kind == "step":
            losses.append(values["loss"])

    model = make_model(backbone, method, readout={"dropout": 0.0, "name": "classifier"})
    config = TrainingConfig.model_validate({"steps": 3, "batch_size": 6, "learning_rate": 0.1})
    Trainer(backbone, [TaskData(model, EXAMPLES, EXAMPLES)], config, listener=listen).run()
    trained = [value for value in model.parameters() if value.requires_grad]
    assert trained and {value.dtype for value in trained} == {torch.float32}
    return losses


@pytest.mark.parametrize("method", ["prompt-tuning", "m-idpg-phm", "p-tuning-v2", "vip", "lora", "adapter"])
def test_training_reaches_the_prompts_through_quantized_modules(llama_int4: Backbone, method: str) -> None:
    before = {name: value.clone() for name, value in llama_int4.model.state_dict().items()}
    losses = losses_of(llama_int4, method)
    assert losses == REORDERED_STEPS.approx(losses_of(unpacked(llama_int4), method))
    assert len(set(losses)) == 3
    assert all(torch.equal(value, before[name]) for name, value in llama_int4.model.state_dict().items())


def save_cue(backbone: Backbone, folder: Path) -> Cue:
    model = make_model(backbone, readout={"name": "classifier"})
    cue_file = CueFile(
        format=1,
        task=TASK,
        method=model.method.config.model_dump(mode="json"),
        readout=model.readout.config,
        backbone=CueBackbone.of(backbone, model.max_length),
        tensors_sha256="",
    )
    cue = Cue(model, backbone, cue_file)
    cue.save(folder)
    return cue


def test_a_cue_records_the_quantization_and_is_loaded_with_it(llama_int4: Backbone, tmp_path: Path) -> None:
    texts = ["my invoice is wrong", "the parcel"]
    cue = save_cue(llama_int4, tmp_path / "cue")
    assert json.loads((tmp_path / "cue" / "cue.json").read_text())["backbone"]["quantization"] == "int4"
    again = softcue.load(tmp_path / "cue")
    assert again.backbone.quantization == "int4"
    for prediction, expected in zip(again.predict(texts), cue.predict(texts), strict=True):
        assert prediction.scores == REORDERED_PROBABILITIES.approx(expected.scores)


@pytest.mark.parametrize(("trained", "served"), [("int4", "none"), ("none", "int8")])
def test_another_quantization_than_in_training_is_a_warning(
    llama: Path, tmp_path: Path, trained: str, served: str
) -> None:
    save_cue(load(llama, trained), tmp_path / "cue")
    message = f"cue cue: trained on a backbone with quantization={trained}, loaded on one with quantization={served}"
    with pytest.warns(UserWarning, match=message):
        cue = softcue.load(tmp_path / "cue", quantization=served)  # type: ignore[arg-type]
    assert cue.backbone.quantization == served


@pytest.mark.parametrize("settings", [{"name": "fine-tuning"}, {"name": "prompt-tuning", "tune_backbone": True}])
def test_methods_that_change_weights_refuse_quantized_backbones(llama_int4: Backbone, settings: dict[str, Any]) -> None:
    with pytest.raises(BackboneError, match="integers take no gradient"):
        build(llama_int4, settings)


def build(backbone: Backbone, settings: dict[str, Any]) -> object:
    config = method_config(settings)
    return METHODS[config.name].make(config, backbone, TASK, torch.Generator())


def test_a_model_without_linear_modules_is_refused(model_folders: dict[str, Path]) -> None:
    with pytest.raises(BackboneError, match=r"backbone.quantization.*only \d+ % of the weights"):
        load(model_folders["gpt2"], "int8")


def test_without_torchao_the_extra_is_named(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(MissingExtraError, match=r"\[quantization\]"):
        load(llama, "int8")


@pytest.mark.parametrize(
    ("settings", "package"),
    [
        ({"quant_method": "gptq", "bits": 4}, "optimum gptqmodel"),
        ({"quant_method": "awq", "bits": 4}, "gptqmodel"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
    ],
)
def test_a_quantized_checkpoint_names_the_package_it_needs(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], package: str
) -> None:
    folder = shutil.copytree(llama, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    monkeypatch.setattr(placement.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BackboneError, match=f"pip install {package};"):
        load(folder)


def test_a_quantized_checkpoint_is_not_quantized_again(llama: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(llama, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    quantized = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    (folder / "config.json").write_text(json.dumps({**config, **quantized}))
    with pytest.raises(BackboneError, match="quantized already"):
        load(folder, "int8")


@pytest.mark.parametrize("kind", ["load_in_4bit", "load_in_8bit"])
def test_bitsandbytes_checkpoints_take_prompts(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("bitsandbytes")
    llama = tmp_path / "llama"  # its matrices have whole blocks of 64
    tiny_model("llama", hidden_size=64, head_dim=16, intermediate_size=64).to(torch.bfloat16).save_pretrained(llama)
    tiny_tokenizer("llama").save_pretrained(llama)
    settings = hf.BitsAndBytesConfig(**{kind: True}, bnb_4bit_quant_type="nf4")
    model = hf.AutoModelForCausalLM.from_pretrained(llama, quantization_config=settings, device_map={"": "cpu"})
    model.save_pretrained(tmp_path / "model")
    tiny_tokenizer("llama").save_pretrained(tmp_path / "model")
    backbone = load(tmp_path / "model", dtype="auto")
    assert backbone.dtype == torch.bfloat16
    assert backbone.quantization == f"bitsandbytes-{kind[8]}bit"
    assert "gradients" not in backbone.limits
    assert backbone.fingerprint.differences(load(llama).fingerprint) == ["config", "weights"]
    with pytest.raises(BackboneError, match="integers take no gradient"):
        build(backbone, {"name": "fine-tuning"})
    losses = losses_of(backbone, "prompt-tuning")
    assert len(set(losses)) == 3


def test_gptq_checkpoints_take_prompts(tmp_path: Path) -> None:
    pytest.importorskip("gptqmodel")
    pytest.importorskip("optimum")
    llama = tmp_path / "llama"
    tiny_model("llama", hidden_size=64, head_dim=16, intermediate_size=64).to(torch.float16).save_pretrained(llama)
    tokenizer = tiny_tokenizer("llama")
    tokenizer.save_pretrained(llama)
    texts = [" ".join(["my invoice is wrong and the parcel is late"] * 4)] * 8
    settings = hf.GPTQConfig(bits=4, group_size=32, dataset=texts, tokenizer=tokenizer)
    model = hf.AutoModelForCausalLM.from_pretrained(llama, quantization_config=settings, device_map={"": "cpu"})
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    backbone = load(tmp_path / "model", dtype="auto")
    assert backbone.quantization == "gptq-4bit"
    assert "gradients" not in backbone.limits
    assert len(set(losses_of(backbone, "prompt-tuning"))) == 3
