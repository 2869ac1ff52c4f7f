"""Hub ids with a revision. No hub is asked: what transformers would ask it for is recorded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers
import transformers.utils

from softcue.backbones import BackboneConfig, load_backbone
from softcue.backbones.loading import load as loading
from softcue.backbones.loading.sources import find_source
from softcue.errors import BackboneError

Calls = list[tuple[str, str, dict[str, Any]]]  # what was called, for which name, with which options


@pytest.fixture
def hub(model_folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """A hub with one model, owner/model; returns what it was asked for."""
    folder = shutil.copytree(model_folders["bert"], tmp_path / "snapshot")
    (folder / "modules.json").write_text(
        json.dumps([{"path": "", "type": "a.Transformer"}, {"path": "pool", "type": "a.Pooling"}])
    )
    (folder / "pool").mkdir()
    (folder / "pool" / "config.json").write_text('{"pooling_mode": "mean"}')
    calls: Calls = []
    for auto_class in (transformers.AutoConfig, transformers.AutoTokenizer, transformers.AutoModelForMaskedLM):
        name, original = auto_class.__name__, auto_class.from_pretrained

        def load(source: str | Path, _name: str = name, _original: Any = original, **options: Any) -> Any:
            if source == folder:  # from within transformers
                return _original(source, **options)
            calls.append((_name, str(source), options))
            local = {key: value for key, value in options.items() if key not in ("revision", "local_files_only")}
            return _original(folder, **local)

        monkeypatch.setattr(auto_class, "from_pretrained", staticmethod(load))

    def cached_file(source: str, path: str, **options: Any) -> str | None:
        calls.append((path, source, options))
        return str(folder / path) if (folder / path).is_file() else None

    monkeypatch.setattr(transformers.utils, "cached_file", cached_file)
    monkeypatch.setattr(loading, "can_reach_hub", lambda: True)
    return calls


@pytest.mark.parametrize("revision", ["main", "v1.0", "a" * 40, "refs/pr/1"])
def test_the_revision_is_given_to_every_call(hub: Calls, revision: str) -> None:
    backbone = load_backbone(f"owner/model@{revision}")
    assert backbone.name == f"owner/model@{revision}"
    assert backbone.default_pooling == "mean"
    asked_for = [name for name, _, _ in hub]
    assert {"AutoConfig", "AutoTokenizer", "AutoModelForMaskedLM", "modules.json", "pool/config.json"} <= set(asked_for)
    assert {source for _, source, _ in hub} == {"owner/model"}
    assert {options["revision"] for _, _, options in hub} == {revision}


def test_modules_of_a_hub_model_that_are_left_out_are_named(hub: Calls, tmp_path: Path) -> None:
    modules = [{"path": "", "type": "a.Transformer"}, {"path": "2_Dense", "type": "a.Dense"}]
    (tmp_path / "snapshot" / "modules.json").write_text(json.dumps(modules))
    with pytest.warns(UserWarning, match="leaves out Dense"):
        load_backbone("owner/model")


def test_without_a_revision_none_is_given(hub: Calls) -> None:
    load_backbone("owner/model")
    assert all("revision" not in options for _, _, options in hub)


def test_without_a_network_every_call_is_for_local_files(hub: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "can_reach_hub", lambda: False)
    load_backbone("owner/model@main")
    assert all(options["local_files_only"] for _, _, options in hub)


@pytest.mark.parametrize(("allow_pickle", "expected"), [(False, True), (True, None)])
def test_a_pickle_of_the_hub_is_read_only_if_it_is_allowed(
    hub: Calls, allow_pickle: bool, expected: bool | None
) -> None:
    load_backbone(BackboneConfig(name="owner/model", allow_pickle=allow_pickle))
    [options] = [options for name, _, options in hub if name == "AutoModelForMaskedLM"]
    assert options["use_safetensors"] is expected


def test_a_folder_with_an_at_sign_is_a_folder(model_folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(model_folders["bert"], tmp_path / "bert@main")
    assert find_source(str(folder)).folder == folder
    assert load_backbone(str(folder)).folder == folder


@pytest.mark.parametrize("name", ["owner/model@", "@main", "a/b/c@main", "./model@main", "/model@main"])
def test_a_name_that_is_neither_folder_nor_hub_id_is_an_error(name: str) -> None:
    with pytest.raises(BackboneError, match="existing model folder"):
        find_source(name)


def test_the_setting_for_the_revision_is_the_one_in_the_name(hub: Calls) -> None:
    backbone = load_backbone(BackboneConfig(name="owner/model", revision="v1.0"))
    assert backbone.name == "owner/model@v1.0"  # as a cue records it
    assert {options["revision"] for _, _, options in hub} == {"v1.0"}
    assert load_backbone(BackboneConfig(name="owner/model@v1.0", revision="v1.0")).name == "owner/model@v1.0"
