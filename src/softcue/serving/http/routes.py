"""The HTTP routes. Nothing here knows how an answer is made."""

from __future__ import annotations

import base64
import hashlib
import logging
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, Response, StreamingResponse

import softcue
from softcue.serving.errors import STATUSES, RequestError
from softcue.serving.http.asking import Asked, receive
from softcue.serving.http.explain import Explainer
from softcue.serving.http.middleware import Gate
from softcue.serving.http.schemas import ExplainBody, GenerateBody, Input, PredictBody, answered, as_json, refused
from softcue.serving.http.service import Service

NOBODY = 499  # for log and metrics, as other servers say it: the client has left
logger = logging.getLogger("softcue.serving")


def create_app(service: Service) -> FastAPI:
    """The app of one server; its engine is loaded when it starts.

    Example:
        service = Service(settings, lambda on_batch: Engine("minilm", "cues", settings.limits, on_batch=on_batch))
        uvicorn.run(create_app(service))
    """

    explainer = Explainer(service)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await run_in_threadpool(explainer.close)
        await run_in_threadpool(service.close)

    app = FastAPI(
        title="softcue", version=softcue.__version__, lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None
    )
    app.add_middleware(Gate, service=service)
    _add_answers(app, service)
    _add_explanations(app, service, explainer)
    _add_tasks(app, service)
    _add_probes(app, service)
    _add_page(app)
    _add_errors(app, service)
    return app


