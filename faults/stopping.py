"""SIGTERM while requests come in: each is answered or refused, and the process ends within its grace period."""

from __future__ import annotations

import json
import random
import signal
import socket
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from faults.load import ServedCues
from faults.record import Budget, FaultError, Record, run_trials
from faults.tiny_server import HOST, is_whole

GRACE_SECONDS = 31.0  # the deadline of a request and a second
CLIENTS = 8


def run(record: Record, budget: Budget) -> None:
    """Start a server, load it, stop it, as often as the count says."""
    with tempfile.TemporaryDirectory() as folder:
        served = ServedCues(Path(folder), use_minilm=False)
        run_trials(record, budget, lambda number: (stop_under_load(served, number, record), 1))


def stop_under_load(served: ServedCues, number: int, record: Record) -> str:
    """One server; returns the outcome."""
    statuses: Counter[str] = Counter()
    is_over = threading.Event()
    with served.serve() as server:
        clients = [
            threading.Thread(target=send_requests, args=(server.port, served.texts, seed, statuses, is_over))
            for seed in range(CLIENTS)
        ]
        for client in clients:
            client.start()
        time.sleep(random.Random(number).uniform(0.5, 3.0))
        started = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        code = server.process.wait(2 * GRACE_SECONDS)
        seconds = time.monotonic() - started
        is_over.set()
        for client in clients:
            client.join(60)
    totals = record.figures.setdefault("requests", {})
    for status, count in statuses.items():
        totals[status] = totals.get(status, 0) + count
    record.figures["longest end, seconds"] = max(record.figures.get("longest end, seconds", 0.0), round(seconds, 1))
    wrong = [status for status in statuses if status not in ("200", "429", "503", "not connected", "not read")]
    if code != 0 or seconds > GRACE_SECONDS or wrong:
        raise FaultError(f"exit code {code} after {seconds:.1f} s; {dict(statuses)}")
    return "ended in order"


def send_requests(port: int, texts: list[str], seed: int, statuses: Counter[str], is_over: threading.Event) -> None:
    """Send one request after another, each on a connection of its own, until the server is gone."""
    draw = random.Random(seed)
    while not is_over.is_set():
        body = json.dumps({"inputs": [{"task": "topics", "text": draw.choice(texts)}], "truncate": True}).encode()
        head = f"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        status = send_once(port, head.encode() + b"\r\n\r\n" + body)
        statuses[status] += 1
        if status == "not connected":
            time.sleep(0.2)


def send_once(port: int, request: bytes) -> str:
    """The status; "not connected", or "not read" if the kernel had the connection and the server never did."""
    try:
        connection = socket.create_connection((HOST, port), timeout=40)
    except OSError:
        return "not connected"
    received = b""
    with connection:
        try:
            connection.sendall(request)
            while not is_whole(received) and (chunk := connection.recv(65536)):
                received += chunk
        except TimeoutError:
            return "no answer"
        except OSError:
            pass
    if not received:
        return "not read"
    return received[9:12].decode() if is_whole(received) else "half an answer"
