"""Ctrl-C and SIGTERM stop a real process with a line that says how to go on, and nothing is lost."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from softcue.cli.stopping import StoppedBySignal, raise_on_sigterm, stopped_message

ROWS = [{"text": f"{word} {n}", "label": label} for n in range(8) for word, label in (("invoice", "a"), ("badge", "b"))]


@pytest.fixture
def words(tmp_path: Path, model_folders: dict[str, Path]) -> list[str]:
    """`softcue train` with 300 steps and a checkpoint every 5."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    options = ["--train", str(rows), "--validation", str(rows), "--text", "text", "--label", "label"]
    settings = ["training.steps=300", "training.evaluate_every=100", "training.checkpoint_every=5"]
    return ["train", "--backbone", str(model_folders["bert"]), *options, *settings, "--prompt-length", "4", "--json"]


def start(words: list[str], errors: Path) -> subprocess.Popen[bytes]:
    with errors.open("wb") as handle:
        command = [sys.executable, "-m", "softcue", *words]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=handle)


def wait_for_steps(process: subprocess.Popen[bytes], metrics: Path, steps: int) -> None:
    while process.poll() is None:
        if metrics.is_file() and metrics.read_text().count('"kind": "step"') >= steps:
            return
        time.sleep(0.005)


@pytest.mark.processes
def test_both_signals_stop_training_alike_and_the_printed_command_goes_on(tmp_path: Path, words: list[str]) -> None:
    errors = tmp_path / "stderr.txt"
    whole, broken = tmp_path / "whole", tmp_path / "broken cue"
    assert start([*words, "--output-dir", str(whole)], errors).wait(120) == 0, errors.read_text()
    command = [*words, "--output-dir", str(broken)]
    for number, (stop, code) in enumerate(((signal.SIGTERM, 143), (signal.SIGINT, 130))):
        process = start(command, errors)
        wait_for_steps(process, broken / "metrics.jsonl", 12 + 40 * number)
        process.send_signal(stop)
        assert process.wait(60) == code, errors.read_text()
        advice = errors.read_text().splitlines()[-1]
        assert "Traceback" not in errors.read_text()
        assert advice.startswith("stopped; go on with: python -m softcue train ")
        assert not (broken / "cue.json").exists()
        assert list((broken / "checkpoints").iterdir())
        command = shlex.split(advice.partition("-m softcue ")[2])
        assert command.count("--resume") == 1
    assert start(command, errors).wait(120) == 0, errors.read_text()
    for name in ("cue.json", "cue.safetensors"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes()
    assert not (broken / "checkpoints").exists()


DEMO = """
import sys
import softcue.backbones
from softcue.cli.app import main
load = softcue.backbones.load_backbone
softcue.backbones.load_backbone = lambda name: load({model!r})
sys.argv = ["softcue", "demo", "--output-dir", {folder!r}, "--json"]
main()
"""


def test_sigterm_stops_the_demo_which_goes_on_by_itself(tmp_path: Path, model_folders: dict[str, Path]) -> None:
    code = DEMO.format(model=str(model_folders["bert"]), folder=str(tmp_path / "cues"))
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    wait_for_steps(process, tmp_path / "cues" / "tickets" / "metrics.jsonl", 3)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    *warnings, last = errors.splitlines()  # a random model learns nothing, and the task before this one says so
    assert last == f"stopped; go on with: softcue demo --output-dir {tmp_path / 'cues'} --json"
    assert all(line.startswith("warning: ") for line in warnings)
    assert not (tmp_path / "cues" / "tickets" / "cue.json").exists()


def test_the_line_after_a_stop_fits_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert stopped_message(["softcue", "train", "a.yaml", "--overwrite"]).endswith("softcue train a.yaml --resume")
    assert stopped_message(["softcue", "demo"]) == "stopped; go on with: softcue demo"
    assert stopped_message(["softcue", "predict", "cues/a", "train"]) == "stopped"
    assert stopped_message(["softcue"]) == "stopped"
    monkeypatch.setenv("RANK", "0")
    assert stopped_message(["x", "train"]) == "stopped; go on with the same command and --resume"


def test_the_handler_of_sigterm_is_there_only_while_a_command_runs() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(StoppedBySignal), raise_on_sigterm():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
