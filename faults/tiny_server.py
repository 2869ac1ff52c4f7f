"""A server on a real port with tiny cues of every kind, in a thread of this process."""

from __future__ import annotations

import contextlib
import logging
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
KEY, ADMIN_KEY = "key-of-the-check", "admin-key-of-the-check"


@dataclass(frozen=True)
class TinyServer:
    """A server that is ready."""

    port: int
    service: Any
    folder: Path  # of the cues
    cues: dict[str, Any]


@contextlib.contextmanager
def serve_tiny_cues(**settings: Any) -> Iterator[TinyServer]:
    """Serve the cues of tests/serving_cues.py on the tiny BERT; it stops at the end of the block."""
    import uvicorn
    from serving_cues import CASES, save_cue
    from tiny import tiny

    from softcue.serving.engine.engine import Engine
    from softcue.serving.http.routes import create_app
    from softcue.serving.http.server import make_config
    from softcue.serving.http.service import Service
    from softcue.serving.settings import ServerSettings

    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # it warns of every request that is no HTTP
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        cues = {name: save_cue(folder / name, task, case) for name, (task, case) in CASES.items()}
        server_settings = ServerSettings(port=0, **settings)
        service = Service(
            server_settings,
            lambda on_batch: Engine(
                tiny("bert"), folder, server_settings.limits, on_batch=on_batch, use_disk_cache=False
            ),
        )
        server = uvicorn.Server(make_config(create_app(service), server_settings))
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            end = time.monotonic() + 60
            while not (server.started and service.state == "ready"):
                if time.monotonic() > end:
                    raise RuntimeError("the server did not start")
                time.sleep(0.01)
            yield TinyServer(server.servers[0].sockets[0].getsockname()[1], service, folder, cues)
        finally:
            server.should_exit = True
            thread.join(30)


def exchange(port: int, parts: list[bytes], timeout: float = 20.0) -> bytes:
    """Send some bytes, part by part, and read until the server closes the connection or a response is whole."""
    received = b""
    with socket.create_connection((HOST, port), timeout=timeout) as connection:
        with contextlib.suppress(OSError):
            for part in parts:
                connection.sendall(part)
        with contextlib.suppress(ConnectionResetError):
            while not is_whole(received) and (chunk := connection.recv(65536)):
                received += chunk
    return received


def is_whole(received: bytes) -> bool:
    """Whether a response with a stated length is complete.

    Example:
        >>> is_whole(b"HTTP/1.1 200 OK\\r\\ncontent-length: 2\\r\\n\\r\\n{}"), is_whole(b"HTTP/1.1 200 OK\\r\\n")
        (True, False)
    """
    head, separator, body = received.partition(b"\r\n\r\n")
    if not separator:
        return False
    for line in head.lower().split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name == b"content-length":
            return len(body) >= int(value)
    return False
