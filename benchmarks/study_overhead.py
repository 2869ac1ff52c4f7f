"""What the runner of studies adds to each run: time between runs, and what a large grid costs to plan.

    python -m benchmarks.study_overhead [--runs 40] [--output FOLDER]

Short runs on a sample task with MiniLM; one worker. The overhead of a run is the time from the end of the first run to
the end of the last one, less the time that the worker spends executing, divided by the runs. Prints Markdown.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from softcue.studies.engines import LocalEngine
from softcue.studies.runner import StudyStatus, read_status, run_study
from softcue.studies.runs import plan_runs
from softcue.studies.store import open_study
from softcue.studies.study import make_study, read_study
from softcue.studies.worker import Outcome

LONG_RUN = 60.0  # seconds, of which the overhead is a share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--output", type=Path, default=None)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.output or Path(temporary)
        started, ended, busy = run(folder, arguments.runs)
    overhead = (ended - started - busy) / arguments.runs
    print("| what | value |")
    print("|---|---|")
    print(f"| runs, one worker | {arguments.runs} |")
    print(f"| a run, mean | {busy / arguments.runs:.2f} s |")
    print(f"| overhead per run | {1000 * overhead:.0f} ms |")
    print(f"| share of a run of {LONG_RUN:.0f} s | {100 * overhead / LONG_RUN:.2f} % |")
    study = read_study("idpg-table3-fewshot")
    began = time.perf_counter()
    size = plan_runs(study, {}).size
    print(f"| planning {size} runs, after each result | {1000 * (time.perf_counter() - began):.0f} ms |")


def run(folder: Path, num_runs: int) -> tuple[float, float, float]:
    """Run a study of tiny runs; when the first run ends, when the last one ends, and the seconds of those between."""
    values = {
        "name": "overhead",
        "backbones": ["minilm"],
        "tasks": ["tickets"],
        "methods": ["prompt-tuning"],
        "settings": {"training.steps": 2, "task.train_rows": 16, "task.validation_rows": 8, "task.test_rows": 8},
        "seeds": num_runs + 1,
    }
    place = folder / "study"
    ends: list[float] = []

    def note(status: StudyStatus, outcome: Outcome | None) -> None:
        if outcome is not None:
            ends.append(time.monotonic())

    run_study(make_study(values), open_study(place), LocalEngine(str(place), 1), listener=note)
    status = read_status(open_study(place))
    later = [status.results[planned.id]["run_seconds"] for planned in status.done[1:]]  # the first one loads the model
    return ends[0], ends[-1], sum(later)


if __name__ == "__main__":
    main()
