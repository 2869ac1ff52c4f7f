"""Replicas of the server as a Ray Serve application, on a Ray cluster that the operator has started.

Each replica is a process with a backbone, a `Service` and the app of `create_app`. Replicas share nothing but the place
of the cues, a folder or an fsspec URL, and the file of changes in it (shared_cues.py). Replicas may run on other
machines: settings and paths travel as plain data, and their log goes to Ray's own log files. Ray is an extra, hence
imported inside functions.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, cast

from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from softcue.errors import ConfigurationError, MissingExtraError, RunError, SoftcueError
from softcue.ray_cluster import connect
from softcue.serving.engine.engine import Engine
from softcue.serving.engine.requests import BatchReport
from softcue.serving.http.logs import JsonLines, log_to_stderr
from softcue.serving.http.routes import create_app
from softcue.serving.http.service import Service, make_engine
from softcue.serving.settings import ReplicaSettings, ServerSettings
from softcue.serving.shared_cues import SharedCues, is_url

NAME = "softcue"  # of the application and of its one deployment
BROADCAST_SECONDS = WATCH_SECONDS = 5.0
SILENT_SECONDS = 60.0  # replicas that do not respond for so long have failed
STARTING_SECONDS = 600.0  # the same while Ray starts others in their place, on a busy machine more than a minute
CHANGES_SECONDS = 2.0  # between two looks at the file of changes
FAILED_SECONDS = 30.0  # for which a replica that cannot load stays
PROXY_ATTEMPTS = 3  # to start the HTTP proxy, for each of which Ray waits a minute
logger = logging.getLogger("softcue.serving")


class Replica:
    """One replica: its app, and methods that Ray and the command call beside HTTP."""

    def __init__(self, settings: Mapping[str, Any], backbone: str, cues: str) -> None:
        from ray import serve as ray_serve

        self._backbone, self._place = backbone, cues
        self._shared: SharedCues | None = None
        self._name = str(ray_serve.get_replica_context().replica_id.unique_id)
        self._engine: Engine | None = None
        self._service = Service(ServerSettings.model_validate(settings), self._make_engine)
        self._has_been_ready, self._failed_at = False, 0.0
        _log_lines(self._name, self._service.settings.log_texts)

    def __serve_build_asgi_app__(self) -> FastAPI:
        """The app of every softcue server; its metrics and changes of cues are those of all replicas."""
        app = create_app(self._service, metrics_source=_all_metrics)
        app.add_middleware(name_replica, name=self._name)
        return app

    async def check_health(self) -> None:
        """Wait while the engine loads; raise an error if Ray should replace this replica.

        A replica that cannot load first stays for a while, so that the command can read and print the reason.
        """
        while (state := self._service.state) == "loading":
            await asyncio.sleep(0.1)
        self._has_been_ready |= state == "ready"
        if state == "failed":
            self._failed_at = self._failed_at or time.monotonic()
            if self._has_been_ready or time.monotonic() - self._failed_at > FAILED_SECONDS:
                raise RuntimeError("the engine failed")

    async def report(self) -> dict[str, Any]:
        """The state of the replica, its cues, its load and its metrics, as plain data."""
        service, engine = self._service, self._engine
        loaded_cues = engine.registry.loaded() if engine else []
        return {
            "replica": self._name,
            "state": service.state,
            "failure": _describe_failure(service.failure),
            "versions": {loaded_cue.name: loaded_cue.version for loaded_cue in loaded_cues},
            "in_flight": service.num_reading + (engine.num_in_flight if engine else 0),
            "metrics": service.metrics.text().decode(),
        }

    async def drain(self) -> None:
        """Accept nothing new."""
        self._service.drain()

    async def refresh(self) -> None:
        """Load and unload what another replica has loaded and unloaded."""
        if self._shared is not None and self._engine is not None:
            await asyncio.to_thread(self._shared.apply, self._engine.registry)

    # --- changes of cues, for the service ---

    async def prepare(self, name: str) -> None:
        """Have the current files of a cue on this machine, before it is loaded."""
        assert self._shared is not None
        await self._shared.prepare(name)

    async def publish(self, name: str, is_loaded: bool) -> None:
        """Tell all replicas that a cue was loaded or unloaded here; one that does not respond reads it later."""
        from ray import serve as ray_serve

        assert self._shared is not None
        await self._shared.publish(name, is_loaded)
        broadcast = ray_serve.get_deployment_handle(NAME, NAME).broadcast("refresh")
        with suppress(TimeoutError):
            await broadcast.results_async(timeout_s=BROADCAST_SECONDS, return_exceptions=True)

    def _make_engine(self, on_batch: Callable[[BatchReport], None]) -> Engine:
        self._shared = SharedCues(self._place)
        engine = make_engine(self._service.settings, self._backbone, self._shared.folder, on_batch)
        self._shared.apply(engine.registry)
        self._service.cue_changes = self
        self._engine = engine
        threading.Thread(target=self._watch_changes, name="softcue-changes", daemon=True).start()
        return engine

    def _watch_changes(self) -> None:
        assert self._shared is not None and self._engine is not None
        while self._engine.is_alive:
            time.sleep(CHANGES_SECONDS)
            try:
                self._shared.apply(self._engine.registry)
            except Exception:  # the next look may succeed
                logger.exception("changes of cues not applied")
        self._shared.close()


def _describe_failure(failure: Exception | None) -> dict[str, str]:
    """An error as plain data: Ray cannot send exceptions with several arguments."""
    if failure is None:
        return {}
    if isinstance(failure, SoftcueError):
        got, expected, fix = str(failure.got), failure.expected, failure.fix
        return {"setting": failure.setting, "got": got, "expected": expected, "fix": fix}
    expected, fix = "an engine that loads", "see Ray's log of the replica"
    return {"setting": "replica", "got": repr(failure), "expected": expected, "fix": fix}


def name_replica(app: ASGIApp, name: str) -> ASGIApp:
    """ASGI middleware that names the replica in every response."""

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (b"x-softcue-replica", name.encode())]
            await send(message)

        await app(scope, receive, send_named)

    return respond


async def _all_metrics() -> bytes:
    """The metrics of all replicas; of none if one of them does not respond in time."""
    from ray import serve as ray_serve

    broadcast = ray_serve.get_deployment_handle(NAME, NAME).broadcast("report")
    reports: list[Any] = []
    with suppress(TimeoutError):
        reports = await broadcast.results_async(timeout_s=BROADCAST_SECONDS, return_exceptions=True)
    return merge_metrics({report["replica"]: report["metrics"] for report in reports if isinstance(report, dict)})


def merge_metrics(texts: Mapping[str, str]) -> bytes:
    """Metrics of replicas as one text: each number with the name of its replica, none added up.

    Example:
        >>> text = "# TYPE softcue_examples_total counter\\nsoftcue_examples_total 2.0\\n"
        >>> merge_metrics({"a": text, "b": text}).decode().splitlines()[-2:]
        ['softcue_examples_total{replica="a"} 2.0', 'softcue_examples_total{replica="b"} 2.0']
    """
    count = Metric("softcue_replicas", "Replicas whose numbers are here", "gauge")
    count.add_sample(count.name, {}, len(texts))
    families = {count.name: count}
    for replica, text in sorted(texts.items()):
        for family in text_string_to_metric_families(text):
            merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                merged.add_sample(sample.name, {"replica": replica, **sample.labels}, sample.value)
    return generate_latest(cast(CollectorRegistry, SimpleNamespace(collect=families.values)))


def _log_lines(replica: str, log_texts: bool) -> None:
    """Log JSON lines with the name of the replica to standard error, which Ray writes to its log files."""

    def add_name(record: logging.LogRecord) -> bool:
        record.facts = {"replica": replica, **getattr(record, "facts", {})}
        return True

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(log_texts))
    handler.addFilter(add_name)
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)


def serve(settings: ServerSettings, backbone: str, cues: str, replicas: ReplicaSettings, ray_address: str) -> None:
    """Serve the cues of a folder or a URL from replicas on a running Ray cluster until SIGTERM or Ctrl-C.

    SIGHUP replaces the replicas one after the other: each reads the cues again, and none goes with requests in it.

    Example:
        serve(ServerSettings(port=8080), "minilm", "cues", ReplicaSettings(number=2), ray_address="auto")
    """
    try:
        import ray
        from ray import serve as ray_serve
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "ray", "ray") from error
    log_to_stderr(settings.log_texts)
    settings = settings.model_copy(update={"port": _free_port(settings)})
    connect(ray_address)  # its warnings become JSON lines too
    _end_on_signals()  # after Ray, which sets its own handlers
    must_replace = threading.Event()
    signal.signal(signal.SIGHUP, lambda number, frame: must_replace.set())
    try:
        if ray_serve.status().proxies:
            raise RunError(
                setting="ray_address",
                got=ray_address,
                expected="a cluster on which Ray Serve does not run yet",
                fix="end the other command, or run `serve shutdown`",
            )
        try:
            options = _replica_options(replicas)  # of what is free now, before replicas take it
            handle = _deploy(settings, backbone, cues, replicas, options)
            try:
                _wait_until_ready(handle, replicas)
                for generation in itertools.count(1):
                    _watch(handle, must_replace)
                    must_replace.clear()
                    logger.info("replacing all replicas", extra={"facts": {"generation": generation}})
                    handle = _deploy(settings, backbone, cues, replicas, options, generation)
                    logger.info("all replicas replaced")
            finally:
                _drain(handle, settings.deadline)
        finally:
            ray_serve.shutdown()
    finally:
        ray.shutdown()


def _free_port(settings: ServerSettings) -> int:
    """The port of the settings, or any for 0; raises an error if it is in use, which Ray would try again and again."""
    try:
        family, _, _, _, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        with socket.create_server(address[:2], family=family) as listener:
            return int(listener.getsockname()[1])
    except OSError as error:
        raise ConfigurationError(
            setting="host and port",
            got=f"{settings.host}:{settings.port}",
            expected="a free port of this machine",
            fix=f"choose another: {error.strerror}",
        ) from error


def _deploy(
    settings: ServerSettings,
    backbone: str,
    cues: str,
    replicas: ReplicaSettings,
    options: Mapping[str, Any],
    generation: int = 0,
) -> Any:
    """Start the replicas, or replace those of an earlier generation, and wait until they have loaded or failed."""
    from ray import serve as ray_serve

    timeout = math.ceil(settings.deadline) + 1
    _start_proxy({"host": settings.host, "port": settings.port, "request_timeout_s": timeout})
    # A changed environment makes Ray replace the replicas: a few at a time, each when it has answered its requests.
    environment = {"env_vars": {"SOFTCUE_GENERATION": str(generation)}}
    deployment = ray_serve.deployment(
        ray_serve.ingress()(Replica),
        name=NAME,
        ray_actor_options={**options, "runtime_env": environment},
        # Each replica rejects requests when it is full. The queue before all of them is bounded too.
        max_ongoing_requests=2 * settings.max_in_flight,
        max_queued_requests=settings.max_in_flight,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=timeout,
        logging_config={"enable_access_log": False},
    )
    if Path(backbone).exists():
        backbone = str(Path(backbone).resolve())
    if replicas.most is None:
        deployment = deployment.options(num_replicas=replicas.number)
    else:
        deployment = deployment.options(
            autoscaling_config={
                "min_replicas": replicas.number,
                "max_replicas": replicas.most,
                "target_ongoing_requests": replicas.target_requests,
            }
        )
    place = cues if is_url(cues) else str(Path(cues).resolve())
    application = deployment.bind(settings.as_plain_data(), backbone, place)
    handle = ray_serve.run(application, name=NAME, route_prefix="/")
    facts = {"replicas": replicas.number, **{name: options[name] for name in ("num_cpus", "num_gpus")}}
    logger.info("running on http://%s:%d", settings.host, settings.port, extra={"facts": facts})
    return handle


def _start_proxy(http_options: Mapping[str, Any]) -> None:
    """Start Ray Serve's HTTP proxy. Ray waits a minute for it, which a busy machine exceeds; it then starts another."""
    import ray
    from ray import serve as ray_serve

    for _ in range(PROXY_ATTEMPTS):
        try:
            ray_serve.start(http_options=dict(http_options), logging_config={"enable_access_log": False})
            return
        except ray.exceptions.RayError as error:
            reason = str(error).strip().partition("\n")[0]
            logger.warning("Ray's HTTP proxy did not start in time", extra={"facts": {"error": reason}})
    raise RunError(
        setting="ray_address",
        got=reason,
        expected=f"a cluster that starts its HTTP proxy in {PROXY_ATTEMPTS} attempts of a minute",
        fix="end other work on its machines, and look into Ray's logs",
    )


