"""Checks before FastAPI parses a request: keys, load, size and time of the body. Log and metrics of every request."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pydantic_core
from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import SecretStr
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from softcue.serving.errors import RequestError, busy, no_admin_key, too_slow
from softcue.serving.http.error_responses import BODY_EXAMPLE, error_response, protocol_of
from softcue.serving.http.service import Service

PROBES = ("/livez", "/readyz", "/v2/health/live", "/v2/health/ready")
# A browser cannot send a key when it opens a page. The pages are the same files for everyone and hold no data: what
# they show comes from routes that do need the key, for which they ask.
OPEN_ROUTES = (*PROBES, "/", "/docs", "/openapi.json")
OPEN_FOLDER = "/docs-assets"  # scripts and styles of /docs
BODIES_AT_ONCE = 64  # of the largest size, in memory while they arrive
MOST_DIGITS = 20  # of a number of bytes in a header
ADMIN_METHODS = ("PUT", "DELETE")
logger = logging.getLogger("softcue.serving")


@dataclass
class RequestContext:
    """The start of a request, and facts that routes add to its line in the log."""

    began: float = field(default_factory=time.monotonic)
    facts: dict[str, Any] = field(default_factory=dict)


class RequestMiddleware:
    """ASGI middleware: checks the key, then logs and counts the request. Routes find `scope["softcue"]`."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service
        settings = service.settings
        self._has_keys = bool(settings.api_keys)
        self._admin_digests = _digests(settings.admin_keys)
        self._digests = [*_digests(settings.api_keys), *self._admin_digests]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an HTTP request on, or reject it before its body is read."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = scope["softcue"] = RequestContext()
        status = 500

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            error = self._key_error(scope)
            if error is None:
                await self._app(scope, receive, send_and_note)
            else:
                self._service.metrics.failures.labels(error.code).inc()
                await error_response(error, protocol=protocol_of(scope["path"]))(scope, receive, send_and_note)
        finally:
            self._log(scope, context, status)

    def _log(self, scope: Scope, context: RequestContext, status: int) -> None:
        route = getattr(scope.get("route"), "path", "other")
        seconds = time.monotonic() - context.began
        self._service.metrics.requests.labels(route, str(status)).inc()
        self._service.metrics.request_seconds.labels(route).observe(seconds)
        facts = {"method": scope["method"], "route": route, "status": status, "ms": round(1000 * seconds, 1)}
        level = logging.DEBUG if route in PROBES else logging.INFO
        logger.log(level, "request", extra={"facts": facts | context.facts})

    def _key_error(self, scope: Scope) -> RequestError | None:
        """Why the key of a request does not suffice, or None if it does."""
        path = scope["path"]
        if path in OPEN_ROUTES or path.startswith(f"{OPEN_FOLDER}/"):
            return None
        key = _key(scope)
        is_change = scope["method"] in ADMIN_METHODS
        if is_change and _is_known(key, self._admin_digests):
            return None
        if self._has_keys and not _is_known(key, self._digests):
            return _unauthorised(key, "a key of this server")
        if not is_change:
            return None
        return _unauthorised(key, "an admin key of this server") if self._admin_digests else no_admin_key()


class BodyRoute(APIRoute):
    """A route with a JSON body: the load, the headers, the size and the time are checked before FastAPI parses it."""

    media_types: ClassVar[tuple[str, ...]] = ("application/json",)
    body_example: ClassVar[str] = BODY_EXAMPLE

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's own handler, on a body that was read within the limits."""
        handle = super().get_route_handler()

        async def handle_within_limits(request: Request) -> Response:
            service: Service = request.app.state.service
            _check_load(service)
            self._check_headers(request, service.settings.max_body_bytes)
            body = await _receive(service, request)
            if not body.strip():
                fix = f"send {self.body_example}"
                raise RequestError("empty", setting="body", problem="it is empty", fix=fix)
            body = self.as_json(request, body)
            return await handle(_JsonRequest(request.scope, _replay(body, request.receive)))

        return handle_within_limits

    def as_json(self, request: Request, body: bytes) -> bytes:
        """The JSON of a body; protocols with other content bring it into this form."""
        return body

    def _check_headers(self, request: Request, limit: int) -> None:
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type not in self.media_types:
            raise RequestError(
                "media_type", setting="Content-Type", expected="application/json", fix="send JSON with this header"
            )
        if parse_length(request.headers.get("content-length", "0"), limit) is None:
            raise _too_large(limit)


