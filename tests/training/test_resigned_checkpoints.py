"""A checkpoint that another program has written, with digests that fit, is refused if it is not of this run."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
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


def change_state(**values: Any) -> Callable[[dict[str, Any], dict[str, Any]], object]:
    return lambda progress, _: progress.update(values)


def change_tensor(part: str, edit: Callable[[Any], Any]) -> Callable[[dict[str, Any], dict[str, Any]], object]:
    def change(_: dict[str, Any], tensors: dict[str, Any]) -> None:
        name = next(name for name in sorted(tensors) if name.startswith(part) and tensors[name].dim() > 1)
        tensors[name] = edit(tensors[name])

    return change


CHANGES = {
    "a step beyond the last": change_state(step=10**9),
    "a step before the first": change_state(step=-1),
    "a step that is a text": change_state(step="2"),
    "a best step that is still to come": change_state(best_step=10**6),
    "a history that is no list": change_state(history=7),
    "a counter beyond all evaluations": change_state(num_worse=10**6),
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
    facts, tensors = json.loads((checkpoint / "state.json").read_text()), load_file(checkpoint / "state.safetensors")
    tensors = {name: value.clone() for name, value in tensors.items()}
    change(facts["progress"], tensors)
    (checkpoint / "state.json").write_text(json.dumps(facts))
    save_file({name: value.contiguous() for name, value in tensors.items()}, checkpoint / "state.safetensors")
    digests = {
        name: hashlib.sha256((checkpoint / name).read_bytes()).hexdigest()
        for name in json.loads((checkpoint / "manifest.json").read_text())
    }
    (checkpoint / "manifest.json").write_text(json.dumps(digests))
    with pytest.raises(RunError, match="resume"):
        train(folder, resume=True)
