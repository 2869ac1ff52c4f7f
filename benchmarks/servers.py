"""Servers in separate processes: softcue's, and three that never mix cues in a batch.

    python -m benchmarks.servers one-cue CUES BACKBONE PORT     softcue's server, with one cue per batch
    python -m benchmarks.servers peft CUES BACKBONE PORT        a server as users of PEFT write it
    python -m benchmarks.servers probes CUES BACKBONE PORT      a server as users of sentence-transformers write it

The PEFT server holds one model with an adapter per cue. A request waits for the lock, switches the adapter and runs its
rows. Its prompts are as long as our cues' and its HTTP stack is the same, but its prompts are untrained. The server of
sentence-transformers computes the vectors of a request's texts and gives them to the logistic regression of their task.
"""

from __future__ import annotations

import contextlib
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

from benchmarks.load import HOST, child_environment
from benchmarks.measuring import make_figure
from softcue.errors import MissingExtraError, RunError
from softcue.serving.client import Client

REQUIRED_PACKAGES = {"fastapi": "serve", "uvicorn": "serve", "peft": "bench"}  # package -> extra
MAX_MEMORY_GROWTH = 1.02  # largest / smallest
START_SECONDS, STOP_SECONDS = 900.0, 40.0  # a first choice of a runtime takes minutes
HEAD_FILE = "logistic_regression.npz"  # in the folder of a cue: weights, biases, labels
WITHOUT_CACHE = {"SOFTCUE_CACHE_MB": "0"}  # cached sentence vectors would hide work


@dataclass(frozen=True)
class RunningServer:
    """A server that is ready for requests."""

    process: subprocess.Popen[bytes]
    port: int
    admin_key: str

    @property
    def admin(self) -> Client:
        """A client that may load and unload cues."""
        return Client(f"http://{HOST}:{self.port}", self.admin_key)

    def reload(self, names: Sequence[str], num_cycles: int) -> float:
        """Unload and load cues in turn, `num_cycles` times altogether; returns the seconds this took."""
        admin = self.admin
        started = time.perf_counter()
        for number in range(num_cycles):
            name = names[number % len(names)]
            admin.unload(name)
            admin.load(name)
        return time.perf_counter() - started

    def resident_bytes(self) -> int:
        """Resident memory of the process, as the kernel counts it."""
        try:
            lines = Path(f"/proc/{self.process.pid}/status").read_text("utf-8").splitlines()
        except OSError as error:
            raise RunError(
                setting="memory of the server",
                got=str(error),
                expected="Linux, where /proc has it",
                fix="run it there",
            ) from error
        [kilobytes] = [line.split()[1] for line in lines if line.startswith("VmRSS:")]
        return 1024 * int(kilobytes)


def check_extras() -> None:
    """Raise an error that names the missing extra before anything is started."""
    for package, extra in REQUIRED_PACKAGES.items():
        if find_spec(package) is None:
            raise MissingExtraError(package, extra)


def softcue_command(cues: Path, backbone: str, port: int) -> list[str]:
    """The arguments of Python that start a softcue server."""
    return ["-m", "softcue", "serve", str(cues), "--backbone", backbone, "--port", str(port)]


def runtime_command(cues: Path, backbone: str, port: int) -> list[str]:
    """The arguments of Python that start a softcue server with the fastest runtime that is installed."""
    return [*softcue_command(cues, backbone, port), "--dtype", "float32", "--runtime", "auto"]


def one_pass_command(cues: Path, backbone: str, port: int) -> list[str]:
    """The arguments of Python that start a softcue server that runs one batch at a time, on all threads."""
    return [*softcue_command(cues, backbone, port), "--passes-at-once", "1"]


def one_cue_command(cues: Path, backbone: str, port: int) -> list[str]:
    """The arguments of Python that start a softcue server with one cue per batch."""
    return ["-m", "benchmarks.servers", "one-cue", str(cues), backbone, str(port)]