def _replica_options(replicas: ReplicaSettings) -> dict[str, float]:
    """The CPUs and GPUs of one replica: as set, else equal parts of what is free, at most the CPUs of one machine."""
    import ray

    num_replicas = replicas.most or replicas.number
    free = ray.available_resources()
    largest = max((node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]), default=1.0)
    cpus = min(free.get("CPU", 1.0) / num_replicas, largest)
    gpus = int(free.get("GPU", 0))
    shares = {
        "num_cpus": math.floor(cpus) if cpus >= 1 else cpus,
        "num_gpus": 1 / math.ceil(num_replicas / gpus) if gpus else 0,
    }
    given = {"num_cpus": replicas.cpus, "num_gpus": replicas.gpus}
    return shares | {name: value for name, value in given.items() if value is not None}


def _call_replicas(handle: Any, method: str = "report") -> list[Any]:
    """The results of a method of all replicas; replicas that do not respond in time are left out."""
    try:
        results = handle.broadcast(method).results(timeout_s=BROADCAST_SECONDS, return_exceptions=True)
        return [result for result in results if not isinstance(result, BaseException)]
    except Exception as error:
        logger.warning("replicas do not respond", extra={"facts": {"error": type(error).__name__}})
        return []


def _wait_until_ready(handle: Any, replicas: ReplicaSettings) -> None:
    """Wait until all replicas have loaded; a replica that cannot load, or ends, ends the command."""
    names: set[str] = set()
    while True:
        reports = _call_replicas(handle)
        for failure in filter(None, (report["failure"] for report in reports)):
            raise RunError(**failure)
        names |= {report["replica"] for report in reports}
        if len(names) > (replicas.most or replicas.number):
            raise RunError(
                setting="replicas",
                got="one ended while it loaded",
                expected="memory for a backbone in each",
                fix="lower `replicas=N`",
            )
        if len(reports) >= replicas.number and {report["state"] for report in reports} == {"ready"}:
            logger.info("all replicas ready", extra={"facts": {"replicas": sorted(names)}})
            return
        time.sleep(0.2)


