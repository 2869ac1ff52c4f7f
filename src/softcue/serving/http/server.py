"""Run the app with uvicorn until a signal; then accept nothing new, answer accepted requests, and end."""

from __future__ import annotations

import math
import signal
from functools import partial
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI

from softcue.serving.http.connections import make_protocol
from softcue.serving.http.logs import log_to_stderr
from softcue.serving.http.routes import create_app
from softcue.serving.http.service import Service, make_engine
from softcue.serving.settings import ServerSettings


class _Server(uvicorn.Server):
    """Uvicorn's server; after a signal, probes and new requests are answered with 503 at once."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        service.on_failure = self._stop

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain after SIGTERM or Ctrl-C."""
        self._service.drain()
        super().handle_exit(sig, frame)

    def _stop(self) -> None:
        self.should_exit = True


def serve(settings: ServerSettings, backbone: str, cues: Path) -> None:
    """Serve the cues of a folder until SIGTERM or Ctrl-C.

    Example:
        serve(ServerSettings(port=8080), "minilm", Path("cues"))
    """
    log_to_stderr(settings.log_texts)
    service = Service(settings, partial(make_engine, settings, backbone, cues))
    # uvicorn raises the signal again when it has drained: then the process ends with code 0
    signal.signal(signal.SIGTERM, _end)
    _Server(make_config(create_app(service), settings), service).run()
    if service.failure is not None:
        raise service.failure


def make_config(app: FastAPI, settings: ServerSettings) -> uvicorn.Config:
    """How uvicorn runs the app: address, limits of connections, no logs of its own.

    Example:
        uvicorn.Server(make_config(create_app(service), ServerSettings(port=8080)))
    """
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        http=make_protocol(settings),
        ws="none",  # with a package for WebSockets installed, a request to upgrade would leave the limited protocol
        timeout_graceful_shutdown=math.ceil(settings.deadline) + 1,
    )


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)
