"""Load on a server from a separate process, `python -m benchmarks.load`: one JSON line per load in and out.

Closed loop: each client sends its next request when the last one is answered. Open loop: requests are sent when they
are due, whether or not earlier ones are answered, and latency counts from the due time. A server that stalls therefore
cannot keep requests from being counted. Bodies are written before the clock starts and parsed after it stops. Only the
standard library, without torch: the process must cost less than the server it measures.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

HOST = "127.0.0.1"
IDLE_SECONDS = 2.0  # then a connection is not used again: servers close theirs after five, perhaps at that moment
Input = tuple[str, str | Sequence[str]]  # the name of a cue, and its text or texts


def child_environment() -> dict[str, str]:
    """The environment of a child process that can import `benchmarks`, whatever its working directory.

    Example:
        >>> str(Path(__file__).parents[1]) in child_environment()["PYTHONPATH"]
        True
    """
    paths = [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


@dataclass(frozen=True)
class Load:
    """Requests, each sent once: by `clients` in closed loop, or `rate` per second in open loop (a Poisson process).

    Example:
        Load(port, [[("tickets", "My invoice is wrong.")]] * 100, clients=8)
    """

    port: int
    requests: Sequence[Sequence[Input]]
    clients: int = 0
    rate: float = 0.0
    seed: int = 0  # of the intervals
    attempts: int = 5  # at most, where the server answers Retry-After; softcue's client makes as many
    patience: float = 60.0  # seconds after which an attempt counts as lost

    def __post_init__(self) -> None:
        """A load is in closed loop or in open loop."""
        if (self.clients > 0) == (self.rate > 0):
            raise ValueError("a load has clients or a rate")


class LoadResponse(NamedTuple):
    """The result of one request; times are seconds since the load started."""

    status: int  # of the last attempt; 0 without a response
    due: float
    ended: float
    attempts: int
    results: Sequence[Any]  # one entry per input; empty without a prediction

    @property
    def latency(self) -> float:
        """Seconds since the request was due, whenever it was sent."""
        return self.ended - self.due


class HttpResponse(NamedTuple):
    """A response with the header fields that the sender needs."""

    status: int
    retry_after: float | None
    closes_connection: bool
    body: bytes


def parse_response(received: bytes) -> HttpResponse | None:
    """Parse a whole HTTP/1.1 response that states its length; None while it is incomplete.

    Example:
        >>> parse_response(b"HTTP/1.1 429 Too Many Requests\\r\\nRetry-After: 2\\r\\nContent-Length: 2\\r\\n\\r\\n{}")
        HttpResponse(status=429, retry_after=2.0, closes_connection=False, body=b'{}')
        >>> parse_response(b"HTTP/1.1 200 OK\\r\\nContent-Length: 9\\r\\n\\r\\n{}") is None
        True
    """
    head, separator, body = received.partition(b"\r\n\r\n")
    if not separator:
        return None
    status_line, *lines = head.lower().split(b"\r\n")
    fields = {name: value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    length = fields.get(b"content-length")
    if length is None or len(body) < int(length):
        return None
    wait = fields.get(b"retry-after")
    closes_connection = fields.get(b"connection") == b"close"
    return HttpResponse(int(status_line.split()[1]), None if wait is None else float(wait), closes_connection, body)


class _Connection(asyncio.Protocol):
    """A connection that carries one request at a time."""

    def __init__(self) -> None:
        self.is_open, self.idle_since = True, 0.0
        self._received = b""
        self._waiting: asyncio.Future[HttpResponse] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        response = parse_response(self._received)
        if response is None or self._waiting is None:
            return
        self._received = b""
        self.is_open = not response.closes_connection
        if not self._waiting.done():
            self._waiting.set_result(response)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(ConnectionResetError("closed before the response"))

    async def send(self, request: bytes) -> HttpResponse:
        assert self._transport is not None
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiting

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.close()


class _Sender:
    """Sends the requests of a load over reused connections and collects the responses."""

    def __init__(self, load: Load) -> None:
        self.requests = [_write_request(inputs) for inputs in load.requests]
        # response, due, ended, attempts
        self.outcomes: list[tuple[HttpResponse | None, float, float, int]] = [(None, 0.0, 0.0, 0)] * len(self.requests)
        self._load = load
        self._idle: list[_Connection] = []
        self._clock = asyncio.get_running_loop().time

    async def connect(self, num_connections: int) -> None:
        """Open connections in advance, so that clients in closed loop do not measure the handshake."""
        with contextlib.suppress(OSError):  # the first request reports it
            self._idle = list(await asyncio.gather(*(self._open() for _ in range(num_connections))))

    async def send(self, number: int, due: float, started: float) -> None:
        """Send one request, and send it again when the server asks for it (Retry-After)."""
        response, attempt = None, 0
        while attempt < self._load.attempts:
            attempt += 1
            response = await self._send_once(self.requests[number])
            if response is None or response.retry_after is None or attempt == self._load.attempts:
                break
            await asyncio.sleep(response.retry_after)
        self.outcomes[number] = (response, due - started, self._clock() - started, attempt)

    async def _send_once(self, request: bytes) -> HttpResponse | None:
        connection = None
        try:
            async with asyncio.timeout(self._load.patience):
                connection = await self._take_connection()
                response = await connection.send(request)
        except OSError:  # includes timeouts
            if connection is not None:
                connection.close()
            return None
        if connection.is_open:
            connection.idle_since = self._clock()
            self._idle.append(connection)
        else:
            connection.close()
        return response

    async def _take_connection(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and self._clock() - connection.idle_since < IDLE_SECONDS:
                return connection
            connection.close()
        return await self._open()

    async def _open(self) -> _Connection:
        _, connection = await asyncio.get_running_loop().create_connection(_Connection, HOST, self._load.port)
        connection.idle_since = self._clock()
        return connection

    def close(self) -> None:
        """Close all idle connections."""
        for connection in self._idle:
            connection.close()


async def send_load(load: Load) -> list[LoadResponse]:
    """Send the requests of a load; the responses are in the order of the requests.

    Example:
        responses = asyncio.run(send_load(Load(port, requests, rate=50.0)))
    """
    sender = _Sender(load)
    await sender.connect(load.clients)
    clock = asyncio.get_running_loop().time
    started = clock()

    async def run_client(numbers: Iterator[int]) -> None:
        for number in numbers:
            await sender.send(number, clock(), started)

    if load.clients:
        numbers = iter(range(len(sender.requests)))  # shared: a free client takes the next request
        await asyncio.gather(*(run_client(numbers) for _ in range(load.clients)))
    else:
        generator, due = random.Random(load.seed), started
        sending = []
        for number in range(len(sender.requests)):
            due += generator.expovariate(load.rate)
            await asyncio.sleep(max(0.0, due - clock()))  # also when late, so that responses are read meanwhile
            sending.append(asyncio.create_task(sender.send(number, due, started)))
        await asyncio.gather(*sending)
    sender.close()
    return [_make_response(*outcome) for outcome in sender.outcomes]


def _write_request(inputs: Sequence[Input]) -> bytes:
    items = [{"task": task, "text": text} for task, text in inputs]
    body = json.dumps({"inputs": items, "return_scores": True, "truncate": True}).encode()
    head = f"POST /v1/predict HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def _make_response(response: HttpResponse | None, due: float, ended: float, attempts: int) -> LoadResponse:
    if response is None:
        return LoadResponse(0, due, ended, attempts, [])
    results = json.loads(response.body)["results"] if response.status == 200 else []
    return LoadResponse(response.status, due, ended, attempts, results)


class LoadProcess:
    """The process that sends loads, started and controlled by the measuring process. It waits between loads.

    Example:
        with LoadProcess() as load_process:
            responses = load_process.run(Load(port, requests, clients=32))
    """

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "benchmarks.load"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=child_environment()
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._process.kill()
        self._process.communicate()

    def run(self, load: Load) -> list[LoadResponse]:
        """Send a load and wait for its end."""
        self.start(load)
        return self.wait()

    def start(self, load: Load) -> None:
        """Start a load; the caller can do something else meanwhile."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(load)) + "\n")
        self._process.stdin.flush()

    def wait(self) -> list[LoadResponse]:
        """Wait for the end of the load that was started, and return its responses."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the load process ended; its error is on standard error")
        return [LoadResponse(*row) for row in json.loads(line)]


def main() -> None:
    """Send loads from standard input until it ends."""
    for line in sys.stdin:
        responses = asyncio.run(send_load(Load(**json.loads(line))))
        sys.stdout.write(json.dumps(responses) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
