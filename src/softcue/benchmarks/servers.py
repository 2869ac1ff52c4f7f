"""Servers in processes of their own: softcue's, and two that never mix cues in a batch.

    python -m softcue.benchmarks.servers one-cue CUES BACKBONE PORT     softcue's server, a cue at a time
    python -m softcue.benchmarks.servers peft CUES BACKBONE PORT        as users of PEFT write theirs

The PEFT server keeps one model with an adapter per cue; a request waits for the lock, switches the adapter and runs its
own rows. Its prompts have our cues' lengths and its HTTP stack is ours, but its numbers are untrained.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

from softcue.benchmarks.load import HOST
from softcue.benchmarks.measuring import figure
from softcue.errors import MissingExtraError, RunError
from softcue.serving.client import Client

NEEDED = {"fastapi": "serve", "uvicorn": "serve", "peft": "bench"}  # package -> extra
FLAT = 1.02  # memory, largest by smallest
START_SECONDS, STOP_SECONDS = 180.0, 40.0
WITHOUT_CACHE = {"SOFTCUE_CACHE_MB": "0"}  # vectors kept on disk would be work that is not done


@dataclass(frozen=True)
class Running:
    """A server that takes requests."""

    process: subprocess.Popen[bytes]
    port: int
    admin_key: str

    @property
    def admin(self) -> Client:
        """A client that may load and unload cues."""
        return Client(f"http://{HOST}:{self.port}", self.admin_key)

    def reload(self, names: Sequence[str], num_cycles: int) -> float:
        """Unload and load cues in turn, so many times altogether; seconds that took."""
        admin = self.admin
        began = time.perf_counter()
        for number in range(num_cycles):
            name = names[number % len(names)]
            admin.unload(name)
            admin.load(name)
        return time.perf_counter() - began

    def resident_bytes(self) -> int:
        """Memory that the process holds, by the kernel's count."""
        try:
            lines = Path(f"/proc/{self.process.pid}/status").read_text("utf-8").splitlines()
        except OSError as error:
            raise RunError(
                setting="memory of the server",
                got=str(error),
                expected="Linux, which tells it in /proc",
                fix="run it there",
            ) from error
        [kilobytes] = [line.split()[1] for line in lines if line.startswith("VmRSS:")]
        return 1024 * int(kilobytes)


def check_extras() -> None:
    """Say what to install before anything is started."""
    for package, extra in NEEDED.items():
        if find_spec(package) is None:
            raise MissingExtraError(package, extra)


def softcue_words(cues: Path, backbone: str, port: int) -> list[str]:
    """The command of a softcue server."""
    return ["-m", "softcue", "serve", str(cues), "--backbone", backbone, "--port", str(port)]


def one_cue_words(cues: Path, backbone: str, port: int) -> list[str]:
    """The command of a softcue server whose batches hold rows of one cue."""
    return ["-m", "softcue.benchmarks.servers", "one-cue", str(cues), backbone, str(port)]


def peft_words(cues: Path, backbone: str, port: int) -> list[str]:
    """The command of a server that switches PEFT's adapters."""
    return ["-m", "softcue.benchmarks.servers", "peft", str(cues), backbone, str(port)]


def free_port() -> int:
    """A port that nobody listens at.

    Example:
        >>> 0 < free_port() < 65536
        True
    """
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def running(words: Sequence[str], port: int, log: Path, threads: int = 1) -> Iterator[Running]:
    """A server from when it is ready; it is told to end with the block.

    Example:
        with running(softcue_words(cues, "minilm", port), port, Path("server.log")) as server:
            server.resident_bytes()
    """
    key = secrets.token_hex(16)
    limits = {"OMP_NUM_THREADS": str(threads), "SOFTCUE_ADMIN_KEY": key}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, *words], stdout=errors, stderr=errors, env=os.environ | WITHOUT_CACHE | limits
        )
    try:
        _wait_until_ready(process, port, log)
        yield Running(process, port, key)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{port}/readyz", timeout=5):
                return
        except OSError:  # it does not listen yet, or answers 503
            time.sleep(0.1)
    last = log.read_text("utf-8", "replace").strip().splitlines()[-1:]
    raise RunError(
        setting="server", got="; ".join(last) or "nothing", expected="one that becomes ready", fix=f"see {log}"
    )


