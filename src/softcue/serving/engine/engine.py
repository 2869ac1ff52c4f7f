"""The engine: one frozen backbone, any number of cues, one queue. The server uses it, and Python may.

Inference threads prepare rows, take batches from the queue and run them, side by side. On a processor two passes of an
encoder, each on half of the threads, serve several clients faster than one pass on all of them (decision 71).

Predictions equal those of `Cue.predict`: the same rows, the same mixed pass, the same merging; only batches differ.
"""

from __future__ import annotations

import gc
import logging
import math
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Self

import torch
from pydantic import ValidationError

from softcue.backbones import Attention, Backbone, BackboneConfig, NumberFormat, Quantization, load_backbone
from softcue.backbones.loading.autotune import PASS_TOKENS
from softcue.backbones.runtimes import DtypeSetting, RuntimeChoice, RuntimeSetting
from softcue.cue.cue import Cue, backbone_settings, check_no_settings, settings_for_runtime
from softcue.cue.runtimes import start_runtime
from softcue.cue.signatures import read_public_keys
from softcue.errors import ConfigurationError, SoftcueError, as_configuration_error
from softcue.evaluation import check_one_task
from softcue.inference import predict_mixed, tokenize_requests
from softcue.serving.engine.batcher import Batcher, Limits
from softcue.serving.engine.registry import LoadedCue, Registry, recorded_settings
from softcue.serving.engine.requests import (
    AwaitedItem,
    BatchReport,
    BatchRow,
    Ensemble,
    Item,
    OnText,
    Options,
    PendingRequest,
    RequestRow,
    Result,
    ServedPrediction,
    Text,
    check_characters,
    check_texts,
    merge_rows,
)
from softcue.serving.engine.streaming import TextStreamer
from softcue.serving.errors import RequestError, deadline_exceeded, inference_ended, invalid, pass_failed, unknown_task
from softcue.types import Example

STATE_BYTES = 64 << 20  # cache of states below late prompts: enough for texts in flight, which seldom come again
logger = logging.getLogger("softcue.serving")


_arrival = attrgetter("request_row.arrived")
_common_threads = threading.Lock()  # held while torch's number for new threads is not that of the process


def load_for_serving(name: str, settings: Mapping[str, str], allow_pickle: bool = False) -> Backbone:
    """Load a backbone for an engine: it keeps little of what it computes for single texts.

    Example:
        load_for_serving("minilm", recorded_settings(Path("cues")))
    """
    try:
        config = BackboneConfig.model_validate({**settings, "name": name, "allow_pickle": allow_pickle})
    except ValidationError as error:
        raise as_configuration_error("backbone", error) from error
    backbone = load_backbone(config)
    backbone.state_cache_bytes = (STATE_BYTES, 0)
    return backbone


