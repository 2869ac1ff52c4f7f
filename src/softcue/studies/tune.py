"""`softcue.tune`: settings of a method searched on validation rows, and the best kept as an ordinary cue."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from inspect import signature
from math import inf
from pathlib import Path
from typing import Any, Unpack

import yaml

from softcue.api import PYTHON_NAMES, RequestedRun, TrainArguments, request_run
from softcue.configuration import Settings, merged, override
from softcue.cue import Cue
from softcue.errors import BackboneError, ConfigurationError, RunError, TrainingError, near_matches
from softcue.files import lock_folder, remove
from softcue.listing import Listing
from softcue.run import Run, with_method_of_first_stage
from softcue.selection import AUTO
from softcue.studies.execution import read_metrics, recorded_score
from softcue.studies.methods import Report, make_line_report, name_of_rows
from softcue.studies.search import Trial, propose
from softcue.studies.search_space import check_space, default_space, is_inside, make_search, read_space
from softcue.studies.study import Search
from softcue.studies.tuning import Tuning, TuningFile, TuningTrial, show_setting

TRIALS = "trials"  # the folder of unfinished trials
# Settings of the task that `softcue train` takes as options.
TASK_OPTIONS = ("train", "validation", "test", "text", "label", "data")


def tune(
    output_dir: str | Path,
    *,
    trials: int = 20,
    space: Mapping[str, Any] | None = None,
    seeds: int = 1,
    seconds: float = inf,
    keep_trials: bool = False,
    **arguments: Unpack[TrainArguments],
) -> Tuning:
    """Search settings of a method on validation rows, and keep the best as an ordinary cue in `output_dir`.

    `arguments` are those of `softcue.train`. `space` names what is searched: `{"training.learning_rate":
    "0.001..0.1", "method.prompt_length": [5, 10, 20]}`; a range needs optuna (extra `optuna`). Without it, learning
    rates, prompt length and layers are searched around the method's preset, as far as the method has them and
    `arguments` do not set them. The first trial is the preset itself. `trials` counts it too; 0 tries the whole grid
    of a space of lists. With several `seeds` the mean of their validation scores counts. No trial begins after
    `seconds` of trials. Settings that do not fit or do not train have the lowest score, with the reason in the table.

    Trials read no test rows. The best settings are trained again at the end, with test rows scored once. A search that
    was stopped goes on where it was when it is called again; `overwrite` begins it anew. `keep_trials` leaves the cues
    of all trials in the folder `trials`.

    Example:
        tuning = softcue.tune("cues/tickets", task="tickets", method="p-tuning-v2", trials=20)
        tuning.best, tuning.cue.scores["test"]
        tuning.to_pandas().plot.scatter("training.learning_rate", "score", logx=True)
    """
    _check(trials, seeds, seconds, arguments)
    overwrite, report = bool(arguments.pop("overwrite", False)), make_line_report(arguments.pop("progress", True))
    requested = request_run(**arguments)
    if requested.settings.get("method", {}).get("name") == AUTO:
        raise ConfigurationError(
            setting="method.name",
            got=AUTO,
            expected="one method, whose settings are searched",
            fix="choose it first: softcue train --method auto",
        )
    named_space = read_space(space) if space else {}
    check_space(named_space, with_method_of_first_stage(requested.settings), requested.given)
    folder = Path(output_dir)
    preset = requested.make_run(folder, {})
    searched = named_space or default_space(preset, requested.given)
    if not searched:
        raise ConfigurationError(
            setting="space",
            got=f"none, with {preset.config.method.name}",
            expected="settings to search; the method has no learning rate, prompt length or layers that are not set",
            fix="name them with `space`, on the command line with --search, or train it as it is",
        )
    start = {key: _value_of(preset, key) for key in searched}
    search = make_search(searched, trials, seeds, start)
    propose(search, [])  # without optuna, a search that needs it ends here
    request = {
        "run": preset.checkpoints.run,
        "space": search.model_dump(mode="json")["space"],
        "trials": trials,
        "seeds": seeds,
    }
    with lock_folder(folder / TRIALS):
        file = TuningFile.begin(folder, request, overwrite)
        if overwrite:
            remove(folder / TRIALS)
        for line in preset.describe():
            report(line)
        tuner = _Tuner(folder, replace(requested, backbone=preset.backbone), preset, search, start, file)
        if not file.is_finished:
            tuner.run_trials(seconds, keep_trials, report)
        cue = tuner.train_best()
        if not keep_trials:
            remove(folder / TRIALS)
    command = _command(requested, arguments.get("config"), tuner.changes_of(file.best))
    num_rows = len(preset.splits[0].validation)
    data = name_of_rows(arguments, cue)
    num_planned = trials if search.trials else 0
    return Tuning(data, cue.task.main_metric, num_rows, Listing(file.trials), num_planned, cue, command)


def _check(trials: int, seeds: int, seconds: float, arguments: Mapping[str, Any]) -> None:
    if trials < 0 or trials == 1:
        raise ConfigurationError(
            setting="trials", got=trials, expected="at least 2: the first is the preset", fix="0 tries a whole grid"
        )
    if seeds < 1:
        raise ConfigurationError(setting="seeds", got=seeds, expected="at least 1", fix="raise it")
    if not seconds > 0:
        raise ConfigurationError(setting="seconds", got=seconds, expected="more than 0", fix="leave it out")
    if arguments.get("resume") is not None:
        raise ConfigurationError(
            setting="resume",
            got=arguments["resume"],
            expected="no such argument: a search always goes on where it was",
            fix="leave it out",
        )
    for name in arguments.keys() - TrainArguments.__annotations__.keys():
        raise ConfigurationError(
            setting=name,
            got=arguments[name],
            expected="an argument of softcue.tune or softcue.train",
            fix=near_matches(name, {*signature(tune).parameters, *TrainArguments.__annotations__} - {"arguments"}),
        )


def _value_of(run: Run, key: str) -> Any:
    section, name = key.split(".")[:2]
    return run.config.as_settings()[section][name]


@dataclass(frozen=True)
class _Tuner:
    """Trains the trials of a search one after the other, and the best at the end."""

    folder: Path
    requested: RequestedRun
    preset: Run
    search: Search
    start: dict[str, Any]  # the searched settings of the preset
    file: TuningFile

    def run_trials(self, seconds: float, keep_trials: bool, report: Report) -> None:
        """Try the preset and what the search proposes; what the file has already is not trained again."""
        first = self._try(self.start, keep_trials, report)
        is_seen = self.search.trials and is_inside(self.search.space, self.start)
        rounds: list[list[Trial]] = [[(self.start, first.rank)]] if is_seen else []
        while (proposals := propose(self.search, rounds)) is not None:
            finished: list[Trial] = []
            for settings in proposals:
                is_new = self.file.find(settings) is None
                if is_new and sum(trial.seconds for trial in self.file.trials) >= seconds:
                    report(f"no more trials: {seconds:g} seconds are over")
                    return
                finished.append((settings, self._try(settings, keep_trials, report).rank))
            rounds.append(finished)

    def _try(self, settings: dict[str, Any], keep_trials: bool, report: Report) -> TuningTrial:
        """The trial with these settings: as the file has it, or trained now."""
        done = self.file.find(settings)
        if done is not None:
            return done
        number = len(self.file.trials) + 1
        trial_folder = self.folder / TRIALS / f"{number:02}"
        started, reason = time.monotonic(), ""
        scores: list[float] = []
        warnings: dict[str, None] = {}
        try:
            for seed in range(self.search.seeds):
                run_folder = trial_folder / f"seed-{seed}"
                cue = self._train_trial(run_folder, settings, seed)
                warnings |= dict.fromkeys(read_metrics(run_folder).get("warnings", ()))
                scores.append(recorded_score(cue, "validation")["main"])
        except (TrainingError, ConfigurationError, BackboneError) as error:
            scores, reason = [], " ".join(str(error).split())
        seconds = round(time.monotonic() - started, 1)
        trial = TuningTrial(number, settings, tuple(scores), seconds, reason, tuple(warnings))
        self.file.trials.append(trial)
        self.file.write()
        if not keep_trials:
            remove(trial_folder)
        words = ", ".join(f"{key.partition('.')[2]} {show_setting(value)}" for key, value in settings.items())
        result = f"{trial.score:.1f} on validation rows" if trial.score is not None else f"no score, {reason}"
        report(f"trial {trial.name}, {words}, {seconds} seconds: {result}")
        return trial

    def _train_trial(self, folder: Path, settings: Mapping[str, Any], seed: int) -> Cue:
        """The cue of a trial with one of its seeds. It reads no test rows."""
        training = self.preset.config.training
        trial = {
            "training": {
                "seed": training.seed + seed,
                "report_group": training.report_group or self.folder.resolve().name,  # trackers group the trials
            },
            "task": {"use_test_rows": False},
        }
        changes = merged(self._changes(settings), trial)
        return _execute(self.requested.make_run(folder, changes), may_replace=True)

    def train_best(self) -> Cue:
        """The cue of the best trial's settings with the first seed, trained in the folder itself; test rows count."""
        best = self.file.best
        if best.score is None:
            raise TrainingError(
                setting="trials",
                got=f"{len(self.file.trials)} without a score",
                expected="settings that can be trained",
                fix=f"search others; the first: {self.file.trials[0].reason}",
            )
        run = self.requested.make_run(self.folder, self.changes_of(best))
        cue = _execute(run, may_replace=self.file.replaces and not self.file.is_finished)
        if not self.file.is_finished:
            self.file.is_finished = True
            self.file.write()
        return cue

    def changes_of(self, trial: TuningTrial) -> Settings:
        """What a trial changes in the settings of the preset."""
        return self._changes(trial.settings)

    def _changes(self, settings: Mapping[str, Any]) -> Settings:
        if settings == self.start:
            return {}
        return merged(*(override(key, value) for key, value in settings.items()))


