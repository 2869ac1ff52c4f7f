"""A checkpoint that another program has written, with digests that fit, is refused if it is not of this run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from resigned_checkpoint import change_state, change_tensor, rewrite
from short_runs import train

from softcue.errors import RunError
from softcue.training import checkpoints


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that stopped at its second checkpoint."""
    folder = tmp_path_factory.mktemp("runs") / "cue"
    plain, num_calls = checkpoints.write_folder_atomically, 0

    def write(*args: Any) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 2:
            raise KeyboardInterrupt
        plain(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "write_folder_atomically", write)
        with pytest.raises(KeyboardInterrupt):
            train(folder)
    return folder


CHANGES = {
    "a step beyond the last": change_state(step=10**9),
    "a step before the first": change_state(step=-1),
    "a step that is a text": change_state(step="2"),
    "a best step that is still to come": change_state(best_step=10**6),
    "a history that is no list": change_state(history=7),
    "a counter beyond all evaluations": change_state(num_worse=10**6),
    "more collapsed evaluations than all": change_state(num_collapsed=10**6),
    "more steps skipped than taken": change_state(num_skipped=10**6),
    "a model of another shape": change_tensor("model/", lambda value: value[:1]),
    "a best model of another shape": change_tensor("best/", lambda value: torch.cat([value, value])),
    "an optimizer of another size": change_tensor("optimizer/", lambda value: torch.cat([value, value])),
    "a model without a tensor": lambda _, tensors: tensors.pop(min(name for name in tensors if "model/" in name)),
    "an optimizer of another model": lambda _, tensors: tensors.update({"optimizer/x|exp_avg": torch.zeros(2)}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_checkpoint_that_does_not_fit_is_refused(stopped: Path, tmp_path: Path, change: Any) -> None:
    folder = shutil.copytree(stopped, tmp_path / "cue")
    [checkpoint] = (folder / "checkpoints").glob("step-*")
    rewrite(checkpoint, change)
    with pytest.raises(RunError, match="resume"):
        train(folder, resume=True)
