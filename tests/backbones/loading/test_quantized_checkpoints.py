"""Checkpoints that others have quantized: which packages they need, and that prompts train through them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from quantized_backbones import build, load, losses_of
from safetensors.torch import load_file, save_file
from tiny import tiny_model, tiny_tokenizer

from softcue.backbones.loading import placement
from softcue.errors import BackboneError


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


def test_awq_checkpoints_take_prompts(tmp_path: Path) -> None:
    pytest.importorskip("gptqmodel")
    llama = tmp_path / "llama"
    tiny_model("llama", hidden_size=64, head_dim=16, intermediate_size=64).to(torch.float16).save_pretrained(llama)
    tiny_tokenizer("llama").save_pretrained(llama)
    folder = write_awq(llama, tmp_path / "model", group=32)
    backbone = load(folder, dtype="auto")
    assert backbone.quantization == "awq-4bit"
    assert "gradients" not in backbone.limits
    assert len(set(losses_of(backbone, "prompt-tuning"))) == 3


def write_awq(source: Path, folder: Path, group: int) -> Path:
    """Write a checkpoint in AWQ's GEMM format with random codes: transformers reads such files and makes none."""
    shutil.copytree(source, folder)
    tensors = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    for name in [name for name in tensors if ".layers." in name and name.endswith("_proj.weight")]:
        num_outputs, num_inputs = tensors.pop(name).shape
        path = name.removesuffix(".weight")
        packed = (num_inputs, num_outputs // 8)  # eight 4-bit numbers in each
        codes = torch.randint(-(2**31), 2**31 - 1, packed, generator=generator)
        tensors[f"{path}.qweight"] = codes.to(torch.int32)
        tensors[f"{path}.qzeros"] = torch.full((num_inputs // group, packed[1]), -0x77777778, dtype=torch.int32)  # 8s
        tensors[f"{path}.scales"] = torch.full((num_inputs // group, num_outputs), 0.005, dtype=torch.float16)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    settings = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    return folder