def _add_answers(app: FastAPI, service: Service) -> None:
    @app.post("/v1/predict", openapi_extra=_takes("PredictBody"), responses=_statuses())
    async def predict(request: Request) -> Response:
        """Answer inputs of any tasks, each with its own result or error, in order."""
        began = time.monotonic()
        body = await receive(service, request, PredictBody)
        return await _answered(request, body, Asked.of(service, body, began))

    @app.post("/v1/generate", openapi_extra=_takes("GenerateBody"), responses=_statuses())
    async def generate(request: Request) -> Response:
        """Answer with free text; with "stream" as server-sent events: pieces as they are written, then answers."""
        began = time.monotonic()
        body = await receive(service, request, GenerateBody)
        asked = Asked.of(service, body, began, body.stream)
        if not body.stream:
            return await _answered(request, body, asked)
        _note(request, body)
        return StreamingResponse(
            asked.events(body.return_scores),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    async def _answered(request: Request, body: PredictBody, asked: Asked) -> Response:
        _note(request, body)
        try:
            results = await asked.results(request)
        except ClientDisconnect:
            return Response(status_code=NOBODY)
        request.scope["softcue"]["failed"] = sum(isinstance(result, RequestError) for result in results)
        return answered(results, body.return_scores)

    def _note(request: Request, body: PredictBody) -> None:
        facts: dict[str, Any] = request.scope["softcue"]
        facts["inputs"] = len(body.inputs)
        if service.settings.log_texts:
            facts["texts"] = body.inputs


def _add_explanations(app: FastAPI, service: Service, explainer: Explainer) -> None:
    @app.post("/v1/explain", openapi_extra=_takes("ExplainBody"), responses=_statuses())
    async def explain(request: Request) -> Response:
        """What a cue's prompt is made of for a text: nearest words of its vectors, likeliest codes of a codebook."""
        began = time.monotonic()
        body = await receive(service, request, ExplainBody)
        return as_json(await explainer.explain(body, began + service.settings.deadline))


def _add_tasks(app: FastAPI, service: Service) -> None:
    @app.get("/v1/tasks")
    async def tasks() -> Response:
        """All loaded cues, and those that could not be loaded."""
        registry = service.engine.registry
        broken = [{"name": name, "error": why.as_dict()} for name, why in registry.broken().items()]
        return as_json({"tasks": [served.as_dict() for served in registry.loaded()], "broken": broken})

    @app.get("/v1/tasks/{name}")
    async def task(name: str) -> Response:
        """One loaded cue."""
        return as_json(service.engine.registry[name].as_dict())

    @app.put("/v1/tasks/{name}")
    async def load_task(name: str) -> Response:
        """Load a cue of the cues folder, or replace it by what its folder holds now (admin key)."""
        registry = service.engine.registry
        is_new = all(served.name != name for served in registry.loaded())
        served = await run_in_threadpool(registry.load, name)
        logger.info("cue loaded", extra={"facts": {"cue": served.name, "version": served.version}})
        return as_json(served.as_dict(), 201 if is_new else 200)

    @app.delete("/v1/tasks/{name}")
    async def unload_task(name: str) -> Response:
        """Unload a cue; its folder stays (admin key)."""
        served = await run_in_threadpool(service.engine.registry.unload, name)
        logger.info("cue unloaded", extra={"facts": {"cue": served.name, "version": served.version}})
        return as_json({"name": served.name, "version": served.version})


def _add_probes(app: FastAPI, service: Service) -> None:
    @app.get("/livez")
    async def livez() -> Response:
        """Whether the process should be left running."""
        return as_json({"state": service.state}, 503 if service.state == "failed" else 200)

    @app.get("/readyz")
    async def readyz() -> Response:
        """Whether requests should be sent here."""
        return as_json({"state": service.state}, 200 if service.state == "ready" else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counters for Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/v1/info")
    async def info() -> Response:
        """The backbone, the limits and the load."""
        engine, settings = service.engine, service.settings
        backbone = engine.backbone
        limits = ("max_body_bytes", "max_inputs", "max_in_flight", "deadline", "max_characters", "max_new_tokens")
        return as_json(
            {
                "version": softcue.__version__,
                "backbone": {
                    "name": backbone.name,
                    "kind": backbone.kind,
                    "dtype": str(backbone.dtype).split(".")[-1],
                    "device": str(backbone.device),
                    "max_length": backbone.max_length,
                    "fingerprint": vars(backbone.fingerprint),
                },
                "limits": {name: getattr(settings, name) for name in limits},
                "cues": len(engine.registry),
                "in_flight": engine.num_in_flight,
                "queue": engine.num_waiting,
            }
        )

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return as_json(_described(app))


def _add_page(app: FastAPI) -> None:
    content = (files("softcue.serving.http") / "page.html").read_text("utf-8")
    headers = {
        "Content-Security-Policy": _policy(content),
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return HTMLResponse(content, headers=headers)


def _add_errors(app: FastAPI, service: Service) -> None:
    @app.exception_handler(RequestError)
    async def refuse(_: Request, refusal: RequestError) -> Response:
        service.metrics.failures.labels(refusal.code).inc()
        return refused(refusal)

    @app.exception_handler(HTTPException)
    async def no_route(_: Request, error: HTTPException) -> Response:
        told = {"status": error.status_code, "code": "no_route", "message": str(error.detail)}
        return as_json({"error": told}, error.status_code, dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def bug(_: Request, error: Exception) -> Response:  # starlette raises it again, so that it is logged
        service.metrics.failures.labels("bug").inc()
        return as_json({"error": {"status": 500, "code": "bug", "message": "a bug; the server's log has more"}}, 500)


def _policy(page: str) -> str:
    """What a browser may do for the page: run its own script and style, known by their hashes, and ask this server."""

    def hashes(tag: str) -> str:
        parts = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digests = (base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in parts)
        return " ".join(f"'sha256-{digest}'" for digest in digests)

    return (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _takes(body: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{body}"}}}
    return {"requestBody": {"required": True, "content": content}}


def _statuses() -> dict[int | str, dict[str, Any]]:
    codes: dict[int | str, list[str]] = {}
    for code, status in STATUSES.items():
        codes.setdefault(status, []).append(code)
    return {status: {"description": ", ".join(own)} for status, own in codes.items()}


def _described(app: FastAPI) -> dict[str, Any]:
    described = get_openapi(title=app.title, version=app.version, routes=app.routes)
    models = (Input, PredictBody, GenerateBody, ExplainBody)
    _, schemas = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    described.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])
    return described