def parse_length(header: str, limit: int) -> int | None:
    """The number of bytes that a header names, or None if it is no number or above the limit.

    Example:
        >>> parse_length("20", limit=100), parse_length("101", limit=100), parse_length("-1", limit=100)
        (20, None, None)
    """
    # Python refuses to convert thousands of digits.
    if not header.isdecimal() or len(header) > MOST_DIGITS or int(header) > limit:
        return None
    return int(header)


class _JsonRequest(Request):
    """A request whose JSON is read strictly: no NaN, no half characters. FastAPI answers 400 to a ValueError."""

    async def json(self) -> Any:
        """The parsed body."""
        return pydantic_core.from_json(await self.body(), allow_inf_nan=False)


def _check_load(service: Service) -> None:
    """Raise an error if the server has no room for another request."""
    engine, settings = service.engine, service.settings
    # Bodies count by what has come of them, so that slow clients do not keep others out.
    has_large_bodies = service.num_body_bytes > BODIES_AT_ONCE * settings.max_body_bytes
    if engine.num_in_flight >= settings.max_in_flight or has_large_bodies:
        raise busy(settings.max_in_flight, expected_seconds=engine.expected_seconds)
    if engine.expected_seconds > settings.deadline:  # 429 at once rather than 504 later
        raise too_slow(settings.deadline, engine.expected_seconds)


async def _receive(service: Service, request: Request) -> bytes:
    """The body of a request, if it comes in time."""
    settings = service.settings
    service.num_reading += 1
    try:
        async with asyncio.timeout(settings.deadline):
            return await _read(service, request)
    except TimeoutError:
        raise RequestError(
            "deadline",
            setting="body",
            problem=f"it did not arrive within {settings.deadline:g} seconds",
            fix="send a smaller one, or check the connection",
        ) from None
    except ClientDisconnect as error:
        raise RequestError("malformed", setting="body", problem="it ended too early", fix="send all of it") from error
    finally:
        service.num_reading -= 1


async def _read(service: Service, request: Request) -> bytes:
    limit = service.settings.max_body_bytes
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            service.num_body_bytes += len(chunk)
            if len(body) > limit:
                raise _too_large(limit)
    finally:
        service.num_body_bytes -= len(body)
    return bytes(body)


def _too_large(limit: int) -> RequestError:
    return RequestError(
        "too_large", setting="body", expected=f"at most {limit:,} bytes", fix="send fewer or shorter texts"
    )


def _replay(body: bytes, receive: Receive) -> Receive:
    """An ASGI receive function that gives the body first, and then the messages of the client."""
    is_replayed = False

    async def receive_replayed() -> Message:
        nonlocal is_replayed
        if is_replayed:
            return await receive()
        is_replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_replayed


def _key(scope: Scope) -> bytes:
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    scheme, _, key = (values[0] if len(values) == 1 else b"").partition(b" ")
    return bytes(key.strip()) if scheme.lower() == b"bearer" else b""


def _unauthorised(key: bytes, expected: str) -> RequestError:
    problem = f"the key is not {expected}" if key else f"{expected} is missing"
    return RequestError("unauthorised", setting="Authorization", problem=problem, fix="send it as 'Bearer KEY'")


def _digests(keys: Iterable[SecretStr]) -> list[bytes]:
    return [hashlib.sha256(key.get_secret_value().encode()).digest() for key in keys]


def _is_known(key: bytes, digests: Iterable[bytes]) -> bool:
    """Whether the key is among the known ones, compared in constant time."""
    is_known = False
    digest = hashlib.sha256(key).digest()
    for known_digest in digests:
        is_known |= hmac.compare_digest(digest, known_digest)
    return is_known
