"""Limits of connections, before a request reaches the app: bytes and time of its head, time of its body, number.

A head is the request line and the headers. The parser keeps all of it in memory and joins the parts of an unended value
again and again, so it must be bounded before it is parsed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from softcue.serving.errors import RequestError
from softcue.serving.http.error_responses import error_response
from softcue.serving.settings import ServerSettings

MAX_HEAD_BYTES = 64 << 10
MAX_HEADERS = 100
MAX_URL_BYTES = 8 << 10
IDLE_SECONDS = 60.0  # of a new connection before its first byte
HEAD_SECONDS = 10.0  # from there to the end of the headers
BODY_GRACE = 5.0  # seconds beyond the deadline, in which the app itself answers that the body is late
LINGER_SECONDS = 10.0  # and bytes that are read and dropped after an early response, so that the client gets it
LINGER_BYTES = 64 << 20
REFUSAL_SECONDS = 1.0  # in which a client reads why its head was refused


def make_protocol(settings: ServerSettings) -> type[HttpToolsProtocol]:
    """The protocol class of one server, for `uvicorn.Config(http=...)`.

    Example:
        uvicorn.Config(app, http=make_protocol(ServerSettings()))
    """
    connections: Counter[str] = Counter()  # open ones by address

    class Protocol(LimitedProtocol):
        """The protocol of connections to one server."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.settings, self.open_connections = settings, connections

    return Protocol


class LimitedProtocol(HttpToolsProtocol):
    """Uvicorn's connection, with limits. A head beyond them is answered and the connection closed."""

    settings: ServerSettings
    open_connections: Counter[str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_in_head = True
        self._num_head_bytes = 0
        self._num_dropped = 0  # bytes of a body that came after the response
        self._is_lingering = False
        self._is_refused = False
        self._refusal: RequestError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._address = ""  # counted in `open_connections`

    # --- connections ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection and wait for its first request, for a while."""
        super().connection_made(transport)
        if self.client is not None:
            self._address = self.client[0]
            self.open_connections[self._address] += 1
            limit = self.settings.max_connections_per_client
            if self.open_connections[self._address] > limit:
                self._refuse(
                    RequestError(
                        "busy",
                        setting="connections",
                        problem=f"this address has {limit} open connections, which is the limit",
                        fix="use them again, or close some",
                    )
                )
                return
        self._start_timer(IDLE_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_timer()
        if self._address:
            self.open_connections[self._address] -= 1
            self.open_connections += Counter()  # without zeros
            self._address = ""
        super().connection_lost(exc)

    # --- data ---

    def data_received(self, data: bytes) -> None:
        """Parse data; of a head no more than the limit."""
        rest = memoryview(data)
        while len(rest) and not self._is_refused and not self.transport.is_closing():
            room = MAX_HEAD_BYTES - self._num_head_bytes if self._is_in_head else len(rest)
            part, rest = rest[:room], rest[room:]
            if self._is_in_head:
                if not self._num_head_bytes:
                    self._start_timer(HEAD_SECONDS)
                self._num_head_bytes += len(part)
            elif self.cycle is not None and self.cycle.response_complete:
                self._num_dropped += len(part)
            super().data_received(bytes(part))
            if self._is_in_head and self._num_head_bytes >= MAX_HEAD_BYTES:
                self._refuse(_too_large(f"at most {MAX_HEAD_BYTES:,} bytes of request line and headers"))
            if self._num_dropped > LINGER_BYTES:
                self.transport.close()

    def on_url(self, url: bytes) -> None:
        """Collect the address of a request."""
        super().on_url(url)
        if len(self.url) > MAX_URL_BYTES:
            expected = f"at most {MAX_URL_BYTES:,} bytes"
            self._refusal = RequestError("long_address", setting="address", expected=expected, fix="shorten it")
            raise ValueError  # the parser stops and calls send_400_response

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header."""
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS:
            self._refusal = _too_large(f"at most {MAX_HEADERS} headers")
            raise ValueError

    def on_headers_complete(self) -> None:
        """Start the request; its body must come in time."""
        self._is_in_head, self._num_head_bytes, self._num_dropped = False, 0, 0
        self._start_timer(self.settings.deadline + BODY_GRACE)
        super().on_headers_complete()
        if self.cycle is not None:
            self.cycle.transport = _LingeringTransport(self.transport, self)  # type: ignore[assignment]

    def on_message_complete(self) -> None:
        """Wait for the next request."""
        self._is_in_head = True
        self._stop_timer()
        super().on_message_complete()
        if self._is_lingering:
            self.transport.close()

    # --- the end of a connection ---

    def linger(self) -> None:
        """Close the connection after an early response, once the body has been received or a limit is reached.

        A connection that is closed while data arrives is reset, and the client may lose the response.
        """
        if self._is_in_head or self.transport.is_closing():
            self.transport.close()
            return
        self._is_lingering = True
        self._start_timer(LINGER_SECONDS)
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be parsed, or is beyond a limit."""
        malformed = RequestError("malformed", setting="request", problem="it is not valid HTTP", fix="check the client")
        self._refuse(self._refusal or malformed)

    def _refuse(self, error: RequestError) -> None:
        """Answer and close, in a moment: data that still arrives would reset the connection and lose the answer."""
        if self._is_refused or self.transport.is_closing():
            return
        self._is_refused = True
        response = error_response(error)
        head = [f"HTTP/1.1 {error.status} {error.code}".encode(), b"connection: close"]
        head += [name + b": " + value for name, value in response.raw_headers]
        self.transport.write(b"\r\n".join([*head, b"", bytes(response.body)]))
        self._start_timer(REFUSAL_SECONDS)
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _start_timer(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self._end_in_time)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_in_time(self) -> None:
        """Close a connection whose request did not come in time."""
        self._timer = None
        if self._is_in_head and self._num_head_bytes and not self._is_refused:
            expected = f"request line and headers within {HEAD_SECONDS:g} seconds"
            self._refuse(RequestError("slow_head", setting="request", expected=expected, fix="check the connection"))
        else:
            self.transport.close()


class _LingeringTransport:
    """The transport of a connection as the response sees it: `close` lets the rest of the body arrive first."""

    def __init__(self, transport: asyncio.Transport, protocol: LimitedProtocol) -> None:
        self._transport, self._protocol = transport, protocol

    def close(self) -> None:
        """Close the connection once the client has sent its body."""
        self._protocol.linger()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _too_large(expected: str) -> RequestError:
    return RequestError("large_head", setting="headers", expected=expected, fix="send fewer or shorter ones")
