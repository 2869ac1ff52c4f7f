"""The state of one server: loading, ready, draining or failed, and its engine."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from softcue.serving.engine.engine import Engine
from softcue.serving.engine.requests import BatchReport
from softcue.serving.errors import RequestError, draining
from softcue.serving.http.metrics import Metrics
from softcue.serving.settings import ServerSettings

State = Literal["loading", "ready", "draining", "failed"]
MakeEngine = Callable[[Callable[[BatchReport], None]], Engine]
logger = logging.getLogger("softcue.serving")


def engine_of(settings: ServerSettings, backbone: str, cues: Path, on_batch: Callable[[BatchReport], None]) -> Engine:
    """The engine of a server with these settings."""
    return Engine(backbone, cues, settings.limits, settings.max_characters, settings.max_new_tokens, on_batch)


class Service:
    """Loads the engine while the server already answers probes, and stops it in order."""

    def __init__(self, settings: ServerSettings, make_engine: MakeEngine) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.failure: Exception | None = None
        self.on_failure: Callable[[], None] = lambda: None
        self.num_reading = 0  # requests whose body is on its way; only the event loop changes it
        self._make_engine = make_engine
        self._engine: Engine | None = None
        self._is_stopping = False
        self._thread = threading.Thread(target=self._load, name="softcue-loading", daemon=True)

    @property
    def state(self) -> State:
        """What it can do now."""
        if self.failure is not None:
            return "failed"
        if self._is_stopping:
            return "draining"
        if self._engine is None:
            return "loading"
        return "ready" if self._engine.is_alive else "failed"

    @property
    def engine(self) -> Engine:
        """The engine, if it takes requests."""
        if self._is_stopping:
            raise draining()
        if self._engine is None:
            raise RequestError(
                "loading", setting="server", expected="one that has loaded its cues", fix="try again in a moment"
            )
        return self._engine

    def start(self) -> None:
        """Begin to load."""
        self._thread.start()

    def drain(self) -> None:
        """Take nothing new from now on; what was taken is answered."""
        self._is_stopping = True
        if self._engine is not None:
            self._engine.drain()

    def close(self) -> None:
        """Answer what was taken, then stop the engine."""
        self.drain()
        self._thread.join()
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
        facts = {"cues": len(engine.registry), "broken": list(engine.registry.broken())}
        logger.info("ready", extra={"facts": facts})
