"""A run with `method.name=auto`: several methods train on the same rows, and the best becomes an ordinary cue.

Candidates are compared by successive halving on validation rows, or on folds if there are few of them. The winner is
then an ordinary run in the output folder, with the checkpoints it has already. Test rows are scored for it alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.markup import escape

from softcue.backbones import Backbone, load_backbone
from softcue.configuration import Settings, resolve, resolve_selection, settings_of_candidates
from softcue.cue import Cue
from softcue.errors import BackboneError, ConfigurationError, DataError, RunError, SoftcueError, TrainingError
from softcue.evaluation import check_metric
from softcue.files import convert_disk_errors, convert_write_errors, lock_folder, remove
from softcue.run import Run, check_output, finished_by_another_run
from softcue.selection import (
    AUTO,
    CANDIDATES,
    NUM_RUNGS,
    RungScore,
    SelectionRecord,
    TriedMethod,
    better_half,
    make_folds,
    read_record,
    rung_step,
    write_record,
)
from softcue.selection.record import record_of_cue
from softcue.tasks.splits import Splits, read_splits
from softcue.training import Processes, Trainer
from softcue.training.progress import ProgressRecorder


def make_training_run(folder: Path, settings: Settings, **options: Any) -> Run | AutoRun:
    """Make the run of a method, or with `method.name=auto` that of several.

    Example:
        [cue] = make_training_run(Path("cues/tickets"), {"task": {"name": "tickets"}}).execute()
    """
    is_auto = settings.get("method", {}).get("name") == AUTO
    return AutoRun(folder, settings, **options) if is_auto else Run(folder, settings, **options)


class AutoRun:
    """Tries several methods on the rows of a task and keeps the best. Nothing is written before all are checked.

    The options are those of `Run`.

    Example:
        [cue] = AutoRun(Path("cues/tickets"), {"task": {"name": "tickets"}, "method": {"name": "auto"}}).execute()
    """

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        *,
        backbone: Backbone | None = None,
        tables: Mapping[str, Any] | None = None,
        splits: Splits | None = None,
        is_joint: bool = False,
        recipe: str = "default",
    ) -> None:
        self.folder, self.recipe, self.cue_folders = folder, recipe, [folder]
        self.config = resolve_selection(settings)
        self.candidates_folder = folder / CANDIDATES
        candidates = settings_of_candidates(settings)
        requested, *_ = [resolve(candidate) for candidate in candidates.values()]  # wrong settings are errors
        _check_scope(is_joint or bool(requested.mixture.tasks))
        self.splits: Splits = splits or read_splits(requested.task, tables or {}, check_metric)
        self.backbone = backbone or load_backbone(requested.backbone)
        self._settings = settings_of_candidates(settings, self.backbone.kind)
        self.folds = make_folds(self.splits, self.config.folds, requested.task.sample_seed)
        # The last rung is the winner's own training, and would be nobody's on folds, after which it begins anew.
        self._num_rungs = NUM_RUNGS - 1 if self._has_folds else NUM_RUNGS
        self._left_out: dict[str, str] = {}
        self._runs = self._make_candidates()
        self._trainers: dict[str, list[Trainer]] = {}
        self.record = self._new_record()

    def execute(self, *, resume: bool = False, overwrite: bool = False, progress: bool = True) -> list[Cue]:
        """Try the methods, and write the cue of the best. If a finished run is resumed, its cue is only loaded."""
        with convert_disk_errors(self.folder), lock_folder(self.folder):
            if not resume and not overwrite:
                check_output(self.folder, self.cue_folders)
            if resume and (self.folder / "cue.json").is_file() and not self.candidates_folder.is_dir():
                return [self._load_finished()]
            self._begin(resume, progress)
            self._compare(progress)
            winner = Run(
                self.folder,
                self._settings[self.record.winner],
                backbone=self.backbone,
                splits=self.splits,
                recipe=self.recipe,
                selection=self.record,
            )
            trainer = winner.make_trainer()
            self._trainers.clear()  # the winner goes on from its checkpoints
            self._hand_over(self._runs[self.record.winner])
            cues = winner.complete(trainer, resume=True, progress=progress)
            remove(self.candidates_folder)
        return cues

    @property
    def _has_folds(self) -> bool:
        """Whether methods are compared on several folds. The cue is then trained anew, on all training rows."""
        return len(self.folds) > 1

    def _make_candidates(self) -> dict[str, Run]:
        """A run of each method on all rows. One that does not work on this backbone or task is left out."""
        runs: dict[str, Run] = {}
        errors: list[SoftcueError] = []
        for name, settings in self._settings.items():
            try:
                runs[name] = self._make_candidate(name, settings, self.splits)
            except SoftcueError as error:
                errors.append(error)
                self._left_out[name] = f"left out: {_reason(error)}"
        if not runs:
            if len({str(error) for error in errors}) == 1:
                raise errors[0]
            raise ConfigurationError(
                setting="selection.methods",
                got=", ".join(self._settings),
                expected=f"a method that works on {self.backbone.name} and a task of kind {self.splits.task.kind}",
                fix="; ".join(f"{name} {reason}" for name, reason in self._left_out.items()),
            )
        return runs

    def _make_candidate(self, name: str, settings: Settings, splits: Splits) -> Run:
        folder = self.candidates_folder / name
        return Run(folder, settings, backbone=self.backbone, splits=splits, recipe=self.recipe)

    def _new_record(self) -> SelectionRecord:
        """The record before anything is tried."""
        digests = {name: run.checkpoints.run for name, run in self._runs.items()}
        facts = json.dumps([digests, self._left_out, len(self.folds)], sort_keys=True)
        num_rows = len(self.splits.validation)
        rows = f"{num_rows:,} validation rows"
        if self._has_folds:
            num_rows += len(self.splits.train)
            rows = f"{num_rows:,} training and validation rows in {len(self.folds)} folds"
        tried = []
        for name in self._settings:
            entry = TriedMethod(method=name, reason=self._left_out.get(name, ""))
            if name in self._runs:
                counts = self._runs[name].models[0].counts()
                entry.parameters = counts.gradient + counts.head
            tried.append(entry)
        digest = hashlib.sha256(facts.encode()).hexdigest()
        metric = self.splits.task.main_metric
        return SelectionRecord(run=digest, metric=metric, rows=rows, num_rows=num_rows, tried=tried)

    def _load_finished(self) -> Cue:
        """Load the cue of a finished run after checking that it chose between the same methods on the same rows."""
        record = record_of_cue(self.folder)
        if record is None or record.run != self.record.run:
            raise finished_by_another_run(self.folder)
        return self._runs[record.winner].load_finished(self.folder)

    def _begin(self, resume: bool, progress: bool) -> None:
        """Go on from the record of a stopped run, or begin a new one."""
        record = read_record(self.candidates_folder) if resume else None
        is_of_another_run = record is not None and record.run != self.record.run
        has_no_record = resume and record is None and (self.folder / "checkpoints").is_dir()
        if is_of_another_run or has_no_record:
            raise RunError(
                setting="resume",
                got=self.folder,
                expected="an unfinished run with method.name=auto (same backbone, data, settings, softcue version)",
                fix="use its settings, another folder, or `overwrite=True`",
            )
        with convert_write_errors("output_dir", self.folder):
            if record is None:
                remove(self.candidates_folder)
                remove(self.folder / "checkpoints")
            self.candidates_folder.mkdir(parents=True, exist_ok=True)
            self.record = record or self.record
            write_record(self.candidates_folder, self.record)
        names = ", ".join(self._runs)
        _note(f"auto: {names} on {self.backbone.name}, compared on {self.record.rows}", progress)
        for name, reason in self._left_out.items():
            _note(f"{name}: {reason}", progress)

    def _compare(self, progress: bool) -> None:
        """Train the candidates rung by rung; the better half goes on. What the record has already is not repeated."""
        record, limit = self.record, self.config.seconds
        while record.num_rungs < self._num_rungs and not record.is_out_of_time:
            rung = record.num_rungs
            waiting = [entry for entry in record.tried if len(entry.rungs) == rung and not entry.is_settled]
            # What reads frozen vectors takes seconds: it comes first, so that a short time does not leave it out.
            waiting.sort(key=lambda entry: not self._runs[entry.method].models[0].has_frozen_features)
            for entry in waiting:
                record.is_out_of_time = 0 < limit <= record.seconds and bool(record.winner)
                if record.is_out_of_time:
                    _note(f"the time of {limit:g} seconds is over: the best so far is trained to its end", progress)
                    break
                self._try(entry, rung, progress)
                write_record(self.candidates_folder, record)
            else:
                self._drop_worse_half(rung)
                record.num_rungs += 1
            write_record(self.candidates_folder, record)

    def _drop_worse_half(self, rung: int) -> None:
        """Drop the worse half of those that have not finished. What has finished costs nothing and stays."""
        in_training = [entry for entry in self.record.tried if not entry.is_settled]
        standings = [entry.standing for entry in in_training if entry.standing is not None]
        going_on = better_half(standings, self.record.num_rows)
        for entry in in_training:
            if entry.method not in going_on:
                entry.dropped_after = rung + 1
                self._trainers.pop(entry.method, None)
        if not self.record.winner:
            raise TrainingError(
                setting="selection.methods",
                got=", ".join(self._settings),
                expected="a method that can be trained on these rows",
                fix="; ".join(f"{entry.method} {entry.reason}" for entry in self.record.tried),
            )

    def _try(self, entry: TriedMethod, rung: int, progress: bool) -> None:
        """Train a candidate to the end of a rung, and note its score and its time."""
        started, processor_started = time.monotonic(), time.process_time()
        steps, scores = [], []
        try:
            for number in range(len(self.folds)):
                trainer = self._advance(entry.method, number, rung, progress)
                assert trainer.state.best_score is not None  # a rung ends with an evaluation
                steps.append(trainer.state.step)
                scores.append(trainer.state.best_score)
        except (BackboneError, ConfigurationError, DataError, TrainingError) as error:
            has_broken = isinstance(error, TrainingError)
            entry.reason = f"{'broke down' if has_broken else 'left out'}: {_reason(error)}"
            self._trainers.pop(entry.method, None)
        else:
            entry.rungs.append(RungScore(step=max(steps), score=fmean(scores)))
            entry.is_finished = all(trainer.is_done for trainer in self._trainers[entry.method])
        entry.cpu_seconds = round(entry.cpu_seconds + time.process_time() - processor_started, 2)
        self.record.seconds = round(self.record.seconds + time.monotonic() - started, 2)
        text = entry.reason or f"{self.record.metric} {entry.rungs[-1].score:.1f} at step {entry.rungs[-1].step:,}"
        _note(f"rung {rung + 1} of {self._num_rungs}, {entry.method}: {text}", progress)

    def _advance(self, name: str, number: int, rung: int, progress: bool) -> Trainer:
        """Train a candidate on one fold to the end of a rung. Its trainer stays in memory for the next."""
        trainers = self._trainers.setdefault(name, [])
        run = self._runs[name]
        folder = run.folder
        if self._has_folds:
            folder = self.candidates_folder / f"{name}-fold-{number + 1}"
        if number == len(trainers):
            if self._has_folds:
                run = self._make_candidate(folder.name, self._settings[name], self.folds[number])
            trainer = run.make_trainer()
            folder.mkdir(parents=True, exist_ok=True)
            for path in run.connect(trainer, resume=True):
                _note(f"passed over the damaged checkpoint {path}", progress)
            trainers.append(trainer)
        trainer = trainers[number]
        metric, num_rows = self.record.metric, len(self.folds[number].validation)
        with ProgressRecorder(folder, trainer.num_steps, progress, metric, num_rows) as recorder:
            recorder.start(trainer.state.step)
            trainer.listener = recorder
            trainer.advance(rung_step(rung, trainer.num_steps, trainer.evaluate_every))
        return trainer

    def _hand_over(self, candidate: Run) -> None:
        """Move what the winner has done on all rows into the output folder. If that is done already, nothing moves."""
        if self._has_folds or not candidate.checkpoints.exist():
            return
        for name in ("metrics.jsonl", "checkpoints"):  # checkpoints last: they say that there is something to move
            if (candidate.folder / name).exists():
                os.replace(candidate.folder / name, self.folder / name)


def _check_scope(is_joint: bool) -> None:
    """Raise an error for what a choice between methods cannot do."""
    if is_joint:
        raise ConfigurationError(
            setting="method.name",
            got=AUTO,
            expected="the name of a method beside several tasks: methods are chosen for one task",
            fix="choose it on one of the tasks, then name it",
        )
    if Processes().world_size > 1:
        raise RunError(
            setting="method.name",
            got=AUTO,
            expected="one process: the clock of each could decide otherwise",
            fix="choose without torchrun; then train with the config.yaml of the cue in several processes",
        )


def _reason(error: SoftcueError) -> str:
    """Why a method cannot be tried. What to change is for runs of this method alone."""
    return f"{error.setting} {error.got}, expected {error.expected}"


def _note(line: str, progress: bool) -> None:
    """Print a line of progress on standard error."""
    if progress:
        Console(stderr=True).print(escape(line), highlight=False, soft_wrap=True)
