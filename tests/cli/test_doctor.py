"""`softcue doctor`: versions, extras, processor, memory, devices, caches and backbones."""

from __future__ import annotations

import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from command import run

from softcue import machine

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No aliases, whose weights are large, no measurement, and caches of our own."""
    monkeypatch.setattr("softcue.backbones.loading.sources.ALIASES", {})
    monkeypatch.setattr("softcue.backbones.loading.autotune.measure_bfloat16_speed", lambda *_: 0.5)
    monkeypatch.setenv("SOFTCUE_HOME", str(tmp_path / "softcue"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub-home"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)


def test_doctor_tells_of_all_parts() -> None:
    printed = run("doctor", "--json").json
    assert list(printed) == ["versions", "processor", "memory", "devices", "extras", "caches", "backbones"]
    assert printed["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert printed["processor"]["usable cores"] >= 1
    assert printed["processor"]["number formats"][0] == "float32"
    assert printed["processor"]["native bfloat16"].startswith("no: multiplies 0.5 times")
    assert printed["memory"]["total GB"] > 0
    assert printed["devices"]["mps"] in ("available", "not available")
    table = run("doctor")
    assert (table.code, table.err) == (0, "")
    assert all(title in table.out for title in printed)


def test_extras_are_those_of_the_project_with_the_line_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    monkeypatch.setattr(machine, "package_version", lambda name: None if name == "datasets" else "1.0")
    listed = {extra.name: extra for extra in machine.list_extras()}
    assert set(listed) <= set(extras)
    assert {"demo", "hub", "plots", "serve", "tensorboard"} <= set(listed)
    assert listed["hub"].packages == {"datasets": None} and not listed["hub"].is_installed
    assert listed["serve"].is_installed and "fastapi" in listed["serve"].packages
    printed = run("doctor", "--json").json["extras"]
    assert printed["hub"]["install"] == "pip install -c constraints.txt -e '.[hub]'"
    assert "install" not in printed["serve"]
    assert "missing datasets: pip install -c constraints.txt -e '.[hub]'" in run("doctor").out


def test_a_checkout_that_is_not_installed_has_no_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> list[str]:
        raise machine.PackageNotFoundError(name)

    monkeypatch.setattr(machine, "requires", missing)
    assert machine.list_extras() == []
    assert run("doctor").code == 0


def test_caches_have_places_and_sizes(tmp_path: Path) -> None:
    assert [cache.megabytes for cache in machine.list_caches()] == [0, 0]  # neither folder is there
    (tmp_path / "softcue" / "tokens").mkdir(parents=True)
    (tmp_path / "softcue" / "tokens" / "part").write_bytes(bytes(2**20))
    (tmp_path / "hub-home" / "hub").mkdir(parents=True)
    (tmp_path / "hub-home" / "hub" / "model").write_bytes(bytes(2**19))
    (tmp_path / "hub-home" / "hub" / "link").symlink_to(tmp_path / "softcue" / "tokens" / "part")
    sizes = {cache.content: round(cache.megabytes, 2) for cache in machine.list_caches()}
    assert sizes == {
        "softcue (SOFTCUE_HOME)": 1.0,
        "softcue: tokens": 1.0,
        "models and data of the hub (HF_HOME)": 0.5,
    }
    assert str(tmp_path / "softcue") in run("doctor", "--json").json["caches"]["softcue (SOFTCUE_HOME)"]["path"]


def test_gpus_are_listed_with_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="Some GPU", major=8, minor=6)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number: (3 * 2**30, 8 * 2**30))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    devices = run("doctor", "--json").json["devices"]
    assert devices["backbone.device=auto takes"] == "cuda"
    assert devices["cuda:1"] == {
        "name": "Some GPU",
        "memory GB": 8.0,
        "free GB": 3.0,
        "compute capability": "8.6",
        "bfloat16": True,
    }
    assert "cuda" not in devices


@pytest.mark.parametrize(
    ("lines", "formats"),
    [
        (["model name : Some CPU", "flags : fpu avx512_bf16 amx_bf16"], ["bfloat16 (AVX-512)", "bfloat16 (AMX)"]),
        (["Features : fp asimd bf16 fphp"], ["bfloat16 (ARM)", "float16 (ARM)"]),
        (["flags : fpu sse"], []),
        ([], []),
    ],
)
def test_number_formats_come_from_the_processors_flags(
    lines: list[str], formats: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_read_lines", lambda path: lines)
    assert machine.number_formats() == formats


def test_the_memory_limit_of_a_container_counts_if_it_is_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"/proc/meminfo": ["MemAvailable:  1048576 kB"], "/sys/fs/cgroup/memory.max": ["536870912"]}
    monkeypatch.setattr(machine, "_read_lines", lambda path: files.get(path, []))
    memory = machine.read_memory()
    assert (memory.available, memory.limit) == (1.0, 0.5)
    files["/sys/fs/cgroup/memory.max"] = ["max"]
    assert machine.read_memory().limit is None
