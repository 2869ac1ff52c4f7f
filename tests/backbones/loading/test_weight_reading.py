from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny import ONE_OF_EACH_KIND, tiny_model, tiny_tokenizer
from transformers import modeling_utils

from softcue.backbones import Backbone, BackboneConfig, load_backbone
from softcue.backbones.loading.weight_reading import exact_format, reading_without_maps, release_pages
from softcue.backbones.quantized_linear import stays_float32


def load(folder: Path, dtype: str = "float32", **settings: str) -> Backbone:
    return load_backbone(BackboneConfig.model_validate({"name": str(folder), "dtype": dtype, **settings}))


@pytest.mark.parametrize(
    ("dtype", "device", "expected"),
    [(torch.float32, "cpu", "mmap"), (torch.bfloat16, "cpu", "pread"), (torch.float32, "cuda", "pread")],
)
def test_files_are_mapped_only_if_their_numbers_can_stay_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, device: str, expected: str
) -> None:
    save_file({"weight": torch.ones(4)}, tmp_path / "model.safetensors")
    backends: list[str] = []

    def record(file: Any, *args: Any, **options: Any) -> Any:
        backends.append(options.get("backend", "mmap"))
        return safe_open(file, *args, **options)

    monkeypatch.setattr(modeling_utils, "safe_open", record)
    with reading_without_maps(dtype, torch.device(device)):
        modeling_utils.safe_open(tmp_path / "model.safetensors", framework="pt", device="cpu")
    assert modeling_utils.safe_open is record
    assert backends[-1] == expected


@pytest.mark.parametrize("model_type", ONE_OF_EACH_KIND)
def test_float16_is_what_the_file_rounds_to(model_folders: dict[str, Path], model_type: str) -> None:
    backbone = load(model_folders[model_type], "float16")
    assert backbone.dtype == torch.float16
    loaded = backbone.model.state_dict()
    for name, value in load_file(model_folders[model_type] / "model.safetensors").items():
        kept = stays_float32(backbone.model, name, torch.float16)  # T5's second feed-forward matrix
        assert torch.equal(loaded[name], value if kept else value.half()), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_shards_give_the_weights_of_one_file(tmp_path: Path, dtype: str) -> None:
    for folder, size in (("whole", "1GB"), ("shards", "40KB")):
        tiny_model("llama").save_pretrained(tmp_path / folder, max_shard_size=size)
        tiny_tokenizer("llama").save_pretrained(tmp_path / folder)
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    whole, shards = load(tmp_path / "whole", dtype), load(tmp_path / "shards", dtype)
    assert all(torch.equal(value, shards.model.state_dict()[name]) for name, value in whole.model.state_dict().items())
    assert whole.fingerprint == shards.fingerprint


def test_float16_has_the_fingerprint_of_its_files(tmp_path: Path) -> None:
    model = tiny_model("llama")
    model.model.layers[0].mlp.up_proj.weight.data *= 1e-6  # float16 has no such small numbers
    model.save_pretrained(tmp_path)
    tiny_tokenizer("llama").save_pretrained(tmp_path)
    half = load(tmp_path, "float16")
    assert float(half.model.model.layers[0].mlp.up_proj.weight.abs().amin()) == 0
    assert half.fingerprint == load(tmp_path).fingerprint == load(tmp_path, "bfloat16").fingerprint


def test_the_exact_format_is_that_of_the_files(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.safetensors", "b.safetensors")]
    save_file({"weight": torch.ones(2, dtype=torch.bfloat16), "ids": torch.ones(2, dtype=torch.int64)}, files[0])
    save_file({"weight": torch.ones(2, dtype=torch.float16)}, files[1])
    assert exact_format(files[:1]) == torch.bfloat16
    assert exact_format(files[1:]) == torch.float16
    assert exact_format(files) == torch.float32


def test_released_pages_can_be_read_again_and_other_memory_stays(tmp_path: Path) -> None:
    values = torch.arange(50_000, dtype=torch.float32)
    save_file({"weight": values}, tmp_path / "model.safetensors")
    with safe_open(tmp_path / "model.safetensors", framework="pt") as weights:
        mapped = weights.get_tensor("weight")
    copied = values.clone()
    for tensor in (mapped, copied, values[::2]):
        release_pages(tensor)
    assert torch.equal(mapped, copied)
    assert torch.equal(values, copied)


def test_a_file_that_is_replaced_later_changes_no_loaded_number(tmp_path: Path, model_folders: dict[str, Path]) -> None:
    folder = shutil.copytree(model_folders["bert"], tmp_path / "bert")
    backbone = load(folder, "bfloat16")
    before = backbone.word_table.clone()
    (folder / "model.safetensors").write_bytes(b"")
    assert torch.equal(backbone.word_table, before)
