"""Which weight files are loaded, and what a folder without safetensors is told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from softcue.backbones import Backbone, BackboneConfig, load_backbone
from softcue.backbones.loading.weight_files import choose_weight_format
from softcue.errors import BackboneError


@pytest.fixture
def folder(model_folders: dict[str, Path], tmp_path: Path) -> Path:
    """A tiny BERT, to be changed."""
    return shutil.copytree(model_folders["bert"], tmp_path / "bert")


def load(folder: Path, allow_pickle: bool = False) -> Backbone:
    return load_backbone(BackboneConfig(name=str(folder), dtype="float32", allow_pickle=allow_pickle))


def error_message(folder: Path, allow_pickle: bool = False) -> str:
    with pytest.raises(BackboneError) as caught:
        load(folder, allow_pickle)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def into_pickle(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def into_shards(folder: Path, file: str, save: Callable[[Any, Path], None]) -> list[Path]:
    """Replace the weights by two shards and their index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    stem, suffix = file.split(".")
    names = sorted(tensors)
    halves = [names[::2], names[1::2]]
    shards = [folder / f"{stem}-0000{number}-of-00002.{suffix}" for number in (1, 2)]
    for shard, half in zip(shards, halves, strict=True):
        save({name: tensors[name] for name in half}, shard)
    places = {name: shard.name for shard, half in zip(shards, halves, strict=True) for name in half}
    (folder / f"{file}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return shards


def save_safetensors(tensors: Any, path: Path) -> None:
    save_file(tensors, path, metadata={"format": "pt"})


def test_a_pickle_is_refused_with_the_reason_and_both_ways_out(folder: Path) -> None:
    into_pickle(folder)
    message = error_message(folder)
    for part in ("pytorch_model.bin", "can run any code", "safetensors", "--allow-pickle", "weights_only=True"):
        assert part in message


def test_an_allowed_pickle_gives_the_same_backbone(folder: Path) -> None:
    expected = load(folder).fingerprint
    into_pickle(folder)
    assert load(folder, allow_pickle=True).fingerprint == expected


class Bomb:
    """Unpickling it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")


def test_an_allowed_pickle_still_runs_no_code(folder: Path, tmp_path: Path) -> None:
    into_pickle(folder)
    torch.save({"bomb": Bomb(tmp_path / "ran")}, folder / "pytorch_model.bin")
    error_message(folder, allow_pickle=True)
    assert not (tmp_path / "ran").exists()


def test_safetensors_come_before_a_pickle(folder: Path, tmp_path: Path) -> None:
    torch.save({"bomb": Bomb(tmp_path / "ran")}, folder / "pytorch_model.bin")
    for allow_pickle in (False, True):
        assert load(folder, allow_pickle).kind == "encoder"
    assert not (tmp_path / "ran").exists()


def test_shards_of_a_pickle_follow_the_same_rule(folder: Path) -> None:
    expected = load(folder).fingerprint
    shards = into_shards(folder, "pytorch_model.bin", torch.save)
    assert "--allow-pickle" in error_message(folder)
    assert load(folder, allow_pickle=True).fingerprint == expected
    shards[1].unlink()
    assert shards[1].name in error_message(folder, allow_pickle=True)


def test_safetensors_in_shards_are_loaded(folder: Path) -> None:
    expected = load(folder).fingerprint
    into_shards(folder, "model.safetensors", save_safetensors)
    assert load(folder).fingerprint == expected


def test_a_missing_shard_is_named(folder: Path) -> None:
    shards = into_shards(folder, "model.safetensors", save_safetensors)
    shards[0].unlink()
    message = error_message(folder)
    assert shards[0].name in message
    assert shards[1].name not in message


@pytest.mark.parametrize("allow_pickle", [False, True])
def test_an_index_of_safetensors_that_names_a_pickle_is_refused(
    folder: Path, tmp_path: Path, allow_pickle: bool
) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"bomb": Bomb(tmp_path / "ran")}, folder / "weights.bin")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "weights.bin"}}))
    assert "names weights.bin" in error_message(folder, allow_pickle)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("file", ["adapter_model.bin", "other.safetensors.index.json"])
def test_a_config_that_leads_to_a_pickle_is_refused(folder: Path, tmp_path: Path, file: str) -> None:
    torch.save({"bomb": Bomb(tmp_path / "ran")}, folder / "adapter_model.bin")
    (folder / "other.safetensors.index.json").write_text('{"weight_map": {"a": "adapter_model.bin"}}')
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"transformers_weights": file}))
    assert f"transformers_weights: {file}" in error_message(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 1}}'])
def test_a_broken_index_of_shards_is_an_error(folder: Path, text: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(text)
    assert "model.safetensors.index.json" in error_message(folder)


@pytest.mark.parametrize("file", ["model.onnx", "onnx/model.onnx", "onnx/model_quantized.onnx"])
@pytest.mark.parametrize("has_config", [True, False])
def test_a_folder_with_onnx_weights_only_is_refused_with_what_to_do(folder: Path, file: str, has_config: bool) -> None:
    (folder / "model.safetensors").unlink()
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_bytes(b"onnx")
    if not has_config:
        (folder / "config.json").unlink()
    message = error_message(folder)
    assert "ONNX" in message
    assert "fetch the model" in message


@pytest.mark.parametrize(
    ("file", "framework", "option"),
    [("tf_model.h5", "TensorFlow", "from_tf"), ("flax_model.msgpack", "Flax", "from_flax")],
)
def test_weights_of_another_framework_are_refused_with_what_to_do(
    folder: Path, file: str, framework: str, option: str
) -> None:
    (folder / "model.safetensors").unlink()
    (folder / file).write_bytes(b"weights")
    message = error_message(folder)
    assert file in message and framework in message and option in message


def test_other_formats_beside_safetensors_do_no_harm(folder: Path) -> None:
    for file in ("model.onnx", "tf_model.h5", "flax_model.msgpack", "pytorch_model.bin"):
        (folder / file).write_bytes(b"weights")
    assert choose_weight_format(folder, "bert", allow_pickle=False)
    assert load(folder).kind == "encoder"
