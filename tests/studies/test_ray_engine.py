"""Studies on a real Ray cluster of one machine with two workers."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from command import check_error, run
from study_grids import small_study

from softcue.ray_cluster import START_COMMAND
from softcue.studies.runner import StudyStatus, read_status, run_study
from softcue.studies.store import open_study
from softcue.studies.study import Study
from softcue.studies.worker import Outcome

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra ray is not installed")


def test_address_needs_the_engine(tmp_path: Path) -> None:
    words = ("study", "run", "quick", "--output-dir", tmp_path, "--ray-address", "auto")
    check_error(run(*words), "--ray-address", "--engine ray")


def test_missing_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    check_error(run("study", "run", "quick", "--output-dir", tmp_path, "--engine", "ray"), "package 'ray'", ".[ray]")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster with room for two workers, as an operator would start it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        words: list[object] = [sys.executable, "-m", "ray.scripts.scripts", *START_COMMAND.split()[1:], "--block"]
        words += ["--port", port, "--num-cpus", 2, "--temp-dir", folder, "--object-store-memory", 80 * 2**20]
        environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
        head = subprocess.Popen([*map(str, words)], env=environment, stdout=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.2)
        family = psutil.Process(head.pid).children(recursive=True)
        try:
            yield f"127.0.0.1:{port}"
        finally:
            family += psutil.Process(head.pid).children(recursive=True)
            head.terminate()
            head.wait()
            for process in psutil.wait_procs(set(family), 15)[1]:
                process.kill()


def workers_of_cluster() -> list[psutil.Process]:
    """The processes of Ray's actors that execute runs."""
    return [process for process in psutil.process_iter() if _title(process).startswith("ray::Worker")]


def _title(process: psutil.Process) -> str:
    try:
        return "".join(process.cmdline()[:1])
    except psutil.Error:
        return ""


@pytest.mark.slow
@needs_ray
@pytest.mark.timeout(600)
def test_study_with_a_killed_worker_ends_with_the_same_scores(address: str, tmp_path: Path) -> None:
    from softcue.studies.engines import LocalEngine
    from softcue.studies.ray_engine import RayEngine

    study = small_study(tmp_path, seeds=6, settings={"training.steps": 60, "training.batch_size": 4})
    local = run_study(study, open_study(tmp_path / "local"), LocalEngine(str(tmp_path / "local"), 2))
    place = tmp_path / "ray"
    engine = RayEngine(str(place), None, 1, address)
    assert engine.num_workers == 2
    killed: list[int] = []

    def kill_a_worker(status: StudyStatus, outcome: Outcome | None) -> None:
        if len(status.done) >= 3 and not killed:
            victim = workers_of_cluster()[0]
            killed.append(victim.pid)
            victim.send_signal(signal.SIGKILL)

    status = run_study(study, open_study(place), engine, listener=kill_a_worker)
    assert killed and not status.failed
    assert len(status.done) == status.plan.size == 24
    assert scores(status) == scores(local)
    reasons = [attempt["reason"] for attempts in status.failures.values() for attempt in attempts]
    assert reasons and all("the worker died" in reason for reason in reasons)


@pytest.mark.slow
@needs_ray
@pytest.mark.timeout(600)
def test_results_at_a_url_are_those_of_a_folder(address: str, tmp_path: Path) -> None:
    from softcue.studies.engines import LocalEngine
    from softcue.studies.ray_engine import RayEngine

    study: Study = small_study(tmp_path, ensembles=["vote"])
    local = run_study(study, open_study(tmp_path / "local"), LocalEngine(str(tmp_path / "local"), 2))
    url = f"file://{tmp_path / 'remote'}"
    status = run_study(study, open_study(url), RayEngine(url, 2, 1, address))
    assert scores(status) == scores(local) and len(status.done) == 12
    assert scores(read_status(open_study(url))) == scores(local)
    assert len(list((tmp_path / "remote" / "runs").rglob("cue.safetensors"))) == 8


@pytest.mark.slow
@needs_ray
@pytest.mark.timeout(600)
def test_stopped_command_leaves_no_worker_and_goes_on(address: str, tmp_path: Path) -> None:
    import yaml

    study = small_study(tmp_path, seeds=3, settings={"training.steps": 200, "training.batch_size": 4})
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(study.model_dump(mode="json")))
    words = [sys.executable, "-m", "softcue", "study", "run", path, "--output-dir", tmp_path / "out"]
    words += ["--engine", "ray", "--ray-address", address]
    process = subprocess.Popen([*map(str, words)])
    stopper = threading.Event()
    while not (done := open_study(tmp_path / "out").results()) and process.poll() is None:
        stopper.wait(0.2)
    assert done
    process.kill()
    process.wait()
    end = time.monotonic() + 30
    while workers_of_cluster() and time.monotonic() < end:
        stopper.wait(0.2)
    assert not workers_of_cluster()
    subprocess.run([*map(str, words)], check=True)
    assert len(open_study(tmp_path / "out").results()) == 12


def scores(status: StudyStatus) -> dict[str, object]:
    return {run: (result["scores"], result.get("curve")) for run, result in status.results.items()}
