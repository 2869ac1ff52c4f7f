"""`python -m faults NAME`: run one check, and continue its JSON file."""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from faults.plan import CHECKS
from faults.record import Budget, read_record


def main(words: list[str] | None = None) -> int:
    """Run a check; the exit code is 1 if it has any fault."""
    parser = argparse.ArgumentParser(prog="python -m faults", description="Make faults on purpose and count outcomes.")
    parser.add_argument("name", choices=[*CHECKS, "list"], help="the check; `list` prints their names")
    parser.add_argument("--count", type=int, help="in all, with what the file has already; else the check's aim")
    parser.add_argument("--minutes", type=float, help="of this run at most; else the check's own limit")
    parser.add_argument("--json", type=Path, help="file of the figures; an existing one is continued")
    arguments = parser.parse_args(words)
    if arguments.name == "list":
        print("\n".join(CHECKS))
        return 0
    check = CHECKS[arguments.name]
    home = prepare_process()
    try:
        record = read_record(check.name, arguments.json)
        given = sys.argv[1:] if words is None else words
        record.command = shlex.join(["python", "-m", "faults", *given])
        minutes = check.minutes if arguments.minutes is None else arguments.minutes
        budget = Budget(arguments.count or check.aim or sys.maxsize, 60 * minutes)
        importlib.import_module(check.module).run(record, budget)
        record.save()
    finally:
        shutil.rmtree(home, ignore_errors=True)
    outcomes = ", ".join(f"{count:,} {name}" for name, count in sorted(record.outcomes.items()))
    print(f"{check.name}: {record.count:,} {check.unit} ({outcomes}); {record.num_faults} faults")
    for figure, value in record.figures.items():
        print(f"  {figure}: {value}")
    for fault in record.faults:
        print(f"FAULT {fault}", file=sys.stderr)
    return 1 if record.num_faults else 0


def prepare_process() -> str:
    """Set what checks need before torch is imported: one thread, no network, a cache of their own, the test helpers."""
    home = tempfile.mkdtemp(prefix="softcue-faults-")
    os.environ.update(SOFTCUE_HOME=home, HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # tiny models, cues and studies
    return home


if __name__ == "__main__":
    sys.exit(main())
