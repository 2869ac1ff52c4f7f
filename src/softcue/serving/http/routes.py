"""The HTTP app and its prediction routes: predict, generate, explain.

A request goes from here to the engine and waits for its results without blocking the event loop.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse

import softcue
from softcue.serving.engine.requests import Item, Options, PendingRequest, Result, ServedPrediction
from softcue.serving.errors import RequestError, deadline_exceeded
from softcue.serving.http import server_routes
from softcue.serving.http.error_responses import add_error_handlers, all_failed, document_errors, too_many_inputs
from softcue.serving.http.examples import ExampleChecker
from softcue.serving.http.explain import Explainer
from softcue.serving.http.middleware import OPEN_FOLDER, BodyRoute, RequestContext, RequestMiddleware
from softcue.serving.http.pages import add_page
from softcue.serving.http.schemas import (
    ExplainBody,
    ExplainResponse,
    GenerateBody,
    Input,
    PredictBody,
    PredictResponse,
)
from softcue.serving.http.service import Service

CLIENT_LEFT = 499  # for log and metrics, as other servers have it
EVENT_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
MetricsSource = Callable[[], Awaitable[bytes]]
key_scheme = HTTPBearer(auto_error=False, description="the key of the server, if it has one")  # checked before
router = APIRouter(route_class=BodyRoute, tags=["predictions"], responses=document_errors())


def create_app(service: Service, metrics_source: MetricsSource | None = None, allow_changes: bool = True) -> FastAPI:
    """The app of one server; its engine is loaded when the app starts.

    `metrics_source` replaces the metrics of this process. Without `allow_changes` the loaded cues are fixed.

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
    app.add_middleware(RequestMiddleware, service=service, allow_changes=allow_changes)
    keyed = [Depends(key_scheme)]  # documents the key; the middleware checks it before the body is read
    changes = server_routes.changes if allow_changes else server_routes.no_changes
    for keyed_router in (router, server_routes.router, changes):
        app.include_router(keyed_router, dependencies=keyed)
    app.include_router(server_routes.probes)
    add_page(app)
    included = (router, server_routes.router, changes, server_routes.probes)
    add_error_handlers(app, service, [*app.routes, *(route for part in included for route in part.routes)])
    return app


@router.post("/v1/predict", response_model=PredictResponse, response_model_exclude_none=True)
async def predict(body: PredictBody, request: Request) -> object:
    """Predict inputs of any tasks. Each input has its own result or error, in order."""
    inputs = SubmittedInputs(request, body, Options(body.ensemble, body.truncate))
    return await inputs.respond(request)


@router.post(
    "/v1/generate",
    response_model=PredictResponse,
    response_model_exclude_none=True,
    responses={200: {"content": {"text/event-stream": {}}, "description": "results, or events with `stream`"}},
)
async def generate(body: GenerateBody, request: Request) -> object:
    """Generate free text. With `stream`, server-sent events: `text` parts, an `answer` per input, then `done`."""
    options = Options(body.ensemble, body.truncate, True, body.max_new_tokens, tuple(body.stop))
    inputs = SubmittedInputs(request, body, options, should_stream=body.stream)
    if not body.stream:
        return await inputs.respond(request)
    return StreamingResponse(inputs.events(), media_type="text/event-stream", headers=EVENT_HEADERS)


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


