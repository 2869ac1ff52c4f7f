"""Several replicas of the same server behind Ray Serve, on this machine alone.

Each replica is a process with a backbone, a `Service` and the app of `create_app` of its own; they share nothing but
the cues folder, which they read when they start. So cues cannot be loaded or unloaded one by one here: a replica that
replaces a dead one would undo it. Ray is an extra, hence imported inside functions.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import math
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, cast

import torch
from fastapi import FastAPI
from fastapi.routing import APIRoute
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from softcue.errors import ConfigurationError, MissingExtraError, RunError, SoftcueError
from softcue.serving.engine.engine import Engine
from softcue.serving.engine.requests import BatchReport
from softcue.serving.http.logs import JsonLines, log_to_stderr
from softcue.serving.http.routes import create_app
from softcue.serving.http.service import Service, make_engine
from softcue.serving.settings import ServerSettings

NAME = "softcue"  # of the application and of its one deployment
ENVIRONMENT = {  # read by Ray when it is imported
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on Linux too: without it 127.0.0.1 becomes the address for others
    "RAY_AUTH_MODE": "token",  # else every user of this machine may run code through Ray's ports
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # copies the working folder
    "RAY_SERVE_ENABLE_HA_PROXY": "0",  # this and the next listen to all machines
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "0",
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",
}
OBJECT_STORE_BYTES = 80 * 2**20  # little more than Ray's least: requests and answers are small
LONGEST_FOLDER = 40  # characters: Ray's sockets lie below it, and their paths are limited
ASKING_SECONDS = WATCH_SECONDS = 5.0
SILENT_SECONDS = 60.0  # after which replicas that do not answer are given up
LOG, STARTED = "log", "started"  # in the driver's folder: a socket, and a file once the first start is over
logger = logging.getLogger("softcue.serving")


class Replica:
    """One replica: its app, and what Ray and the driver ask it beside HTTP."""

    def __init__(self, settings: ServerSettings, backbone: str, cues: Path, folder: Path) -> None:
        from ray import serve as ray_serve
        from ray.serve._private import replica as internals

        # Ray opens a port here, for handles over gRPC, to all machines and has no setting for it
        internals.add_port_to_grpc_server = lambda server, address: server.add_insecure_port("127.0.0.1:0")
        self._backbone, self._cues, self._folder = backbone, cues, folder
        self._name = str(ray_serve.get_replica_context().replica_id.unique_id)
        self._engines: list[Engine] = []  # one, once it has loaded
        self._service = Service(settings, self._engine)
        _log_to_driver(folder / LOG, self._name, settings.log_texts)

    def __serve_build_asgi_app__(self) -> FastAPI:
        """The app of every softcue server, but its metrics are those of all replicas; called by Ray."""
        app = create_app(self._service)
        _only_what_replicas_share(app)
        app.add_middleware(_named, name=self._name)
        return app

    async def check_health(self) -> None:
        """Whether Ray should keep it. The driver minds the first start; one that replaces another first loads."""
        if not (self._folder / STARTED).exists():
            return
        while (state := self._service.state) == "loading":
            await asyncio.sleep(0.1)
        if state == "failed":
            raise RuntimeError("the engine failed")

    async def report(self) -> dict[str, Any]:
        """Its state, what it serves, how much is under way and its own metrics."""
        service, engines = self._service, self._engines
        return {
            "replica": self._name,
            "state": service.state,
            "failure": _parts(service.failure),
            "versions": {served.name: served.version for one in engines for served in one.registry.loaded()},
            "in_flight": service.num_reading + sum(engine.num_in_flight for engine in engines),
            "metrics": service.metrics.text().decode(),
        }

    async def drain(self) -> None:
        """Take nothing new."""
        self._service.drain()

    def _engine(self, on_batch: Callable[[BatchReport], None]) -> Engine:
        engine = make_engine(self._service.settings, self._backbone, self._cues, on_batch)
        self._engines.append(engine)
        return engine


def _parts(failure: Exception | None) -> tuple[str, ...]:
    """An error as its parts, as exceptions with several arguments do not travel."""
    if isinstance(failure, SoftcueError):
        return failure.setting, str(failure.got), failure.expected, failure.fix
    return ("replica", repr(failure), "an engine that loads", "see the log above") if failure is not None else ()


def _named(app: ASGIApp, name: str) -> ASGIApp:
    """ASGI middleware that names the replica in every answer."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (b"x-softcue-replica", name.encode())]
            await send(message)

        await app(scope, receive, sending)

    return answer


