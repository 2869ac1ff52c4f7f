"""Cues that several replicas share: what one loads or unloads, all do, also those that start later."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from command import check_error, run
from serving_cues import TONE, TOPICS, save_cue
from tiny import tiny

from softcue.errors import ConfigurationError
from softcue.serving.engine.registry import Registry
from softcue.serving.errors import RequestError
from softcue.serving.settings import ReplicaSettings
from softcue.serving.shared_cues import CHANGES, SharedCues

pytest.importorskip("fsspec")


class OneReplica:
    """The part of a replica that knows cues."""

    def __init__(self, place: str) -> None:
        self.shared = SharedCues(place)
        self.registry = Registry(self.shared.folder, tiny("bert"))
        self.registry.load_all()
        self.refresh()

    def refresh(self) -> None:
        self.shared.apply(self.registry)

    def put(self, name: str) -> None:
        asyncio.run(self.shared.prepare(name))
        self.registry.load(name)
        asyncio.run(self.shared.publish(name, is_loaded=True))

    def delete(self, name: str) -> None:
        self.registry.unload(name)
        asyncio.run(self.shared.publish(name, is_loaded=False))

    @property
    def versions(self) -> dict[str, str]:
        return {loaded_cue.name: loaded_cue.version for loaded_cue in self.registry.loaded()}


@pytest.fixture(params=["folder", "url"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    cues = tmp_path / "cues"
    save_cue(cues / "topics", TOPICS)
    save_cue(cues / "tone", TONE)
    return str(cues) if request.param == "folder" else f"file://{cues}"


def folder_of(place: str) -> Path:
    return Path(place.removeprefix("file://"))


def test_changes_reach_every_replica_and_those_that_start_later(place: str) -> None:
    first, second = OneReplica(place), OneReplica(place)
    assert set(first.versions) == {"topics", "tone"}
    save_cue(folder_of(place) / "more", TONE, seed=1)
    first.put("more")
    assert "more" not in second.versions
    second.refresh()
    assert second.versions == first.versions and "more" in second.versions
    second.delete("tone")
    first.refresh()
    assert set(first.versions) == set(second.versions) == {"topics", "more"}
    assert OneReplica(place).versions == first.versions
    for replica in (first, second):
        replica.shared.close()
    assert folder_of(place).is_dir()


def test_a_replaced_cue_is_replaced_everywhere(place: str) -> None:
    first, second = OneReplica(place), OneReplica(place)
    before = first.versions["tone"]
    save_cue(folder_of(place) / "tone", TONE, seed=7)
    first.put("tone")
    second.refresh()
    assert before != first.versions["tone"] == second.versions["tone"]


def test_changes_are_made_once(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = OneReplica(place)
    replica.put("tone")
    monkeypatch.setattr(Registry, "load", lambda *_: pytest.fail("loaded again"))
    replica.refresh()


def test_a_cue_that_cannot_be_loaded_stays_as_it_was_and_the_others_follow(place: str) -> None:
    first, second = OneReplica(place), OneReplica(place)
    before = second.versions
    first.put("tone")
    first.put("topics")
    for file in ("cue.json", "cue.safetensors"):
        (folder_of(place) / "tone" / file).unlink()
    second.refresh()
    assert second.versions == before


def test_a_damaged_file_of_changes_changes_nothing(place: str) -> None:
    replica = OneReplica(place)
    before = replica.versions
    (folder_of(place) / CHANGES).write_text('{"tone": [1]}')
    replica.refresh()
    assert replica.versions == before


def test_a_place_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    save_cue(tmp_path / "cues" / "tone", TONE)
    replica = OneReplica(str(tmp_path / "cues"))
    shutil.rmtree(tmp_path / "cues")
    with pytest.raises(RequestError, match="the others cannot be told"):
        asyncio.run(replica.shared.publish("tone", is_loaded=True))


def test_names_from_a_url_stay_inside_the_folder(tmp_path: Path) -> None:
    save_cue(tmp_path / "cues" / "tone", TONE)
    shared = SharedCues(f"file://{tmp_path}/cues")
    (tmp_path / "cues" / CHANGES).write_text(json.dumps({"../tone": {"number": 1, "is_loaded": True}}))
    before = sorted(path.name for path in shared.folder.parent.iterdir())
    shared.apply(Registry(shared.folder, tiny("bert")))
    assert sorted(path.name for path in shared.folder.parent.iterdir()) == before


@pytest.mark.parametrize("place", ["nothing://bucket/cues", "file:///no/such/place"])
def test_a_place_that_cannot_be_read_is_one_line(place: str) -> None:
    with pytest.raises(ConfigurationError, match=r"cues folder: got '.*fsspec URL"):
        SharedCues(place)


def test_replicas_between_two_numbers() -> None:
    with pytest.raises(ConfigurationError, match=r"max_replicas: got 2; expected at least 3"):
        ReplicaSettings(number=3, most=2)


@pytest.mark.parametrize(
    "option", [("--max-replicas", 3), ("--replica-gpus", 0.5), ("--replica-cpus", 2), ("--target-requests", 4)]
)
def test_options_of_replicas_need_ray(folder: Path, option: tuple[str, object]) -> None:
    check_error(run("serve", "--backbone", "minilm", folder, *option), option[0], "--engine ray")


def test_a_url_needs_ray() -> None:
    check_error(run("serve", "--backbone", "minilm", "s3://bucket/cues"), "a URL needs --engine ray")