def peft_command(cues: Path, backbone: str, port: int) -> list[str]:
    """The arguments of Python that start a server with PEFT's adapters."""
    return ["-m", "benchmarks.servers", "peft", str(cues), backbone, str(port)]


def probes_command(cues: Path, backbone: str, port: int) -> list[str]:
    """The arguments of Python that start a server with a logistic regression per cue."""
    return ["-m", "benchmarks.servers", "probes", str(cues), backbone, str(port)]


def free_port() -> int:
    """A port that is not in use.

    Example:
        >>> 0 < free_port() < 65536
        True
    """
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def run_server(command: Sequence[str], port: int, log: Path, threads: int = 1) -> Iterator[RunningServer]:
    """Start a server and wait until it is ready; it is stopped at the end of the block.

    Example:
        with run_server(softcue_command(cues, "minilm", port), port, Path("server.log")) as server:
            server.resident_bytes()
    """
    key = secrets.token_hex(16)
    settings = {"OMP_NUM_THREADS": str(threads), "SOFTCUE_ADMIN_KEY": key}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *command],
            stdout=output,
            stderr=output,
            env=child_environment() | WITHOUT_CACHE | settings,
        )
    try:
        _wait_until_ready(process, port, log)
        yield RunningServer(process, port, key)
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
    last_line = log.read_text("utf-8", "replace").strip().splitlines()[-1:]
    raise RunError(
        setting="server", got="; ".join(last_line) or "nothing", expected="one that becomes ready", fix=f"see {log}"
    )


def memory_growth_figure(resident_bytes: Sequence[int], num_cycles: int) -> dict[str, Any]:
    """The growth of memory: the largest number of bytes divided by the smallest.

    Example:
        >>> memory_growth_figure([100, 101, 100], 1000)["met"], memory_growth_figure([100, 103, 106], 1000)["met"]
        (True, False)
    """
    meaning = (
        f"resident memory over {num_cycles} cycles of unloading and loading a cue, no requests: largest / smallest"
    )
    return make_figure(max(resident_bytes) / min(resident_bytes), MAX_MEMORY_GROWTH, 0.0, 1, meaning)


# --- the code of those processes ---


def serve_one_cue_per_batch(cues: Path, backbone: str, port: int) -> None:
    """Serve with softcue's server, whose batches hold only rows of the oldest row's cue."""
    from softcue.serving.engine import batcher
    from softcue.serving.http.server import serve
    from softcue.serving.settings import ServerSettings

    batcher.choose_batch = only_one_cue(batcher.choose_batch)  # this process serves nothing else
    serve(ServerSettings(port=port), backbone, cues)


def only_one_cue(choose_batch: Callable[..., Any]) -> Callable[..., Any]:
    """Restrict the choice of the next batch to rows of the oldest row's cue."""
    return lambda waiting, *rest: choose_batch(
        [row for row in waiting if row.request_row.loaded_cue is waiting[0].request_row.loaded_cue], *rest
    )


def make_app(predict: Callable[[Sequence[dict[str, Any]]], list[dict[str, Any]]]) -> Any:
    """An app with those routes and bodies of ours that the benchmarks use."""
    from fastapi import FastAPI

    app = FastAPI()

    @app.get("/readyz")
    def readyz() -> dict[str, str]:
        return {"state": "ready"}

    @app.post("/v1/predict")
    def predict_inputs(body: dict[str, Any]) -> dict[str, Any]:
        return {"results": predict(body["inputs"])}

    return app


def serve_adapters(cues: Path, backbone: str, port: int) -> None:
    """Serve one PEFT model: a lock, `set_adapter`, and a forward pass of the request's rows."""
    import uvicorn

    uvicorn.run(make_adapter_app(cues, backbone), host=HOST, port=port, log_level="warning", access_log=False)


