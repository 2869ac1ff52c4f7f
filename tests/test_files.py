from __future__ import annotations

import json
import os
import random
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from softcue.files import (
    is_complete_folder,
    serialize_tensors,
    sha256,
    write_atomically,
    write_folder_atomically,
    write_json,
)

FILES = {"state.json": b'{"step": 3}', "state.safetensors": bytes(range(256)) * 40}


def test_write_replaces_the_whole_content(tmp_path: Path) -> None:
    path = tmp_path / "note.txt"
    write_atomically(path, b"a long first version")
    write_atomically(path, b"short")
    assert path.read_bytes() == b"short"
    assert [file.name for file in tmp_path.iterdir()] == ["note.txt"]


def test_failed_write_keeps_the_old_content_and_no_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "note.txt"
    write_atomically(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["note.txt"]


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_files_get_the_mode_of_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "note.txt", b"text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "note.txt").stat().st_mode) == 0o666 & ~umask


def test_sha256_of_a_file_of_several_chunks(tmp_path: Path) -> None:
    import hashlib

    data = random.Random(0).randbytes((1 << 20) + 17)
    (tmp_path / "big").write_bytes(data)
    assert sha256(tmp_path / "big") == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"scores": [1.0, float("-inf")]}])
def test_nan_and_infinity_are_errors_and_nothing_is_written(tmp_path: Path, value: object) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "scores.json", value)
    assert not list(tmp_path.iterdir())


def test_json_keeps_key_order_and_unicode(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"z": "Größe", "a": 0.1})
    text = (tmp_path / "a.json").read_text("utf-8")
    assert "Größe" in text
    assert list(json.loads(text)) == ["z", "a"]


def test_serialized_tensors_do_not_depend_on_the_order_of_the_dictionary() -> None:
    tensors = {"b": torch.randn(3, 2), "a": torch.arange(4), "c": torch.ones((), dtype=torch.bfloat16)}
    assert serialize_tensors(tensors) == serialize_tensors(dict(reversed(tensors.items())))


def test_tensors_that_share_memory_or_are_transposed_are_all_written() -> None:
    from safetensors.torch import load

    whole = torch.arange(12.0).reshape(3, 4)
    loaded = load(serialize_tensors({"one": whole, "same": whole, "part": whole[1:], "across": whole.T}))
    assert torch.equal(loaded["same"], whole)
    assert torch.equal(loaded["part"], whole[1:])
    assert torch.equal(loaded["across"], whole.T)


def test_written_folder_is_complete(tmp_path: Path) -> None:
    folder = tmp_path / "step"
    write_folder_atomically(folder, FILES)
    assert is_complete_folder(folder)
    assert {file.name for file in folder.iterdir()} == {*FILES, "manifest.json"}
    assert [file.name for file in tmp_path.iterdir()] == ["step"]


def test_folder_is_replaced_with_all_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "step"
    write_folder_atomically(folder, {"old": b"1", "both": b"2"})
    (tmp_path / "step.partial").mkdir()  # left by a killed writer
    (tmp_path / "step.partial" / "junk").write_bytes(b"x")
    write_folder_atomically(folder, {"both": b"3"})
    assert {file.name for file in folder.iterdir()} == {"both", "manifest.json"}
    assert (folder / "both").read_bytes() == b"3"
    assert is_complete_folder(folder)


def _truncate(folder: Path) -> None:
    file = folder / "state.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def _change_a_byte(folder: Path) -> None:
    file = folder / "state.safetensors"
    data = bytearray(file.read_bytes())
    data[1000] ^= 1
    file.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated file": _truncate,
    "changed byte": _change_a_byte,
    "missing file": lambda folder: (folder / "state.json").unlink(),
    "folder instead of file": lambda folder: (
        (folder / "state.json").unlink(),
        (folder / "state.json").mkdir(),
    ),
    "missing manifest": lambda folder: (folder / "manifest.json").unlink(),
    "truncated manifest": lambda folder: os.truncate(folder / "manifest.json", 30),
    "empty manifest": lambda folder: os.truncate(folder / "manifest.json", 0),
    "manifest of nothing": lambda folder: (folder / "manifest.json").write_text("{}"),
    "manifest of another type": lambda folder: (folder / "manifest.json").write_text('["state.json"]'),
    "manifest of binary": lambda folder: (folder / "manifest.json").write_bytes(b"\xff\xfe\x00"),
    "manifest of deep nesting": lambda folder: (folder / "manifest.json").write_text("[" * 100_000),
    "manifest with an impossible name": lambda folder: (folder / "manifest.json").write_text('{"\\u0000": "1"}'),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_folder_is_not_complete(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    write_folder_atomically(tmp_path / "step", FILES)
    damage(tmp_path / "step")
    assert not is_complete_folder(tmp_path / "step")


def test_missing_folder_and_file_are_not_complete_folders(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert not is_complete_folder(tmp_path / "none")
    assert not is_complete_folder(tmp_path / "file")


WRITER = """
import sys
from pathlib import Path
from softcue.files import WRITE
round = 0
while True:
    round += 1
    same = bytes([round % 251]) * 300_000
    WRITE(Path(sys.argv[1]) / f"step-{round % 3}", {"a": same, "b": same, "c": same[:1]})
    if round == 1:
        print("ready", flush=True)
""".replace("WRITE", write_folder_atomically.__name__)


def test_killed_writer_never_leaves_a_partial_folder_that_counts_as_complete(tmp_path: Path) -> None:
    waits = random.Random(5)
    num_complete = 0
    for _ in range(6):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            time.sleep(waits.uniform(0.0, 0.1))
            writer.send_signal(signal.SIGKILL)
        for folder in tmp_path.iterdir():
            if is_complete_folder(folder):
                num_complete += 1
                contents = {(folder / name).read_bytes()[:1] for name in "abc"}
                assert len(contents) == 1
                assert [(folder / name).stat().st_size for name in "abc"] == [300_000, 300_000, 1]
    assert num_complete >= 6
