from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from quantized_backbones import build, load, losses_of
from tolerance import REORDERED_PROBABILITIES, REORDERED_STEPS
from torch import nn
from toy import TASK, make_model

import softcue
from softcue import Cue
from softcue.backbones import Backbone
from softcue.backbones.quantized_linear import QuantizedLinear, num_weights
from softcue.cue.cue_file import CueBackbone, CueFile
from softcue.errors import BackboneError, MissingExtraError

pytest.importorskip("torchao")
CPU = torch.device("cpu")
# The largest error of a weight, relative to the largest one of its row: half a step of 255, or two of 15.
LARGEST_ERROR = {8: 1.001 / 255, 4: 2 / 15}


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


def test_a_model_without_linear_modules_is_refused(model_folders: dict[str, Path]) -> None:
    with pytest.raises(BackboneError, match=r"backbone.quantization.*only \d+ % of the weights"):
        load(model_folders["gpt2"], "int8")


def test_without_torchao_the_extra_is_named(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(MissingExtraError, match=r"\[quantization\]"):
        load(llama, "int8")
