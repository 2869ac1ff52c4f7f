from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from serving_cues import TITLES, TOPICS, save_cue
from tiny import tiny, tiny_model, tiny_tokenizer

from softcue.backbones import Backbone, Fingerprint
from softcue.cue.cue import Cue
from softcue.errors import ConfigurationError
from softcue.serving.engine import registry as registry_module
from softcue.serving.engine.registry import Registry, recorded_settings
from softcue.serving.errors import RequestError


@pytest.fixture
def root(cues: dict[str, Cue], tmp_path: Path) -> Path:
    for name in ("topics", "pairs"):
        path = cues[name].path
        assert path is not None
        shutil.copytree(path, tmp_path / "cues" / name)
    return tmp_path / "cues"


def make_registry(root: Path) -> Registry:
    registry = Registry(root, tiny("bert"))
    registry.load_all()
    return registry


def check_load_error(registry: Registry, name: str, code: str) -> RequestError:
    with pytest.raises(RequestError) as caught:
        registry.load(name)
    assert caught.value.code == code
    return caught.value


def test_folder_is_loaded_by_name_with_versions(root: Path, cues: dict[str, Cue]) -> None:
    registry = make_registry(root)
    assert [served.name for served in registry.loaded()] == ["pairs", "topics"]
    assert registry["topics"].version == cues["topics"].cue_file.record_sha256[:12]
    assert [served.name for served in registry.of_task("topics")] == ["topics"]
    assert registry["pairs"].as_dict()["text"] == ["first", "second"]


def test_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="a folder with a folder per cue"):
        Registry(tmp_path / "none", tiny("bert"))


@pytest.mark.parametrize(
    "name", ["..", ".", "", "a/b", "../topics", "/etc", "-x", ".hidden", "a" * 65, "topics\n", "é"]
)
def test_names_are_strict(root: Path, name: str) -> None:
    registry = make_registry(root)
    check_load_error(registry, name, "invalid")
    assert len(registry) == 2


def test_unknown_name_is_no_task(root: Path) -> None:
    check_load_error(make_registry(root), "nothing", "unknown_task")
    with pytest.raises(RequestError, match="unknown_task"):
        make_registry(root)["nothing"]
    with pytest.raises(RequestError, match="unknown_task"):
        make_registry(root).unload("nothing")


def test_links_out_of_the_folder_are_rejected(root: Path, tmp_path: Path, cues: dict[str, Cue]) -> None:
    outside = shutil.copytree(root / "topics", tmp_path / "outside")
    (root / "linked").symlink_to(outside)
    shutil.copytree(root / "topics", root / "linked-file")
    (root / "linked-file" / "cue.safetensors").unlink()
    (root / "linked-file" / "cue.safetensors").symlink_to(outside / "cue.safetensors")
    (root / "inside").symlink_to(root / "topics")
    registry = make_registry(root)
    assert [served.name for served in registry.loaded()] == ["inside", "pairs", "topics"]
    assert {name: why.code for name, why in registry.broken().items()} == {
        "linked": "broken_cue",
        "linked-file": "broken_cue",
    }


def test_broken_cues_are_reported_and_others_load(root: Path) -> None:
    for name, damage in {"cut": b"{", "empty": b"", "other": b'{"format": 1}'}.items():
        shutil.copytree(root / "topics", root / name)
        (root / name / "cue.json").write_bytes(damage)
    (root / "notes").mkdir()  # no cue at all
    shutil.copytree(root / "topics", root / "bad name")
    registry = make_registry(root)
    assert len(registry) == 2
    assert set(registry.broken()) == {"cut", "empty", "other", "bad name"}
    with pytest.raises(RequestError, match="broken_cue"):
        registry["cut"]
    shutil.copy(root / "topics" / "cue.json", root / "cut" / "cue.json")
    registry.load("cut")
    assert "cut" not in registry.broken()


