"""Load on a server from a process of its own, `python -m softcue.benchmarks.load`: a JSON line per load in and out.

Closed loop: so many clients, each asks again when it was answered. Open loop: requests come when they are due, whatever
became of those before, and their latency counts from then on: a server that stalls cannot keep requests from being
counted. Bodies are written before the clock starts and read after it has stopped. The standard library only, no torch:
the process must be cheaper than the server it asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self

HOST = "127.0.0.1"
IDLE_SECONDS = 2.0  # of a connection before another is opened: servers close theirs after five, perhaps just then
Question = tuple[str, str | Sequence[str]]  # a cue's name, and what it is to read


@dataclass(frozen=True)
class Load:
    """Requests, each sent once: by `clients` in closed loop, or `rate` a second in open loop, at Poisson's intervals.

    Example:
        Load(port, [[("tickets", "My invoice is wrong.")]] * 100, clients=8)
    """

    port: int
    requests: Sequence[Sequence[Question]]
    clients: int = 0
    rate: float = 0.0
    seed: int = 0  # of the intervals
    attempts: int = 5  # of a request that is told to come again, as many as softcue's own client makes
    patience: float = 60.0  # seconds after which an attempt counts as lost

    def __post_init__(self) -> None:
        """One kind of loop."""
        if (self.clients > 0) == (self.rate > 0):
            raise ValueError("a load has clients or a rate")


class Reply(NamedTuple):
    """What became of a request; times are seconds since the load began."""

    status: int  # of the last attempt; 0 where nothing came back
    due: float
    ended: float
    attempts: int
    results: Sequence[Any]  # an entry per question; none without an answer

    @property
    def latency(self) -> float:
        """Seconds from when it was due, whenever it was sent."""
        return self.ended - self.due


class Response(NamedTuple):
    """As it came, with what is needed to go on."""

    status: int
    retry_after: float | None
    is_last: bool  # of its connection
    body: bytes


def response_in(received: bytes) -> Response | None:
    """A whole HTTP/1.1 response with a length; None until all of it is there.

    Example:
        >>> response_in(b"HTTP/1.1 429 Too Many Requests\\r\\nRetry-After: 2\\r\\nContent-Length: 2\\r\\n\\r\\n{}")
        Response(status=429, retry_after=2.0, is_last=False, body=b'{}')
        >>> response_in(b"HTTP/1.1 200 OK\\r\\nContent-Length: 9\\r\\n\\r\\n{}") is None
        True
    """
    head, mark, body = received.partition(b"\r\n\r\n")
    if not mark:
        return None
    first, *lines = head.lower().split(b"\r\n")
    fields = {name: value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    length = fields.get(b"content-length")
    if length is None or len(body) < int(length):
        return None
    wait = fields.get(b"retry-after")
    is_last = fields.get(b"connection") == b"close"
    return Response(int(first.split()[1]), None if wait is None else float(wait), is_last, body)


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self) -> None:
        self.is_open, self.idle_since = True, 0.0
        self._received = b""
        self._waiting: asyncio.Future[Response] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        found = response_in(self._received)
        if found is None or self._waiting is None:
            return
        self._received = b""
        self.is_open = not found.is_last
        if not self._waiting.done():
            self._waiting.set_result(found)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(ConnectionResetError("closed before the answer"))

    async def ask(self, request: bytes) -> Response:
        assert self._transport is not None
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiting

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.close()


class _Sender:
    """Sends the requests of a load over connections that are kept, and notes what came back."""

    def __init__(self, load: Load) -> None:
        self.requests = [_written(questions) for questions in load.requests]
        self.found: list[tuple[Response | None, float, float, int]] = [(None, 0.0, 0.0, 0)] * len(self.requests)
        self._load = load
        self._idle: list[_Connection] = []
        self._clock = asyncio.get_running_loop().time

    async def connect(self, num_connections: int) -> None:
        """Connections in advance: what clients in closed loop ask first should not be their greeting."""
        with contextlib.suppress(OSError):  # told of when something is asked
            self._idle = list(await asyncio.gather(*(self._opened() for _ in range(num_connections))))

    async def send(self, number: int, due: float, began: float) -> None:
        """One request, again as often and as late as the server asks for."""
        response, attempt = None, 0
        while attempt < self._load.attempts:
            attempt += 1
            response = await self._once(self.requests[number])
            if response is None or response.retry_after is None or attempt == self._load.attempts:
                break
            await asyncio.sleep(response.retry_after)
        self.found[number] = (response, due - began, self._clock() - began, attempt)

    async def _once(self, request: bytes) -> Response | None:
        connection = None
        try:
            async with asyncio.timeout(self._load.patience):
                connection = await self._connection()
                found = await connection.ask(request)
        except OSError:  # timeouts among them
            if connection is not None:
                connection.close()
            return None
        if connection.is_open:
            connection.idle_since = self._clock()
            self._idle.append(connection)
        else:
            connection.close()
        return found

    async def _connection(self) -> _Connection:
        while self._idle:
            known = self._idle.pop()
            if known.is_open and self._clock() - known.idle_since < IDLE_SECONDS:
                return known
            known.close()
        return await self._opened()

    async def _opened(self) -> _Connection:
        _, made = await asyncio.get_running_loop().create_connection(_Connection, HOST, self._load.port)
        made.idle_since = self._clock()
        return made

    def close(self) -> None:
        """All connections that nobody uses."""
        for connection in self._idle:
            connection.close()


async def sent(load: Load) -> list[Reply]:
    """Send a load's requests; a reply for each, in their order.

    Example:
        replies = asyncio.run(sent(Load(port, requests, rate=50.0)))
    """
    sender = _Sender(load)
    await sender.connect(load.clients)
    clock = asyncio.get_running_loop().time
    began = clock()

    async def client(left: Iterator[int]) -> None:
        for number in left:
            await sender.send(number, clock(), began)

    if load.clients:
        left = iter(range(len(sender.requests)))  # shared: whoever is free takes the next
        await asyncio.gather(*(client(left) for _ in range(load.clients)))
    else:
        draws, due = random.Random(load.seed), began
        sending = []
        for number in range(len(sender.requests)):
            due += draws.expovariate(load.rate)
            await asyncio.sleep(max(0.0, due - clock()))  # also where it is late: answers must be read meanwhile
            sending.append(asyncio.create_task(sender.send(number, due, began)))
        await asyncio.gather(*sending)
    sender.close()
    return [_reply(*one) for one in sender.found]


def _written(questions: Sequence[Question]) -> bytes:
    inputs = [{"task": task, "text": text} for task, text in questions]
    body = json.dumps({"inputs": inputs, "return_scores": True, "truncate": True}).encode()
    head = f"POST /v1/predict HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def _reply(response: Response | None, due: float, ended: float, attempts: int) -> Reply:
    if response is None:
        return Reply(0, due, ended, attempts, [])
    results = json.loads(response.body)["results"] if response.status == 200 else []
    return Reply(response.status, due, ended, attempts, results)


class Loader:
    """The load process, from the side of whoever measures; it waits between loads.

    Example:
        with Loader() as loader:
            replies = loader.run(Load(port, requests, clients=32))
    """

    def __enter__(self) -> Self:
        words = [sys.executable, "-m", "softcue.benchmarks.load"]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._process.kill()
        self._process.communicate()

    def run(self, load: Load) -> list[Reply]:
        """Send a load and wait for its end."""
        self.begin(load)
        return self.replies()

    def begin(self, load: Load) -> None:
        """Send a load while the caller does something else."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(load)) + "\n")
        self._process.stdin.flush()

    def replies(self) -> list[Reply]:
        """What became of the load that was begun."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the load process ended; it wrote why to standard error")
        return [Reply(*row) for row in json.loads(line)]


def main() -> None:
    """Loads from standard input until it ends."""
    for line in sys.stdin:
        replies = asyncio.run(sent(Load(**json.loads(line))))
        sys.stdout.write(json.dumps(replies) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
