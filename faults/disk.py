"""Disks, clocks and folders that change under a run: a clean refusal, or the result of the undisturbed run."""

from __future__ import annotations

import builtins
import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from faults.forked_commands import Ended, run_forked, run_forked_together
from faults.kills import KilledRuns, result_files
from faults.record import Budget, FaultError, Record, run_trials
from faults.seeds import process_environment

CASE = "prompt-tuning bert"
Scenario = Callable[[KilledRuns, Path], str]


def run(record: Record, budget: Budget) -> None:
    """Each scenario once, and again until the count is reached."""
    names = list(SCENARIOS)
    with tempfile.TemporaryDirectory() as folder:
        runs = KilledRuns(Path(folder))

        def trial(number: int) -> tuple[str, int]:
            name = names[number % len(names)]
            return f"{name}: {SCENARIOS[name](runs, runs.folder / f'run {number}')}", 1

        run_trials(record, budget, trial)


def check_refused(ended: Ended, what: str) -> str:
    """One line and exit code 2."""
    lines = [line for line in ended.log.splitlines() if line.startswith("error: ")]
    if ended.code != 2 or len(lines) != 1 or "Traceback" in ended.log:
        raise FaultError(f"{what}: exit code {ended.code}: {ended.log[-1500:]}")
    return "refused"


def finish(runs: KilledRuns, output: Path, what: str, *more: str) -> str:
    """Resume the run and compare it with the undisturbed one."""
    ended = run_forked([*runs.words(CASE, output, "--resume"), *more], runs.log)
    if ended.code != 0 or result_files(output) != runs.undisturbed(CASE):
        raise FaultError(f"{what}: resumed with exit code {ended.code}, or to another cue: {ended.log[-1500:]}")
    shutil.rmtree(output, ignore_errors=True)
    return "refused, then resumed bit for bit"


def fill_disk(runs: KilledRuns, output: Path) -> str:
    """A small file system of its own gets full; where none can be mounted, files may not grow instead."""
    output.mkdir()
    is_mounted = (
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48k", "none", output], capture_output=True).returncode == 0
    )
    try:
        target = output / "cue"
        before = None if is_mounted else _limit_files
        check_refused(run_forked(runs.words(CASE, target), runs.log, before=before), "full disk")
        if is_mounted:
            subprocess.run(["mount", "-o", "remount,size=64m", output], check=True)
        return f"{finish(runs, target, 'full disk')}{'' if is_mounted else ' (size limit of files)'}"
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", output], check=True)


def _limit_files() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))


def exceed_quota(runs: KilledRuns, output: Path) -> str:
    """The kernel refuses to let a file grow, as a quota does."""
    check_refused(run_forked(runs.words(CASE, output), runs.log, before=_limit_files), "quota")
    return finish(runs, output, "quota")


def turn_read_only(runs: KilledRuns, output: Path) -> str:
    """From the third checkpoint on, nothing in the folder can be opened for writing."""

    def before() -> None:
        plain, num_opened = os.open, 0
        plain_open = builtins.open

        def count(path: object, is_writing: bool) -> None:
            nonlocal num_opened
            num_opened += is_writing and "state.json" in str(path)
            if is_writing and num_opened > 2 and str(path).startswith(str(output)):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

        def refuse(path: object, flags: int, *more: int, **options: int) -> int:
            count(path, bool(flags & (os.O_WRONLY | os.O_RDWR)))
            return plain(path, flags, *more, **options)  # type: ignore[arg-type]

        def refuse_open(path: object, mode: str = "r", *more: object, **options: object) -> object:
            count(path, any(letter in mode for letter in "wax+"))
            return plain_open(path, mode, *more, **options)  # type: ignore[call-overload]

        os.open, builtins.open = refuse, refuse_open  # type: ignore[assignment]
        import io
        import pathlib

        io.open = refuse_open  # type: ignore[assignment]
        pathlib.io.open = refuse_open  # type: ignore[attr-defined]

    check_refused(run_forked(runs.words(CASE, output), runs.log, before=before), "read-only")
    return finish(runs, output, "read-only")


