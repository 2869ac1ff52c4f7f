"""The state of one server: its engine, whether it is loading, ready, draining or failed, and its metrics."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from fastapi import Depends, Request
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

import softcue
from softcue.backbones import Backbone
from softcue.cue.cue import backbone_settings
from softcue.cue.signatures import read_public_keys
from softcue.serving.engine.engine import Engine, load_for_serving
from softcue.serving.engine.registry import recorded_settings
from softcue.serving.engine.requests import BatchReport
from softcue.serving.errors import RequestError, draining, inference_ended
from softcue.serving.settings import ServerSettings
from softcue.serving.vllm.connect import VllmSettings, on_vllm

State = Literal["loading", "ready", "draining", "failed"]
MakeEngine = Callable[[Callable[[BatchReport], None]], Engine]
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
PREPARED_SHAPES = 32
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
logger = logging.getLogger("softcue.serving")


def make_engine(settings: ServerSettings, backbone: str, cues: Path, on_batch: Callable[[BatchReport], None]) -> Engine:
    """The engine of a server. It writes nothing that clients send to disk."""
    # oneDNN keeps what it has prepared for each shape of a batch, by default 1024 of them: megabytes for each shape. It
    # reads the variable when it is first used.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(PREPARED_SHAPES))
    values: dict[str, Any] = backbone_settings(
        settings.device, settings.dtype, settings.attention, settings.quantization
    )
    if settings.vllm is not None:
        served, values = _load_on_vllm(settings, backbone, cues, settings.vllm, values), {}
    return Engine(
        backbone if settings.vllm is None else served,
        cues,
        settings.limits,
        settings.max_characters,
        settings.max_new_tokens,
        on_batch,
        use_disk_cache=False,
        allow_pickle=settings.allow_pickle,
        require_signature=settings.require_signature,
        deterministic=settings.deterministic,
        prefix_cache_mb=settings.prefix_cache_mb,
        **values,
        runtime=settings.runtime,
        runtime_dtype=settings.runtime_dtype,
        runtime_data=settings.runtime_data,
    )


def _load_on_vllm(
    settings: ServerSettings, backbone: str, cues: Path, vllm: VllmSettings, values: Mapping[str, str]
) -> Backbone:
    signers = None if settings.require_signature is None else read_public_keys(settings.require_signature)
    recorded = {"dtype": "float32"} if settings.deterministic else recorded_settings(cues, signers)
    return on_vllm(load_for_serving(backbone, {**recorded, **values}, settings.allow_pickle), vllm)


class CueChanges(Protocol):
    """Who else must know when a client loads or unloads a cue."""

    async def prepare(self, name: str) -> None:
        """Have the current files of a cue in the cues folder, before it is loaded."""

    async def publish(self, name: str, is_loaded: bool) -> None:
        """Tell all replicas that a cue was loaded or unloaded here."""


class _OnlyHere:
    """The changes of a server that is one process."""

    async def prepare(self, name: str) -> None:
        pass

    async def publish(self, name: str, is_loaded: bool) -> None:
        pass


class Service:
    """Loads the engine while the server already answers probes, and stops it in order.

    Example:
        service = Service(settings, lambda on_batch: Engine("minilm", "cues", settings.limits, on_batch=on_batch))
        service.start()
    """

    def __init__(self, settings: ServerSettings, make_engine: MakeEngine) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.failure: Exception | None = None
        self.on_failure: Callable[[], None] = lambda: None
        self.cue_changes: CueChanges = _OnlyHere()
        self.num_reading = 0  # requests whose body is being read; only the event loop changes it
        self.num_body_bytes = 0  # of these bodies, as far as they have come
        self._make_engine = make_engine
        self._engine: Engine | None = None
        self._is_stopping = False
        self._thread = threading.Thread(target=self._load, name="softcue-loading", daemon=True)

    @property
    def state(self) -> State:
        """The current state."""
        if self.failure is not None:
            return "failed"
        if self._is_stopping:
            return "draining"
        if self._engine is None:
            return "loading"
        return "ready" if self._engine.is_alive else "failed"

    @property
    def engine(self) -> Engine:
        """The engine, if it accepts requests."""
        if self._is_stopping:
            raise draining()
        if self.state == "failed":
            if self._engine is not None:
                raise inference_ended()
            problem = "it could not load its cues"
            raise RequestError("failed", setting="server", problem=problem, fix="see its log, then restart it")
        if self._engine is None:
            raise RequestError(
                "loading", setting="server", problem="it is still loading its cues", fix="try again in a moment"
            )
        return self._engine

    def start(self) -> None:
        """Start to load."""
        self._thread.start()

    def drain(self) -> None:
        """Accept nothing new from now on; accepted requests are still answered."""
        self._is_stopping = True
        if self._engine is not None:
            self._engine.drain()

    def close(self) -> None:
        """Answer accepted requests, then stop the engine."""
        self.drain()
        self._thread.join(self.settings.deadline)  # it is a daemon: loading that never ends does not keep the process
        if self._engine is not None:
            self._engine.close()

    def _load(self) -> None:
        try:
            engine = self._make_engine(self.metrics.count_batch)
        except Exception as error:
            logger.exception("the engine could not be loaded")
            self.failure = error
            self.on_failure()
            return
        self.metrics.watch(engine)
        self._engine = engine
        engine.on_failure(self._fail)
        facts = {"cues": len(engine.registry), "broken": list(engine.registry.broken())}
        logger.info("ready", extra={"facts": facts})

    def _fail(self, error: BaseException) -> None:
        """Stop the server with an error, so that whatever supervises it starts it again."""
        failure = RuntimeError("an inference thread has ended; the error before this one says why")
        failure.__cause__ = error
        self.failure = failure
        self.on_failure()


class Metrics:
    """Counters of one server for Prometheus. Every server has a registry of its own.

    Example:
        >>> metrics = Metrics()
        >>> metrics.failures.labels("busy").inc()
        >>> 'softcue_failures_total{reason="busy"} 1.0' in metrics.text().decode()
        True
    """

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self.requests = Counter(
            "softcue_requests", "Requests by route and status", ["route", "status"], registry=registry
        )
        self.request_seconds = Histogram(
            "softcue_request_seconds", "From first byte to last", ["route"], buckets=SECONDS, registry=registry
        )
        self.failures = Counter(
            "softcue_failures", "Requests and inputs without a prediction", ["reason"], registry=registry
        )
        self.examples = Counter("softcue_examples", "Inputs with a prediction", registry=registry)
        self._in_flight = Gauge("softcue_examples_in_flight", "Examples that wait or run", registry=registry)
        self._queue = Gauge("softcue_queue_rows", "Rows that wait for a batch", registry=registry)
        self._cues = Gauge("softcue_cues_loaded", "Loaded cues", registry=registry)
        self._batch_rows = Histogram("softcue_batch_rows", "Rows of a batch", buckets=ROWS, registry=registry)
        self._batch_tasks = Histogram(
            "softcue_batch_tasks", "Distinct cues of a batch", buckets=ROWS, registry=registry
        )
        self._batch_seconds = Histogram("softcue_batch_seconds", "Time of a pass", buckets=SECONDS, registry=registry)
        self._queue_seconds = Histogram(
            "softcue_queue_seconds", "From arrival to a batch", buckets=SECONDS, registry=registry
        )
        self._tokens = Counter("softcue_tokens", "Tokens run, with prompts, without padding", registry=registry)
        self._padding = Counter("softcue_padding_tokens", "Padding tokens run", registry=registry)
        self._build = Info("softcue_build", "Version and backbone", registry=registry)

    def watch(self, engine: Engine) -> None:
        """Read the engine's numbers whenever the metrics are read."""
        self._in_flight.set_function(lambda: engine.num_in_flight)
        self._queue.set_function(lambda: engine.num_waiting)
        self._cues.set_function(lambda: len(engine.registry))
        self._build.info({"version": softcue.__version__, "backbone": engine.backbone.name})

    def count_batch(self, report: BatchReport) -> None:
        """Count one pass of the engine."""
        self._batch_rows.observe(report.num_rows)
        self._batch_tasks.observe(report.num_tasks)
        self._batch_seconds.observe(report.seconds)
        self._tokens.inc(report.num_tokens)
        self._padding.inc(report.num_padding)
        for seconds in report.queue_seconds:
            self._queue_seconds.observe(seconds)

    def text(self) -> bytes:
        """All metrics in the format of Prometheus."""
        return generate_latest(self._registry)


async def get_service(request: Request) -> Service:
    """The service of the app that a request has reached, as a dependency of routes."""
    service: Service = request.app.state.service
    return service


CurrentService = Annotated[Service, Depends(get_service)]
