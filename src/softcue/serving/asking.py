"""A request's way through the engine without blocking the event loop: limits, deadline, clients that leave."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from softcue.serving.bodies import Model, PredictBody, checked_inputs, encoded, parsed, read_body, shown
from softcue.serving.jobs import Answer, Item, Pending, Result
from softcue.serving.refusals import Refusal
from softcue.serving.service import Service


async def receive(service: Service, request: Request, kind: type[Model]) -> Model:
    """The body of a request, if there is room for it and it comes in time; both are decided before it is parsed."""
    engine, settings = service.engine, service.settings
    if engine.num_in_flight + service.num_reading >= settings.max_in_flight:
        raise Refusal("busy", "server", f"fewer than {settings.max_in_flight} examples in flight", "try again later")
    service.num_reading += 1
    try:
        async with asyncio.timeout(settings.deadline):
            return parsed(kind, await read_body(request, settings))
    except TimeoutError:
        raise Refusal("deadline", "body", f"all of it within {settings.deadline:g} seconds", "send faster") from None
    finally:
        service.num_reading -= 1


@dataclass(frozen=True)
class Asked:
    """The inputs of a request on their way; those refused at once have their result already."""

    service: Service
    places: Sequence[Pending | Refusal]
    deadline: float

    @classmethod
    def of(cls, service: Service, body: PredictBody, began: float) -> Asked:
        """Give a request's inputs to the engine."""
        deadline = began + service.settings.deadline
        inputs = checked_inputs(body, service.settings)
        items: list[Item] = [item for item in inputs if not isinstance(item, Refusal)]
        pending = iter(service.engine.submit(items, body.options(), deadline - time.monotonic()))
        return cls(service, [item if isinstance(item, Refusal) else next(pending) for item in inputs], deadline)

    async def results(self, request: Request) -> list[Result]:
        """All results in order, once they are there or it is too late; a client that leaves ends the wait."""
        waiting = {number: asyncio.wrap_future(place.result) for number, place in self._pending().items()}
        everything = asyncio.gather(*waiting.values(), return_exceptions=True)  # of those cancelled below
        leaving = asyncio.create_task(_has_left(request))
        try:
            both: list[asyncio.Future[Any]] = [everything, leaving]
            await asyncio.wait(both, timeout=self._seconds_left(), return_when="FIRST_COMPLETED")
            if leaving.done() and not everything.done():
                self.service.metrics.failures.labels("disconnected").inc()
                request.scope["softcue"]["disconnected"] = True
            found = [
                place if isinstance(place, Refusal) else _result(waiting[number])
                for number, place in enumerate(self.places)
            ]
        finally:
            leaving.cancel()
            for future in waiting.values():
                future.cancel()
            self._drop()
        for result in found:
            self._count(result)
        return found

    async def events(self, return_scores: bool) -> AsyncIterator[bytes]:
        """Each result as a server-sent event as soon as it is there, then one that says that all are."""
        waiting = {asyncio.wrap_future(place.result): number for number, place in self._pending().items()}
        try:
            for number, place in enumerate(self.places):
                if isinstance(place, Refusal):
                    yield self._event(number, place, return_scores)
            left = set(waiting)
            while left:
                done, left = await asyncio.wait(left, timeout=self._seconds_left(), return_when="FIRST_COMPLETED")
                for future in done or left:
                    yield self._event(waiting[future], _result(future), return_scores)
                left = left if done else set()
            yield b"event: done\ndata: {}\n\n"
        finally:
            for future in waiting:
                future.cancel()
            self._drop()

    def _event(self, number: int, result: Result, return_scores: bool) -> bytes:
        self._count(result)
        return b"event: answer\ndata: " + encoded({"index": number, **shown(result, return_scores)}) + b"\n\n"

    def _pending(self) -> dict[int, Pending]:
        return {number: place for number, place in enumerate(self.places) if not isinstance(place, Refusal)}

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
    if future.done():
        return future.result()
    return Refusal("deadline", "server", "an answer in time", "try again with fewer inputs")


async def _has_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
