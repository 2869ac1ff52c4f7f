"""Runs a study: starts what is missing, keeps results and failures, and plans again after every result."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import fmean

from softcue.errors import RunError
from softcue.studies.engines import StudyEngine
from softcue.studies.peers import find_peer
from softcue.studies.runs import Result, StudyPlan, StudyRun, is_result_of, plan_runs
from softcue.studies.store import Failure, StudyFolder
from softcue.studies.study import Study
from softcue.studies.worker import Outcome
from softcue.tasks import find_task

POLL_SECONDS = 0.5
BUSY_SECONDS = 5.0  # until a run that another process holds is looked at again


@dataclass
class StudyStatus:
    """How far a study is."""

    plan: StudyPlan
    results: dict[str, Result]
    failures: dict[str, list[Failure]]
    running: dict[str, float] = field(default_factory=dict)  # run -> seconds so far
    tried_again: set[str] = field(default_factory=set)  # runs that failed before and wait for another attempt

    @property
    def done(self) -> list[StudyRun]:
        """The finished runs."""
        return [run for run in self.plan.runs if run.id in self.results]

    @property
    def failed(self) -> dict[str, str]:
        """The runs whose last attempt failed, with the reason."""
        return {
            run.id: attempts[-1]["reason"]
            for run in self.plan.runs
            if run.id not in self.results
            and run.id not in self.running
            and run.id not in self.tried_again
            and (attempts := self.failures.get(run.id))
        }

    @property
    def num_waiting(self) -> int:
        """The runs that have neither ended nor begun."""
        return self.plan.size - len(self.done) - len(self.failed) - len(self.running)

    def seconds_left(self, num_workers: int) -> float | None:
        """An estimate from the times of finished runs of the same method, else of all; None before the first."""
        times: dict[str, list[float]] = {}
        for run in self.done:
            times.setdefault(run.axes["method"], []).append(self.results[run.id]["run_seconds"])
        if not times:
            return None
        mean = fmean(seconds for group in times.values() for seconds in group)
        left = self.plan.num_later * mean
        for run in self.plan.runs:
            if run.id not in self.results and run.id not in self.failed:
                expected = fmean(times.get(run.axes["method"], [mean]))
                left += max(0.0, expected - self.running.get(run.id, 0.0))
        return left / num_workers


Listener = Callable[[StudyStatus, Outcome | None], None]


def read_status(folder: StudyFolder, study: Study | None = None) -> StudyStatus:
    """The state of a study as its folder tells it. Results of other settings do not count.

    Example:
        read_status(open_study("studies/quick")).num_waiting
    """
    study = study or folder.read_study()
    results = folder.results()
    counted: dict[str, Result] = {}
    while True:  # results bring runs, whose results may count too
        plan = plan_runs(study, counted)
        matching = {run.id: results[run.id] for run in plan.runs if is_result_of(run, results.get(run.id))}
        if len(matching) == len(counted):
            return StudyStatus(plan, counted, folder.failures())
        counted = matching


def run_study(
    study: Study,
    folder: StudyFolder,
    engine: StudyEngine,
    *,
    retries: int = 1,
    listener: Listener = lambda status, outcome: None,
) -> StudyStatus:
    """Execute the runs of a study that are not finished, and return how it stands then.

    A run that crashes is tried again `retries` times. A run that fails for a reason that will not go away is not, until
    the study is run again. What needs a failed run is left out.

    Example:
        run_study(read_study("quick"), open_study("studies/quick"), LocalEngine("studies/quick", 2))
    """
    try:
        check_tasks(study)
        runner = _Runner(study, folder, engine, retries, listener)
        folder.begin(study)
        return runner.run()
    finally:
        engine.close()


def check_tasks(study: Study) -> None:
    """Raise an error if there is no such task or other software: now, rather than in each run. No rows are read.

    Example:
        check_tasks(read_study("quick"))
    """
    for task in study.tasks:
        for source in (task.source, *task.score_on):
            find_task(source)
    for method in study.methods:
        if method.function:
            find_peer(method.function)


class _Runner:
    def __init__(
        self, study: Study, folder: StudyFolder, engine: StudyEngine, retries: int, listener: Listener
    ) -> None:
        self.study, self.folder, self.engine, self.listener = study, folder, engine, listener
        self.retries = retries
        self.status = read_status(folder, study)
        self.status.tried_again = set(self.status.failures)
        self._check_results()
        self._started: dict[str, float] = {}
        self._num_crashes: dict[str, int] = {}
        self._given_up: set[str] = set()
        self._look_again: dict[str, float] = {}  # runs of other processes -> when

    def run(self) -> StudyStatus:
        self.listener(self.status, None)
        while True:
            self._start_runs()
            if not self._started and not self._look_again:
                return self.status
            for outcome in self.engine.wait(POLL_SECONDS):
                self._take(outcome)
            self._stop_overdue()
            now = time.monotonic()
            self.status.running = {run: now - started for run, started in self._started.items()}
            self.listener(self.status, None)

    def _start_runs(self) -> None:
        for run in self.status.plan.runs:
            if self.engine.num_free == 0:
                return
            if self._is_ready(run):
                self._look_again.pop(run.id, None)
                self.engine.start(run)
                self._started[run.id] = time.monotonic()
                self.status.running[run.id] = 0.0

    def _is_ready(self, run: StudyRun) -> bool:
        if run.id in self.status.results or run.id in self._started or run.id in self._given_up:
            return False
        if time.monotonic() < self._look_again.get(run.id, 0.0):
            return False
        return all(needed in self.status.results for needed in run.needs)

    def _take(self, outcome: Outcome) -> None:
        """Keep the outcome of a run."""
        self._started.pop(outcome.run, None)
        self.status.running.pop(outcome.run, None)
        [run] = [run for run in self.status.plan.runs if run.id == outcome.run]
        if outcome.state == "busy":
            self._look_again[run.id] = time.monotonic() + BUSY_SECONDS
            return
        if outcome.state == "done":
            result = self.folder.result_of(run.id)
            if result is not None:
                results = {**self.status.results, run.id: result}
                # Only a result can bring new runs; they join at the end of a search.
                self.status = replace(self.status, plan=plan_runs(self.study, results), results=results)
        else:
            self.folder.add_failure(run, outcome.reason)
            self.status.failures[run.id] = self.folder.failures_of(run.id)
            self._num_crashes[run.id] = self._num_crashes.get(run.id, 0) + 1
            if outcome.state == "failed" or self._num_crashes[run.id] > self.retries:
                self._given_up.add(run.id)
                self.status.tried_again.discard(run.id)
            else:
                self.status.tried_again.add(run.id)
        self.listener(self.status, outcome)

    def _stop_overdue(self) -> None:
        limit = 60 * self.study.minutes
        for run, started in self._started.items():
            if limit and time.monotonic() - started > limit:
                self.engine.stop(run, f"took longer than the budget of {self.study.minutes:g} minutes")

    def _check_results(self) -> None:
        """Raise an error if a result in the folder is of a run with the same name and other settings.

        Ensembles of fewer seeds, and runs of settings that a longer search no longer chooses, are made anew.
        """
        searched = {method.name for method in self.study.methods if method.search is not None}
        results = self.folder.results()
        for run in self.status.plan.runs:
            follows = run.kind == "ensemble" or (run.axes["method"] in searched and not run.trial)
            if run.id in results and not follows and not is_result_of(run, results[run.id]):
                raise RunError(
                    setting="output_dir",
                    got=self.folder,
                    expected="runs with the settings of this study",
                    fix=f"{run.id} is finished with others: choose another folder, or remove that run",
                )