def remove_folder(runs: KilledRuns, output: Path) -> str:
    """The output folder is removed while the run trains."""

    def before() -> None:
        def remove() -> None:
            while not (output / "checkpoints").is_dir():
                time.sleep(0.001)
            time.sleep(0.05)
            for _ in range(20):
                shutil.rmtree(output, ignore_errors=True)

        threading.Thread(target=remove, daemon=True).start()

    ended = run_forked(runs.words(CASE, output), runs.log, before=before)
    if ended.code == 0 and result_files(output) == runs.undisturbed(CASE):
        shutil.rmtree(output)
        return "the undisturbed result"
    check_refused(ended, "removed folder")
    return finish(runs, output, "removed folder")


def move_clock_back(runs: KilledRuns, output: Path) -> str:
    """The clock of the second life is a year behind that of the first."""
    from faults.forked_commands import Kill

    def before() -> None:
        plain, plain_ns = time.time, time.time_ns
        time.time = lambda: plain() - 31_536_000
        time.time_ns = lambda: plain_ns() - 31_536_000 * 10**9

    run_forked(runs.words(CASE, output), runs.log, Kill("steps", 9, 0.001))
    ended = run_forked(runs.words(CASE, output, "--resume"), runs.log, before=before)
    if ended.code != 0 or result_files(output) != runs.undisturbed(CASE):
        raise FaultError(f"clock: exit code {ended.code}, or another cue: {ended.log[-1500:]}")
    shutil.rmtree(output)
    return "resumed bit for bit"


def start_two_runs(runs: KilledRuns, output: Path) -> str:
    """Two runs in one folder at the same time: one trains, the other is refused."""
    ended = run_forked_together(runs.words(CASE, output), runs.folder, [{}, {}])
    codes = sorted(end.code for end in ended)
    if codes != [0, 2] or result_files(output) != runs.undisturbed(CASE):
        raise FaultError(f"two runs: exit codes {codes}: {ended[0].log[-700:]} {ended[1].log[-700:]}")
    check_refused(next(end for end in ended if end.code == 2), "two runs")
    shutil.rmtree(output)
    return "one trains, one is refused"


def change_rows(runs: KilledRuns, output: Path) -> str:
    """The data file has another row when the run is resumed."""
    from faults.forked_commands import Kill

    run_forked(runs.words(CASE, output), runs.log, Kill("steps", 9, 0.001))
    before = runs.rows.read_text()
    try:
        runs.rows.write_text(before + json.dumps({"text": "one more row", "label": "a"}) + "\n")
        check_refused(run_forked(runs.words(CASE, output, "--resume"), runs.log), "changed rows")
    finally:
        runs.rows.write_text(before)
    return finish(runs, output, "changed rows")


def change_settings(runs: KilledRuns, output: Path) -> str:
    """A setting has another value when the run is resumed."""
    from faults.forked_commands import Kill

    run_forked(runs.words(CASE, output), runs.log, Kill("steps", 9, 0.001))
    words = [*runs.words(CASE, output, "--resume"), "training.learning_rate=0.123"]
    check_refused(run_forked(words, runs.log), "changed settings")
    return finish(runs, output, "changed settings")


def change_world_size(runs: KilledRuns, output: Path) -> str:
    """A run of one process is resumed by two."""
    from killed_commands import steps_done

    from faults.forked_commands import Kill

    run_forked(runs.words(CASE, output), runs.log, Kill("steps", 9, 0.001))
    environments = [process_environment(rank) for rank in range(2)]
    ended = run_forked_together(runs.words(CASE, output, "--resume"), runs.folder, environments)
    if any(end.code not in (0, 2) or "Traceback" in end.log for end in ended):
        raise FaultError(f"two processes: {[end.code for end in ended]}: {ended[0].log[-1500:]}")
    if ended[0].code == 0:
        num_steps, expected = map(steps_done, (output, runs.undisturbed_folder(CASE)))
        shutil.rmtree(output)
        if num_steps != expected:
            raise FaultError(f"two processes: {num_steps} steps instead of {expected}")
        return "resumed, every step once"
    return finish(runs, output, "two processes")


SCENARIOS: dict[str, Scenario] = {
    "disk full": fill_disk,
    "quota": exceed_quota,
    "read-only": turn_read_only,
    "folder removed": remove_folder,
    "clock moved back": move_clock_back,
    "two runs in one folder": start_two_runs,
    "changed rows": change_rows,
    "changed settings": change_settings,
    "other world size": change_world_size,
}
