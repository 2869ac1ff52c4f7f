"""Requests inside the engine: items, request rows (one example for one cue), batch rows, predictions."""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Literal

from softcue.backbones import Decoding
from softcue.backbones.passes.decoding import cut_at_stop
from softcue.errors import SoftcueError
from softcue.evaluation import mean, vote, votes
from softcue.inference import TaskModel
from softcue.serving.engine.registry import LoadedCue
from softcue.serving.engine.streaming import TextStreamer
from softcue.serving.errors import RequestError, pass_failed
from softcue.tasks import Task
from softcue.types import Example, LabelValue, Prediction, TokenizedRow, label_text

Ensemble = Literal["vote", "mean"]
Text = str | Sequence[str] | Example  # an example is used as it is
OnText = Callable[[int, str], None]  # the index of an item, and the next part of its text
Item = tuple[str | Sequence[str], Text]  # a cue's name (of an ensemble: names, or a task's name), and its text
logger = logging.getLogger("softcue.serving")


@dataclass(frozen=True)
class Options:
    """How the items of a request are predicted."""

    ensemble: Ensemble | None = None  # one prediction from all cues of an item
    truncate: bool = True  # cut texts that are too long instead of rejecting them
    must_generate: bool = False  # only cues that generate free text
    max_new_tokens: int | None = None  # replaces the cue's own limit, for cues that generate free text
    stop: tuple[str, ...] = ()  # generated text ends before the first of these


@dataclass(slots=True)  # not frozen, which takes three times as long to make; there is one for each row
class ServedPrediction:
    """The prediction for an item, the cues that made it and the time it took. It never changes."""

    prediction: Prediction
    versions: Mapping[str, str]  # cue -> version; several for an ensemble
    votes: Mapping[LabelValue, int]  # of an ensemble: label -> cues that predict it
    is_truncated: bool
    queue_seconds: float
    compute_seconds: float
    is_ended: bool = True  # False for generated text that ends at the limit of tokens; beam search does not tell

    def as_dict(self) -> dict[str, object]:
        """The prediction for JSON."""
        names = list(self.versions)
        cues: dict[str, object] = {"versions": dict(self.versions)}
        if len(names) == 1:
            cues = {"task": names[0], "version": self.versions[names[0]]}
        return {
            **cues,
            **self.prediction.as_dict(),
            **({"votes": {label_text(label): count for label, count in self.votes.items()}} if self.votes else {}),
            "truncated": self.is_truncated,
            "timings": {
                "queue_ms": round(1000 * self.queue_seconds, 3),
                "compute_ms": round(1000 * self.compute_seconds, 3),
            },
        }


Result = ServedPrediction | RequestError


@dataclass(eq=False, slots=True)
class RequestRow:
    """One example for one version of a cue, from its arrival to its result."""

    loaded_cue: LoadedCue
    model: TaskModel
    example: Example
    options: Options
    deadline: float = math.inf  # on the monotonic clock
    arrived: float = field(default_factory=time.monotonic)  # in the queue
    result: Result | None = None  # None: it has none yet
    on_result: Callable[[], None] | None = None  # called once, when it has one
    predictions: list[Prediction | None] = field(default_factory=list)  # of its batch rows
    started: float = 0.0  # when the first of its batch rows was run
    compute_seconds: float = 0.0  # of the passes of its batch rows
    is_truncated: bool = False
    is_dropped: bool = False  # no client waits for it any more
    group: object = field(default_factory=object)  # equal for all cues of an ensemble: one thread prepares them
    streamer: TextStreamer | None = None  # receives generated tokens
    # How text is generated, if it is: generation takes many passes, so other rows do not share its batch.
    decoding: Decoding | None = field(init=False)

    def __post_init__(self) -> None:
        self.decoding = self.model.decoding

    def finish(self, result: Result) -> None:
        """Set the result, once."""
        self.result = result
        on_result, self.on_result = self.on_result, None  # it refers to the request
        if on_result is not None:
            on_result()

    def is_over(self, now: float) -> bool:
        """Whether no client waits for the row any more, or its deadline has passed."""
        return self.is_dropped or self.deadline <= now

    def has_no_client(self) -> bool:
        """Whether no client waits for the row any more."""
        return self.is_dropped


@dataclass(eq=False, slots=True)
class BatchRow:
    """One tokenized row of a request row: most request rows have one, long texts have several. It never changes."""

    request_row: RequestRow
    number: int
    tokens: TokenizedRow
    length: int  # tokens that it adds to a pass

    @classmethod
    def of(cls, request_row: RequestRow, number: int, tokens: TokenizedRow) -> BatchRow:
        """The row with its length."""
        return cls(request_row, number, tokens, request_row.model.length(tokens))


class PendingItem(ABC):
    """An item whose result is not there yet: the request rows of its cues. Only inference threads finish them."""

    def __init__(self, rows: Sequence[RequestRow], ensemble: Ensemble | None = None) -> None:
        self.rows = rows
        self._ensemble = ensemble
        self._num_left = len(rows)
        for row in rows:
            row.on_result = self._finish_row

    @abstractmethod
    def finish(self, result: Result) -> None:
        """Set the result, once."""

    def _finish_row(self) -> None:
        self._num_left -= 1
        if not self._num_left:
            # Rows refer to this object: unless they are released here, a replaced cue stays until the next collection.
            rows, self.rows = self.rows, ()
            self.finish(join_cues(rows, self._ensemble))