class Engine:
    """Predicts items of any cues together: the cues of a folder, or loaded cues by name.

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
        use_disk_cache: bool = True,
        allow_pickle: bool = False,
        deterministic: bool = False,
        require_signature: str | Path | None = None,
        prefix_cache_mb: int | None = None,
        device: str | None = None,
        dtype: NumberFormat | None = None,
        attention: Attention | None = None,
        quantization: Quantization | None = None,
        runtime: RuntimeSetting = "torch",
        runtime_dtype: DtypeSetting = "auto",
        runtime_data: str | Path | None = None,
    ) -> None:
        """Load the backbone, if a name is given, and the cues. `deterministic` is `dtype="float32"`.

        `device`, `dtype`, `attention` and `quantization` say how the backbone is loaded. Without them, its number
        format and quantization are those in which most cues of the folder were trained.
        `require_signature` is a file of public keys: cues of the folder that none of them has signed are not loaded.
        `prefix_cache_mb` bounds the keys and values of prompts that a decoder keeps from batch to batch; None: a
        sixteenth of the memory of its device, at least 256 MB.
        `runtime` runs the frozen layers of an encoder in openvino or onnx, and `auto` in the fastest of them; a cue
        whose answers differ from torch's there, on rows of its task or on `runtime_data`, runs in torch.
        With `limits.passes_at_once` above 1 passes share the threads of torch, and several threads call `on_batch`.
        """
        signers = None if require_signature is None else read_public_keys(require_signature)
        folder = None if isinstance(cues, Mapping) else Path(cues)
        settings = backbone_settings(device, dtype, attention, quantization)
        if isinstance(backbone, Backbone):
            check_no_settings(settings)
        if deterministic:
            check_deterministic(dtype)
            settings["dtype"] = "float32"
        if isinstance(backbone, str):
            settings = settings if runtime == "torch" else settings_for_runtime(settings)
            recorded = {"dtype": "float32"} if folder is None else recorded_settings(folder, signers)
            backbone = load_for_serving(backbone, {**recorded, **settings}, allow_pickle)
        if prefix_cache_mb is not None:
            backbone.set_prefix_bytes(prefix_cache_mb << 20)
        self.backbone = backbone
        self.max_characters, self.max_new_tokens = max_characters, max_new_tokens
        self.registry = Registry(folder, backbone, cues if isinstance(cues, Mapping) else None, signers)
        self.registry.load_all()
        if runtime != "torch":
            self._start_runtime(RuntimeChoice.of(runtime, runtime_dtype, runtime_data))
        self._use_disk_cache = use_disk_cache  # for sentence vectors of the texts
        self._on_batch = on_batch
        self._failure: BaseException | None = None
        self._listeners: list[Callable[[BaseException], None]] = []
        self._finishing = threading.RLock()  # parts of one request row may run in several passes at a time
        self._is_measured = threading.Event()  # the cost of a pass, which the first inference thread measures
        with _common_threads:
            num_threads = torch.get_num_threads()
            num_passes = choose_passes(backbone, num_threads, limits or Limits())
            self._batcher = Batcher(limits or Limits(), PASS_TOKENS, num_passes)
            self._start_threads(num_threads, num_passes)
        self._is_measured.wait()
        if self._failure is not None:
            raise self._failure

    def _start_threads(self, num_threads: int, num_passes: int) -> None:
        """Start the inference threads, each with its share of torch's threads."""
        share, rest = divmod(num_threads, num_passes)
        shares = [max(1, share + (number < rest)) for number in range(num_passes)]
        are_ready = threading.Barrier(num_passes + 1)

        def run(number: int) -> None:
            torch.get_num_threads()  # else torch sets its common number in this thread once more, later
            torch.set_num_threads(shares[number])
            try:
                are_ready.wait()  # the builder restores the common number
                are_ready.wait()
            except threading.BrokenBarrierError:  # another thread did not start
                return
            self._run(is_first=number == 0)

        self._threads = [
            threading.Thread(target=run, args=(number,), name=f"softcue-inference-{number}", daemon=True)
            for number in range(num_passes)
        ]
        try:
            for thread in self._threads:
                thread.start()
            are_ready.wait()
        except BaseException:  # a thread that the system does not start
            are_ready.abort()
            raise
        finally:
            torch.set_num_threads(num_threads)  # the number with which further threads begin
        are_ready.wait()

    def _start_runtime(self, choice: RuntimeChoice) -> None:
        with warnings.catch_warnings():  # the log has the reasons
            warnings.simplefilter("ignore")
            report = start_runtime(self.backbone, [loaded.cue for loaded in self.registry.loaded()], choice)
        facts = {"runtime": report.runtime, "compared": report.compared, "in torch": report.in_torch}
        logger.log(logging.WARNING if report.in_torch else logging.INFO, "runtime", extra={"facts": facts})

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
        """The time until all examples in flight have their result, from the recent speed."""
        return self._batcher.expected_seconds

    @property
    def num_waiting(self) -> int:
        """Rows that wait for a batch."""
        return self._batcher.num_waiting

    @property
    def is_draining(self) -> bool:
        """Whether the engine accepts nothing new."""
        return self._batcher.is_draining

    @property
    def is_alive(self) -> bool:
        """Whether the inference threads run; they should until `close`."""
        return self._failure is None and any(thread.is_alive() for thread in self._threads)

    def predict(
        self, items: Sequence[Item], *, ensemble: Ensemble | None = None, truncate: bool = True
    ) -> list[Result]:
        """A result per item, in order: a prediction, or the error of that item alone.

        Raises RequestError if an inference thread has ended: no item will have a prediction then.

        Example:
            engine.predict([("tickets", "My invoice is wrong."), ("same-request", ["a", "b"])])
            engine.predict([(["seed0", "seed1", "seed2"], "My invoice is wrong.")], ensemble="vote")
        """
        options = Options(ensemble, truncate)
        self._check_alive()
        finished: SimpleQueue[AwaitedItem] = SimpleQueue()
        awaited: list[AwaitedItem] = []
        for item in items:
            rows = self._make_rows(item, options, math.inf)
            awaited.append(AwaitedItem(() if isinstance(rows, RequestError) else rows, ensemble, finished))
            if isinstance(rows, RequestError):
                awaited[-1].finish(rows)
        for chunk in self._chunks(awaited):
            try:
                self._batcher.put([row for request in chunk for row in request.rows], seconds=math.inf)
            except RequestError as error:  # the engine was closed; items accepted before are still predicted
                for request in chunk:
                    if request.rows:
                        request.finish(error.copy())
        for _ in awaited:
            finished.get()
        self._check_alive()
        return [request.result for request in awaited if request.result is not None]

    def submit(
        self, items: Sequence[Item], options: Options, seconds: float = math.inf, on_text: OnText | None = None
    ) -> list[PendingRequest]:
        """Submit items without waiting for them; raises an error if there is no room for all of them.

        Items that have not started after `seconds` get an error. `on_text` is called from an inference thread with
        the index of an item and the next part of its text while one cue generates it; beam search sends no parts.

        Example:
            [request] = engine.submit([("tickets", "My invoice is wrong.")], Options())
            request.result.result(timeout=5)
        """
        deadline = time.monotonic() + seconds
        callback = on_text if options.ensemble is None else None
        requests: list[PendingRequest] = []
        for index, item in enumerate(items):
            rows = self._make_rows(item, options, deadline, callback and partial(callback, index))
            requests.append(PendingRequest(() if isinstance(rows, RequestError) else rows, options.ensemble))
            if isinstance(rows, RequestError):
                requests[-1].finish(rows)
        self._batcher.put([row for request in requests for row in request.rows])
        return requests

    def drain(self) -> None:
        """Accept nothing new; accepted items are still predicted."""
        self._batcher.drain()

    def close(self) -> None:
        """Predict all accepted items, then stop."""
        self.drain()
        for thread in self._threads:
            thread.join()
        if self.backbone.server is not None:
            self.backbone.server.close()

    # --- from items to request rows ---

    def _make_rows(
        self, item: Item, options: Options, deadline: float, on_text: Callable[[str], None] | None = None
    ) -> list[RequestRow] | RequestError:
        """The request rows of an item, one for each of its cues, or the error of the item."""
        names, text = item
        try:
            rows = [self._make_row(cue, text, options, deadline) for cue in self._find_cues(names, options)]
            for row in rows:
                row.group = rows[0].group
                if row.decoding is not None:
                    answer_so_far = partial(row.model.readout.answer_tokens, is_complete=False)
                    own_stop = row.model.readout.config.stop
                    stop = (*options.stop, own_stop) if own_stop else options.stop
                    row.streamer = TextStreamer(
                        self.backbone.tokenizer, stop, on_text, row.has_no_client, answer_so_far
                    )
        except SoftcueError as error:
            return error if isinstance(error, RequestError) else invalid(error)
        return rows

    def _find_cues(self, names: str | Sequence[str], options: Options) -> list[LoadedCue]:
        """The cue of a name; for an ensemble the named cues, or all cues of the named task."""
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
            tasks = {loaded_cue.task.name for loaded_cue in self.registry.loaded()}
            problem = "no loaded cue is of this task"
            raise unknown_task(names if isinstance(names, str) else "", tasks, problem)
        if len(cues) > (limit := self._batcher.limits.max_in_flight):
            raise RequestError("too_many", setting="ensemble", expected=f"at most {limit} cues", fix="name fewer")
        check_one_task({loaded_cue.name: loaded_cue.task for loaded_cue in cues})
        return cues

    def _make_row(self, loaded_cue: LoadedCue, text: Text, options: Options, deadline: float) -> RequestRow:
        task, model = loaded_cue.task, loaded_cue.model
        if task.kind != "generation" and (options.must_generate or options.stop or options.max_new_tokens):
            raise RequestError(
                "invalid", setting="task", expected="a cue that generates free text", fix="use POST /v1/predict"
            )
        texts: Sequence[str]
        if isinstance(text, str):
            texts = (text,)
        else:
            texts = text.texts if isinstance(text, Example) else text
            if not isinstance(texts, Sequence) or not all(isinstance(part, str) for part in texts):
                raise RequestError(
                    "invalid", setting="text", expected="a text, or a list of texts", fix="see the task's text columns"
                )
        check_characters(texts, self.max_characters)
        if options.max_new_tokens is not None:
            if not 1 <= options.max_new_tokens <= self.max_new_tokens:
                raise RequestError(
                    "invalid", setting="max_new_tokens", expected=f"1 to {self.max_new_tokens}", fix="lower it"
                )
            model = loaded_cue.model_for(options.max_new_tokens)
        if isinstance(text, Example):
            example = text
        elif task.format:  # a published format may rewrite its rows
            [example] = loaded_cue.cue.examples([text])
        else:
            check_texts(task, texts)
            example = task.example_from(texts, "text")
        return RequestRow(loaded_cue, model, example, options, deadline)

    def _chunks(self, requests: Sequence[AwaitedItem]) -> Iterator[list[AwaitedItem]]:
        """Requests in groups that leave room for requests of others."""
        limit = self._batcher.limits.max_in_flight
        chunk: list[AwaitedItem] = []
        num_rows = 0
        for request in requests:
            num_rows += len(request.rows)
            if num_rows > max(1, limit // 2) and chunk:
                yield chunk
                chunk, num_rows = [], len(request.rows)
            chunk.append(request)
        if chunk:
            yield chunk

    # --- the inference threads ---

    def on_failure(self, listener: Callable[[BaseException], None]) -> None:
        """Call a function with the error if an inference thread ends with one; at once if one has already.

        Example:
            engine.on_failure(lambda error: os._exit(1))
        """
        self._listeners.append(listener)
        if self._failure is not None:
            listener(self._failure)

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise inference_ended() from self._failure

    def _run(self, is_first: bool) -> None:
        try:
            if is_first:  # with this thread's share of torch's threads, while nothing else runs
                self._batcher.pass_tokens = self.backbone.pass_tokens
                self._is_measured.set()
            self._is_measured.wait()
            while self._step():
                pass
        except BaseException as error:  # nobody could wait for a result any more
            logger.critical("an inference thread has ended", exc_info=True)
            with self._finishing:
                if self._failure is not None:  # another thread has told everybody
                    return
                self._failure = error
            for row in self._batcher.fail():
                self._finish(row, inference_ended())
            for listener in self._listeners:
                listener(error)
        finally:
            self._is_measured.set()

    def _step(self) -> bool:
        """Prepare new rows and run one batch; false when all is done. Its frame ends here, so nothing stays alive."""
        arrived = self._batcher.take_arrived()
        if arrived is None:
            return False
        began, num_busy = time.monotonic(), self._num_busy
        for row in [row for row in arrived if row.is_over(began)]:
            self._finish(row, deadline_exceeded())
        batch, over = self._batcher.exchange(self._prepare([row for row in arrived if row.result is None]))
        for row in over:
            self._finish(row, deadline_exceeded())
        if batch:
            self._run_batch(batch)
            rows = {row.request_row for row in batch}
            num_served = sum(isinstance(row.result, ServedPrediction) for row in rows)
            if num_served or any(row.result is None for row in rows):  # errors say nothing about the speed
                # The threads that were busy all the time did as many in their batches.
                seconds = (time.monotonic() - began) / min(num_busy, self._num_busy)
                self._batcher.record_speed(num_served, seconds)
        return True

    @property
    def _num_busy(self) -> int:
        """The number of inference threads that do not wait for rows."""
        return len(self._threads) - self._batcher.num_idle

    def _prepare(self, rows: Sequence[RequestRow]) -> list[BatchRow]:
        """The batch rows of all request rows, made together; a row that cannot be read gets an error of its own."""
        batch_rows: list[BatchRow] = []
        try:
            batch_rows += self._tokenize(rows)
        except Exception:
            for row in rows:
                try:
                    batch_rows += self._tokenize([row])
                except SoftcueError as error:
                    self._finish(row, invalid(error))
                except Exception:
                    logger.exception("an example could not be read")
                    self._finish(row, pass_failed())
        return sorted(batch_rows, key=_arrival)

    def _tokenize(self, rows: Sequence[RequestRow]) -> list[BatchRow]:
        splits = [row.model.split(row.example) for row in rows]
        examples = [(row.model, example) for row, split in zip(rows, splits, strict=True) for example in split]
        tokenized_rows = iter(tokenize_requests(self.backbone.whole, examples, self._use_disk_cache))
        tokenized: list[BatchRow] = []
        for row, split in zip(rows, splits, strict=True):
            if len(split) == 1:
                batch_rows = [BatchRow.of(row, 0, next(tokenized_rows))]
                row.is_truncated = batch_rows[0].tokens.is_truncated
            else:
                batch_rows = [BatchRow.of(row, number, next(tokenized_rows)) for number in range(len(split))]
                row.is_truncated = any(batch_row.tokens.is_truncated for batch_row in batch_rows)
            row.predictions = [None] * len(batch_rows)
            if row.is_truncated and not row.options.truncate:
                expected = f"at most {row.model.formatter.limit} tokens"
                fix = 'shorten it, or send "truncate": true'
                self._finish(row, RequestError("too_long", setting="text", expected=expected, fix=fix))
            else:
                tokenized += batch_rows
        return tokenized

    def _run_batch(self, batch: Sequence[BatchRow]) -> None:
        """Run a batch; after an error run its halves; after another error those rows get an error each."""
        now = time.monotonic()
        for batch_row in batch:
            batch_row.request_row.started = batch_row.request_row.started or now
        if self._try_pass(batch):
            return
        middle = len(batch) // 2
        for half in filter(None, (batch[:middle], batch[middle:])):
            gc.collect()  # free the memory of the failed pass
            if self.backbone.device.type == "cuda":
                torch.cuda.empty_cache()
            if not self._try_pass(half):
                for batch_row in half:
                    self._finish(batch_row.request_row, pass_failed())

    def _try_pass(self, batch: Sequence[BatchRow]) -> bool:
        try:
            self._pass(batch)
        except Exception:
            logger.exception("a pass over %d rows failed", len(batch))
            server = self.backbone.server
            if server is not None and not server.is_alive:
                raise  # no later pass can succeed: whatever supervises this process starts it again
            return False
        return True

    def _pass(self, batch: Sequence[BatchRow]) -> None:
        began = time.monotonic()
        streamers = {
            number: streamer for number, row in enumerate(batch) if (streamer := row.request_row.streamer) is not None
        }
        predictions = predict_mixed(self.backbone, [(row.request_row.model, row.tokens) for row in batch], streamers)
        seconds = time.monotonic() - began
        results: dict[RequestRow, Result] = {}
        with self._finishing:
            for batch_row, prediction in zip(batch, predictions, strict=True):
                batch_row.request_row.predictions[batch_row.number] = prediction
            for row in dict.fromkeys([batch_row.request_row for batch_row in batch]):
                row.compute_seconds += seconds
                finished = [prediction for prediction in row.predictions if prediction is not None]
                if row.result is None and len(finished) == len(row.predictions):
                    results[row] = merge_rows(row, finished)
            self._batcher.release(*results)
            for row, result in results.items():
                self._set_result(row, result)
        self._report(batch, seconds)

    def _report(self, batch: Sequence[BatchRow], seconds: float) -> None:
        if self._on_batch is None:
            return
        lengths = [batch_row.length for batch_row in batch]
        starting = [batch_row.request_row for batch_row in batch if batch_row.number == 0]
        self._on_batch(
            BatchReport(
                len(batch),
                len({batch_row.request_row.loaded_cue for batch_row in batch}),
                sum(lengths),
                len(batch) * max(lengths) - sum(lengths),
                seconds,
                tuple(row.started - row.arrived for row in starting),
            )
        )

    def _finish(self, row: RequestRow, result: Result) -> None:
        with self._finishing:
            if row.result is None:
                self._batcher.release(row)
                self._set_result(row, result)

    def _set_result(self, row: RequestRow, result: Result) -> None:
        """Set the result of a row that was released."""
        streamer, row.streamer = row.streamer, None  # it refers to the row: a cycle would keep the cue alive
        if streamer is not None and isinstance(result, ServedPrediction):
            streamer.send(result.prediction.label_text or "")
            result = replace(result, is_ended=streamer.is_ended)
        row.finish(result)


def choose_passes(backbone: Backbone, num_threads: int, limits: Limits) -> int:
    """The number of passes at a time that the limits say, or else the number that together is the fastest.

    A row or two hardly use a second thread, and while one batch runs, the next one need not wait for it. So encoders
    in torch on a processor run two. Decoders that write read all weights for each token, which several threads do
    faster.

    Example:
        choose_passes(load_backbone("minilm"), num_threads=2, limits=Limits(passes_at_once=None))     # 2
    """
    if limits.passes_at_once is not None:
        if limits.passes_at_once > 1 and backbone.changes_in_passes:
            raise ConfigurationError(
                setting="passes_at_once",
                got=limits.passes_at_once,
                expected=f"1 with {backbone.name}, whose rotary frequencies change with the length of a batch",
                fix="leave it out",
            )
        return limits.passes_at_once
    runs_in_torch = backbone.runtime is None and backbone.server is None
    is_divisible = backbone.kind == "encoder" and backbone.device.type == "cpu" and num_threads > 1
    return 2 if runs_in_torch and is_divisible and not backbone.changes_in_passes else 1


def check_deterministic(dtype: str | None) -> None:
    """Raise an error if predictions should be in float32 and in another number format.

    Example:
        >>> check_deterministic("float32")
    """
    if dtype not in (None, "float32"):
        raise ConfigurationError(
            setting="dtype", got=dtype, expected="float32, as deterministic says", fix="leave out one of the two"
        )
