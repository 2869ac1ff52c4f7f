"""`python -m faults.guided_reader NAME CORPUS REPORT SECONDS MOST`: the process of one kind of file; see guided.py."""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

SAVE_SECONDS = 2.0  # between two writes of the report


class GuidedReader:
    """Reads what atheris gives it, counts outcomes, and ends the process when its time is over."""

    def __init__(self, name: str, report: Path, seconds: float, most: int) -> None:
        from faults.mutations import make_target

        self._folder = tempfile.TemporaryDirectory(dir=report.parent)
        self._target = make_target(name, Path(self._folder.name))
        self._report, self._most = report, most
        self._end, self._next_save = time.monotonic() + seconds, 0.0
        self._counts: Counter[str] = Counter()
        self._faults: list[str] = []

    @property
    def example(self) -> bytes:
        """An undamaged file."""
        return self._target.example

    def read(self, data: bytes) -> None:
        """Read one file; a fault is written down, and reading goes on."""
        from faults.mutations import read_file
        from faults.record import FaultError

        try:
            self._counts[read_file(self._target, data, f"{sum(self._counts.values())}")] += 1
        except FaultError as fault:
            self._counts["refused"] += 1
            kept = Path(tempfile.gettempdir(), f"softcue-fault-{hashlib.sha256(data).hexdigest()[:12]}")
            kept.write_bytes(data)
            self._faults.append(f"{kept.name} among temporary files: {fault}")
        now = time.monotonic()
        is_over = now > self._end or sum(self._counts.values()) >= self._most or len(self._faults) >= 20
        if is_over or now > self._next_save:
            self._save(is_over)
            self._next_save = now + SAVE_SECONDS
        if is_over:
            self._folder.cleanup()
            os._exit(0)  # atheris has no call that ends its loop

    def mutate(self, data: bytes, max_size: int, seed: int) -> bytes:
        """Another input from one that is kept: a changed value where the format has values, else changed bytes."""
        import atheris

        from faults.mutants import mutate_bytes, mutate_value

        draw = random.Random(seed)
        kind = draw.random()
        if self._target.as_value is not None and kind < 0.5:
            try:
                value = json.loads(data)
            except (ValueError, RecursionError):
                value = self._target.value
            return self._target.as_value(mutate_value(value, draw))[:max_size]
        if kind < 0.75:
            return mutate_bytes(data, draw)[:max_size]
        return bytes(atheris.Mutate(data, max_size))

    def _save(self, is_complete: bool) -> None:
        counts = {name: self._counts[name] for name in ("accepted", "refused")}
        self._report.write_text(json.dumps({**counts, "faults": self._faults, "is_complete": is_complete}), "utf-8")


def main(name: str, corpus: str, report: str, seconds: str, most: str) -> None:
    """Instrument softcue while it is imported, and let atheris run."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # tiny models and cues
    warnings.simplefilter("ignore")
    import atheris

    # atheris.instrument_imports is a context manager for imports inside it; torch and transformers stay as they are
    with atheris.instrument_imports(include=["softcue", "yaml"]):
        reader = GuidedReader(name, Path(report), float(seconds), int(most))
        reader.read(reader.example)  # readers import more at their first file
    seed = Path(corpus) / "example"
    seed.write_bytes(reader.example)
    from faults.mutations import limited_time

    options = ["-timeout=0", "-rss_limit_mb=0", "-handle_int=0", "-print_final_stats=0", "-verbosity=0"]
    options.append(f"-max_len={max(4096, 2 * len(reader.example))}")
    atheris.Setup([name, *options, corpus], reader.read, custom_mutator=reader.mutate)
    with limited_time():
        atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
