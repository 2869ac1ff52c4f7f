"""Routes about the server itself: its cues, probes, metrics, limits and load."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from fastapi import APIRouter, Request, Response

import softcue
from softcue.backbones.runtimes import LayerRuntime
from softcue.serving.engine.registry import LOAD_SECONDS
from softcue.serving.errors import load_deadline_exceeded
from softcue.serving.http.error_responses import document_errors
from softcue.serving.http.examples import ExampleChecker
from softcue.serving.http.schemas import (
    ExamplesResponse,
    InfoResponse,
    StateResponse,
    TaskResponse,
    TasksResponse,
    UnloadResponse,
)
from softcue.serving.http.service import CurrentService

ERRORS = document_errors()
UNAVAILABLE: dict[int | str, dict[str, Any]] = {503: {"model": StateResponse, "description": "not in this state"}}
METRICS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "counters"}
}
CREATED: dict[int | str, dict[str, Any]] = {201: {"model": TaskResponse, "description": "a cue of a new name"}}
probes = APIRouter(tags=["probes"])  # open routes
router = APIRouter(tags=["server"])
changes = APIRouter(tags=["server"])  # routes that load and unload cues
logger = logging.getLogger("softcue.serving")


@probes.get("/livez", response_model=StateResponse, responses=UNAVAILABLE)
async def livez(service: CurrentService, response: Response) -> object:
    """Say whether the process should keep running."""
    response.status_code = 503 if service.state == "failed" else 200
    return {"state": service.state}


@probes.get("/readyz", response_model=StateResponse, responses=UNAVAILABLE)
async def readyz(service: CurrentService, response: Response) -> object:
    """Say whether the server accepts requests."""
    response.status_code = 200 if service.state == "ready" else 503
    return {"state": service.state}


@router.get("/metrics", response_class=Response, responses=ERRORS | METRICS)
async def metrics(request: Request) -> Response:
    """Return counters for Prometheus."""
    text: bytes = await request.app.state.metrics_source()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/v1/info", response_model=InfoResponse, responses=ERRORS)
async def info(service: CurrentService) -> object:
    """Return the backbone, the limits and the load."""
    engine, settings = service.engine, service.settings
    backbone = engine.backbone
    limits = ("max_body_bytes", "max_inputs", "max_in_flight", "deadline", "max_characters", "max_new_tokens")
    return {
        "version": softcue.__version__,
        "backbone": {
            "name": backbone.name,
            "kind": backbone.kind,
            "dtype": str(backbone.dtype).split(".")[-1],
            "device": str(backbone.device),
            "runtime": str(backbone.runtime.name) if isinstance(backbone.runtime, LayerRuntime) else "torch",
            "max_length": backbone.max_length,
            "fingerprint": vars(backbone.fingerprint),
        },
        "limits": {name: getattr(settings, name) for name in limits},
        "cues": len(engine.registry),
        "in_flight": engine.num_in_flight,
        "queue": engine.num_waiting,
    }


@router.get("/v1/tasks", response_model=TasksResponse, responses=ERRORS)
async def tasks(service: CurrentService) -> object:
    """List all loaded cues, and those that could not be loaded."""
    registry = service.engine.registry
    broken = [{"name": name, "error": error.as_dict()} for name, error in registry.broken().items()]
    return {"tasks": [loaded_cue.as_dict() for loaded_cue in registry.loaded()], "broken": broken}


@router.get("/v1/examples", response_model=ExamplesResponse, responses=ERRORS)
async def examples(service: CurrentService, request: Request) -> object:
    """Return messages for which every loaded cue of a sample task predicts the right label, for a first try."""
    checker: ExampleChecker = request.app.state.example_checker
    return {"examples": await checker.examples(service.engine, service.settings.deadline)}


@router.get("/v1/tasks/{name}", response_model=TaskResponse, responses=ERRORS)
async def task(name: str, service: CurrentService) -> object:
    """Return one loaded cue."""
    return service.engine.registry[name].as_dict()


@changes.put("/v1/tasks/{name}", response_model=TaskResponse, responses=ERRORS | CREATED)
async def load_task(name: str, service: CurrentService, response: Response) -> object:
    """Load a cue of the cues folder, or replace it by the folder's current content (admin key)."""
    registry = service.engine.registry
    is_new = all(loaded_cue.name != name for loaded_cue in registry.loaded())
    try:
        async with asyncio.timeout(LOAD_SECONDS):
            await service.cue_changes.prepare(name)
            loaded_cue = await asyncio.wrap_future(registry.start_load(name))
    except TimeoutError:
        raise load_deadline_exceeded() from None
    await service.cue_changes.publish(name, is_loaded=True)
    logger.info("cue loaded", extra={"facts": {"cue": loaded_cue.name, "version": loaded_cue.version}})
    response.status_code = 201 if is_new else 200
    return loaded_cue.as_dict()


@changes.delete("/v1/tasks/{name}", response_model=UnloadResponse, responses=ERRORS)
async def unload_task(name: str, service: CurrentService) -> object:
    """Unload a cue; its folder stays (admin key)."""
    unloaded = service.engine.registry.unload(name)
    await service.cue_changes.publish(name, is_loaded=False)
    facts = {"name": unloaded.name, "version": unloaded.version}
    logger.info("cue unloaded", extra={"facts": {"cue": unloaded.name, "version": unloaded.version}})
    return facts
