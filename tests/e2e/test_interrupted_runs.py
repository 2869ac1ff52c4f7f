"""Nothing is lost when a run dies, and a resumed run ends in the very same cue."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import TORCHRUN
from killed_commands import train_whole_and_killed
from tiny import tiny

import softcue
from softcue.errors import RunError
from softcue.training.checkpoints import Checkpoints

ROWS = [
    {"text": text, "label": label}
    for text, label in [
        ("my invoice is wrong", "billing"),
        ("please refund me", "billing"),
        ("charged twice again", "billing"),
        ("the parcel is late", "shipping"),
        ("where is the box", "shipping"),
        ("wrong address on it", "shipping"),
        ("two invoices for one month", "billing"),
        ("tracking says lost", "shipping"),
    ]
]
OVERRIDES = {"training.epochs": 3, "training.batch_size": 4, "training.checkpoint_every": 1, "training.patience": 0}
OVERRIDES |= {"training.label_share": 0}  # two steps an epoch


def run(folder: Path, **options: object) -> softcue.Cue:
    return softcue.train(
        folder,
        train=ROWS,
        validation=ROWS,
        text="text",
        label="label",
        backbone=tiny("bert"),
        overrides=OVERRIDES,
        progress=False,
        **options,
    )  # type: ignore[arg-type]


def cue_bytes(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "cue.json").read_bytes(), (folder / "cue.safetensors").read_bytes()


class Crash(Exception):
    pass


@pytest.mark.parametrize("dies_at", range(1, 7))
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_run_that_dies_around_any_checkpoint_resumes_to_the_same_cue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: int, moment: str
) -> None:
    run(tmp_path / "whole")
    save, count = Checkpoints.save, 0

    def dying(self: Checkpoints, checkpoint: object) -> None:
        nonlocal count
        count += 1
        if moment == "after":
            save(self, checkpoint)  # type: ignore[arg-type]
        if count == dies_at:
            raise Crash
        if moment == "before":
            save(self, checkpoint)  # type: ignore[arg-type]

    monkeypatch.setattr(Checkpoints, "save", dying)
    with pytest.raises(Crash):
        run(tmp_path / "broken")
    monkeypatch.setattr(Checkpoints, "save", save)
    run(tmp_path / "broken", resume=True)
    assert cue_bytes(tmp_path / "broken") == cue_bytes(tmp_path / "whole")
    steps = [
        json.loads(line)["step"]
        for line in (tmp_path / "broken/metrics.jsonl").read_text().splitlines()
        if '"kind": "step"' in line
    ]
    assert steps == list(range(1, 7))
    assert not (tmp_path / "broken/checkpoints").exists()


def test_a_damaged_newest_checkpoint_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "whole")
    monkeypatch.setattr(Checkpoints, "remove", lambda self: None)
    run(tmp_path / "again")
    for name in ("cue.json", "cue.safetensors"):
        (tmp_path / "again" / name).unlink()
    newest = sorted((tmp_path / "again/checkpoints").iterdir())[-1]
    (newest / "state.safetensors").write_bytes(b"torn")
    run(tmp_path / "again", resume=True)
    assert "damaged checkpoint" in capsys.readouterr().err
    assert cue_bytes(tmp_path / "again") == cue_bytes(tmp_path / "whole")


def test_a_finished_run_is_never_overwritten_unless_told(tmp_path: Path) -> None:
    run(tmp_path / "cue")
    before = cue_bytes(tmp_path / "cue")
    with pytest.raises(RunError, match="`overwrite=True`"):
        run(tmp_path / "cue", seed=5)
    assert cue_bytes(tmp_path / "cue") == before
    assert run(tmp_path / "cue", resume=True).scores  # nothing to do: it is loaded
    assert cue_bytes(tmp_path / "cue") == before
    run(tmp_path / "cue", seed=5, overwrite=True)
    assert cue_bytes(tmp_path / "cue") != before


def test_an_unfinished_run_must_be_resumed_or_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dying(self: Checkpoints, checkpoint: object) -> None:
        save(self, checkpoint)  # type: ignore[arg-type]
        raise Crash

    save = Checkpoints.save
    monkeypatch.setattr(Checkpoints, "save", dying)
    with pytest.raises(Crash):
        run(tmp_path / "cue")
    monkeypatch.setattr(Checkpoints, "save", save)
    with pytest.raises(RunError, match="`resume=True`"):
        run(tmp_path / "cue")
    with pytest.raises(RunError, match="same run"):
        run(tmp_path / "cue", resume=True, seed=9)
    run(tmp_path / "cue", resume=True)


def command(folder: Path, model: Path, data: Path, *more: str) -> list[str]:
    overrides = [f"{key}={value}" for key, value in OVERRIDES.items()]
    return [
        "-m",
        "softcue",
        "train",
        "--backbone",
        str(model),
        "--train",
        str(data),
        "--validation",
        str(data),
        "--text",
        "text",
        "--label",
        "label",
        "--output-dir",
        str(folder),
        "--json",
        *more,
        *overrides,
        "training.epochs=30",
    ]


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
        tmp_path, lambda folder, *more: command(folder, model_folders["bert"], data, *more), (3, 17, 40)
    )
    assert cue_bytes(broken) == cue_bytes(whole)


@pytest.mark.processes
@pytest.mark.parametrize("model", ["bert", "gpt2"])  # a head with dropout, and a prompt alone
def test_two_processes_give_the_loss_curve_of_one(
    tmp_path: Path, data: Path, model_folders: dict[str, Path], model: str
) -> None:
    for name, launcher in (("one", [sys.executable]), ("two", TORCHRUN)):
        words = [*launcher, *command(tmp_path / name, model_folders[model], data)]
        result = subprocess.run(words, capture_output=True, text=True, timeout=240)
        assert result.returncode == 0, result.stderr
        assert len(result.stdout.splitlines()) == 1  # only the first process speaks
    curves = {}
    for name in ("one", "two"):
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        curves[name] = [line["loss"] for line in lines if line["kind"] == "step"]
    assert len(curves["one"]) == 60
    assert curves["two"] == pytest.approx(curves["one"], rel=1e-3)
    assert min(curves["one"]) < 0.9 * curves["one"][0]


@pytest.mark.parametrize("file", ["cue.safetensors", "metrics.json", "README.md", "cue.json"])
def test_a_run_that_dies_while_its_cue_is_written_resumes_to_the_same_cue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    import softcue.files

    run(tmp_path / "whole")
    replace = os.replace

    def dying(source: Path, target: Path) -> None:
        if Path(target).name == file:
            raise Crash
        replace(source, target)

    monkeypatch.setattr(softcue.files.os, "replace", dying)
    with pytest.raises(Crash):
        run(tmp_path / "broken")
    monkeypatch.setattr(softcue.files.os, "replace", replace)
    run(tmp_path / "broken", resume=True)
    assert cue_bytes(tmp_path / "broken") == cue_bytes(tmp_path / "whole")


def test_tensorboard_gets_event_files(tmp_path: Path) -> None:
    softcue.train(
        tmp_path / "cue",
        train=ROWS,
        validation=ROWS,
        text="text",
        label="label",
        backbone=tiny("bert"),
        overrides={**OVERRIDES, "training.report_to": "tensorboard"},
        progress=False,
    )
    assert list((tmp_path / "cue/tensorboard").glob("events.*"))


def test_overrides_of_the_library_take_any_text_and_paths(tmp_path: Path) -> None:
    cue = softcue.train(
        tmp_path / "cue",
        train=ROWS,
        validation=ROWS,
        text="text",
        label="label",
        backbone=tiny("bert"),
        method="prompt-tuning",
        overrides={**OVERRIDES, "method.init": "text", "method.init_text": "😀 hi", "method.init_from": Path("x")},
        progress=False,
    )
    assert cue.cue_file.method["init_text"] == "😀 hi"


def test_an_output_folder_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "cue/config.yaml").mkdir(parents=True)
    with pytest.raises(RunError, match="output_dir: got"):
        run(tmp_path / "cue")
