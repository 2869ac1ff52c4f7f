"""The page at / and its headers."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files

from fastapi import FastAPI
from starlette.responses import HTMLResponse


def add_page(app: FastAPI) -> None:
    """Serve the page at /; it needs no other file and no network."""
    content = (files("softcue.serving.http") / "page.html").read_text("utf-8")
    headers = {
        "Content-Security-Policy": _policy(content),
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }

    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(content, headers=headers)


def _policy(page: str) -> str:
    """The page's content security policy: its own script and style, known by their hashes, and calls to this server."""

    def hashes(tag: str) -> str:
        parts = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digests = (base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in parts)
        return " ".join(f"'sha256-{digest}'" for digest in digests)

    return (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