def test_any_error_of_a_folder_is_only_its_own(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softcue.serving.engine.registry.load", lambda *_: 1 / 0)
    registry = make_registry(root)
    assert {name: why.code for name, why in registry.broken().items()} == {
        "pairs": "broken_cue",
        "topics": "broken_cue",
    }


def test_cue_of_another_backbone_is_told_apart(root: Path) -> None:
    save_cue(root / "titles", TITLES, model_type="t5")
    registry = make_registry(root)
    assert registry.broken()["titles"].status == 409
    assert "differ" in check_load_error(registry, "titles", "wrong_backbone").message


def test_fingerprint_is_compared_once_per_load(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    comparisons: list[Fingerprint] = []
    plain = Fingerprint.differences

    def counted(self: Fingerprint, other: Fingerprint) -> Any:
        comparisons.append(other)
        return plain(self, other)

    registry = make_registry(root)
    monkeypatch.setattr(Fingerprint, "differences", counted)
    registry.load("topics")
    assert len(comparisons) == 1


def test_replacing_keeps_the_old_one_for_those_who_have_it(root: Path) -> None:
    registry = make_registry(root)
    old = registry["topics"]
    before = old.cue.predict(["hello"])
    save_cue(root / "topics", TOPICS, seed=5)
    assert registry["topics"] is old  # until asked to
    new = registry.load("topics")
    assert new.version != old.version
    assert registry["topics"] is new
    assert old.cue.predict(["hello"]) == before != new.cue.predict(["hello"])


def test_failed_replacement_leaves_the_old_version(root: Path) -> None:
    registry = make_registry(root)
    old = registry["topics"]
    (root / "topics" / "cue.safetensors").write_bytes(b"damaged")
    check_load_error(registry, "topics", "broken_cue")
    assert registry["topics"] is old
    assert registry.broken() == {}


def test_unloading_leaves_the_folder(root: Path) -> None:
    registry = make_registry(root)
    registry.unload("topics")
    with pytest.raises(RequestError, match="unknown_task"):
        registry["topics"]
    assert registry.load("topics").name == "topics"


def test_number_format_is_that_of_most_cues(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert recorded_settings(root) == {"dtype": "float32", "quantization": "none"}
    trained = {"topics": ("bfloat16", "int8"), "pairs": ("float32", "none")}
    backbones = {
        name: SimpleNamespace(backbone=SimpleNamespace(dtype=dtype, quantization=quantization))
        for name, (dtype, quantization) in trained.items()
    }
    with monkeypatch.context() as patch:
        patch.setattr("softcue.serving.engine.registry.read_cue_file", lambda path, _: backbones[path.name])
        both = {"dtype": "float32", "quantization": "none"}
        assert recorded_settings(root) == both
        shutil.copytree(root / "topics", root / "topics-again")
        backbones["topics-again"] = backbones["topics"]
        assert recorded_settings(root) == {"dtype": "auto", "quantization": "int8"}  # one float32 cue of three
        shutil.rmtree(root / "topics-again")
        shutil.rmtree(root / "pairs")
        assert recorded_settings(root) == {"dtype": "auto", "quantization": "int8"}
        backbones["topics"].backbone.quantization = "gptq-4bit"  # the checkpoint says it by itself
        assert recorded_settings(root) == {"dtype": "auto", "quantization": "none"}
    assert recorded_settings(root / "topics") == both  # nothing in it


def test_a_cue_served_in_fewer_digits_than_it_was_trained_in_is_logged(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backbone = Backbone(tiny_model("bert").to(torch.bfloat16), tiny_tokenizer("bert"), "tiny-bert")
    with caplog.at_level("WARNING", "softcue.serving"):
        Registry(root, backbone).load("topics")
    [record] = caplog.records
    assert record.message == "cue in another number format"
    facts = vars(record)["facts"]
    assert (facts["cue"], facts["trained"], facts["served"]) == ("topics", "float32", "bfloat16")
    caplog.clear()
    with caplog.at_level("WARNING", "softcue.serving"):
        make_registry(root).load("topics")
    assert not caplog.records


def test_folders_that_may_not_be_entered_are_left_out(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "lost+found").mkdir()
    plain = Path.is_file

    def is_file(path: Path) -> bool:
        if path.parent.name == "lost+found":
            raise PermissionError(13, "Permission denied")
        return plain(path)

    monkeypatch.setattr(Path, "is_file", is_file)
    assert len(make_registry(root)) == 2


def test_links_that_lead_in_circles_break_their_cue_alone(root: Path) -> None:
    (root / "topics" / "cue.safetensors").unlink()
    (root / "topics" / "cue.safetensors").symlink_to("cue.safetensors")
    registry = make_registry(root)
    assert [served.name for served in registry.loaded()] == ["pairs"]
    assert list(registry.broken()) == ["topics"]


def test_names_that_cannot_be_cues_are_not_remembered(root: Path) -> None:
    registry = make_registry(root)
    for name in ("..", "x" * 5000, "nothing"):
        with pytest.raises(RequestError):
            registry.load(name)
    assert registry.broken() == {}


def test_a_broken_cue_is_forgotten_with_its_folder(root: Path) -> None:
    (root / "topics" / "cue.json").write_text("{")
    registry = make_registry(root)
    assert str(root) not in registry.broken()["topics"].message
    shutil.rmtree(root / "topics")
    check_load_error(registry, "topics", "unknown_task")
    assert registry.broken() == {}


@pytest.mark.parametrize("kind", ["pipe", "link to a pipe", "link to a device"])
def test_a_file_that_is_not_regular_breaks_its_cue_at_once(root: Path, tmp_path: Path, kind: str) -> None:
    file = root / "topics" / "cue.safetensors"
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "link to a pipe":
        os.mkfifo(root / "topics" / "pipe")
        file.symlink_to("pipe")
    else:
        file.symlink_to("/dev/zero")
    registry = make_registry(root)
    assert [served.name for served in registry.loaded()] == ["pairs"]
    assert registry.broken()["topics"].code == "broken_cue"


def test_a_folder_that_does_not_answer_keeps_no_other_change_waiting(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = make_registry(root)
    answers, plain = threading.Event(), registry_module.load

    def slow(path: Path, *more: Any, **options: Any) -> Any:
        assert path.name != "topics" or answers.wait(20)
        return plain(path, *more, **options)

    monkeypatch.setattr(registry_module, "load", slow)
    monkeypatch.setattr(registry_module, "LOAD_SECONDS", 0.05)
    first = registry["topics"]
    pending = registry.start_load("topics")
    check_load_error(registry, "topics", "deadline")
    assert registry["topics"] is first
    monkeypatch.setattr(registry_module, "LOAD_SECONDS", 20)
    assert registry.load("pairs").name == "pairs"
    assert registry.unload("topics") is first
    answers.set()
    assert pending.result(20).name == "topics"
    assert [served.name for served in registry.loaded()] == ["pairs"]  # it was unloaded after that load began