class SubmittedInputs:
    """The inputs of one HTTP request in the engine; inputs with an error have their result already."""

    def __init__(self, request: Request, body: PredictBody, options: Options, should_stream: bool = False) -> None:
        service: Service = request.app.state.service
        settings = service.settings
        if len(body.inputs) > settings.max_inputs:
            raise too_many_inputs(settings.max_inputs)
        self._service, self._return_scores = service, body.return_scores
        self._context: RequestContext = request.scope["softcue"]
        self._deadline: float = self._context.began + settings.deadline
        self._arrived: asyncio.Queue[tuple[int, str | Result]] = asyncio.Queue()  # text parts and results
        self._loop = asyncio.get_running_loop()
        valid = [index for index, value in enumerate(body.inputs) if isinstance(value, Input)]
        items: list[Item] = [(body.inputs[index].task, body.inputs[index].text) for index in valid]

        def on_text(place: int, text: str) -> None:
            self._put(valid[place], text)

        requests = service.engine.submit(items, options, self._seconds_left(), on_text if should_stream else None)
        self._pending: dict[int, PendingRequest] = dict(zip(valid, requests, strict=True))
        self._errors: dict[int, RequestError] = {
            index: value for index, value in enumerate(body.inputs) if not isinstance(value, Input)
        }
        self._context.facts["inputs"] = len(body.inputs)
        if settings.log_texts:
            self._context.facts["texts"] = items

    async def respond(self, request: Request) -> object:
        """Wait for all results and make the response: a body for FastAPI, or a response of an error."""
        try:
            results = await self._wait(request)
        except ClientDisconnect:
            return Response(status_code=CLIENT_LEFT)
        errors = [result for result in results if isinstance(result, RequestError)]
        self._context.facts["failed"] = len(errors)
        if len(errors) == len(results):
            return all_failed(errors)
        return {"results": [format_result(result, self._return_scores) for result in results]}

    async def _wait(self, request: Request) -> list[Result]:
        """All results in order, when they are there or the deadline has passed; a client that leaves ends the wait."""
        waiting = {index: asyncio.wrap_future(pending.result) for index, pending in self._pending.items()}
        all_results = asyncio.gather(*waiting.values(), return_exceptions=True)  # exceptions: cancelled below
        disconnect = asyncio.create_task(_wait_for_disconnect(request))
        try:
            events: list[asyncio.Future[Any]] = [all_results, disconnect]
            await asyncio.wait(events, timeout=self._seconds_left(), return_when="FIRST_COMPLETED")
            has_left = disconnect.done() and not all_results.done()
            results: dict[int, Result] = {
                **self._errors,
                **{index: _result_so_far(future) for index, future in waiting.items()},
            }
        finally:
            disconnect.cancel()
            for future in waiting.values():
                future.cancel()
            self._drop()
        if has_left:
            self._service.metrics.failures.labels("disconnected").inc()
            raise ClientDisconnect
        for result in results.values():
            self._count(result)
        return [results[index] for index in range(len(results))]

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events: text parts while they are generated, each result when it is there, then `done`."""
        for index, error in self._errors.items():
            self._put(index, error)
        for index, pending in self._pending.items():
            pending.result.add_done_callback(partial(self._put_result, index))
        left = {*self._errors, *self._pending}
        try:
            while left:
                try:
                    async with asyncio.timeout(self._seconds_left()):
                        index, part = await self._arrived.get()
                except TimeoutError:
                    for index in sorted(left):
                        yield self._result_event(index, deadline_exceeded())
                    left.clear()
                    break
                if isinstance(part, str):
                    yield _event("text", {"index": index, "text": part})
                else:
                    left.remove(index)
                    yield self._result_event(index, part)
            yield _event("done", {})
        finally:
            if left:
                self._service.metrics.failures.labels("disconnected").inc()
            self._drop()

    def _put(self, index: int, part: str | Result) -> None:
        """Pass a text part or a result to the event loop, from any thread."""
        with suppress(RuntimeError):  # the loop has ended: nobody reads any more
            self._loop.call_soon_threadsafe(self._arrived.put_nowait, (index, part))

    def _put_result(self, index: int, future: Any) -> None:
        self._put(index, future.result())

    def _result_event(self, index: int, result: Result) -> bytes:
        self._count(result)
        return _event("answer", {"index": index, **format_result(result, self._return_scores)})

    def _seconds_left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _drop(self) -> None:
        for pending in self._pending.values():
            pending.drop()

    def _count(self, result: Result) -> None:
        if isinstance(result, ServedPrediction):
            self._service.metrics.examples.inc()
        else:
            self._service.metrics.failures.labels(result.code).inc()


def format_result(result: Result, return_scores: bool) -> dict[str, object]:
    """A result for JSON.

    Example:
        >>> format_result(deadline_exceeded(), return_scores=False)["error"]["code"]
        'deadline'
    """
    if not isinstance(result, ServedPrediction):
        return {"error": result.as_dict()}
    formatted = result.as_dict()
    if not return_scores:
        formatted.pop("scores", None)
    return formatted


def _result_so_far(future: asyncio.Future[Result]) -> Result:
    return future.result() if future.done() else deadline_exceeded()


def _event(name: str, data: dict[str, object]) -> bytes:
    """A server-sent event."""
    content = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")
    return b"event: " + name.encode() + b"\ndata: " + content + b"\n\n"


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
