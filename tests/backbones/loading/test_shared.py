"""Backbones that a process loads once."""

from __future__ import annotations

from pathlib import Path

import pytest

from softcue.backbones import BackboneConfig, forget_backbones, share_backbone
from softcue.backbones.loading import shared


@pytest.fixture(autouse=True)
def _no_shared_backbones() -> None:
    forget_backbones()


def test_a_changed_model_folder_is_loaded_again(model_folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in model_folders["bert"].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    first = share_backbone(BackboneConfig(name=str(folder)))
    assert share_backbone(BackboneConfig(name=str(folder), dropout=0.1)) is first
    (folder / "notes.txt").write_text("changed")
    assert share_backbone(BackboneConfig(name=str(folder))) is not first


def test_settings_that_change_the_loaded_model_load_another_one(model_folders: dict[str, Path]) -> None:
    name = str(model_folders["bert"])
    first = share_backbone(BackboneConfig(name=name, dtype="float32"))
    assert share_backbone(BackboneConfig(name=name, dtype="bfloat16")) is not first
    assert share_backbone(BackboneConfig(name=name, dtype="float32", max_length=30)) is first


def test_the_backbone_that_was_not_used_for_longest_makes_room(
    model_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "load_backbone", lambda config: object())  # loading is not what is tested here
    configs = [BackboneConfig(name=str(folder)) for folder in model_folders.values()]
    first, second = share_backbone(configs[0]), share_backbone(configs[1])
    assert share_backbone(configs[0]) is first
    share_backbone(configs[2])
    assert share_backbone(configs[0]) is first
    assert share_backbone(configs[1]) is not second
