"""What a server counts, for Prometheus; every app has a registry of its own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

import softcue
from softcue.serving.engine.engine import Engine
from softcue.serving.engine.requests import BatchReport

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Counters of one server.

    Example:
        >>> metrics = Metrics()
        >>> metrics.failures.labels("busy").inc()
        >>> 'softcue_failures_total{reason="busy"} 1.0' in metrics.text().decode()
        True
    """

    def __init__(self) -> None:
        own = self._registry = CollectorRegistry()
        self.requests = Counter("softcue_requests", "Requests by route and status", ["route", "status"], registry=own)
        self.request_seconds = Histogram(
            "softcue_request_seconds", "From first byte to last", ["route"], buckets=SECONDS, registry=own
        )
        self.failures = Counter("softcue_failures", "Requests and items without an answer", ["reason"], registry=own)
        self.examples = Counter("softcue_examples", "Items with an answer", registry=own)
        self._in_flight = Gauge("softcue_examples_in_flight", "Examples that wait or run", registry=own)
        self._queue = Gauge("softcue_queue_rows", "Rows that wait for a batch", registry=own)
        self._cues = Gauge("softcue_cues_loaded", "Loaded cues", registry=own)
        self._batch_rows = Histogram("softcue_batch_rows", "Rows of a batch", buckets=ROWS, registry=own)
        self._batch_tasks = Histogram("softcue_batch_tasks", "Distinct cues of a batch", buckets=ROWS, registry=own)
        self._batch_seconds = Histogram("softcue_batch_seconds", "Time of a pass", buckets=SECONDS, registry=own)
        self._queue_seconds = Histogram(
            "softcue_queue_seconds", "From arrival to a batch", buckets=SECONDS, registry=own
        )
        self._tokens = Counter("softcue_tokens", "Tokens run, prompts counted, padding not", registry=own)
        self._padding = Counter("softcue_padding_tokens", "Padding run", registry=own)
        self._build = Info("softcue_build", "What is running", registry=own)

    def watch(self, engine: Engine) -> None:
        """Read the engine's own numbers whenever the metrics are asked for."""
        self._in_flight.set_function(lambda: engine.num_in_flight)
        self._queue.set_function(lambda: engine.num_waiting)
        self._cues.set_function(lambda: len(engine.registry))
        self._build.info({"version": softcue.__version__, "backbone": engine.backbone.name})

    def count_batch(self, report: BatchReport) -> None:
        """One pass of the engine."""
        self._batch_rows.observe(report.num_rows)
        self._batch_tasks.observe(report.num_tasks)
        self._batch_seconds.observe(report.seconds)
        self._tokens.inc(report.num_tokens)
        self._padding.inc(report.num_padding)
        for seconds in report.queue_seconds:
            self._queue_seconds.observe(seconds)

    def text(self) -> bytes:
        """In Prometheus' own format."""
        return generate_latest(self._registry)