def _watch(handle: Any, must_replace: threading.Event) -> None:
    """Wait until replicas must be replaced; warn if they differ, and raise an error if none responds."""
    last_response, last_versions = time.monotonic(), set[str]()
    while (silent_seconds := time.monotonic() - last_response) < SILENT_SECONDS or (
        silent_seconds < STARTING_SECONDS and _are_starting()
    ):
        if must_replace.wait(WATCH_SECONDS):
            return
        if reports := _call_replicas(handle):
            last_response = time.monotonic()
        versions = {json.dumps(report["versions"], sort_keys=True) for report in reports}
        if len(versions) > 1 and versions != last_versions:
            logger.warning("replicas serve different cues: the folder was changed; send SIGHUP to this process")
        last_versions = versions
    raise RunError(
        setting="replicas",
        got=f"no response for {silent_seconds:.0f} seconds",
        expected="replicas that respond",
        fix="see Ray's log",
    )


def _are_starting() -> bool:
    """Whether Ray is starting replicas; False also if the cluster does not answer."""
    from ray import serve as ray_serve

    try:
        states = ray_serve.status().applications[NAME].deployments[NAME].replica_states
    except Exception as error:
        logger.warning("Ray does not respond", extra={"facts": {"error": type(error).__name__}})
        return False
    return any(count for state, count in states.items() if state == "STARTING")


def _drain(handle: Any, deadline: float) -> None:
    """Accept nothing new, answer accepted requests, then stop the replicas."""
    from ray import serve as ray_serve

    end = time.monotonic() + deadline
    if not _call_replicas(handle, "drain"):
        return  # the cluster is gone
    while time.monotonic() < end and any(report["in_flight"] for report in _call_replicas(handle)):
        time.sleep(0.1)
    with suppress(TimeoutError):  # the rest ends with Serve
        ray_serve.delete(NAME)


def _end_on_signals() -> None:
    """Make signals raise in the main thread, so that every `finally` runs; a second signal ends at once."""

    def end(number: int, frame: FrameType | None) -> None:
        for handled in (signal.SIGTERM, signal.SIGINT):
            signal.signal(handled, signal.SIG_DFL)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(0)

    for handled in (signal.SIGTERM, signal.SIGINT):
        signal.signal(handled, end)