def make_adapter_app(cues: Path, backbone: str) -> Any:
    """The app of the PEFT server."""
    import torch

    model, tokenizer = load_adapters(cues, backbone)
    labels: dict[int, str] = model.config.id2label
    lock = threading.Lock()

    def predict(inputs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        results: dict[int, dict[str, Any]] = {}
        for task in dict.fromkeys(item["task"] for item in inputs):
            indices = [index for index, item in enumerate(inputs) if item["task"] == task]
            texts = [[text] if isinstance(text := inputs[index]["text"], str) else text for index in indices]
            rows = tokenizer(*map(list, zip(*texts, strict=True)), padding=True, truncation=True, return_tensors="pt")
            with lock, torch.inference_mode():
                model.set_adapter(task)
                probabilities = model(**rows).logits.softmax(dim=-1)
            for index, row in zip(indices, probabilities.tolist(), strict=True):
                scores = {labels[number]: score for number, score in enumerate(row)}
                results[index] = {"task": task, "label": max(scores, key=scores.__getitem__), "scores": scores}
        return [results[index] for index in range(len(inputs))]

    return make_app(predict)


def load_adapters(cues: Path, backbone: str) -> tuple[Any, Any]:
    """A classifier on the backbone's model with one PEFT prompt per cue, and the tokenizer."""
    import transformers as hf

    from benchmarks.peft_models import TASK_TYPES, make_peft_model
    from softcue.backbones import load_backbone
    from softcue.configuration import method_config
    from softcue.cue.cue_file import read_cue_file

    loaded = load_backbone(backbone)
    files = {path.parent.name: read_cue_file(path.parent) for path in sorted(cues.glob("*/cue.json"))}
    lengths = {name: int(method_config(file.method).prompt_length) for name, file in files.items()}  # type: ignore[attr-defined]
    num_labels = max(len(file.task.label_names) for file in files.values())
    bare = hf.AutoModelForSequenceClassification.from_pretrained(str(loaded.folder), num_labels=num_labels)
    model = make_peft_model("encoder", bare, max(lengths.values()))
    import peft  # installed, or the line above raises MissingExtraError

    for name, length in lengths.items():
        model.add_adapter(name, peft.PromptTuningConfig(task_type=TASK_TYPES["encoder"], num_virtual_tokens=length))
    return model.eval(), loaded.tokenizer


def serve_probes(cues: Path, backbone: str, port: int) -> None:
    """Serve sentence-transformers with a logistic regression for each task."""
    import uvicorn

    uvicorn.run(make_probe_app(cues, backbone), host=HOST, port=port, log_level="warning", access_log=False)


def make_probe_app(cues: Path, backbone: str) -> Any:
    """The app of the server of sentence-transformers."""
    import numpy
    import scipy.special
    from sentence_transformers import SentenceTransformer

    from softcue.backbones.loading.sources import find_source

    model = SentenceTransformer(str(find_source(backbone).folder), device="cpu")
    heads = {path.parent.name: dict(numpy.load(path)) for path in cues.glob(f"*/{HEAD_FILE}")}

    def predict(inputs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        vectors = model.encode([item["text"] for item in inputs], show_progress_bar=False)
        results = []
        for item, vector in zip(inputs, vectors, strict=True):
            head = heads[item["task"]]
            logits = head["weights"] @ vector + head["biases"]
            # scikit-learn has one row of weights for two classes
            scores = scipy.special.softmax(logits if len(logits) > 1 else numpy.concatenate([-logits, logits]) / 2)
            named = dict(zip(head["labels"].tolist(), scores.tolist(), strict=True))
            results.append({"task": item["task"], "label": max(named, key=named.__getitem__), "scores": named})
        return results

    return make_app(predict)


SERVERS = {"one-cue": serve_one_cue_per_batch, "peft": serve_adapters, "probes": serve_probes}

if __name__ == "__main__":
    kind, folder, name, number = sys.argv[1:]
    SERVERS[kind](Path(folder), name, int(number))
