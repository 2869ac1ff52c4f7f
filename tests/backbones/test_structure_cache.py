"""Structures are found once per machine, and a damaged or foreign file is never used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny_model

from softcue.backbones import BackboneConfig, load_backbone, structure_cache
from softcue.backbones.structure_cache import restore_structure
from softcue.backbones.tracing import structure_of


@pytest.fixture
def num_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Any]]:
    """The models that were traced, in a test with a cache of its own."""
    monkeypatch.setenv("SOFTCUE_HOME", str(tmp_path))
    found: list[Any] = []
    plain = structure_cache.find_structure

    def find(model: Any) -> Any:
        found.append(model)
        return plain(model)

    monkeypatch.setattr(structure_cache, "find_structure", find)
    return found


def test_a_model_is_traced_once(num_found: list[Any], model_folders: dict[str, Path]) -> None:
    config = BackboneConfig(name=str(model_folders["bert"]), dtype="float32")
    first, second = (load_backbone(config) for _ in range(2))
    assert len(num_found) == 1
    assert second.structure == first.structure


@pytest.mark.parametrize("change", ["flipped", "empty", "not JSON", "other fields"])
def test_a_damaged_file_is_written_again(num_found: list[Any], tmp_path: Path, change: str) -> None:
    model = tiny_model("bert")
    restore_structure(model)
    structure = structure_of(model)
    [path] = (tmp_path / "structures").iterdir()
    whole = path.read_bytes()
    place = whole.index(b"layer")
    path.write_bytes(
        {
            "flipped": whole[:place] + b"m" + whole[place + 1 :],
            "empty": b"",
            "not JSON": b"\xff\xfe",
            "other fields": whole.split(b"\n")[0] + b"\n{}\n",
        }[change]
    )
    again = tiny_model("bert")
    restore_structure(again)
    assert len(num_found) == 2
    assert structure_of(again) == structure
    assert path.read_bytes() == whole


def test_other_weights_and_other_code_have_their_own_file(
    num_found: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, changed = tiny_model("bert"), tiny_model("bert")
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.mul_(1.5)
    restore_structure(model)
    restore_structure(changed)
    assert len(num_found) == 2
    monkeypatch.setattr(structure_cache, "_code_digest", lambda: "other")
    restore_structure(tiny_model("bert"))
    assert len(num_found) == 3


def test_without_a_writable_cache_it_is_found_each_time(num_found: list[Any], tmp_path: Path) -> None:
    (tmp_path / "structures").write_text("a file where a folder should be")
    for _ in range(2):
        restore_structure(tiny_model("bert"))
    assert len(num_found) == 2
