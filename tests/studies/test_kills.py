"""Studies that are killed: what is finished stays, what is half done goes on, and the table is the same."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from study_grids import small_study

from softcue.studies.runner import read_status
from softcue.studies.store import open_study

METHODS = [
    "linear-probe",
    {"name": "prompt-tuning", "settings": {"method.prompt_length": 2}},
    {"name": "m-idpg-phm", "settings": {"method.prompt_length": 2, "method.bottleneck": 8, "method.phm_n": 2}},
    {"name": "compacter", "settings": {"method.bottleneck": 4, "method.phm_n": 2}},
]


def write_study(folder: Path, seeds: int) -> Path:
    settings = {"training.steps": 12, "training.batch_size": 4, "training.checkpoint_every": 2}
    study = small_study(folder, methods=METHODS, seeds=seeds, settings=settings)
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(study.model_dump(mode="json")))
    return path


def begin(study: Path, output: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "softcue", "study", "run", study, "--output-dir", output, "--workers", "2"]
    environment = {**os.environ, "SOFTCUE_HOME": f"{output}-home"}
    with (output.parent / f"{output.name}.log").open("ab") as log:
        return subprocess.Popen([*map(str, command)], env=environment, stdout=log, stderr=log)


def finish(study: Path, output: Path) -> None:
    process = begin(study, output)
    assert process.wait() == 0, (output.parent / f"{output.name}.log").read_text()


def table(output: Path) -> dict[str, Any]:
    """All that a table is made of: scores, settings and parameters of each run, but no times."""
    results = open_study(output).results()
    timeless = ("scores", "validation", "baselines", "trainable", "steps", "best_step", "curve", "digest")
    return {run: {name: result.get(name) for name in timeless} for run, result in results.items()}


def check_kills(folder: Path, seeds: int, num_kills: int, seed: int) -> None:
    study = write_study(folder, seeds)
    finish(study, folder / "undisturbed")
    draw = random.Random(seed)
    killed = folder / "killed"
    for _ in range(num_kills):
        process = begin(study, killed)
        wait_for_a_run(killed, process)
        time.sleep(draw.uniform(0.0, 0.6))
        workers = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
        process.wait()
        _, alive = psutil.wait_procs(workers, timeout=20)
        assert not alive, "a worker outlived its parent"
        assert len(table(killed)) < 8 * seeds, "it was killed too late to prove anything"
    finish(study, killed)
    assert len(table(killed)) == 8 * seeds
    assert json.dumps(table(killed), sort_keys=True) == json.dumps(table(folder / "undisturbed"), sort_keys=True)


def wait_for_a_run(output: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until a run is being executed: a kill while Python starts proves little."""
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        if any(path.name.startswith(".seed-") for path in (output / "runs").rglob(".seed-*.lock")):
            return
        time.sleep(0.05)


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_killed_study_ends_with_the_same_table(tmp_path: Path) -> None:
    check_kills(tmp_path, seeds=2, num_kills=2, seed=0)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_hundred_runs_killed_twenty_times_end_with_the_same_table(tmp_path: Path) -> None:
    check_kills(tmp_path, seeds=25, num_kills=20, seed=1)


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_killed_worker_is_replaced_and_its_run_tried_again(tmp_path: Path) -> None:
    study = write_study(tmp_path, seeds=1)
    output = tmp_path / "output"
    process = begin(study, output)
    wait_for_a_run(output, process)
    locked = [path.name for path in (output / "runs").rglob(".seed-*.lock")]
    assert locked
    workers = [child for child in psutil.Process(process.pid).children() if "spawn_main" in " ".join(child.cmdline())]
    with suppress(psutil.NoSuchProcess):
        for worker in workers:
            worker.kill()
    assert process.wait() == 0
    status = read_status(open_study(output))
    assert len(status.done) == status.plan.size == 8
    assert not status.failed
    reasons = [attempt["reason"] for attempts in status.failures.values() for attempt in attempts]
    assert reasons and all("SIGKILL" in reason for reason in reasons)
