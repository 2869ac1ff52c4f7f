"""`softcue export` as a command: its help names the formats, and an address of the hub is a cue."""

from __future__ import annotations

import re
from pathlib import Path

from command import check_error, run
from serving_cues import save_cue

from softcue.interop import FORMATS


def test_the_help_names_every_format() -> None:
    [line] = re.findall(r"The format: ([^.]*)\.", " ".join(run("export", "--help").out.split()))
    assert set(re.split(", | or ", line)) == set(FORMATS)


def test_an_unknown_format_and_an_option_of_another_are_errors(tmp_path: Path, model_folders: dict[str, Path]) -> None:
    save_cue(tmp_path / "cue")
    words = ["export", tmp_path / "cue", tmp_path / "new", "--backbone", model_folders["bert"]]
    check_error(run(*words, "--to", "onx"), "--to", "did you mean 'onnx'?")
    check_error(run(*words, "--to", "peft", "--int8"), "--int8", "it is for onnx, openvino")
    assert not (tmp_path / "new").exists()


def test_a_cue_of_the_hub_is_looked_up(tmp_path: Path) -> None:
    check_error(run("export", "hub:me", tmp_path / "new", "--to", "onnx"), "OWNER/NAME of a repository on the hub")
