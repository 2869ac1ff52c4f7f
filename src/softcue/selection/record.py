"""The record of a choice between methods: what was tried, how it scored, and what won.

While methods are compared it is a file that a stopped run goes on from. Afterwards it is a part of metrics.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from softcue.files import METADATA_LIMIT, read_within, write_json
from softcue.selection.halving import Standing, rank, standard_error

CANDIDATES = "candidates"  # the folder of an unfinished choice, below that of the run
FILE = "selection.json"  # in it


class RungScore(BaseModel):
    """The validation score of a candidate when a rung ends: the best up to this step."""

    model_config = ConfigDict(frozen=True)

    step: int
    score: float


class TriedMethod(BaseModel):
    """A candidate: its scores so far, its cost, and why it is not trained further."""

    method: str
    parameters: int = 0  # trainable, with the head
    rungs: list[RungScore] = Field(default_factory=list)
    is_finished: bool = False  # there is nothing left to train
    dropped_after: int = 0  # the rung, from 1, after which it was in the worse half
    cpu_seconds: float = 0.0
    reason: str = ""  # why it was left out or given up

    @property
    def is_settled(self) -> bool:
        """Whether it is not trained further."""
        return self.is_finished or bool(self.dropped_after or self.reason)

    @property
    def standing(self) -> Standing | None:
        """Where it stands; None if it has no score or was given up."""
        if not self.rungs or self.reason:
            return None
        return Standing(self.method, self.rungs[-1].score)


class SelectionRecord(BaseModel):
    """What was tried for one cue. `softcue.load(...).selection` gives it.

    Example:
        cue.selection.winner, cue.selection.tried[0].rungs
    """

    run: str  # digest of all that decides the choice
    metric: str
    rows: str  # in words: the rows of the scores
    num_rows: int = 0  # how many they are; 0: not recorded, and the best score wins
    tried: list[TriedMethod]
    num_rungs: int = 0  # that are decided
    seconds: float = 0.0  # spent on the comparison
    is_out_of_time: bool = False  # so it ended before all rungs

    @property
    def scored(self) -> list[TriedMethod]:
        """The candidates that have a score and were not given up."""
        return [entry for entry in self.tried if entry.standing is not None]

    @property
    def winner(self) -> str:
        """The first named method within one standard error of the best score; empty if none has a score.

        One that was dropped cannot win, unless all that went on have been given up.
        """
        going_on = [entry for entry in self.scored if not entry.dropped_after] or self.scored
        ranked = rank([entry.standing for entry in going_on if entry.standing is not None], self.num_rows)
        return ranked[0].name if ranked else ""

    def outcome(self, entry: TriedMethod) -> str:
        """What became of a candidate, in words."""
        if entry.reason:
            return entry.reason
        if entry.method == self.winner:
            return "won"
        if entry.dropped_after:
            return f"dropped after rung {entry.dropped_after}"
        if entry.is_finished:
            return "finished"
        if self.is_out_of_time:
            return f"{'stopped' if entry.rungs else 'not tried'}: the time was over"
        return "not chosen" if entry.rungs else "not tried yet"

    def as_dict(self) -> dict[str, Any]:
        """Plain values with the winner and the outcomes in words, for JSON.

        Example:
            cue.selection.as_dict()["winner"]
        """
        values = self.model_dump(mode="json")
        for entry, plain in zip(self.tried, values["tried"], strict=True):
            plain["outcome"] = self.outcome(entry)
        return {"winner": self.winner, **values}


def read_record(folder: Path) -> SelectionRecord | None:
    """Read the record in the folder of an unfinished choice; None if there is none.

    Example:
        read_record(Path("cues/tickets/candidates"))
    """
    return _read(folder / FILE, "")


def write_record(folder: Path, record: SelectionRecord) -> None:
    """Write the record into the folder of an unfinished choice.

    Example:
        write_record(Path("cues/tickets/candidates"), record)
    """
    write_json(folder / FILE, record.as_dict())


def record_of_cue(folder: Path | None) -> SelectionRecord | None:
    """The record in the metrics.json of a cue folder; None if its method was not chosen, or the file is not there.

    Example:
        record_of_cue(Path("cues/tickets")).winner
    """
    return None if folder is None else _read(folder / "metrics.json", "selection")


def _read(file: Path, key: str) -> SelectionRecord | None:
    try:
        values = json.loads(read_within(file, METADATA_LIMIT).decode())
        return SelectionRecord.model_validate(values[key] if key else values)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, ValidationError):
        return None


def selection_table(record: SelectionRecord) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of what was tried: scores with their steps, parameters, time, and what became of it.

    Example:
        >>> rungs = [RungScore(step=40, score=81.25)]
        >>> entry = TriedMethod(method="vip-c", parameters=1200, rungs=rungs, cpu_seconds=2.5)
        >>> record = SelectionRecord(run="", metric="accuracy", rows="50 validation rows", tried=[entry])
        >>> selection_table(record)[1]
        [['vip-c', '81.2 (step 40)', '1,200', '2', 'won']]
    """
    num_rungs = max((len(entry.rungs) for entry in record.tried), default=0)
    columns = ["method", *(f"rung {number}" for number in range(1, num_rungs + 1))]
    rows = []
    for entry in record.tried:
        scores = [f"{rung.score:.1f} (step {rung.step:,})" for rung in entry.rungs]
        rows.append(
            [
                entry.method,
                *scores,
                *(["-"] * (num_rungs - len(scores))),
                f"{entry.parameters:,}" if entry.rungs else "-",
                f"{entry.cpu_seconds:.0f}" if entry.rungs else "-",
                record.outcome(entry),
            ]
        )
    return [*columns, "parameters", "CPU seconds", "outcome"], rows


def selection_notes(record: SelectionRecord) -> list[str]:
    """What a reader of the table should know.

    Example:
        selection_notes(cue.selection)[0]     # "accuracy of 312 training and validation rows in 3 folds; ..."
    """
    notes = [f"{record.metric} of {record.rows}; each score is the best up to its step"]
    if record.num_rows:
        margin = standard_error(max((entry.rungs[-1].score for entry in record.scored), default=0.0), record.num_rows)
        notes.append(f"of methods within one standard error ({margin:.1f} points) of the best, the first named wins")
    if record.is_out_of_time:
        notes.append(f"the time was over after {record.seconds:.0f} seconds: the best so far was trained to its end")
    return notes
