"""Studies that are killed with SIGKILL and started again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import yaml
from study_grids import small_study

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
