"""A small server with the part of vLLM's HTTP protocol that softcue uses, around a tiny backbone of this process."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from torch import Tensor

from softcue.backbones import Backbone

MAX_TOKENS = 128  # the most `logprob_token_ids` that vLLM accepts


class FakeVllm(ThreadingHTTPServer):
    """Answers as vLLM does; keeps the bodies of all requests, and fails as often as it is told to."""

    daemon_threads = True

    def __init__(self, backbone: Backbone, key: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.backbone, self.key = backbone, key
        self.bodies: list[dict[str, Any]] = []
        self.num_failures = 0
        self.answer: bytes | None = None  # sent instead of any answer
        self.max_model_len = 160
        self.last_event = b"data: [DONE]\n\n"  # of a text

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeVllm

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 the name in http.server
        pass

    def do_GET(self) -> None:
        if self._has_key():
            model = {"id": "tiny", "max_model_len": self.server.max_model_len}
            self._send(200, {"data": [model]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._has_key():
            return
        self.server.bodies.append(body)
        if self.server.num_failures:
            self.server.num_failures -= 1
            self._send(500, {"error": {"message": "out of memory"}})
            return
        assert self.path == "/v1/completions" and body["model"] == "tiny" and body["temperature"] == 0
        given = body["prompt_embeds"]
        rows = [_decode(row) for row in (given if isinstance(given, list) else [given])]
        if any(len(row) + body["max_tokens"] > self.server.max_model_len for row in rows):
            self._send(400, {"error": {"message": "longer than the maximum model length"}})
        elif body.get("stream"):
            self._stream(rows[0], body)
        else:
            self._score(rows, body)

    def _has_key(self) -> bool:
        if self.server.key and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            self._send(401, {"error": "Unauthorized"})
            return False
        return True

    def _score(self, rows: list[Tensor], body: dict[str, Any]) -> None:
        tokens = body["logprob_token_ids"]
        assert body["max_tokens"] == 1 and body["logprobs"] == len(tokens) <= MAX_TOKENS
        choices = []
        for index, row in enumerate(rows):
            log_probabilities = self._next(row)
            scores = {f"token_id:{token}": float(log_probabilities[token]) for token in tokens}
            choices.append({"index": index, "logprobs": {"top_logprobs": [scores]}})
        self._send(200, {"choices": choices[::-1]})  # the index alone says which row is meant

    def _stream(self, row: Tensor, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            for _ in range(body["max_tokens"]):
                token = int(self._next(row).argmax())
                event = {"choices": [{"index": 0, "token_ids": [token]}]}
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                row = torch.cat([row, self.server.backbone.embed(torch.tensor([token]))])
                if token in body["stop_token_ids"]:
                    break
            self.wfile.write(self.server.last_event)
        except OSError:  # the client has left
            self.server.bodies.append({"left": True})

    @torch.no_grad()
    def _next(self, row: Tensor) -> Tensor:
        return self.server.backbone.model(inputs_embeds=row[None]).logits[0, -1].log_softmax(0)

    def _send(self, status: int, content: object) -> None:
        answer = json.dumps(content).encode() if self.server.answer is None else self.server.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


def _decode(row: str) -> Tensor:
    tensor = torch.load(io.BytesIO(base64.b64decode(row, validate=True)), weights_only=True)
    assert isinstance(tensor, Tensor) and tensor.dim() == 2
    assert tensor.untyped_storage().nbytes() == tensor.nbytes  # no more is sent than the row
    return tensor


@contextmanager
def running(backbone: Backbone, key: str = "") -> Iterator[FakeVllm]:
    """The server while it runs."""
    server = FakeVllm(backbone, key)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