def _execute(run: Run, may_replace: bool) -> Cue:
    """The cue of a run that goes on where it was. What another run has left in its folder may be replaced."""
    try:
        [cue] = run.execute(resume=True, progress=False)
    except RunError as error:
        if error.setting != "resume" or not may_replace:
            raise
        [cue] = run.execute(overwrite=True, progress=False)
    return cue


def _command(requested: RequestedRun, config: Any, changes: Settings) -> str:
    """The command that trains a run with changed settings; rows in memory have no file that it could name."""
    is_file = isinstance(config, (str, Path))
    settings = merged(requested.given if is_file else requested.settings, changes)
    options, words = [], []
    for section, values in settings.items():
        for key, value in values.items():
            option = PYTHON_NAMES.get((section, key)) or (key if section == "task" and key in TASK_OPTIONS else "")
            if option and isinstance(value, str):
                options += [f"--{option}", value]
            else:
                words += _as_words(f"{section}.{key}", value)
    options += [] if requested.recipe == "default" else ["--recipe", requested.recipe]
    return shlex.join(
        ["softcue", "train", *([str(config)] if is_file else []), *options, *words, "--output-dir", "NEW"]
    )


def _as_words(key: str, value: Any) -> list[str]:
    """Words `section.key=value`, which are read as YAML."""
    if isinstance(value, Mapping):
        return [word for name, inner in value.items() for word in _as_words(f"{key}.{name}", inner)]
    return [f"{key}={value if _is_plain(value) else json.dumps(value)}"]


def _is_plain(value: Any) -> bool:
    """Whether YAML reads a text as it is."""
    try:
        return isinstance(value, str) and yaml.safe_load(value) == value
    except yaml.YAMLError:
        return False
