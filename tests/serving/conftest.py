from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from serving_cues import CASES, WRITING, save_cue
from starlette.testclient import TestClient
from tiny import tiny

from softcue.cue.cue import Cue
from softcue.serving.engine import engine as engine_module
from softcue.serving.engine.engine import Engine
from softcue.serving.http.routes import create_app
from softcue.serving.http.service import Service
from softcue.serving.settings import ServerSettings


@pytest.fixture(scope="session")
def cues(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cue]:
    """Cues of every kind on the tiny BERT, in one folder."""
    root = tmp_path_factory.mktemp("served")
    return {name: save_cue(root / name, task, case) for name, (task, case) in CASES.items()}


@pytest.fixture(scope="session")
def writing_cues(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Cue]]:
    """Cues that write, by the kind of backbone."""
    cues_by_kind = {}
    for kind in ("t5", "gpt2"):
        root = tmp_path_factory.mktemp(f"served-{kind}")
        cues_by_kind[kind] = {name: save_cue(root / name, task, case, kind) for name, (task, case) in WRITING.items()}
    return cues_by_kind


@pytest.fixture(scope="session")
def folder(cues: dict[str, Cue]) -> Path:
    path = cues["topics"].path
    assert path is not None
    return path.parent


@pytest.fixture
def engine(folder: Path) -> Iterator[Engine]:
    with Engine(tiny("bert"), folder) as running:
        yield running


class Held:
    """Passes of the backbone wait until they are let go."""

    def __init__(self) -> None:
        self.go, self.has_begun = threading.Event(), threading.Event()
        self.sizes: list[int] = []


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    hold, plain = Held(), engine_module.predict_mixed

    def waiting(backbone: Any, rows: Any, *more: Any) -> Any:
        hold.has_begun.set()
        assert hold.go.wait(20)
        hold.sizes.append(len(rows))
        return plain(backbone, rows, *more)

    monkeypatch.setattr(engine_module, "predict_mixed", waiting)
    yield hold
    hold.go.set()


Serve = Callable[..., TestClient]


@pytest.fixture(scope="module")
def serving(folder: Path) -> Iterator[Serve]:
    """Servers in this process, by their settings."""
    yield from _servers(folder)


@pytest.fixture
def serve(folder: Path) -> Iterator[Serve]:
    """The same, for one test."""
    yield from _servers(folder)


def _servers(folder: Path) -> Iterator[Serve]:
    opened: list[TestClient] = []

    def start(cues_folder: Path = folder, model_type: str = "bert", **settings: Any) -> TestClient:
        server_settings = ServerSettings(**settings)
        service = Service(
            server_settings,
            lambda on_batch: Engine(
                tiny(model_type),
                cues_folder,
                server_settings.limits,
                server_settings.max_characters,
                server_settings.max_new_tokens,
                on_batch,
            ),
        )
        client = TestClient(create_app(service), raise_server_exceptions=False)
        client.app.state.service = service  # type: ignore[attr-defined]
        client.__enter__()
        opened.append(client)
        until(lambda: service.state == "ready")
        return client

    yield start
    for client in opened:
        client.__exit__(None, None, None)


def until(is_so: Callable[[], bool], seconds: float = 20) -> None:
    """Wait for another thread."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture(name="until")
def _until() -> Callable[..., None]:
    return until
