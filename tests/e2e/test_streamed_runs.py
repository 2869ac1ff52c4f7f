"""A run whose rows stay in files learns what it would learn with all rows in memory, also after an interruption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny

import softcue
from softcue.inputs import packed_rows, token_cache
from softcue.inputs.packed_rows import PackedRows
from softcue.run import Run
from softcue.tasks import splits
from softcue.tasks.stored_examples import StoredExamples
from softcue.training.checkpoints import Checkpoints

SETTINGS = {"training.steps": 6, "training.batch_size": 4, "training.checkpoint_every": 1, "training.evaluate_every": 3}


class Crash(Exception):
    pass


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    rows = [{"text": f"text {number} " * (number % 4 + 1), "label": "ab"[number % 2]} for number in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def train(folder: Path, data: Path, family: str, method: str, **options: Any) -> None:
    options = {"train": str(data), "text": "text", "label": "label", "method": method, **options}
    softcue.train(folder, backbone=tiny(family), overrides=SETTINGS, progress=False, **options)


def stay_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "MIN_STORED_BYTES", 0)
    monkeypatch.setattr(packed_rows, "MIN_PACKED_ROWS", 1)
    monkeypatch.setattr(token_cache, "MIN_CACHED_ROWS", 1)


@pytest.mark.parametrize(("family", "method"), [("bert", "prompt-tuning"), ("t5", "m-idpg-phm"), ("gpt2", "vip")])
def test_a_run_with_rows_in_files_is_the_same_run(
    tmp_path: Path, data: Path, family: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOFTCUE_HOME", str(tmp_path / "home"))
    train(tmp_path / "memory", data, family, method)
    stay_in_files(monkeypatch)
    make_trainer, kinds = Run.make_trainer, []

    def noticed(run: Run, *given: Any) -> Any:
        trainer = make_trainer(run, *given)
        kinds.append((type(run.splits[0].train), type(trainer.rows)))
        return trainer

    monkeypatch.setattr(Run, "make_trainer", noticed)
    train(tmp_path / "files", data, family, method)
    save, count = Checkpoints.save, 0

    def dying(self: Checkpoints, checkpoint: Any) -> None:
        nonlocal count
        save(self, checkpoint)
        count += 1
        if count == 4:
            raise Crash

    monkeypatch.setattr(Checkpoints, "save", dying)
    with pytest.raises(Crash):
        train(tmp_path / "broken", data, family, method)
    monkeypatch.setattr(Checkpoints, "save", save)
    train(tmp_path / "broken", data, family, method, resume=True)
    assert kinds == [(StoredExamples, PackedRows)] * 3
    for folder in ("files", "broken"):
        for file in ("cue.json", "cue.safetensors", "metrics.jsonl"):
            assert (tmp_path / folder / file).read_bytes() == (tmp_path / "memory" / file).read_bytes(), (folder, file)
