from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from softcue.errors import RunError
from softcue.files import is_complete_folder, write_folder_atomically
from softcue.training.checkpoints import Checkpoint, Checkpoints, TrainingState


def checkpoint(step: int) -> Checkpoint[TrainingState]:
    draws = torch.Generator().manual_seed(step)
    progress = TrainingState(
        step,
        best_score=100 / 3,
        best_step=step - 1,
        num_worse=1,
        history=[{"step": step, "score": 0.1 + 0.2}],
    )
    prompt = torch.randn(4, 8, generator=draws)
    optimizer = {
        "method.prompt/exp_avg": torch.randn(4, 8, generator=draws),
        "method.prompt/step": torch.tensor(7),
    }
    tensors = {"model": {"method.prompt": prompt}, "best": {"method.prompt": prompt + 1}, "optimizer": optimizer}
    return Checkpoint(progress, tensors)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run" / "checkpoints"


@pytest.fixture
def checkpoints(folder: Path) -> Checkpoints:
    return Checkpoints(folder, "digest")


def test_tensors_and_progress_come_back_exactly(checkpoints: Checkpoints) -> None:
    saved = checkpoint(5)
    checkpoints.save(saved)
    result, skipped = checkpoints.newest()
    assert result is not None
    assert skipped == []
    assert result.state == saved.state
    for part in ("model", "best", "optimizer"):
        before, after = saved.tensors[part], result.tensors[part]
        assert before.keys() == after.keys()
        for name, value in before.items():
            assert after[name].dtype == value.dtype
            assert torch.equal(after[name], value)


def test_best_numbers_may_be_the_current_ones(checkpoints: Checkpoints) -> None:
    current = {"method.prompt": torch.randn(4, 8)}
    checkpoints.save(Checkpoint(TrainingState(1), {"model": current, "best": dict(current), "optimizer": {}}))
    result, _ = checkpoints.newest()
    assert result is not None
    assert torch.equal(result.tensors["best"]["method.prompt"], current["method.prompt"])


def test_nothing_is_pickled(checkpoints: Checkpoints, folder: Path) -> None:
    checkpoints.save(checkpoint(1))
    assert names(folder / "step-00000001") == ["manifest.json", "state.json", "state.safetensors"]


def test_without_a_folder_there_is_no_checkpoint(checkpoints: Checkpoints) -> None:
    assert checkpoints.newest() == (None, [])
    assert not checkpoints.exist()
    checkpoints.remove()


def test_only_the_newest_two_are_kept(checkpoints: Checkpoints, folder: Path) -> None:
    for step in (1, 2, 9, 10, 100):
        checkpoints.save(checkpoint(step))
    assert names(folder) == ["step-00000010", "step-00000100"]
    result, _ = checkpoints.newest()
    assert result is not None
    assert result.state.step == 100


def test_remove_leaves_nothing(checkpoints: Checkpoints, folder: Path) -> None:
    checkpoints.save(checkpoint(1))
    assert checkpoints.exist()
    checkpoints.remove()
    assert not checkpoints.exist()
    assert not folder.exists()


def _without_progress(folder: Path) -> None:
    state = json.loads((folder / "state.json").read_text())
    del state["progress"]
    data = (folder / "state.safetensors").read_bytes()
    write_folder_atomically(folder, {"state.safetensors": data, "state.json": json.dumps(state).encode()})


def _with_an_unknown_field(folder: Path) -> None:
    state = json.loads((folder / "state.json").read_text())
    state["progress"]["mood"] = "good"
    data = (folder / "state.safetensors").read_bytes()
    write_folder_atomically(folder, {"state.safetensors": data, "state.json": json.dumps(state).encode()})


def _without_tensors(folder: Path) -> None:
    write_folder_atomically(folder, {"state.json": (folder / "state.json").read_bytes()})


def _as_a_file(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    folder.write_text("not a folder")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated tensors": lambda folder: os.truncate(folder / "state.safetensors", 100),
    "emptied state": lambda folder: os.truncate(folder / "state.json", 0),
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
    "no tensors": lambda folder: (folder / "state.safetensors").unlink(),
    "state without progress": _without_progress,
    "state with an unknown field": _with_an_unknown_field,
    "manifest without tensors": _without_tensors,
    "file of that name": _as_a_file,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_newest_is_skipped_for_the_one_before(
    checkpoints: Checkpoints, folder: Path, damage: Callable[[Path], object]
) -> None:
    checkpoints.save(checkpoint(1))
    checkpoints.save(checkpoint(2))
    damage(folder / "step-00000002")
    result, skipped = checkpoints.newest()
    assert result is not None
    assert result.state.step == 1
    assert skipped == [folder / "step-00000002"]
    # The run goes on and comes by the same step again.
    checkpoints.save(checkpoint(2))
    assert checkpoints.newest()[1] == []


def test_all_damaged_gives_none_and_names_them(checkpoints: Checkpoints, folder: Path) -> None:
    for step in (1, 2):
        checkpoints.save(checkpoint(step))
        os.truncate(folder / f"step-{step:08d}" / "state.safetensors", 5)
    result, skipped = checkpoints.newest()
    assert result is None
    assert skipped == [folder / "step-00000002", folder / "step-00000001"]


def test_new_checkpoint_is_not_dropped_for_damaged_ones_of_later_steps(checkpoints: Checkpoints, folder: Path) -> None:
    checkpoints.save(checkpoint(1))
    for step in (8, 9):
        (folder / f"step-{step:08d}").mkdir()
    for step in (2, 3):
        checkpoints.save(checkpoint(step))
        result, _ = checkpoints.newest()
        assert result is not None
        assert result.state.step == step


def test_leftover_of_a_killed_write_is_skipped(checkpoints: Checkpoints, folder: Path) -> None:
    checkpoints.save(checkpoint(1))
    write_folder_atomically(folder / "other", {"state.json": b"{}"})
    (folder / "other").rename(folder / "step-00000002.partial")  # killed just before its rename
    assert is_complete_folder(folder / "step-00000002.partial")
    result, skipped = checkpoints.newest()
    assert result is not None
    assert result.state.step == 1
    assert skipped == [folder / "step-00000002.partial"]
    checkpoints.save(checkpoint(2))
    assert names(folder) == ["step-00000001", "step-00000002"]


def test_leftover_alone_counts_as_an_unfinished_run(checkpoints: Checkpoints, folder: Path) -> None:
    (folder / "step-00000001.partial").mkdir(parents=True)
    assert checkpoints.exist()
    assert checkpoints.newest() == (None, [folder / "step-00000001.partial"])


def test_other_files_in_the_folder_are_left_alone(checkpoints: Checkpoints, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "step-notes").write_text("mine")
    for step in (1, 2, 3):
        checkpoints.save(checkpoint(step))
    assert (folder / "step-notes").read_text() == "mine"


def test_checkpoint_of_another_run_is_refused(checkpoints: Checkpoints, folder: Path) -> None:
    checkpoints.save(checkpoint(1))
    with pytest.raises(RunError, match="same run") as caught:
        Checkpoints(folder, "another digest").newest()
    assert "step-00000001" in str(caught.value)
    assert "`overwrite=True`" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_whole_checkpoint_whose_json_is_nested_without_end_is_passed_over(
    checkpoints: Checkpoints, folder: Path
) -> None:
    checkpoints.save(checkpoint(1))
    files = {"state.safetensors": (folder / "step-00000001" / "state.safetensors").read_bytes()}
    write_folder_atomically(folder / "step-00000001", {**files, "state.json": b'{"run": ' + b"[" * 100_000})
    assert checkpoints.newest() == (None, [folder / "step-00000001"])
