"""One frozen backbone, any number of cues, one inference thread: what the server, and Python without one, answers with.

Answers are those of `Cue.predict`: the same rows, the same mixed pass, the same folding; only the batches differ.
"""

from __future__ import annotations

import gc
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from softcue.backbones import Backbone, BackboneConfig, load_backbone
from softcue.cue.cue import Cue
from softcue.errors import SoftcueError
from softcue.evaluation import check_one_task
from softcue.inference import predict_mixed, rows_together
from softcue.serving.engine.batcher import Batcher, Limits
from softcue.serving.engine.registry import LoadedCue, Registry, recorded_dtype
from softcue.serving.engine.requests import (
    Answer,
    BatchReport,
    Ensemble,
    Item,
    OnText,
    Options,
    PendingRequest,
    RequestRow,
    Result,
    Row,
    Text,
)
from softcue.serving.engine.results import failed, folded, joined
from softcue.serving.engine.streaming import Writer
from softcue.serving.errors import RequestError, check_characters, deadline_exceeded, invalid, unknown_task
from softcue.types import Example

STATE_BYTES = 64 << 20  # of texts below late prompts: enough for those under way, texts of requests seldom come again
logger = logging.getLogger("softcue.serving")


class Engine:
    """Answers items of any cues together: those of a folder, or cues that are loaded, by name.

    Example:
        with softcue.Engine("minilm", "cues") as engine:
            first, second = engine.predict([("tickets", "My invoice is wrong."), ("tone", "At last!")])
            first.prediction.label
    """

    def __init__(
        self,
        backbone: Backbone | str,
        cues: str | Path | Mapping[str, Cue],
        limits: Limits | None = None,
        max_characters: int = 20_000,
        max_new_tokens: int = 256,
        on_batch: Callable[[BatchReport], None] | None = None,
    ) -> None:
        folder = None if isinstance(cues, Mapping) else Path(cues)
        if isinstance(backbone, str):
            dtype = "float32" if folder is None else recorded_dtype(folder)
            backbone = load_backbone(BackboneConfig.model_validate({"name": backbone, "dtype": dtype}))
            backbone.state_cache_bytes = (STATE_BYTES, 0)
        self.backbone = backbone
        self.max_characters, self.max_new_tokens = max_characters, max_new_tokens
        self.registry = Registry(folder, backbone, cues if isinstance(cues, Mapping) else None)
        self.registry.load_all()
        self._batcher = Batcher(limits or Limits(), backbone.pass_tokens)
        self._on_batch = on_batch
        self._num_answered = 0
        self._thread = threading.Thread(target=self._run, name="softcue-inference", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def num_in_flight(self) -> int:
        """Examples that wait or run."""
        return self._batcher.num_in_flight

    @property
    def expected_seconds(self) -> float:
        """How long what waits and runs will take, at the pace of late."""
        return self._batcher.expected_seconds

    @property
    def num_waiting(self) -> int:
        """Rows that wait for a batch."""
        return self._batcher.num_waiting

    @property
    def is_draining(self) -> bool:
        """Whether it takes nothing new."""
        return self._batcher.is_draining

    @property
    def is_alive(self) -> bool:
        """Whether its thread runs; it should until `close`."""
        return self._thread.is_alive()

    def predict(
        self, items: Sequence[Item], *, ensemble: Ensemble | None = None, truncate: bool = True
    ) -> list[Result]:
        """A result per item, in order: an answer, or the refusal of that item alone.

        Example:
            engine.predict([("tickets", "My invoice is wrong."), ("same-request", ["a", "b"])])
            engine.predict([(["seed0", "seed1", "seed2"], "My invoice is wrong.")], ensemble="vote")
        """
        options = Options(ensemble, truncate)
        found = [self._pending(item, options, math.inf) for item in items]
        for some in self._chunks(found):
            try:
                self._batcher.put([job for pending in some for job in pending.jobs], seconds=math.inf)
            except RequestError as refusal:  # it was closed meanwhile; what it took before is answered
                for pending in some:
                    if pending.jobs:
                        pending.result.set_result(refusal.again())
        return [pending.result.result() for pending in found]

    def submit(
        self, items: Sequence[Item], options: Options, seconds: float = math.inf, on_text: OnText | None = None
    ) -> list[PendingRequest]:
        """Items on their way, for whoever cannot wait here; refused as a whole where there is no room for them.

        Those that have not begun after so many seconds are refused. `on_text` is told, from the inference thread,
        the place of an item and the next piece of its text while one cue writes it; beams have nothing to tell.

        Example:
            [pending] = engine.submit([("tickets", "My invoice is wrong.")], Options())
            pending.result.result(timeout=5)
        """
        deadline = time.monotonic() + seconds
        tells = on_text if options.ensemble is None else None
        found = [
            self._pending(item, options, deadline, tells and partial(tells, place)) for place, item in enumerate(items)
        ]
        self._batcher.put([job for pending in found for job in pending.jobs])
        return found

    def drain(self) -> None:
        """Take nothing new; what was taken is still answered."""
        self._batcher.drain()

    def close(self) -> None:
        """Answer what was taken, then stop."""
        self.drain()
        self._thread.join()

    # --- from items to jobs ---

    def _pending(
        self, item: Item, options: Options, deadline: float, on_text: Callable[[str], None] | None = None
    ) -> PendingRequest:
        names, text = item
        try:
            cues = self._cues(names, options)
            jobs = [self._job(served, text, options, deadline) for served in cues]
            group = object()
            for job in jobs:
                job.group = group
                if job.decoding is not None:
                    job.writer = Writer(self.backbone.tokenizer, options.stop, on_text, job.has_no_one)
        except SoftcueError as error:
            refused = PendingRequest([])
            refused.result.set_result(error if isinstance(error, RequestError) else invalid(error))
            return refused
        pending = PendingRequest(jobs)

        def is_done(_: Future[Result]) -> None:
            if pending.is_last():
                # Jobs know of this function: without letting go of them, a replaced cue would wait for the collector.
                done, pending.jobs = pending.jobs, ()
                pending.result.set_result(joined(done, options.ensemble))

        for job in jobs:
            job.result.add_done_callback(is_done)
        return pending

    def _cues(self, names: str | Sequence[str], options: Options) -> list[LoadedCue]:
        """The one cue of that name; of an ensemble those named, or all of the task named."""
        if options.ensemble is None:
            if not isinstance(names, str):
                raise RequestError(
                    "invalid", setting="task", expected="one name", fix='several need "ensemble": "vote" or "mean"'
                )
            return [self.registry[names]]
        if isinstance(names, str):
            cues = self.registry.of_task(names)
        else:
            cues = [self.registry[name] for name in dict.fromkeys(names)]
        if not cues:
            raise unknown_task()
        if len(cues) > (limit := self._batcher.limits.max_in_flight):
            raise RequestError("too_many", setting="ensemble", expected=f"at most {limit} cues", fix="name fewer")
        check_one_task({served.name: served.cue.task for served in cues})
        return cues

    def _job(self, served: LoadedCue, text: Text, options: Options, deadline: float) -> RequestRow:
        cue = served.cue
        is_free = cue.task.kind == "generation"
        if not is_free and (options.must_write or options.stop or options.max_new_tokens):
            raise RequestError(
                "invalid", setting="task", expected="a cue that writes free text", fix="use POST /v1/predict"
            )
        known = text if isinstance(text, Example) else None
        texts = known.texts if known else [text] if isinstance(text, str) else text
        if not isinstance(texts, Sequence) or not all(isinstance(part, str) for part in texts):
            raise RequestError(
                "invalid", setting="text", expected="a text, or a list of texts", fix="see what the task reads"
            )
        check_characters(texts, self.max_characters)
        model = cue.model
        if options.max_new_tokens is not None:
            if not 1 <= options.max_new_tokens <= self.max_new_tokens:
                raise RequestError(
                    "invalid", setting="max_new_tokens", expected=f"1 to {self.max_new_tokens}", fix="lower it"
                )
            model = served.writing(options.max_new_tokens)
        [example] = [known] if known else cue.examples([text])
        return RequestRow(served, model, example, options, deadline)

    def _chunks(self, found: Sequence[PendingRequest]) -> Iterator[list[PendingRequest]]:
        """Items in groups that leave room for others' items."""
        limit = self._batcher.limits.max_in_flight
        chunk: list[PendingRequest] = []
        size = 0
        for pending in found:
            size += len(pending.jobs)
            if size > max(1, limit // 2) and chunk:
                yield chunk
                chunk, size = [], len(pending.jobs)
            chunk.append(pending)
        if chunk:
            yield chunk

    # --- the inference thread ---

    def _run(self) -> None:
        while self._step():
            pass

    def _step(self) -> bool:
        """Prepare what came, run one batch; false when all is done. Its frame ends with it: nothing is held on to."""
        jobs = self._batcher.arrived()
        if jobs is None:
            return False
        began, before = time.monotonic(), self._num_answered
        self._batcher.add(self._prepared([job for job in jobs if not self._is_gone(job)]))
        batch, gone = self._batcher.take()
        for job in gone:
            self._is_gone(job)
        if batch:
            self._answer(batch)
        if answered := self._num_answered - before:
            self._batcher.answered(answered, time.monotonic() - began)
        return True

    def _is_gone(self, job: RequestRow) -> bool:
        """Whether nobody waits for the job, or it waited too long; then it has its refusal."""
        is_gone = job.is_gone(time.monotonic())
        if is_gone:
            self._finish(job, deadline_exceeded())
        return is_gone

    def _prepared(self, jobs: Sequence[RequestRow]) -> list[Row]:
        """Rows of all jobs, made together; a job that cannot be read is refused alone."""
        rows: list[Row] = []
        try:
            rows += self._rows(jobs)
        except Exception:
            for job in jobs:
                try:
                    rows += self._rows([job])
                except SoftcueError as error:
                    self._finish(job, invalid(error))
                except Exception:
                    logger.exception("an example could not be read")
                    self._finish(job, failed())
        return sorted(rows, key=lambda row: row.job.arrived)

    def _rows(self, jobs: Sequence[RequestRow]) -> list[Row]:
        pieces = [job.model.split(job.example) for job in jobs]
        asked = [(job.model, piece) for job, own in zip(jobs, pieces, strict=True) for piece in own]
        tokens = iter(rows_together(self.backbone, asked))
        found: list[Row] = []
        for job, own in zip(jobs, pieces, strict=True):
            rows = [Row.of(job, number, next(tokens)) for number in range(len(own))]
            job.is_truncated = any(row.tokens.is_truncated for row in rows)
            job.answers = [None] * len(rows)
            if job.is_truncated and not job.options.truncate:
                expected = f"at most {job.model.formatter.limit} tokens"
                self._finish(
                    job,
                    RequestError(
                        "too_long", setting="text", expected=expected, fix='shorten it, or send "truncate": true'
                    ),
                )
            else:
                found += rows
        return found

    def _answer(self, batch: Sequence[Row]) -> None:
        """Run a batch; after an error its halves; after another one those rows get no answer, and we live on."""
        now = time.monotonic()
        for row in batch:
            row.job.started = row.job.started or now
        if self._has_run(batch):
            return
        middle = len(batch) // 2
        for half in filter(None, (batch[:middle], batch[middle:])):
            gc.collect()  # what the failed pass held
            if self.backbone.device.type == "cuda":
                torch.cuda.empty_cache()
            if not self._has_run(half):
                for row in half:
                    self._finish(row.job, failed())

    def _has_run(self, rows: Sequence[Row]) -> bool:
        try:
            self._pass(rows)
        except Exception:
            logger.exception("a pass over %d rows failed", len(rows))
            return False
        return True

    def _pass(self, rows: Sequence[Row]) -> None:
        began = time.monotonic()
        writers = {number: writer for number, row in enumerate(rows) if (writer := row.job.writer) is not None}
        found = predict_mixed(self.backbone, [(row.job.model, row.tokens) for row in rows], writers)
        seconds = time.monotonic() - began
        for row, answer in zip(rows, found, strict=True):
            row.job.answers[row.number] = answer
        for job in dict.fromkeys(row.job for row in rows):
            job.compute_seconds += seconds
            answers = [answer for answer in job.answers if answer is not None]
            if len(answers) == len(job.answers):
                self._finish(job, folded(job, answers))
        self._report(rows, seconds)

    def _report(self, rows: Sequence[Row], seconds: float) -> None:
        if self._on_batch is None:
            return
        lengths = [row.length for row in rows]
        self._on_batch(
            BatchReport(
                len(rows),
                len({row.job.served for row in rows}),
                sum(lengths),
                len(rows) * max(lengths) - sum(lengths),
                seconds,
                tuple(row.job.started - row.job.arrived for row in rows if row.number == 0),
            )
        )

    def _finish(self, job: RequestRow, result: Result) -> None:
        if not job.result.done():
            writer, job.writer = job.writer, None  # it knows the job: a circle would keep its cue
            self._num_answered += isinstance(result, Answer)
            if writer is not None and isinstance(result, Answer):
                writer.tell(result.prediction.label or "")
            self._batcher.release()
            job.result.set_result(result)
