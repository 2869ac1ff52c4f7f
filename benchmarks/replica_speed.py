"""`python -m benchmarks replicas`: rows a second of one and of more replicas on Ray, and the time of Ray's proxy.

Every replica has one thread and a copy of MiniLM. Requests pass through Ray's proxy, of which a machine has one. Its
processor time per request says how many replicas it can feed. The cluster must run already (docs/deployment.md).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import softcue
from benchmarks.load import Load, LoadProcess
from benchmarks.measuring import interleave_values, median_and_spread
from benchmarks.plan import Plan, report_seconds
from benchmarks.servers import RunningServer, free_port, run_server, softcue_command
from benchmarks.texts import SAMPLE_TASKS
from benchmarks.workloads import real_texts

PROXY_TITLE = "ray::ProxyActor"
NUM_REQUESTS, ROWS_OF_REQUEST, CLIENTS = 48, 8, 8


def measure_replicas(plan: Plan, numbers: Sequence[int], ray_address: str) -> list[dict[str, Any]]:
    """Measure each number of replicas; returns rows a second and the proxy's processor milliseconds of a request.

    Example:
        measure_replicas(Plan(3), [1, 2], "auto")[1]["rows_per_second"]
    """
    points = []
    with tempfile.TemporaryDirectory() as name:
        cues = Path(name) / "cues"
        for task in SAMPLE_TASKS:
            softcue.train(
                cues / task,
                task=task,
                backbone="minilm",
                method="prompt-tuning",
                overrides={"training.steps": 1, "training.min_steps": 0, "task.test_rows": 1},
                progress=False,
            )
        texts = real_texts(plan.data, NUM_REQUESTS * ROWS_OF_REQUEST)
        for number in numbers:
            port = free_port()
            command = softcue_command(cues, "minilm", port)
            command += ["--engine", "ray", "--ray-address", ray_address]
            command += ["--replicas", str(number), "--replica-cpus", "1"]
            with (
                report_seconds(f"replicas: {number}"),
                run_server(command, port, Path(name) / f"{number}.log") as server,
                LoadProcess() as load_process,
            ):
                points.append({"replicas": number, **_measure(plan, server, load_process, texts)})
    return points


def _measure(
    plan: Plan, server: RunningServer, load_process: LoadProcess, texts: Sequence[str]
) -> dict[str, float | int]:
    inputs = [(SAMPLE_TASKS[number % len(SAMPLE_TASKS)], text) for number, text in enumerate(texts)]
    requests = [inputs[first : first + ROWS_OF_REQUEST] for first in range(0, len(inputs), ROWS_OF_REQUEST)]
    proxy: list[float] = []

    def rate() -> float:
        before, started = _proxy_seconds(), time.perf_counter()
        responses = load_process.run(Load(server.port, requests, clients=CLIENTS))
        seconds = time.perf_counter() - started
        proxy.append(1000 * (_proxy_seconds() - before) / len(requests))
        assert all(response.status == 200 for response in responses)
        return len(inputs) / seconds

    # the first requests wait for kernels
    median, spread = median_and_spread(interleave_values({"rate": rate}, plan.repeats, warmup=1)["rate"])
    return {
        "rows_per_second": round(median, 1),
        "spread": round(spread, 1),
        "runs": plan.repeats,
        "proxy_ms_per_request": round(median_and_spread(proxy[1:])[0], 1),
    }


def _proxy_seconds() -> float:
    """Processor seconds of Ray's proxies on this machine so far."""
    import psutil

    times = [
        process.cpu_times()
        for process in psutil.process_iter(["cmdline"])
        if "".join((process.info["cmdline"] or [])[:1]).startswith(PROXY_TITLE)
    ]
    return float(sum(time.user + time.system for time in times))
