"""The lock of an output folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from softcue.errors import RunError
from softcue.files import lock_folder


def test_a_second_run_is_kept_out_until_the_first_ends(tmp_path: Path) -> None:
    folder = tmp_path / "cue"
    with lock_folder(folder):
        with pytest.raises(RunError, match="no other run is writing to"), lock_folder(folder):
            pass
        with lock_folder(tmp_path / "other"):
            pass
    with lock_folder(folder):
        pass
    assert list(tmp_path.iterdir()) == []  # neither folders nor locks are left


def test_the_lock_ends_with_an_error_inside(tmp_path: Path) -> None:
    with pytest.raises(KeyError), lock_folder(tmp_path / "cue"):
        raise KeyError
    with lock_folder(tmp_path / "cue"):
        pass


def test_the_lock_ends_with_a_killed_process(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from softcue.files import lock_folder\n"
        "with lock_folder(Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path / "cue")], check=False)
    assert killed.returncode == -9
    assert (tmp_path / ".cue.lock").exists()
    with lock_folder(tmp_path / "cue"):
        pass


def test_a_file_in_place_of_the_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "cue").write_text("x")
    with pytest.raises(RunError, match="a file has that name"), lock_folder(tmp_path / "cue"):
        pass
