"""Studies that are killed: what is finished stays, what is half done goes on, and the table is the same."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from killed_studies import begin, check_kills, wait_for_a_run, write_study

from softcue.studies.runner import read_status
from softcue.studies.store import open_study


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
