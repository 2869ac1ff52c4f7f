"""Several processes on machines without a shared folder: one result, no wait for a process that is gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import TORCHRUN
from killed_commands import PATIENCE, steps_done

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parents[1] / "own_folders.py"
WORDS = {
    "billing": ["my invoice is wrong", "please refund me", "charged twice again", "two invoices for one month"],
    "shipping": ["the parcel is late", "where is the box", "wrong address on it", "tracking says lost"],
}
ROWS = [{"text": f"{text} {number}", "label": label} for number in range(3) for label in WORDS for text in WORDS[label]]
SETTINGS = ["training.batch_size=6", "training.checkpoint_every=1", "training.patience=0", "training.epochs=12"]


def words(folder: Path, model: Path, data: Path, *more: str) -> list[str]:
    """The words of the command; each process adds its number to the folder."""
    files = ["--train", str(data), "--validation", str(data), "--test", str(data), "--text", "text", "--label", "label"]
    return ["train", "--backbone", str(model), *files, "--output-dir", str(folder), "--json", *more, *SETTINGS]


def write_rows(path: Path, num_rows: int = len(ROWS)) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS[:num_rows]))
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "rows.jsonl")


def start(*command: str, swaps_machines: bool = False) -> subprocess.Popen[str]:
    environment = {**os.environ, "SWAPS_MACHINES": "yes" if swaps_machines else ""}
    return subprocess.Popen(
        [*TORCHRUN, str(SCRIPT), *command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, list[str]]:
    """Exit code, standard output, and the lines that softcue wrote on standard error."""
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, [line for line in err.splitlines() if line.startswith(("error: ", "warning: "))]


def process_of(folder: Path, rank: int) -> int:
    return int(Path(f"{folder}-{rank}.pid").read_text())


def wait_for_steps(folder: Path, num_steps: int, process: subprocess.Popen[str]) -> None:
    while steps_done(folder) < num_steps:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def cue_bytes(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "cue.json").read_bytes(), (folder / "cue.safetensors").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, model_folders: dict[str, Path]) -> Path:
    """The folder of an undisturbed run in two processes: `whole-0`, beside its rows."""
    folder = tmp_path_factory.mktemp("whole")
    spoken = words(folder / "whole", model_folders["bert"], write_rows(folder / "rows.jsonl"))
    process = start(*(word for word in spoken if word != "--json"))
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert err.count("6 rows for 2 processes") == 1
    assert "training.batch_size=8" in err
    return folder


def test_without_a_shared_folder_a_killed_run_ends_at_once_and_resumes_to_the_same_cue(
    tmp_path: Path, whole: Path, model_folders: dict[str, Path]
) -> None:
    command = words(tmp_path / "broken", model_folders["bert"], whole / "rows.jsonl")
    killed = start(*command)
    wait_for_steps(tmp_path / "broken-0", 5, killed)
    os.kill(process_of(tmp_path / "broken", 1), signal.SIGKILL)
    began = time.monotonic()
    code, _, lines = finish(killed)
    assert code != 0
    assert time.monotonic() - began < 100  # far less than the timeout of 600 seconds
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) <= 1  # torchrun may stop the other process before it notices
    assert all("processes: got 'a closed connection'" in line and "--resume" in line for line in errors)

    # The machines are the other way round: now the second process has the checkpoints.
    code, _, lines = finish(start(*command, "--resume", swaps_machines=True))
    assert code == 0, lines
    assert cue_bytes(tmp_path / "broken-1") == cue_bytes(whole / "whole-0")
    first = (tmp_path / "broken-1/metrics.jsonl").read_text().splitlines()[0]
    assert json.loads(first)["step"] > 5  # the steps before are not repeated


def test_a_finished_run_is_loaded_also_where_its_folder_is_on_another_machine(
    whole: Path, model_folders: dict[str, Path]
) -> None:
    assert not (whole / "whole-1").exists()  # only the first process writes
    code, out, lines = finish(start(*words(whole / "whole", model_folders["bert"], whole / "rows.jsonl", "--resume")))
    assert code == 0, lines
    assert json.loads(out)["cue"] == str(whole / "whole-0")
    assert json.loads(out)["steps"] == 72  # of rows and labels' texts
    assert not (whole / "whole-1").exists()


def test_scores_of_two_processes_are_those_of_one_also_with_divided_layers(
    tmp_path: Path, data: Path, model_folders: dict[str, Path]
) -> None:
    alone = [sys.executable, "-m", "softcue", *words(tmp_path / "one", model_folders["t5"], data)]
    subprocess.run(alone, check=True, capture_output=True, timeout=PATIENCE)
    for name, more in {"two": [], "divided": ["backbone.shard_layers=true"]}.items():
        code, _, lines = finish(start(*words(tmp_path / name, model_folders["t5"], data), *more))
        assert code == 0, lines
        one, two = (json.loads((tmp_path / folder / "metrics.json").read_text()) for folder in ("one", f"{name}-0"))
        assert two["scores"] == one["scores"]
        assert two["baselines"] == one["baselines"]
        assert "zero_shot" in two["baselines"]["test"]
        assert two["best_step"] == one["best_step"]


def test_a_process_that_hangs_ends_the_others_after_the_timeout(
    tmp_path: Path, data: Path, model_folders: dict[str, Path]
) -> None:
    more = ["training.process_timeout=8", "training.epochs=400"]
    process = start(*words(tmp_path / "cue", model_folders["bert"], data), *more)
    wait_for_steps(tmp_path / "cue-0", 3, process)
    frozen = process_of(tmp_path / "cue", 1)
    os.kill(frozen, signal.SIGSTOP)
    try:
        while not _has_ended(process_of(tmp_path / "cue", 0)):
            time.sleep(0.1)
    finally:
        os.kill(frozen, signal.SIGCONT)
    code, _, lines = finish(process)
    assert code != 0
    errors = [line for line in lines if line.startswith("error: ")]
    assert "no answer for 8 seconds" in errors[0]
    assert "(this is process 0)" in errors[0]


def test_processes_with_different_rows_are_told(tmp_path: Path, data: Path, model_folders: dict[str, Path]) -> None:
    write_rows(tmp_path / "process-1-rows.jsonl", len(ROWS) - 1)  # own_folders.py gives it to the second process
    code, _, lines = finish(start(*words(tmp_path / "cue", model_folders["bert"], data)))
    assert code != 0
    errors = [line for line in lines if line.startswith("error: ")]
    assert errors, lines
    assert all("another run in process 1 than in process 0" in line for line in errors), errors


def _has_ended(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"
