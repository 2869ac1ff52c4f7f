"""Very many valid requests to one server: all are answered, and its memory stays as it is."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from benchmarks.load import Load, LoadProcess
from faults.load import STEADY, ServedCues, record_memory
from faults.record import Budget, Record, numbered_trials

CHUNK = 2000  # requests between two measurements of memory
CLIENTS = 16


def run(record: Record, budget: Budget) -> None:
    """Send requests of one input in closed loop."""
    resident: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        served = ServedCues(Path(folder), use_minilm=False)
        with served.serve() as server, LoadProcess() as load_process:
            for number in numbered_trials(record, budget):
                draw = random.Random(number)
                num_requests = min(CHUNK, budget.count - record.count)
                requests = [[(draw.choice(STEADY), draw.choice(served.texts))] for _ in range(num_requests)]
                for response in load_process.run(Load(server.port, requests, clients=CLIENTS)):
                    if response.status == 200 and all("label" in result for result in response.results):
                        record.add("answered")
                    else:
                        record.add("lost")
                        record.add_fault(f"status {response.status}")
                resident.append(server.resident_bytes() >> 20)
    record.figures["memory by 2,000 requests, MB"] = resident
    record_memory(record, resident)
