"""What travels through the engine: items asked for, jobs (one example for one cue), rows, answers."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal

from softcue.backbones import Decoding
from softcue.inference import TaskModel
from softcue.serving.engine.registry import LoadedCue
from softcue.serving.engine.streaming import Writer
from softcue.serving.errors import RequestError
from softcue.types import Example, Prediction, TokenizedRow

Ensemble = Literal["vote", "mean"]
Text = str | Sequence[str] | Example  # read already, where it is more than its texts
OnText = Callable[[int, str], None]  # the place of an item, and the next piece of its text
Item = tuple[str | Sequence[str], Text]  # a cue's name (for an ensemble: names, or a task's), and what it is to read


@dataclass(frozen=True)
class Options:
    """How items are to be answered."""

    ensemble: Ensemble | None = None  # one answer from all cues of an item
    truncate: bool = True  # cut texts that are too long instead of refusing them
    must_write: bool = False  # only cues that write free text
    max_new_tokens: int | None = None  # instead of the cue's own limit, for cues that write free text
    stop: tuple[str, ...] = ()  # written text ends before the first of these


@dataclass(frozen=True)
class Answer:
    """The answer to an item, who gave it and how long that took."""

    prediction: Prediction
    versions: Mapping[str, str]  # cue -> version; several for an ensemble
    votes: Mapping[str, int]  # of an ensemble
    is_truncated: bool
    queue_seconds: float
    compute_seconds: float

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        names = list(self.versions)
        who: dict[str, object] = {"versions": dict(self.versions)}
        if len(names) == 1:
            who = {"task": names[0], "version": self.versions[names[0]]}
        return {
            **who,
            **self.prediction.as_dict(),
            **({"votes": dict(self.votes)} if self.votes else {}),
            "truncated": self.is_truncated,
            "timings": {
                "queue_ms": round(1000 * self.queue_seconds, 3),
                "compute_ms": round(1000 * self.compute_seconds, 3),
            },
        }


Result = Answer | RequestError


@dataclass(eq=False)
class RequestRow:
    """One example for one version of a cue, from its arrival to its result."""

    served: LoadedCue
    model: TaskModel
    example: Example
    options: Options
    deadline: float = math.inf  # on the monotonic clock
    arrived: float = field(default_factory=time.monotonic)
    result: Future[Result] = field(default_factory=Future)
    answers: list[Prediction | None] = field(default_factory=list)  # of its rows
    started: float = 0.0  # when the first of its rows was run
    compute_seconds: float = 0.0  # of the passes its rows were in
    is_truncated: bool = False
    is_dropped: bool = False  # nobody waits for it any more
    group: object = field(default_factory=object)  # the same for all cues of an ensemble: they share a batch
    writer: Writer | None = None  # hears what is written

    @property
    def decoding(self) -> Decoding | None:
        """How its answer is written token by token, if it is: that would keep others in its batch waiting."""
        return self.model.readout.decoding

    def is_gone(self, now: float) -> bool:
        """Whether nobody waits for it any more, or it has waited too long."""
        return self.is_dropped or self.deadline <= now

    def has_no_one(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.is_dropped


@dataclass(frozen=True, eq=False)
class Row:
    """One row of a job, as the backbone reads it: most jobs have one, long texts several."""

    job: RequestRow
    number: int
    tokens: TokenizedRow
    length: int  # what it adds to a pass

    @classmethod
    def of(cls, job: RequestRow, number: int, tokens: TokenizedRow) -> Row:
        """With its length counted."""
        return cls(job, number, tokens, job.model.length(tokens))


class PendingRequest:
    """An item on its way: the jobs of its cues, and one future for the result."""

    def __init__(self, jobs: Sequence[RequestRow]) -> None:
        self.jobs = jobs
        self.result: Future[Result] = Future()
        self.result.set_running_or_notify_cancel()  # whoever stops waiting calls `drop`; a result can always be set
        self._left = len(jobs)
        self._lock = threading.Lock()

    def is_last(self) -> bool:
        """Count one job as done; whether it was the last."""
        with self._lock:
            self._left -= 1
            return self._left == 0

    def drop(self) -> None:
        """Nobody waits any more: rows that have not begun are never run."""
        for job in self.jobs:
            job.is_dropped = True


@dataclass(frozen=True)
class BatchReport:
    """What one pass over a batch was like, for metrics."""

    num_rows: int
    num_tasks: int
    num_tokens: int  # prompts included, unless they are run once for all rows
    num_padding: int
    seconds: float
    queue_seconds: tuple[float, ...]  # of jobs that began with it