def _only_what_replicas_share(app: FastAPI) -> None:
    """A request reaches one replica. What is asked of the server as a whole is asked of all, or refused."""
    from ray import serve as ray_serve

    async def metrics() -> Response:
        """Counters of all replicas for Prometheus."""
        asked = ray_serve.get_deployment_handle(NAME, NAME).broadcast("report")
        found = await asked.results_async(timeout_s=ASKING_SECONDS, return_exceptions=True)
        texts = {report["replica"]: report["metrics"] for report in found if isinstance(report, dict)}
        return Response(merged(texts), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def change(name: str) -> Response:
        why = "replicas serve what the cues folder held at the start; change the folder, then restart the server"
        raise HTTPException(405, why, {"Allow": "GET"})

    path = "/v1/tasks/{name}"
    replaced = {("/metrics", "GET"), (path, "PUT"), (path, "DELETE")}
    app.router.routes[:] = [
        route
        for route in app.router.routes
        if not (isinstance(route, APIRoute) and replaced & {(route.path, method) for method in route.methods or ()})
    ]
    app.add_api_route("/metrics", metrics)
    app.add_api_route(path, change, methods=["PUT", "DELETE"], include_in_schema=False)


def merged(texts: Mapping[str, str]) -> bytes:
    """Metrics of replicas as one text: each number with the name of its replica, none added up.

    Example:
        >>> one = "# TYPE softcue_examples_total counter\\nsoftcue_examples_total 2.0\\n"
        >>> merged({"a": one, "b": one}).decode().splitlines()[-2:]
        ['softcue_examples_total{replica="a"} 2.0', 'softcue_examples_total{replica="b"} 2.0']
    """
    count = Metric("softcue_replicas", "Replicas whose numbers are here", "gauge")
    count.add_sample(count.name, {}, len(texts))
    families = {count.name: count}
    for replica, text in sorted(texts.items()):
        for family in text_string_to_metric_families(text):
            own = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                own.add_sample(sample.name, {"replica": replica, **sample.labels}, sample.value)
    return generate_latest(cast(CollectorRegistry, SimpleNamespace(collect=families.values)))


def _log_to_driver(path: Path, replica: str, log_texts: bool) -> None:
    """Send all lines, with the name of the replica, to the driver: one JSON object per line on its standard error."""

    def name(record: logging.LogRecord) -> bool:
        record.facts = {"replica": replica, **getattr(record, "facts", {})}
        return True

    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    handler = logging.StreamHandler(connection.makefile("w", encoding="utf-8"))
    handler.setFormatter(JsonLines(log_texts))
    handler.addFilter(name)
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)


