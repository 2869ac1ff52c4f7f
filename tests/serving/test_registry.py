from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from serving_cues import TITLES, TOPICS, save_cue
from tiny import tiny

from softcue.cue.cue import Cue
from softcue.errors import ConfigurationError
from softcue.serving.engine.registry import Registry, recorded_dtype
from softcue.serving.errors import RequestError


@pytest.fixture
def root(cues: dict[str, Cue], tmp_path: Path) -> Path:
    for name in ("topics", "pairs"):
        path = cues[name].path
        assert path is not None
        shutil.copytree(path, tmp_path / "cues" / name)
    return tmp_path / "cues"


def registry(root: Path) -> Registry:
    found = Registry(root, tiny("bert"))
    found.load_all()
    return found


def refusal(found: Registry, name: str, code: str) -> RequestError:
    with pytest.raises(RequestError) as caught:
        found.load(name)
    assert caught.value.code == code
    return caught.value


def test_folder_is_loaded_by_name_with_versions(root: Path, cues: dict[str, Cue]) -> None:
    found = registry(root)
    assert [served.name for served in found.loaded()] == ["pairs", "topics"]
    assert found["topics"].version == cues["topics"].record.record_sha256[:12]
    assert [served.name for served in found.of_task("topics")] == ["topics"]
    assert found["pairs"].as_dict()["text"] == ["first", "second"]


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="a folder with a folder per cue"):
        Registry(tmp_path / "none", tiny("bert"))


@pytest.mark.parametrize(
    "name", ["..", ".", "", "a/b", "../topics", "/etc", "-x", ".hidden", "a" * 65, "topics\n", "é"]
)
def test_names_are_strict(root: Path, name: str) -> None:
    found = registry(root)
    refusal(found, name, "invalid")
    assert len(found) == 2


def test_unknown_name_is_no_task(root: Path) -> None:
    refusal(registry(root), "nothing", "unknown_task")
    with pytest.raises(RequestError, match="unknown_task"):
        registry(root)["nothing"]
    with pytest.raises(RequestError, match="unknown_task"):
        registry(root).unload("nothing")


def test_links_out_of_the_folder_are_refused(root: Path, tmp_path: Path, cues: dict[str, Cue]) -> None:
    outside = shutil.copytree(root / "topics", tmp_path / "outside")
    (root / "linked").symlink_to(outside)
    shutil.copytree(root / "topics", root / "linked-file")
    (root / "linked-file" / "cue.safetensors").unlink()
    (root / "linked-file" / "cue.safetensors").symlink_to(outside / "cue.safetensors")
    (root / "inside").symlink_to(root / "topics")
    found = registry(root)
    assert [served.name for served in found.loaded()] == ["inside", "pairs", "topics"]
    assert {name: why.code for name, why in found.broken().items()} == {
        "linked": "broken_cue",
        "linked-file": "broken_cue",
    }


def test_broken_cues_are_reported_and_others_load(root: Path) -> None:
    for name, damage in {"cut": b"{", "empty": b"", "other": b'{"format": 1}'}.items():
        shutil.copytree(root / "topics", root / name)
        (root / name / "cue.json").write_bytes(damage)
    (root / "notes").mkdir()  # no cue at all
    shutil.copytree(root / "topics", root / "bad name")
    found = registry(root)
    assert len(found) == 2
    assert set(found.broken()) == {"cut", "empty", "other", "bad name"}
    with pytest.raises(RequestError, match="broken_cue"):
        found["cut"]
    shutil.copy(root / "topics" / "cue.json", root / "cut" / "cue.json")
    found.load("cut")
    assert "cut" not in found.broken()


def test_any_error_of_a_folder_is_only_its_own(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softcue.serving.engine.registry.load", lambda *_: 1 / 0)
    found = registry(root)
    assert {name: why.code for name, why in found.broken().items()} == {"pairs": "broken_cue", "topics": "broken_cue"}


def test_cue_of_another_backbone_is_told_apart(root: Path) -> None:
    save_cue(root / "titles", TITLES, model_type="t5")
    found = registry(root)
    assert found.broken()["titles"].status == 409
    assert "differ" in refusal(found, "titles", "wrong_backbone").message


def test_replacing_keeps_the_old_one_for_those_who_have_it(root: Path) -> None:
    found = registry(root)
    old = found["topics"]
    before = old.cue.predict(["hello"])
    save_cue(root / "topics", TOPICS, seed=5)
    assert found["topics"] is old  # until asked to
    new = found.load("topics")
    assert new.version != old.version
    assert found["topics"] is new
    assert old.cue.predict(["hello"]) == before != new.cue.predict(["hello"])


def test_failed_replacement_leaves_the_old_version(root: Path) -> None:
    found = registry(root)
    old = found["topics"]
    (root / "topics" / "cue.safetensors").write_bytes(b"damaged")
    refusal(found, "topics", "broken_cue")
    assert found["topics"] is old
    assert found.broken() == {}


def test_unloading_leaves_the_folder(root: Path) -> None:
    found = registry(root)
    found.unload("topics")
    with pytest.raises(RequestError, match="unknown_task"):
        found["topics"]
    assert found.load("topics").name == "topics"


def test_number_format_is_the_cues_own(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert recorded_dtype(root) == "float32"
    found = {"topics": "bfloat16", "pairs": "float32"}
    backbones = {name: SimpleNamespace(backbone=SimpleNamespace(dtype=dtype)) for name, dtype in found.items()}
    with monkeypatch.context() as patch:
        patch.setattr("softcue.serving.engine.registry.read_cue_file", lambda path: backbones[path.name])
        assert recorded_dtype(root) == "float32"  # both
        shutil.rmtree(root / "pairs")
        assert recorded_dtype(root) == "auto"
    assert recorded_dtype(root / "topics") == "float32"  # nothing in it


def test_folders_that_may_not_be_entered_are_left_out(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "lost+found").mkdir()
    plain = Path.is_file

    def is_file(path: Path) -> bool:
        if path.parent.name == "lost+found":
            raise PermissionError(13, "Permission denied")
        return plain(path)

    monkeypatch.setattr(Path, "is_file", is_file)
    assert len(registry(root)) == 2


def test_links_that_lead_in_circles_break_their_cue_alone(root: Path) -> None:
    (root / "topics" / "cue.safetensors").unlink()
    (root / "topics" / "cue.safetensors").symlink_to("cue.safetensors")
    found = registry(root)
    assert [served.name for served in found.loaded()] == ["pairs"]
    assert list(found.broken()) == ["topics"]


def test_names_that_cannot_be_cues_are_not_remembered(root: Path) -> None:
    found = registry(root)
    for name in ("..", "x" * 5000, "nothing"):
        with pytest.raises(RequestError):
            found.load(name)
    assert found.broken() == {}


def test_a_broken_cue_is_forgotten_with_its_folder(root: Path) -> None:
    (root / "topics" / "cue.json").write_text("{")
    found = registry(root)
    assert str(root) not in found.broken()["topics"].message
    shutil.rmtree(root / "topics")
    refusal(found, "topics", "unknown_task")
    assert found.broken() == {}