def flatness(held: Sequence[int], num_cycles: int) -> dict[str, Any]:
    """How flat memory stays: the largest number of bytes by the smallest.

    Example:
        >>> flatness([100, 101, 100], 1000)["met"], flatness([100, 103, 106], 1000)["met"]
        (True, False)
    """
    meaning = (
        f"resident memory over {num_cycles} cycles of unloading and loading a cue, nothing asked: largest / smallest"
    )
    return figure(max(held) / min(held), FLAT, 0.0, 1, meaning)


# --- what runs in those processes ---


def serve_one_cue_at_a_time(cues: Path, backbone: str, port: int) -> None:
    """Softcue's server, but only rows of the oldest row's cue go with it."""
    from softcue.serving.engine import batcher
    from softcue.serving.http.server import serve
    from softcue.serving.settings import ServerSettings

    with patch.object(batcher, "choose_batch", of_one_cue(batcher.choose_batch)):
        serve(ServerSettings(port=port), backbone, cues)


def of_one_cue(choose_batch: Callable[..., Any]) -> Callable[..., Any]:
    """A choice of the next batch among the rows of the oldest row's cue."""
    return lambda waiting, *rest: choose_batch(
        [row for row in waiting if row.request_row.loaded_cue is waiting[0].request_row.loaded_cue], *rest
    )


def serve_adapters(cues: Path, backbone: str, port: int) -> None:
    """One model of PEFT's, a lock, `set_adapter`, a forward pass of the request's rows."""
    import uvicorn

    uvicorn.run(adapter_app(cues, backbone), host=HOST, port=port, log_level="warning", access_log=False)


def adapter_app(cues: Path, backbone: str) -> Any:
    """The app of that server: the routes and bodies of ours, as far as a benchmark asks for them."""
    import torch
    from fastapi import FastAPI

    model, tokenizer = adapters(cues, backbone)
    labels: dict[int, str] = model.config.id2label
    lock = threading.Lock()
    app = FastAPI()

    @app.get("/readyz")
    def readyz() -> dict[str, str]:
        return {"state": "ready"}

    @app.post("/v1/predict")
    def predict(body: dict[str, Any]) -> dict[str, Any]:
        inputs = body["inputs"]
        found: dict[int, dict[str, Any]] = {}
        for task in dict.fromkeys(one["task"] for one in inputs):
            places = [place for place, one in enumerate(inputs) if one["task"] == task]
            texts = [[one] if isinstance(one := inputs[place]["text"], str) else one for place in places]
            rows = tokenizer(*map(list, zip(*texts, strict=True)), padding=True, truncation=True, return_tensors="pt")
            with lock, torch.inference_mode():
                model.set_adapter(task)
                scores = model(**rows).logits.softmax(dim=-1)
            for place, row in zip(places, scores.tolist(), strict=True):
                named = {labels[number]: score for number, score in enumerate(row)}
                found[place] = {"task": task, "label": max(named, key=named.__getitem__), "scores": named}
        return {"results": [found[place] for place in range(len(inputs))]}

    return app


def adapters(cues: Path, backbone: str) -> tuple[Any, Any]:
    """A classifier on the backbone's own model with one of PEFT's prompts per cue, and the tokenizer."""
    import transformers as hf

    from softcue.backbones import load_backbone
    from softcue.benchmarks.peers import TASK_TYPES, peft_model
    from softcue.configuration import method_config
    from softcue.cue.cue_file import read_cue_file

    loaded = load_backbone(backbone)
    records = {path.parent.name: read_cue_file(path.parent) for path in sorted(cues.glob("*/cue.json"))}
    lengths = {name: int(method_config(one.method).prompt_length) for name, one in records.items()}  # type: ignore[attr-defined]
    num_labels = max(len(one.task.label_names) for one in records.values())
    bare = hf.AutoModelForSequenceClassification.from_pretrained(str(loaded.folder), num_labels=num_labels)
    model = peft_model("encoder", bare, max(lengths.values()))
    import peft  # there, or the line above would have said so

    for name, length in lengths.items():
        model.add_adapter(name, peft.PromptTuningConfig(task_type=TASK_TYPES["encoder"], num_virtual_tokens=length))
    return model.eval(), loaded.tokenizer


KINDS = {"one-cue": serve_one_cue_at_a_time, "peft": serve_adapters}

if __name__ == "__main__":
    kind, folder, name, number = sys.argv[1:]
    KINDS[kind](Path(folder), name, int(number))
