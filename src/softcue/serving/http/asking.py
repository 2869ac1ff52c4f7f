"""A request's way through the engine without blocking the event loop: limits, deadline, clients that leave."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.requests import ClientDisconnect, Request

from softcue.serving.engine.requests import Answer, Item, PendingRequest, Result
from softcue.serving.errors import RequestError, busy, deadline_exceeded
from softcue.serving.http.schemas import Model, PredictBody, checked_inputs, encoded, parsed, read_body, shown
from softcue.serving.http.service import Service


async def receive(service: Service, request: Request, kind: type[Model]) -> Model:
    """The body of a request, if there is room for it and it comes in time; both are decided before it is parsed."""
    engine, settings = service.engine, service.settings
    is_full = engine.num_in_flight + service.num_reading >= settings.max_in_flight
    if is_full or engine.expected_seconds > settings.deadline:  # 429 at once rather than 504 later
        raise busy(settings.max_in_flight, expected_seconds=engine.expected_seconds)
    service.num_reading += 1
    try:
        async with asyncio.timeout(settings.deadline):
            return parsed(kind, await read_body(request, settings))
    except TimeoutError:
        raise RequestError(
            "deadline", setting="body", expected=f"all of it within {settings.deadline:g} seconds", fix="send faster"
        ) from None
    finally:
        service.num_reading -= 1


class Arriving:
    """Pieces of text and results on their way from the inference thread to the event loop, in the order they came."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[tuple[int, str | Result]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def put(self, number: int, found: str | Result) -> None:
        """From any thread."""
        with suppress(RuntimeError):  # the loop has ended: nobody listens any more
            self._loop.call_soon_threadsafe(self.queue.put_nowait, (number, found))

    def put_result(self, number: int, result: Future[Result]) -> None:
        """The same, as a future's callback."""
        self.put(number, result.result())


@dataclass(frozen=True)
class Asked:
    """The inputs of a request on their way; those refused at once have their result already."""

    service: Service
    places: Sequence[PendingRequest | RequestError]
    deadline: float
    arriving: Arriving

    @classmethod
    def of(cls, service: Service, body: PredictBody, began: float, stream: bool = False) -> Asked:
        """Give a request's inputs to the engine."""
        deadline = began + service.settings.deadline
        inputs = checked_inputs(body, service.settings)
        items: list[Item] = [item for item in inputs if not isinstance(item, RequestError)]
        numbers = [number for number, item in enumerate(inputs) if not isinstance(item, RequestError)]
        arriving = Arriving()

        def on_text(place: int, text: str) -> None:
            arriving.put(numbers[place], text)

        seconds = deadline - time.monotonic()
        pending = iter(service.engine.submit(items, body.options(), seconds, on_text if stream else None))
        places = [item if isinstance(item, RequestError) else next(pending) for item in inputs]
        return cls(service, places, deadline, arriving)

    async def results(self, request: Request) -> list[Result]:
        """All results in order, once they are there or it is too late; a client that leaves ends the wait."""
        waiting = {number: asyncio.wrap_future(place.result) for number, place in self._pending().items()}
        everything = asyncio.gather(*waiting.values(), return_exceptions=True)  # of those cancelled below
        leaving = asyncio.create_task(_has_left(request))
        try:
            both: list[asyncio.Future[Any]] = [everything, leaving]
            await asyncio.wait(both, timeout=self._seconds_left(), return_when="FIRST_COMPLETED")
            has_left = leaving.done() and not everything.done()
            found = [
                place if isinstance(place, RequestError) else _result(waiting[number])
                for number, place in enumerate(self.places)
            ]
        finally:
            leaving.cancel()
            for future in waiting.values():
                future.cancel()
            self._drop()
        if has_left:
            self.service.metrics.failures.labels("disconnected").inc()
            raise ClientDisconnect
        for result in found:
            self._count(result)
        return found

    async def events(self, return_scores: bool) -> AsyncIterator[bytes]:
        """Server-sent events: pieces of texts as they are written, each result when it is there, then the end."""
        for number, place in enumerate(self.places):
            if isinstance(place, RequestError):
                self.arriving.put(number, place)
            else:
                place.result.add_done_callback(partial(self.arriving.put_result, number))
        left = set(range(len(self.places)))
        try:
            while left:
                try:
                    async with asyncio.timeout(self._seconds_left()):
                        number, found = await self.arriving.queue.get()
                except TimeoutError:
                    for number in sorted(left):
                        yield self._event(number, deadline_exceeded(), return_scores)
                    left.clear()
                    break
                if isinstance(found, str):
                    yield _sent("text", {"index": number, "text": found})
                else:
                    left.remove(number)
                    yield self._event(number, found, return_scores)
            yield _sent("done", {})
        finally:
            if left:
                self.service.metrics.failures.labels("disconnected").inc()
            self._drop()

    def _event(self, number: int, result: Result, return_scores: bool) -> bytes:
        self._count(result)
        return _sent("answer", {"index": number, **shown(result, return_scores)})

    def _pending(self) -> dict[int, PendingRequest]:
        return {number: place for number, place in enumerate(self.places) if not isinstance(place, RequestError)}

    def _seconds_left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def _drop(self) -> None:
        for place in self._pending().values():
            place.drop()

    def _count(self, result: Result) -> None:
        if isinstance(result, Answer):
            self.service.metrics.examples.inc()
        else:
            self.service.metrics.failures.labels(result.code).inc()


def _result(future: asyncio.Future[Result]) -> Result:
    return future.result() if future.done() else deadline_exceeded()


def _sent(event: str, data: dict[str, object]) -> bytes:
    """A server-sent event."""
    return b"event: " + event.encode() + b"\ndata: " + encoded(data) + b"\n\n"


async def _has_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
