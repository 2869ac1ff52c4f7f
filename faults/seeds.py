"""The same seed twice on the same machine: the same cue, bit for bit, in one process and in two."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from pathlib import Path

from faults.forked_commands import run_forked, run_forked_together
from faults.kills import KINDS, KilledRuns, result_files
from faults.record import Budget, FaultError, Record, run_trials

SETTINGS = {  # of methods whose sizes must fit the tiny backbones
    "adapter": ["method.bottleneck=8"],
    "compacter": ["method.bottleneck=8"],
    "m-idpg-dnn": ["method.bottleneck=8"],
    "m-idpg-phm": ["method.bottleneck=8", "method.phm_n=4"],
    "m-idpg-phm-glove": ["method.bottleneck=8", "method.phm_n=4", "method.glove_width=8"],
    "s-idpg-dnn": ["method.bottleneck=8"],
    "s-idpg-phm": ["method.bottleneck=8", "method.phm_n=4"],
    "lora": ["method.rank=4"],
    "vip": ["method.width=8"],
    "vip-c": ["method.width=8"],
    "vip-idp": ["method.bottleneck=8"],
}


def run(record: Record, budget: Budget) -> None:
    """Every method on every kind of backbone it takes, with one process and with two."""
    from tiny import KINDS as BACKBONE_KINDS

    from softcue.methods import METHODS

    cases = [
        (method, kind, num_processes)
        for num_processes in (1, 2)
        for kind in KINDS
        for method in METHODS
        if BACKBONE_KINDS[kind] in METHODS[method].kinds
    ]
    budget.count = min(budget.count, len(cases))
    with tempfile.TemporaryDirectory() as folder:
        runs = KilledRuns(Path(folder))
        run_trials(record, budget, lambda number: (check_seed(runs, *cases[number % len(cases)]), 1))


def check_seed(runs: KilledRuns, method: str, kind: str, num_processes: int) -> str:
    """Train twice and compare; the outcome says how many processes."""
    from toy import word_vectors

    outputs = [runs.folder / f"{method} {kind} {number}" for number in ("first", "second")]
    for output in outputs:
        words = ["train", "--method", method, "--backbone", str(runs.folder / kind), *runs.data]
        words += ["--output-dir", str(output), "--json", "training.batch_size=4", "training.epochs=2"]
        if method.startswith(("prompt", "m-", "s-", "vip", "p-", "prefix", "warp")):
            words.append("method.prompt_length=4")
        words += SETTINGS.get(method, [])
        if method == "m-idpg-phm-glove":
            words.append(f"method.glove={word_vectors()}")
        if num_processes == 1:
            ended = [run_forked(words, runs.folder / "log.txt")]
        else:
            ended = run_forked_together(words, runs.folder, [process_environment(rank) for rank in range(2)])
        codes = [end.code for end in ended]
        if codes == [2] * len(codes) and "Traceback" not in ended[0].log:
            return "refused with an error"
        if any(codes):
            raise FaultError(f"{method}, {kind}, {num_processes} processes: exit codes {codes}: {ended[0].log[-1500:]}")
    first, second = map(result_files, outputs)
    for output in outputs:
        shutil.rmtree(output)
    if not first or first != second:
        raise FaultError(f"{method}, {kind}, {num_processes} processes: two runs with the same seed differ")
    return "one process" if num_processes == 1 else "two processes"


def process_environment(rank: int) -> dict[str, str]:
    """What torchrun sets for one of two processes."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": _port(),
    }


def _port() -> str:
    """A port of this process: free when it was asked for, and the same for both ranks."""
    if "SOFTCUE_FAULTS_PORT" not in os.environ:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            os.environ["SOFTCUE_FAULTS_PORT"] = str(listener.getsockname()[1])
    return os.environ["SOFTCUE_FAULTS_PORT"]
