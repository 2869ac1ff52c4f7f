"""A choice between methods that is killed goes on, and ends with the same winner and the very same cue."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from command import TORCHRUN
from killed_commands import train_whole_and_killed

ROWS = [
    {"text": f"{word} number {number}", "label": label}
    for label, words in {"billing": ["invoice", "refund"], "shipping": ["parcel", "box"]}.items()
    for word in words
    for number in range(10)
]
SETTINGS = [
    "training.steps=40",
    "training.evaluate_every=5",
    "training.batch_size=4",
    "selection.methods=linear-probe,prompt-tuning,vip-c,compacter",
    "selection.folds=2",
]


def command(folder: Path, model: Path, data: Path, *more: str) -> list[str]:
    words = ["-m", "softcue", "train", "--method", "auto", "--backbone", str(model), "--train", str(data)]
    return [*words, "--text", "text", "--label", "label", "--output-dir", str(folder), "--json", *more, *SETTINGS]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.mark.processes
def test_kill_9_at_any_point_then_resume_gives_a_bit_identical_cue(
    tmp_path: Path, data: Path, model_folders: dict[str, Path]
) -> None:
    whole, broken = train_whole_and_killed(
        tmp_path, lambda folder, *more: command(folder, model_folders["bert"], data, *more), (7, 45, 80, 120)
    )
    for name in ("cue.json", "cue.safetensors"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes()
    records = [json.loads((folder / "metrics.json").read_text())["selection"] for folder in (whole, broken)]
    for key in ("winner", "run", "num_rungs"):
        assert records[0][key] == records[1][key]
    scores = [[(entry["method"], entry["rungs"]) for entry in record["tried"]] for record in records]
    assert scores[0] == scores[1]
    assert sorted(os.listdir(broken)) == sorted(os.listdir(whole))


@pytest.mark.processes
def test_several_processes_are_refused(tmp_path: Path, data: Path, model_folders: dict[str, Path]) -> None:
    words = [*TORCHRUN, *command(tmp_path / "cue", model_folders["bert"], data)]
    result = subprocess.run(words, capture_output=True, text=True, timeout=240)
    assert result.returncode != 0
    assert "method.name: got 'auto'; expected one process" in result.stderr
    assert not (tmp_path / "cue").exists()