class PendingRequest(PendingItem):
    """An item whose result a future will have."""

    def __init__(self, rows: Sequence[RequestRow], ensemble: Ensemble | None = None) -> None:
        super().__init__(rows, ensemble)
        self.result: Future[Result] = Future()
        self.result.set_running_or_notify_cancel()  # clients that leave call `drop`; a result can always be set

    def finish(self, result: Result) -> None:
        """Set the result of the future."""
        self.result.set_result(result)

    def drop(self) -> None:
        """Say that no client waits any more: rows that have not started are never run."""
        for row in self.rows:
            row.is_dropped = True


class AwaitedItem(PendingItem):
    """One of many items that a caller waits for together: `finished` gets an entry for each. A future costs more."""

    def __init__(
        self, rows: Sequence[RequestRow], ensemble: Ensemble | None, finished: SimpleQueue[AwaitedItem]
    ) -> None:
        super().__init__(rows, ensemble)
        self.result: Result | None = None
        self._finished = finished

    def finish(self, result: Result) -> None:
        """Set the result and tell the caller."""
        self.result = result
        self._finished.put(self)


@dataclass(frozen=True)
class BatchReport:
    """The facts of one pass over a batch, for metrics."""

    num_rows: int
    num_tasks: int
    num_tokens: int  # with prompts, unless a prompt is run once for all rows
    num_padding: int
    seconds: float
    queue_seconds: tuple[float, ...]  # of request rows that started with this batch


def merge_rows(row: RequestRow, predictions: Sequence[Prediction]) -> Result:
    """The predictions for the batch rows of a request row as one result."""
    try:
        prediction = row.model.merge(row.example, predictions)
    except Exception:
        logger.exception("predictions could not be merged")
        return pass_failed()
    scores = prediction.scores.values() if prediction.scores else ()
    if not (all(map(math.isfinite, scores)) and math.isfinite(prediction.value or 0.0)):
        logger.error("a prediction is not a number", extra={"facts": {"cue": row.loaded_cue.name}})
        return pass_failed()
    if row.options.stop and (text := prediction.label_text) is not None:
        prediction = replace(prediction, label=cut_at_stop(text, row.options.stop))
    return ServedPrediction(
        row.loaded_cue.task.with_label_values(prediction),
        row.loaded_cue.versions,
        {},
        row.is_truncated,
        row.started - row.arrived,
        row.compute_seconds,
    )


def join_cues(rows: Sequence[RequestRow], ensemble: Ensemble | None) -> Result:
    """The result of an item from the results of its cues."""
    results = [row.result for row in rows]
    if ensemble is None and results[0] is not None:
        return results[0]
    for result in results:
        if isinstance(result, RequestError):
            return result
    served = [result for result in results if isinstance(result, ServedPrediction)]
    predictions = [result.prediction for result in served]
    try:
        prediction = (vote if ensemble == "vote" else mean)(predictions)
    except SoftcueError as error:
        return RequestError("invalid", setting="ensemble", expected=error.expected, fix='use "vote"')
    except Exception:
        logger.exception("predictions of several cues could not be joined")
        return pass_failed()
    return ServedPrediction(
        prediction,
        {name: version for result in served for name, version in result.versions.items()},
        votes(predictions),
        any(result.is_truncated for result in served),
        max(result.queue_seconds for result in served),
        max(result.compute_seconds for result in served),
    )


def check_characters(texts: Sequence[str], limit: int) -> None:
    """Reject texts that are too long before any work is done on them."""
    if sum(map(len, texts)) > limit:
        raise RequestError(
            "too_long", setting="text", expected=f"at most {limit:,} characters", fix="shorten or split it"
        )


def check_texts(task: Task, texts: Sequence[str]) -> None:
    """Reject texts that a task cannot read, in the words of a request and not of a data file.

    Example:
        >>> check_texts(Task(name="t", text=("first", "second")), ["Hello."])
        Traceback (most recent call last):
        softcue.serving.errors.RequestError: text: this task reads 2 texts (first, second); send them as a list ...
    """
    if len(texts) == len(task.text) and all(map(str.strip, texts)):
        return  # the usual case
    if len(texts) != len(task.text):
        is_single = len(task.text) == 1
        raise RequestError(
            "invalid",
            setting="text",
            problem="this task reads one text"
            if is_single
            else f"this task reads {len(task.text)} texts ({', '.join(task.text)})",
            fix="send one text" if is_single else "send them as a list in this order",
        )
    for place, (column, text) in enumerate(zip(task.text, texts, strict=True), 1):
        if not text.strip() and column not in task.may_be_empty:
            which = "it" if len(texts) == 1 else f"text {place} ({column})"
            raise RequestError("invalid", setting="text", problem=f"{which} is empty", fix="send a text with words")
