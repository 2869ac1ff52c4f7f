"""Requests that no client should send, each with the status that must answer it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from faults.record import Budget, FaultError, Record, run_trials
from faults.tiny_server import ADMIN_KEY, KEY, exchange, serve_tiny_cues

SECONDS = 15.0  # within which every request is answered: a head has 10
MOST_BYTES = 1500  # of an error's body
SECRET = "quoted-by-no-error"
SETTINGS: dict[str, Any] = {"api_keys": (KEY,), "admin_keys": (ADMIN_KEY,), "deadline": 2.0}
OK = {"task": "topics", "text": "My invoice is wrong."}


@dataclass(frozen=True)
class Hostile:
    """A request as bytes, and the statuses of which one must answer it; 0 is a closed connection without an answer."""

    name: str
    parts: tuple[bytes, ...]
    expected: tuple[int, ...]


def run(record: Record, budget: Budget) -> None:
    """Send every request, in turn, until the count is reached; the server must stay well."""
    requests = list(hostile_requests())
    record.figures["different requests"] = len(requests)
    with serve_tiny_cues(**SETTINGS) as server:

        def trial(number: int) -> tuple[str, int]:
            outcome = check(requests[number % len(requests)], server.port)
            if number % 20 == 0:
                check(
                    Hostile("a valid request between hostile ones", (predict({"inputs": [OK]}),), (200,)), server.port
                )
            return outcome, 1

        run_trials(record, budget, trial)


def check(request: Hostile, port: int) -> str:
    """Send a request and compare the status, the size and the content of the answer."""
    started = time.monotonic()
    try:
        received = exchange(port, list(request.parts))
    except TimeoutError:
        raise FaultError(f"{request.name}: no answer") from None
    seconds = time.monotonic() - started
    status = int(received[9:12]) if received[:5] == b"HTTP/" else 0
    body = received.partition(b"\r\n\r\n")[2]
    if status not in request.expected:
        raise FaultError(f"{request.name}: {status} instead of {request.expected}: {body[:300]!r}")
    if seconds > SECONDS:
        raise FaultError(f"{request.name}: answered after {seconds:.1f} s")
    if status >= 400 and (len(body) > MOST_BYTES or SECRET.encode() in received or b"Traceback" in body):
        raise FaultError(
            f"{request.name}: an error of {len(body)} bytes, or one that quotes the client: {body[:300]!r}"
        )
    return str(status)


# --- the requests ---


def head(line: str, length: int | None = None, kind: str = "application/json", key: str = KEY, more: str = "") -> bytes:
    """The head of a request, with a key and a media type unless they are empty."""
    lines = [line, "Host: localhost"]
    lines += [f"Authorization: Bearer {key}"] if key else []
    lines += [f"Content-Type: {kind}"] if kind else []
    lines += [] if length is None else [f"Content-Length: {length}"]
    return "\r\n".join([*lines, more] if more else lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n"


def post(path: str, body: bytes, **options: Any) -> bytes:
    """A POST request."""
    return head(f"POST {path} HTTP/1.1", len(body), **options) + body


def predict(body: Any) -> bytes:
    """A request for predictions."""
    return post("/v1/predict", json.dumps(body).encode())


def hostile_requests() -> Iterator[Hostile]:
    """All requests."""
    yield from _http()
    yield from _keys()
    yield from _addresses()
    yield from _json()
    yield from _fields()
    yield from _other_protocols()
    yield from _sizes()


def _http() -> Iterator[Hostile]:
    """What is no HTTP, or only nearly."""
    for number, line in enumerate(
        [
            b"\r\n\r\n\r\n",
            b"\x00\x00\x00\x00\r\n\r\n",
            b"GET\r\n\r\n",
            b"GET /livez\r\n\r\n",
            b"GET  /livez HTTP/1.1\r\n\r\n",
            b"G\xffT / HTTP/1.1\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"GET / XTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01",
            b"GET /livez HTTP/1.1\r\nHost x\r\n\r\n",
            b"GET /livez HTTP/1.1\r\n: x\r\n\r\n",
            b"<html>\r\n\r\n",
            b"SSH-2.0-x\r\n",
            b"GET /livez HTTP/1.1\r\nA\x00: x\r\n\r\n",
            b"GET /livez HTTP/1.1\r\nA: \x00\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ]
    ):
        yield Hostile(f"no HTTP {number}", (line, b"\r\n\r\n"), (0, 400, 200, 404, 405, 401, 408))
    for number, length in enumerate(["-1", "x", "1e3", "99999999999999999999999", "0x10", "1, 2", "+5", ""]):
        request = f"POST /v1/predict HTTP/1.1\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {length}\r\n\r\n"
        yield Hostile(f"length {number}", (request.encode(), b"{}"), (400, 413, 415))
    both = head("POST /v1/predict HTTP/1.1", 5, more="Transfer-Encoding: chunked")
    yield Hostile("length and chunks", (both, b"5\r\n{}{}{\r\n0\r\n\r\n"), (400,))
    twice = head("POST /v1/predict HTTP/1.1", 5, more="Content-Length: 6")
    yield Hostile("two lengths", (twice, b"{}{}{}"), (400,))
    for number, chunks in enumerate(
        [b"z\r\n{}\r\n0\r\n\r\n", b"-2\r\n{}\r\n", b"ffffffffffffffffff\r\n{}", b"2\r\n{}{}{}\r\n"]
    ):
        chunked = head("POST /v1/predict HTTP/1.1", more="Transfer-Encoding: chunked")
        yield Hostile(f"chunks {number}", (chunked, chunks), (400,))
    yield Hostile(
        "chunks of nothing",
        (head("POST /v1/predict HTTP/1.1", more="Transfer-Encoding: chunked"), b"0\r\n\r\n"),
        (400,),
    )
    yield Hostile(
        "unknown coding", (head("POST /v1/predict HTTP/1.1", more="Transfer-Encoding: gzip"), b"{}"), (400, 415, 501)
    )
    yield Hostile("packed body", (post("/v1/predict", b"\x1f\x8b\x08\0", more="Content-Encoding: gzip"),), (400, 415))
    yield Hostile("body that does not come", (head("POST /v1/predict HTTP/1.1", 90) + b"{",), (504,))
    for method in ("GET", "PATCH", "TRACE", "CONNECT", "OPTIONS", "BREW", "HEAD"):
        target = "/v1/predict" if method != "CONNECT" else "elsewhere:443"
        yield Hostile(f"method {method}", (head(f"{method} {target} HTTP/1.1"),), (400, 405, 404))
    for name in (
        "Upgrade: websocket\r\nConnection: Upgrade",
        "Upgrade: h2c\r\nConnection: Upgrade",
        "Expect: 200-nothing",
    ):
        yield Hostile(f"header {name[:12]}", (post("/v1/predict", b"{", more=name),), (400, 417))
    for field in (
        "Host: a\r\nHost: b",
        f"X-{SECRET}: 1",
        f"Cookie: {SECRET}",
        "Range: bytes=0-",
        "X-Forwarded-For: ::1",
    ):
        yield Hostile(f"header {field[:14]}", (head("GET /v1/nothing HTTP/1.1", more=field),), (404, 400))
    folded = head("GET /v1/nothing HTTP/1.1", more="A: b\r\n c")
    yield Hostile("folded header", (folded,), (400, 404))


def _keys() -> Iterator[Hostile]:
    """Keys that open nothing."""
    wrong = [
        "",
        " ",
        KEY[:-1],
        KEY + "x",
        KEY.upper(),
        KEY.replace("-", "_"),
        f"{KEY}\t{KEY}",
        f"{KEY},{KEY}",
        f'"{KEY}"',
        "*",
    ]
    wrong += [
        "None",
        "null",
        "0",
        "x" * 4000,
        f"Bearer {KEY}",
        KEY[::-1],
        f"{KEY}%00",
        "\udcff\udcfe",
        KEY.replace("e", "\u0435"),
        "'--",
    ]
    for number, key in enumerate(wrong):
        for route in ("GET /v1/tasks", "GET /metrics"):
            request = f"{route} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n"
            yield Hostile(f"key {number}, {route}", (request.encode("utf-8", "surrogateescape"),), (401,))
    for number, line in enumerate(
        [
            f"Authorization: {KEY}",
            f"Authorization: Basic {KEY}",
            f"Authorization:Bearer{KEY}",
            f"X-Api-Key: {KEY}",
            f"Proxy-Authorization: Bearer {KEY}",
            f"Cookie: key={KEY}",
            f"Authorization: Digest {KEY}",
            "Authorization:",
        ]
    ):
        request = f"GET /v1/tasks HTTP/1.1\r\nHost: x\r\n{line}\r\n\r\n"
        yield Hostile(f"form of key {number}", (request.encode(),), (401,))
    for address in (
        f"/v1/tasks?key={KEY}",
        f"/v1/tasks?access_token={KEY}",
        "/docs/../v1/tasks",
        "//v1/tasks",
        "/v1/tasks/",
    ):
        yield Hostile(f"key in {address[:14]}", (head(f"GET {address} HTTP/1.1", key=""),), (401,))
    yield Hostile("change without the admin's key", (head("PUT /v1/tasks/topics HTTP/1.1"),), (401,))
    yield Hostile("removal without the admin's key", (head("DELETE /v1/tasks/topics HTTP/1.1"),), (401,))
    yield Hostile("no key, large body", (head("POST /v1/predict HTTP/1.1", 9_000_000, key=""),), (401,))


def _addresses() -> Iterator[Hostile]:
    """Names of cues that are paths, and addresses that lead nowhere."""
    names = [
        "..",
        "%2e%2e",
        "..%2f..",
        "%2e%2e%2ftopics",
        "topics%00",
        "%00",
        "a%0ab",
        "%ff%fe",
        "..%5c..",
        "~",
        "*",
        "C:",
        "con",
    ]
    names += [
        "%2fetc%2fpasswd",
        "topics%2f..%2ftone",
        "%25",
        "topics%3f",
        "x" * 300,
        "%F0%9F%98%80",
        ".",
        "..;",
        "%c0%ae%c0%ae",
    ]
    for name in names:
        for method in ("PUT", "DELETE", "GET"):
            request = head(f"{method} /v1/tasks/{name} HTTP/1.1", key=ADMIN_KEY)
            yield Hostile(f"{method} {name[:20]}", (request,), (400, 404, 405, 422))
    for address in (
        "/v1",
        "/v1/predict/x",
        "/admin",
        "/.git/config",
        "/%2e%2e/etc/passwd",
        "/../../etc/passwd",
        "/cgi-bin/x",
    ):
        yield Hostile(f"address {address}", (head(f"GET {address} HTTP/1.1"),), (404,))
    for address in ("http://elsewhere.example/v1/nothing", "/v1/nothing?" + "a=b&" * 200, "/v1/nothing#x", "*"):
        yield Hostile(f"address {address[:20]}", (head(f"GET {address} HTTP/1.1"),), (400, 404))


def _json() -> Iterator[Hostile]:
    """Bodies that are no JSON, or no object."""
    bodies = [
        b"{",
        b"}",
        b"[",
        b"nul",
        b"{'a': 1}",
        b'{"a": 1,}',
        b"NaN",
        b'{"inputs": [NaN]}',
        b'{"inputs": [Infinity]}',
    ]
    bodies += [
        b"\xff\xfe{\0}\0",
        b'{"inputs": "\\ud800"}',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'"' + b"a" * 1000,
        b"\0",
        b"{}{}",
    ]
    bodies += [
        b'{"inputs": [1e999]}',
        b"\xef\xbb\xbf{",
        b"<xml/>",
        b"inputs=1",
        b'{"\xff": 1}',
        b"// {}",
        b'{"inputs": [01]}',
    ]
    for number, body in enumerate(bodies):
        yield Hostile(f"no JSON {number}", (post("/v1/predict", body),), (400, 422))
    for number, body in enumerate([b"", b" \n ", b'{"inputs": []}']):
        yield Hostile(f"nothing {number}", (post("/v1/predict", body),), (400,))
    for kind in (
        "",
        "text/plain",
        "application/xml",
        "multipart/form-data; boundary=x",
        "application/x-www-form-urlencoded",
    ):
        yield Hostile(f"media type {kind[:20]}", (post("/v1/predict", b"{}", kind=kind),), (415,))


def _fields() -> Iterator[Hostile]:
    """JSON whose fields are missing, unknown or of another type."""
    values: list[Any] = [None, True, 1, -1, 1.5, 2**70, "", "x", [], {}, [[]], [None], {"a": 1}, ["x"] * 40]
    for number, value in enumerate(values):
        yield Hostile(f"body {number}", (predict(value),), (400, 422))
        expected = (400,) if value == [] else (413, 422)
        yield Hostile(f"inputs {number}", (predict({"inputs": value}),), expected)
        expected = (404, 422) if isinstance(value, str) else (422,)
        yield Hostile(f"task {number}", (predict({"inputs": [{**OK, "task": value}]}),), expected)
        text = (200,) if value == "x" else (422,)
        yield Hostile(f"text {number}", (predict({"inputs": [{**OK, "text": value}]}),), text)
        if value is not None:
            yield Hostile(f"ensemble {number}", (predict({"inputs": [OK], "ensemble": value}),), (422,))
        if value is not True:
            yield Hostile(f"return_scores {number}", (predict({"inputs": [OK], "return_scores": value}),), (422,))
    for field in (SECRET, "__class__", "inputs ", "\ud800", "stream", ""):
        yield Hostile(f"unknown field {field[:6]!r}", (predict({"inputs": [OK], field: 1}),), (400, 422))
        yield Hostile(
            f"unknown field of an input {field[:6]!r}", (predict({"inputs": [{**OK, field: 1}]}),), (400, 422)
        )
    for task in ("nothing", SECRET, "Topics", "topics ", "../topics", "topics\0", "pairs"):
        yield Hostile(f"unknown task {task[:8]!r}", (predict({"inputs": [{**OK, "task": task}]}),), (404, 422))
    texts: dict[str, Any] = {"surrogate": "\ud800", "spaces": " \n ", "pair": ["a", "b"], "endless": "x" * 30_000}
    for name, content in texts.items():
        yield Hostile(f"text of {name}", (predict({"inputs": [{**OK, "text": content}]}),), (400, 422))


def _other_protocols() -> Iterator[Hostile]:
    """The same in the Open Inference Protocol, the completions API, generation and explanations."""
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["x"]}
    changes: list[dict[str, Any]] = [
        {"shape": [2]},
        {"shape": [-1]},
        {"shape": []},
        {"shape": [2**62]},
        {"shape": ["1"]},
        {"datatype": "FP32"},
        {"data": []},
        {"data": [1]},
        {"data": "x"},
        {"data": [["x", "y"]]},
        {"name": SECRET},
        {"name": 1},
        {"data": [None]},
        {"extra": 1},
    ]
    for number, change in enumerate(changes):
        body = json.dumps({"inputs": [{**tensor, **change}]}).encode()
        yield Hostile(f"tensor {number}", (post("/v2/models/topics/infer", body),), (400, 422))
    for path, expected in {"/v2/models/nothing/infer": 404, "/v2/models/%2e%2e/infer": 404, "/v2/nothing": 404}.items():
        yield Hostile(path, (post(path, json.dumps({"inputs": [tensor]}).encode()),), (expected, 400, 422))
    completions: list[Any] = [
        {"model": "nothing", "prompt": "x"},
        {"model": "topics"},
        {"prompt": "x"},
        {"model": 1, "prompt": "x"},
        {"model": "topics", "prompt": 1},
        {"model": "topics", "prompt": [1]},
        {"model": "topics", "prompt": "x", "n": 2},
        {"model": "topics", "prompt": "x", "temperature": 1},
        {"model": "topics", "prompt": "x", "max_tokens": 0},
        {"model": "topics", "prompt": "x", "stop": [""]},
        {"model": "topics", "prompt": [], "stop": 5},
        [],
    ]
    for number, completion in enumerate(completions):
        yield Hostile(
            f"completion {number}", (post("/v1/completions", json.dumps(completion).encode()),), (400, 404, 413, 422)
        )
    chats: list[Any] = [None, [], "x", [{}], [{"role": "system", "content": "x"}], [{"role": "user"}] * 2]
    for number, messages in enumerate(chats):
        body = json.dumps({"model": "topics", "messages": messages}).encode()
        yield Hostile(f"chat {number}", (post("/v1/chat/completions", body),), (400, 422))
    limits: list[dict[str, Any]] = [
        {"max_new_tokens": 0},
        {"max_new_tokens": 2**40},
        {"stop": [""]},
        {"stop": ["a"] * 5},
    ]
    for number, more in enumerate([*limits, {"stream": 1}]):
        yield Hostile(
            f"generation {number}", (post("/v1/generate", json.dumps({"inputs": [OK], **more}).encode()),), (422,)
        )
    explained: list[Any] = [{}, {"inputs": []}, {"inputs": [{}]}, {"inputs": [OK], "x": 1}]
    for number, explanation in enumerate([*explained, {"inputs": [{**OK, "task": "no"}]}]):
        yield Hostile(
            f"explanation {number}", (post("/v1/explain", json.dumps(explanation).encode()),), (400, 404, 422)
        )


def _sizes() -> Iterator[Hostile]:
    """More than the limits allow."""
    line = b"GET /livez HTTP/1.1\r\n"
    yield Hostile("many headers", (line + b"a: b\r\n" * 200 + b"\r\n",), (431,))
    yield Hostile("one endless header", (line, b"a: " + b"x" * 40_000, b"x" * 30_000), (431,))
    yield Hostile("long address", (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n",), (414,))
    yield Hostile("endless request line", (b"GET /" + b"x" * 70_000,), (414, 431))
    yield Hostile("body over the limit, stated", (head("POST /v1/predict HTTP/1.1", 9_000_000),), (413,))
    yield Hostile("body over the limit, sent", (head("POST /v1/predict HTTP/1.1", 3_000_000), b"x" * 3_000_000), (413,))
    chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
    yield Hostile(
        "chunks over the limit",
        (head("POST /v1/predict HTTP/1.1", more="Transfer-Encoding: chunked"), chunk * 40),
        (413,),
    )
    yield Hostile("too many inputs", (predict({"inputs": [OK] * 40}),), (413,))
    yield Hostile("very many inputs", (predict({"inputs": [OK] * 5000}),), (413, 422))
    yield Hostile("many bad inputs", (predict({"inputs": [{}] * 32}),), (422,))
    yield Hostile("many fields", (predict({str(number): number for number in range(20_000)}),), (422,))
    yield Hostile("many names", (predict({"inputs": [{**OK, "task": ["topics"] * 5000}], "ensemble": "vote"}),), (200,))
    yield Hostile("many texts", (predict({"inputs": [{**OK, "text": ["x"] * 5000}]}),), (422,))