def serve(settings: ServerSettings, backbone: str, cues: Path, num_replicas: int) -> None:
    """Serve the cues of a folder from so many replicas until SIGTERM or Ctrl-C.

    Example:
        serve(ServerSettings(port=8080), "minilm", Path("cues"), num_replicas=2)
    """
    os.environ.update(ENVIRONMENT, RAY_AUTH_TOKEN=secrets.token_hex(32))
    try:
        import ray
        from ray import serve as ray_serve
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "ray", "ray") from error
    log_to_stderr(settings.log_texts)
    for other in map(logging.getLogger, ("ray", "ray.serve")):  # their warnings, as lines like all others
        other.handlers, other.propagate = [], True
        other.setLevel(logging.WARNING)
    settings = settings.model_copy(update={"port": _free_port(settings)})
    gpus, threads = torch.cuda.device_count(), max(1, torch.get_num_threads() // num_replicas)
    shares = {"num_cpus": threads, "num_gpus": 1 / math.ceil(num_replicas / gpus) if gpus else 0}
    with _folder_with_log() as folder:
        _end_on_signals()
        ray.init(
            "local",
            num_cpus=threads * num_replicas,
            num_gpus=gpus,
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            _node_ip_address="127.0.0.1",
            _temp_dir=str(folder),
        )
        _end_on_signals()  # Ray has set its own
        try:
            if not ipaddress.ip_address(ray.util.get_node_ip_address()).is_loopback:
                raise RunError(
                    setting="ray",
                    got=ray.__version__,
                    expected="one that stays on this machine",
                    fix="install ray[serve]==2.60.0",
                )
            handle = _deployed(settings, num_replicas, shares, backbone, cues, folder)
            try:
                _await_ready(handle, num_replicas)
                (folder / STARTED).touch()
                _watch(handle)
            finally:
                _drain(handle, settings.deadline)
        finally:
            ray_serve.shutdown()
            ray.shutdown()


def _deployed(settings: ServerSettings, num_replicas: int, shares: Mapping[str, float], *more: object) -> Any:
    """Start the replicas and the port; they answer probes from then on."""
    from ray import serve as ray_serve

    patience = math.ceil(settings.deadline) + 1
    ray_serve.start(
        http_options={"host": settings.host, "port": settings.port, "request_timeout_s": patience},
        logging_config={"enable_access_log": False},
    )
    deployment = ray_serve.deployment(
        ray_serve.ingress()(Replica),
        name=NAME,
        num_replicas=num_replicas,
        ray_actor_options=dict(shares),
        # The replica itself says when it is full. What waits in front of all of them is bounded too.
        max_ongoing_requests=2 * settings.max_in_flight,
        max_queued_requests=settings.max_in_flight,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=patience,
        logging_config={"enable_access_log": False},
    )
    handle = ray_serve.run(deployment.bind(settings, *more), name=NAME, route_prefix="/")
    logger.info("running on http://%s:%d", settings.host, settings.port, extra={"facts": {"replicas": num_replicas}})
    return handle


def _asked(handle: Any, method: str = "report") -> list[Any]:
    """The answers of all replicas to a question; those that cannot answer in time are left out."""
    try:
        answers = handle.broadcast(method).results(timeout_s=ASKING_SECONDS, return_exceptions=True)
        return [answer for answer in answers if not isinstance(answer, BaseException)]
    except Exception as error:
        logger.warning("replicas do not answer", extra={"facts": {"error": type(error).__name__}})
        return []


def _await_ready(handle: Any, num_replicas: int) -> None:
    """Wait until all have loaded; one that cannot, or ends meanwhile, ends the command."""
    seen: set[str] = set()
    while True:
        reports = _asked(handle)
        for failure in filter(None, (report["failure"] for report in reports)):
            raise RunError(**dict(zip(("setting", "got", "expected", "fix"), failure, strict=True)))
        seen |= {report["replica"] for report in reports}
        if len(seen) > num_replicas:
            raise RunError(
                setting="replicas",
                got="one ended while it loaded",
                expected="memory for a backbone in each",
                fix="lower `replicas=N`",
            )
        if [report["state"] for report in reports] == ["ready"] * num_replicas:
            logger.info("all replicas ready", extra={"facts": {"replicas": sorted(seen)}})
            return
        time.sleep(0.2)


def _watch(handle: Any) -> None:
    """Until a signal: say so where replicas differ, give up where none answers."""
    answered, known = time.monotonic(), set[str]()
    while time.monotonic() - answered < SILENT_SECONDS:
        time.sleep(WATCH_SECONDS)
        if reports := _asked(handle):
            answered = time.monotonic()
        versions = {json.dumps(report["versions"], sort_keys=True) for report in reports}
        if len(versions) > 1 and versions != known:
            logger.warning("replicas serve different cues: the folder was changed; restart the server")
        known = versions
    raise RunError(
        setting="replicas",
        got=f"no answer for {SILENT_SECONDS:g} seconds",
        expected="one that answers",
        fix="see the log above",
    )


def _drain(handle: Any, deadline: float) -> None:
    """Take nothing new, answer what was taken; then stop the replicas."""
    from ray import serve as ray_serve

    end = time.monotonic() + deadline
    if not _asked(handle, "drain"):
        return  # Ray itself is gone; it would be waited for in vain
    while time.monotonic() < end and any(report["in_flight"] for report in _asked(handle)):
        time.sleep(0.1)
    with suppress(TimeoutError):  # what is left ends with Ray
        ray_serve.delete(NAME)


def _free_port(settings: ServerSettings) -> int:
    """The port asked for, if it is free; else Ray would try again and again."""
    try:
        family, _, _, _, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        with socket.create_server(address[:2], family=family) as found:
            return int(found.getsockname()[1])
    except OSError as error:
        raise ConfigurationError(
            setting="host and port",
            got=f"{settings.host}:{settings.port}",
            expected="a free port of this machine",
            fix=f"choose another: {error.strerror}",
        ) from error


@contextmanager
def _folder_with_log() -> Iterator[Path]:
    """A folder that only this user can enter, with a socket whose lines go to standard error."""

    def copy(connection: socket.socket) -> None:
        for line in connection.makefile("r", encoding="utf-8", errors="replace"):
            sys.stderr.write(line)

    def accept() -> None:
        while True:
            threading.Thread(target=copy, args=listening.accept()[:1], daemon=True).start()

    with tempfile.TemporaryDirectory(prefix="softcue-", ignore_cleanup_errors=True) as name:
        if len(name) > LONGEST_FOLDER:
            raise ConfigurationError(
                setting="TMPDIR",
                got=Path(name).parent,
                expected="a short path: sockets lie below",
                fix="set TMPDIR=/tmp",
            )
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(Path(name) / LOG))
        listening.listen()
        threading.Thread(target=accept, name="softcue-log", daemon=True).start()
        yield Path(name)


def _end_on_signals() -> None:
    """Signals raise in the main thread, so that whatever it waits for is left in order; a second one ends at once."""

    def end(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_DFL)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(0)

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, end)
