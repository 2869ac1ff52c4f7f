from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from softcue.backbones import Backbone, BackboneConfig, load_backbone
from softcue.backbones.loading import digest_cache, kept_digests
from softcue.backbones.loading.kept_digests import FileStates
from softcue.files import cache_folder

WEIGHT = "bert.encoder.layer.2.intermediate.dense.weight"


def load(folder: Path) -> Backbone:
    return load_backbone(BackboneConfig(name=str(folder), dtype="float32"))


def change_weight(folder: Path) -> None:
    """Write other numbers into the weight file, which keeps its size."""
    file = folder / "model.safetensors"
    tensors = {name: value.clone() for name, value in load_file(file).items()}
    tensors[WEIGHT][1, 2] += 1
    size = file.stat().st_size
    save_file(tensors, file, metadata={"format": "pt"})
    assert file.stat().st_size == size


@pytest.fixture
def folder(model_folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model folder that counts as large; its files count as settled at once."""
    monkeypatch.setenv("SOFTCUE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(digest_cache, "KEPT_WEIGHTS", 1)
    monkeypatch.setattr(kept_digests, "SETTLED_SECONDS", -1.0)
    return shutil.copytree(model_folders["bert"], tmp_path / "bert")


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The models whose weights were read for a digest."""
    models: list[object] = []
    original = digest_cache.digest_weights

    def count(model: object) -> str:
        models.append(model)
        return original(model)

    monkeypatch.setattr(digest_cache, "digest_weights", count)
    return models


def test_the_weights_of_a_large_model_are_read_once(folder: Path, computed: list[object]) -> None:
    first, second = load(folder).fingerprint, load(folder).fingerprint
    assert first == second
    assert len(computed) == 1


def test_a_small_model_is_read_each_time(folder: Path, computed: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest_cache, "KEPT_WEIGHTS", 10**9)
    assert load(folder).fingerprint == load(folder).fingerprint
    assert len(computed) == 2
    assert not (cache_folder() / "digests").exists()


def _set_time_back(folder: Path) -> None:
    file = folder / "model.safetensors"
    status = file.stat()
    change_weight(folder)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file.stat().st_mtime_ns == status.st_mtime_ns


def _replace(folder: Path) -> None:
    shutil.copytree(folder, folder.with_name("copy"))
    change_weight(folder.with_name("copy"))
    os.replace(folder.with_name("copy") / "model.safetensors", folder / "model.safetensors")


@pytest.mark.parametrize("change", [change_weight, _set_time_back, _replace])
def test_a_changed_file_is_read_again(folder: Path, computed: list[object], change: Callable[[Path], None]) -> None:
    before = load(folder).fingerprint
    change(folder)
    assert before.differences(load(folder).fingerprint) == ["weights"]
    assert len(computed) == 2


def test_a_file_that_was_changed_just_now_is_not_remembered(
    folder: Path, computed: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_digests, "SETTLED_SECONDS", 3600.0)
    assert load(folder).fingerprint == load(folder).fingerprint
    assert len(computed) == 2


def test_links_of_a_hub_cache_are_followed(folder: Path, tmp_path: Path, computed: list[object]) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for file in folder.iterdir():
        (snapshot / file.name).symlink_to(file)
    fingerprint = load(snapshot).fingerprint
    assert load(snapshot).fingerprint == fingerprint
    assert len(computed) == 1
    change_weight(folder)
    assert fingerprint.differences(load(snapshot).fingerprint) == ["weights"]


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"digest": "0123456789abcdef", "description": "other"}'])
def test_a_damaged_entry_is_made_again(folder: Path, computed: list[object], content: str) -> None:
    fingerprint = load(folder).fingerprint
    [entry] = (cache_folder() / "digests").iterdir()
    entry.write_text(content)
    assert load(folder).fingerprint == fingerprint
    assert len(computed) == 2
    assert json.loads(entry.read_text())["digest"] == fingerprint.weights


def test_a_kept_digest_is_that_of_the_weights(folder: Path, model_folders: dict[str, Path]) -> None:
    load(folder).fingerprint  # noqa: B018 (kept from here)
    assert load(folder).fingerprint.weights == digest_cache.digest_weights(load(model_folders["bert"]).model)


def test_a_digest_does_not_need_the_weights_in_memory(folder: Path) -> None:
    load(folder).fingerprint  # noqa: B018 (kept from here)
    backbone = load(folder)
    with torch.no_grad():
        backbone.model.get_parameter(WEIGHT).zero_()
    assert backbone.fingerprint == load(folder).fingerprint  # it is of the files


def test_no_files_are_never_settled() -> None:
    assert not FileStates.of([], digest="sha256").is_settled
