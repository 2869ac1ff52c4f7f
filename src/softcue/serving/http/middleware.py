"""What every request passes first and last: keys, and then a line in the log and in the metrics."""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from collections.abc import Iterable
from typing import Any

from pydantic import SecretStr
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from softcue.serving.errors import RequestError
from softcue.serving.http.schemas import refused
from softcue.serving.http.service import Service

PROBES = ("/livez", "/readyz")
# A browser cannot send a key when it opens a page. The page is the same file for everyone and holds no data: what it
# shows comes from routes that do need the key, for which it asks.
OPEN_ROUTES = (*PROBES, "/")
ADMIN_METHODS = ("PUT", "DELETE")
logger = logging.getLogger("softcue.serving")


class Gate:
    """ASGI middleware; `scope["softcue"]` collects what handlers add to the log."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service
        settings = service.settings
        self._has_keys = bool(settings.api_keys)
        self._admin_digests = _digests(settings.admin_keys)
        self._digests = [*_digests(settings.api_keys), *self._admin_digests]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let an HTTP request through, or refuse it before its body is read."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.monotonic(), 500
        facts: dict[str, Any] = {}
        scope["softcue"] = facts

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            if self._is_allowed(scope):
                await self._app(scope, receive, sending)
            else:
                why = RequestError(
                    "unauthorised", setting="Authorization", expected="a valid 'Bearer KEY'", fix="send the key"
                )
                self._service.metrics.failures.labels(why.code).inc()
                await refused(why)(scope, receive, sending)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            seconds = time.monotonic() - began
            self._service.metrics.requests.labels(route, str(status)).inc()
            self._service.metrics.request_seconds.labels(route).observe(seconds)
            known = {"method": scope["method"], "route": route, "status": status, "ms": round(1000 * seconds, 1)}
            logger.log(logging.DEBUG if route in PROBES else logging.INFO, "request", extra={"facts": known | facts})

    def _is_allowed(self, scope: Scope) -> bool:
        if scope["path"] in OPEN_ROUTES:
            return True
        if scope["method"] in ADMIN_METHODS:  # without an admin key nobody may change what is served
            return _is_one_of(_key(scope), self._admin_digests)
        return not self._has_keys or _is_one_of(_key(scope), self._digests)


def _key(scope: Scope) -> bytes:
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    scheme, _, key = (values[0] if len(values) == 1 else b"").partition(b" ")
    return bytes(key.strip()) if scheme.lower() == b"bearer" else b""


def _digests(keys: Iterable[SecretStr]) -> list[bytes]:
    return [hashlib.sha256(key.get_secret_value().encode()).digest() for key in keys]


def _is_one_of(key: bytes, digests: Iterable[bytes]) -> bool:
    """Compared in constant time, whatever the lengths and however many there are."""
    found = False
    digest = hashlib.sha256(key).digest()
    for known in digests:
        found |= hmac.compare_digest(digest, known)
    return found
