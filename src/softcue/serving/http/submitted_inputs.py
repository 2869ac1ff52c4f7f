"""The inputs of one HTTP request on their way through the engine, for every protocol.

A request goes from here to the engine and waits for its results without blocking the event loop.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from softcue.serving.engine.requests import Item, Options, PendingRequest, Result, ServedPrediction
from softcue.serving.errors import RequestError, deadline_exceeded
from softcue.serving.http.error_responses import all_failed, too_many_inputs
from softcue.serving.http.middleware import RequestContext
from softcue.serving.http.schemas import Input
from softcue.serving.http.service import Service

EVENT_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class SubmittedInputs:
    """The inputs of one HTTP request in the engine; inputs with an error have their result already."""

    def __init__(
        self,
        request: Request,
        inputs: Sequence[Input | RequestError],
        options: Options,
        should_stream: bool = False,
    ) -> None:
        service: Service = request.app.state.service
        settings = service.settings
        if len(inputs) > settings.max_inputs:
            raise too_many_inputs(settings.max_inputs)
        self._service, self._request = service, request
        self._context: RequestContext = request.scope["softcue"]
        self._deadline: float = self._context.began + settings.deadline
        self._arrived: asyncio.Queue[tuple[int, str | Result]] = asyncio.Queue()  # text parts and results
        self._loop = asyncio.get_running_loop()
        self._is_abandoned = False
        given = {index: value for index, value in enumerate(inputs) if isinstance(value, Input)}
        valid = list(given)
        items: list[Item] = [(value.task, value.text) for value in given.values()]

        def on_text(place: int, text: str) -> None:
            self._put(valid[place], text)

        requests = service.engine.submit(items, options, self._seconds_left(), on_text if should_stream else None)
        self._pending: dict[int, PendingRequest] = dict(zip(valid, requests, strict=True))
        self._errors: dict[int, RequestError] = {
            index: value for index, value in enumerate(inputs) if not isinstance(value, Input)
        }
        self._context.facts["inputs"] = len(inputs)
        if settings.log_texts:
            self._context.facts["texts"] = items

    async def respond(self, return_scores: bool) -> object:
        """Wait for all results and make the response: a body for FastAPI, or a response of an error."""
        results = await self.results()
        errors = [result for result in results if isinstance(result, RequestError)]
        if len(errors) == len(results):
            return all_failed(errors)
        return {"results": [format_result(result, return_scores) for result in results]}

    async def predictions(self) -> list[ServedPrediction]:
        """All predictions in order, for protocols without errors of single inputs: one error fails the request."""
        results = await self.results()
        errors = [result for result in results if isinstance(result, RequestError)]
        if errors:
            raise max(errors, key=lambda error: error.status).copy()
        return [result for result in results if isinstance(result, ServedPrediction)]

    async def results(self) -> list[Result]:
        """All results in order, when they are there or the deadline has passed; a client that leaves ends the wait."""
        waiting = {index: asyncio.wrap_future(pending.result) for index, pending in self._pending.items()}
        all_results = asyncio.gather(*waiting.values(), return_exceptions=True)  # exceptions: cancelled below
        disconnect = asyncio.create_task(_wait_for_disconnect(self._request))
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
        self._context.facts["failed"] = sum(isinstance(result, RequestError) for result in results.values())
        return [results[index] for index in range(len(results))]

    async def events(self, return_scores: bool) -> AsyncIterator[bytes]:
        """Server-sent events: text parts while they are generated, each result when it is there, then `done`."""
        async with aclosing(self.parts()) as parts:
            async for index, part in parts:
                if isinstance(part, str):
                    yield _event("text", {"index": index, "text": part})
                else:
                    yield _event("answer", {"index": index, **format_result(part, return_scores)})
        yield _event("done", {})

    async def parts(self) -> AsyncGenerator[tuple[int, str | Result]]:
        """The index of an input with the next part of its text while it is generated, or with its result."""
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
                    late, left = sorted(left), set()
                    for index in late:
                        self._count(error := deadline_exceeded())
                        yield index, error
                    break
                if not isinstance(part, str):
                    left.remove(index)
                    self._count(part)
                yield index, part
        finally:
            if left and not self._is_abandoned:
                self._service.metrics.failures.labels("disconnected").inc()
            self._drop()

    def abandon(self) -> None:
        """Say that the rest of the parts is left out on purpose: the client has not left."""
        self._is_abandoned = True

    def _put(self, index: int, part: str | Result) -> None:
        """Pass a text part or a result to the event loop, from any thread."""
        with suppress(RuntimeError):  # the loop has ended: nobody reads any more
            self._loop.call_soon_threadsafe(self._arrived.put_nowait, (index, part))

    def _put_result(self, index: int, future: Any) -> None:
        self._put(index, future.result())

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
    return b"event: " + name.encode() + b"\n" + data_event(data)


def data_event(data: Mapping[str, object]) -> bytes:
    """A server-sent event without a name.

    Example:
        >>> data_event({"text": "Hello"})
        b'data: {"text":"Hello"}\\n\\n'
    """
    content = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")
    return b"data: " + content + b"\n\n"


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
