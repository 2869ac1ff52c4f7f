"""A disk that is full, over its quota or read-only stops a run with one line, and the run goes on where it was."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from short_runs import train

from softcue.errors import ConfigurationError, RunError
from softcue.training import checkpoints


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_full_disk_is_one_error_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    plain, num_calls = checkpoints.write_folder_atomically, 0

    def write(*args: Any) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 2:
            raise OSError(number, os.strerror(number))
        plain(*args)

    monkeypatch.setattr(checkpoints, "write_folder_atomically", write)
    with pytest.raises(RunError, match=os.strerror(number)) as caught:
        train(tmp_path / "cue")
    assert "\n" not in str(caught.value)
    assert "`resume=True`" in str(caught.value)
    resumed = train(tmp_path / "cue", resume=True)
    whole = train(tmp_path / "whole")
    for name, value in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], value)


def test_folder_that_is_removed_while_training_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = checkpoints.write_folder_atomically

    def write(*args: Any) -> None:
        plain(*args)
        shutil.rmtree(tmp_path / "cue")

    monkeypatch.setattr(checkpoints, "write_folder_atomically", write)
    with pytest.raises(RunError, match="output_dir"):
        train(tmp_path / "cue")


def test_null_character_in_the_output_folder_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="output_dir"):
        train(f"{tmp_path}/a\0b")


def test_absurd_learning_rate_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"training\.learning_rate"):
        train(tmp_path / "cue", overrides={"training.learning_rate": 1e38})
