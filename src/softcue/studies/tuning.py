"""The trials of `softcue tune`: their file, tuning.json, and the table with the best first."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from softcue.cue import Cue
from softcue.cue.score_table import baseline_notes, few_rows_notes
from softcue.errors import RunError
from softcue.evaluation import baseline_lines, format_scores, main_of_scores
from softcue.files import convert_write_errors, write_json
from softcue.listing import Listing
from softcue.studies.execution import list_warnings, read_metrics, recorded_score
from softcue.studies.study import name_value
from softcue.studies.table import Column, Table, TitledTable

FILE = "tuning.json"
# What a search must have in common with the one of the folder to go on, in words.
REQUEST = {
    "run": "backbone, rows or settings",
    "space": "searched settings",
    "trials": "numbers of trials",
    "seeds": "numbers of seeds",
}


@dataclass(frozen=True)
class TuningTrial:
    """Settings that were tried, and what they reached on validation rows."""

    number: int  # from 1, which is the preset
    settings: dict[str, Any]
    scores: tuple[float, ...]  # of the task's metric, by seed; none if it failed
    seconds: float  # of all seeds
    reason: str = ""  # why it has no score
    warnings: tuple[str, ...] = ()  # of its runs, each once

    @property
    def name(self) -> str:
        """Its number, as in tables."""
        return f"{self.number} (preset)" if self.number == 1 else str(self.number)

    @property
    def score(self) -> float | None:
        """The mean over seeds."""
        return fmean(self.scores) if self.scores else None

    @property
    def rank(self) -> float:
        """The score, or the lowest there is."""
        return -inf if self.score is None else self.score


@dataclass
class TuningFile:
    """The content of tuning.json. It is written after every trial, so a search that was stopped goes on.

    Example:
        file = TuningFile.begin(Path("cues/tickets"), request, overwrite=False)
    """

    folder: Path
    request: dict[str, Any]  # the keys of REQUEST
    replaces: bool  # a cue that was in the folder before
    trials: list[TuningTrial] = field(default_factory=list)
    is_finished: bool = False

    @classmethod
    def begin(cls, folder: Path, request: Mapping[str, Any], overwrite: bool) -> TuningFile:
        """Read the file of a search with the same request, or begin one."""
        path = folder / FILE
        plain = json.loads(json.dumps(request))  # as it comes back from the file
        if path.exists() and not overwrite:
            file = cls._read(folder)
            if changed := [REQUEST[key] for key in REQUEST if file.request.get(key) != plain[key]]:
                raise RunError(
                    setting="output_dir",
                    got=folder,
                    expected="a new folder, or that of the same search",
                    fix=f"{' and '.join(changed)} differ from those in its {FILE}: choose another folder, or pass "
                    "`overwrite=True`",
                )
            return file
        if not overwrite and any((folder / name).exists() for name in ("cue.json", "checkpoints")):
            raise RunError(
                setting="output_dir",
                got=folder,
                expected="a folder without the cue or checkpoints of another run",
                fix="choose another, or pass `overwrite=True`",
            )
        file = cls(folder, plain, overwrite)
        file.write()
        return file

    @classmethod
    def _read(cls, folder: Path) -> TuningFile:
        try:
            content = json.loads((folder / FILE).read_text("utf-8"))
            trials = [
                TuningTrial(
                    **{
                        **trial,
                        "scores": tuple(map(float, trial["scores"])),
                        "warnings": tuple(trial.get("warnings", ())),  # those of earlier versions have none
                    }
                )
                for trial in content["trials"]
            ]
            return cls(folder, dict(content["request"]), content["replaces"], trials, content["is_finished"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise RunError(
                setting="output_dir",
                got=folder,
                expected=f"a {FILE} that `softcue tune` has written",
                fix="it is damaged: choose another folder, or pass `overwrite=True`",
            ) from error

    def write(self) -> None:
        """Write all that is known now."""
        content = {
            "request": self.request,
            "replaces": self.replaces,
            "is_finished": self.is_finished,
            "best": self.best.number if self.trials else None,
            "trials": [asdict(trial) for trial in self.trials],
        }
        with convert_write_errors("output_dir", self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.folder / FILE, content)

    def find(self, settings: Mapping[str, Any]) -> TuningTrial | None:
        """The trial with these settings, if it is done."""
        return next((trial for trial in self.trials if trial.settings == settings), None)

    @property
    def best(self) -> TuningTrial:
        """The trial with the highest score; of equal ones the first, so the preset before all others."""
        return max(self.trials, key=lambda trial: trial.rank)


@dataclass(frozen=True, repr=False)
class Tuning(TitledTable):
    """Tried settings as a table with the best first, and the cue of the best. It is used like a DataFrame.

    Example:
        tuning.best                             # {"training.learning_rate": 0.03, ...}
        tuning.cue.predict(["My invoice is wrong."])
        tuning["score"], tuning.to_pandas()     # a column; the table
        tuning.trials[0].reason                 # by number of the trial, from 0
    """

    data: str  # the name of the rows
    metric: str
    validation_rows: int
    trials: Listing[TuningTrial]  # in the order of the search
    num_planned: int  # trials that were to be; 0: a whole grid
    cue: Cue
    command: str  # that trains the best settings again

    @property
    def best_trial(self) -> TuningTrial:
        """The trial whose settings the cue has."""
        return max(self.trials, key=lambda trial: trial.rank)

    @property
    def best(self) -> dict[str, Any]:
        """The searched settings of the cue."""
        return dict(self.best_trial.settings)

    @property
    def title(self) -> str:
        """What was tried on which rows, and what is scored."""
        rows = f"{self.validation_rows} validation rows"
        method = self.cue.cue_file.method["name"]
        return f"{len(self.trials)} trials of {method} on {self.data}: {self.metric} on {rows}"

    @property
    def sentences(self) -> list[str]:
        """How the best compares with the preset, and what its cue reached."""
        best, preset = self.best_trial, self.trials[0]
        sentences = []
        if best is preset:
            sentences.append("No trial is better than the preset on these validation rows.")
        elif preset.score is None:
            sentences.append(f"Trial {best.number} is the best; the preset has no score.")
        else:
            gain = best.rank - preset.rank
            sentences.append(f"Trial {best.number} is {gain:.1f} points above the preset on these validation rows.")
        if "test" in self.cue.scores:
            test = recorded_score(self.cue, "test")
            scores = format_scores({self.metric: test["main"]}, self._main_baselines("test"), [self.metric])
            sentences.append(
                f"The cue in {self.cue.path} was trained again with its settings: {scores} on {test['rows']} test "
                "rows, which no trial has read."
            )
        else:
            sentences.append(f"The cue in {self.cue.path} was trained again with its settings; there are no test rows.")
        return sentences

    @property
    def notes(self) -> list[str]:
        """What a reader of the table should know."""
        notes = []
        if len(self.trials) < self.num_planned:
            notes.append(
                f"{len(self.trials)} of {self.num_planned} trials: time was up, or settings were proposed twice."
            )
        notes.append("Validation rows chose the best trial and the best step of each, so these scores are too high.")
        warnings = {f"trial {trial.name}": trial.warnings for trial in self.trials}
        if self.cue.path is not None:
            warnings["the cue"] = tuple(read_metrics(self.cue.path).get("warnings", ()))
        return [
            *notes,
            *baseline_notes(self.cue.cue_file),
            *few_rows_notes([self.validation_rows]),
            *list_warnings(warnings),
        ]

    @property
    def baselines(self) -> Table:
        """The majority class (regression: the mean target) and zero-shot on the same validation rows."""
        scores = self._main_baselines("validation")
        lines = baseline_lines({"the cue": {name: values.get(self.metric) for name, values in scores.items()}})
        return Table(
            [
                Column("trial", [line.name for line in lines], "baseline"),
                Column("baseline", [line.key for line in lines], is_shown=False),
                Column("score", [line.scores for line in lines], self.metric),
            ]
        )

    def _main_baselines(self, split: str) -> dict[str, dict[str, float]]:
        """The score of each baseline that the cue records for a split, by the name of the task's metric."""
        recorded = self.cue.cue_file.baselines.get(split, {})
        scores = {name: main_of_scores(self.cue.task, values) for name, values in recorded.items()}
        return {name: {} if score is None else {self.metric: score} for name, score in scores.items()}

    def table_columns(self) -> Sequence[Column]:
        """Each trial with its validation score, settings and seconds, the best first and failed ones last."""
        trials = sorted(self.trials, key=lambda trial: -trial.rank)
        keys = list(trials[0].settings)
        num_seeds = max(len(trial.scores) for trial in trials)
        spreads = [stdev(trial.scores) if len(trial.scores) > 1 else None for trial in trials]
        reasons = [trial.reason for trial in trials]
        return [
            Column("trial", [trial.number for trial in trials], show=lambda number: self.trials[number - 1].name),
            Column("score", [trial.score for trial in trials], self.metric),
            Column("spread", spreads, is_shown=num_seeds > 1),
            *(
                Column(key, [trial.settings[key] for trial in trials], key.partition(".")[2], show_setting)
                for key in keys
            ),
            Column("seconds", [trial.seconds for trial in trials]),
            Column("reason", reasons, "why no score", is_shown=any(reasons)),
        ]

    def as_dict(self) -> dict[str, Any]:
        """All values, for JSON."""
        return {
            "data": self.data,
            "metric": self.metric,
            "validation_rows": self.validation_rows,
            "trials": [{**asdict(trial), "score": trial.score} for trial in self.trials],
            "baselines": self.baselines.to_dict("records"),
            "best": self.best,
            "best_trial": self.best_trial.number,
            "cue": str(self.cue.path),
            "scores": self.cue.scores,
            "notes": self.notes,
            "command": self.command,
        }


def show_setting(value: Any) -> str:
    """A searched value as text; layers that follow each other by the first and the last.

    Example:
        >>> show_setting([]), show_setting([3, 4, 5]), show_setting([0, 4]), show_setting(0.01)
        ('all', '3 to 5', '0, 4', '0.01')
    """
    if not isinstance(value, list):
        return f"{value:.4g}" if isinstance(value, float) else name_value(value)
    if len(value) > 2 and value == list(range(value[0], value[0] + len(value))):
        return f"{value[0]} to {value[-1]}"
    return ", ".join(map(str, value)) or "all"
