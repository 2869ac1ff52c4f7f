"""The HTTP app and its prediction routes: predict, generate, explain. Other protocols have files of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

import softcue
from softcue.serving.engine.requests import Options
from softcue.serving.errors import RequestError
from softcue.serving.http import open_inference, openai_api, server_routes
from softcue.serving.http.error_responses import add_error_handlers, all_failed, document_errors
from softcue.serving.http.examples import ExampleChecker
from softcue.serving.http.explain import Explainer
from softcue.serving.http.middleware import OPEN_FOLDER, BodyRoute, RequestContext, RequestMiddleware
from softcue.serving.http.pages import add_page
from softcue.serving.http.schemas import (
    ExplainBody,
    ExplainResponse,
    GenerateBody,
    PredictBody,
    PredictResponse,
)
from softcue.serving.http.service import Service
from softcue.serving.http.submitted_inputs import EVENT_HEADERS, SubmittedInputs

MetricsSource = Callable[[], Awaitable[bytes]]
key_scheme = HTTPBearer(auto_error=False, description="the key of the server, if it has one")  # checked before
router = APIRouter(route_class=BodyRoute, tags=["predictions"], responses=document_errors())


def create_app(service: Service, metrics_source: MetricsSource | None = None) -> FastAPI:
    """The app of one server; its engine is loaded when the app starts.

    `metrics_source` replaces the metrics of this process.

    Example:
        service = Service(settings, lambda on_batch: Engine("minilm", "cues", settings.limits, on_batch=on_batch))
        uvicorn.run(create_app(service))
    """

    async def own_metrics() -> bytes:
        return service.metrics.text()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await run_in_threadpool(app.state.explainer.close)
        await run_in_threadpool(service.close)

    app = FastAPIOffline(  # FastAPI, but /docs loads its script from this server
        docs_url="/docs",
        redoc_url=None,
        static_url=OPEN_FOLDER,
        title="softcue",
        version=softcue.__version__,
        lifespan=lifespan,
        redirect_slashes=False,  # a redirect repeats the Host that the client has sent
    )
    app.state.service = service
    app.state.explainer = Explainer(service)
    app.state.example_checker = ExampleChecker()
    app.state.metrics_source = metrics_source or own_metrics
    app.add_middleware(RequestMiddleware, service=service)
    keyed = [Depends(key_scheme)]  # documents the key; the middleware checks it before the body is read
    keyed_routers = (router, server_routes.router, server_routes.changes, *open_inference.routers, *openai_api.routers)
    for keyed_router in keyed_routers:
        app.include_router(keyed_router, dependencies=keyed)
    open_routers = (server_routes.probes, open_inference.probes)
    for open_router in open_routers:
        app.include_router(open_router)
    add_page(app)
    included = (*keyed_routers, *open_routers)
    add_error_handlers(app, service, [*app.routes, *(route for part in included for route in part.routes)])
    return app


@router.post("/v1/predict", response_model=PredictResponse, response_model_exclude_none=True)
async def predict(body: PredictBody, request: Request) -> object:
    """Predict inputs of any tasks. Each input has its own result or error, in order."""
    inputs = SubmittedInputs(request, body.inputs, Options(body.ensemble, body.truncate))
    return await inputs.respond(body.return_scores)


@router.post(
    "/v1/generate",
    response_model=PredictResponse,
    response_model_exclude_none=True,
    responses={200: {"content": {"text/event-stream": {}}, "description": "results, or events with `stream`"}},
)
async def generate(body: GenerateBody, request: Request) -> object:
    """Generate free text. With `stream`, server-sent events: `text` parts, an `answer` per input, then `done`."""
    options = Options(body.ensemble, body.truncate, True, body.max_new_tokens, tuple(body.stop))
    inputs = SubmittedInputs(request, body.inputs, options, should_stream=body.stream)
    if not body.stream:
        return await inputs.respond(body.return_scores)
    return StreamingResponse(inputs.events(body.return_scores), media_type="text/event-stream", headers=EVENT_HEADERS)


@router.post("/v1/explain", response_model=ExplainResponse, response_model_exclude_none=True)
async def explain(body: ExplainBody, request: Request) -> object:
    """Explain the prompt of each input: the nearest words of its vectors, the likeliest codes of a codebook."""
    context: RequestContext = request.scope["softcue"]
    explainer: Explainer = request.app.state.explainer
    results = await explainer.explain(body, context.began)
    errors = [result for result in results if isinstance(result, RequestError)]
    context.facts |= {"inputs": len(results), "failed": len(errors)}
    failures = request.app.state.service.metrics.failures
    for error in errors:
        failures.labels(error.code).inc()
    if len(errors) == len(results):
        return all_failed(errors)
    return {
        "results": [{"error": result.as_dict()} if isinstance(result, RequestError) else result for result in results]
    }
