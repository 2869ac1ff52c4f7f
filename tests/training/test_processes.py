"""What a process does with messages that fail, and how shares become a whole; whole runs are in tests/e2e."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from softcue.errors import LostProcessError, RunError
from softcue.training import Processes
from softcue.training.processes import interleave


@pytest.fixture
def second_of_two() -> Processes:
    processes = Processes(timeout=30)
    processes.rank, processes.world_size = 1, 2
    return processes


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("[pair.cc:553] Connection closed by peer [127.0.0.1]:23989.", "a closed connection"),
        ("Timed out waiting 8000ms for recv operation to complete", "no answer for 30 seconds"),
        ("NCCL error: remote process exited or there was a network error", "a closed connection"),
    ],
)
def test_a_lost_process_is_one_line(message: str, told: str, second_of_two: Processes) -> None:
    expected = f"processes: got '{told}'; expected all 2 processes"
    with pytest.raises(LostProcessError, match=expected) as error, second_of_two.tell_lost():
        raise RuntimeError(message)
    assert "this is process 1" in str(error.value)
    assert "`resume=True`" in str(error.value)


def test_other_errors_stay_what_they_are(second_of_two: Processes) -> None:
    with pytest.raises(RuntimeError, match="shape"), second_of_two.tell_lost():
        raise RuntimeError("shape '[2, 3]' is invalid for input of size 5")
    with pytest.raises(RuntimeError, match="Connection"), Processes().tell_lost():
        raise RuntimeError("Connection refused")  # one process alone has nobody to lose


def test_an_error_of_one_process_is_told_by_all(second_of_two: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = RunError(setting="output_dir", got="cue", expected="a new folder", fix="choose another")
    monkeypatch.setattr(Processes, "gather", lambda self, part: [("output_dir", "cue", "a new folder", "choose"), part])
    with pytest.raises(RunError, match="process 0: output_dir: got 'cue'; expected a new folder; choose"):
        second_of_two.raise_together(None)
    monkeypatch.setattr(Processes, "gather", lambda self, part: [None, part])
    with pytest.raises(RunError, match=r"^output_dir: got 'cue'"):
        second_of_two.raise_together(wrong)
    second_of_two.raise_together(None)


@pytest.mark.parametrize("num_processes", [1, 2, 3, 7])
def test_shares_become_the_whole_again(num_processes: int) -> None:
    shares = []
    for rank in range(num_processes):
        processes = Processes()
        processes.rank, processes.world_size = rank, num_processes
        shares.append(processes.share_of(list(range(5))))
    assert interleave(shares) == list(range(5))


def test_processes_that_keep_in_step_do_all_the_work(second_of_two: Processes) -> None:
    second_of_two.is_in_step = True
    assert second_of_two.share_of([1, 2, 3]) == [1, 2, 3]
    assert second_of_two.in_shares([1, 2, 3], lambda share: [number * 2 for number in share]) == [2, 4, 6]


def test_several_processes_without_torchrun_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RunError, match=r"WORLD_SIZE: got 2; expected 2 processes that reach each other.*torchrun"):
        Processes()


def test_without_a_group_the_process_goes_on() -> None:
    Processes.end()


def test_a_process_of_a_group_ends_with_code_0_after_its_exit_functions(tmp_path: Path) -> None:
    script = (
        "import atexit, torch.distributed as group\n"
        "from softcue.training import Processes\n"
        f"group.init_process_group('gloo', init_method='file://{tmp_path}/group', rank=0, world_size=1)\n"
        "atexit.register(print, 'exit function')\n"
        "print('cue written')\n"
        "Processes.end()\n"
        "raise AssertionError('it went on')\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "cue written\nexit function\n"), ended.stderr
