"""Predictions for files of any size: rows in shards, each predicted by a worker and written whole or not at all.

    plan.json           settings, cues, input file and number of rows; written when all rows are laid out
    rows-00000.jsonl    the rows of a shard as the cues read them
    lines-00000.jsonl   its output, a line for each row; its presence means that the shard is finished

The folder stands beside the output file and is removed when that is complete. Whoever starts the same command again
goes on with the missing shards. Workers share nothing but the folder: they are processes of this machine, or actors of
a Ray cluster whose machines have the folder at the same path. A worker that dies leaves no line behind; its shard is
run again.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

from softcue.cue.cue import Cue, load
from softcue.cue.cue_file import read_cue_file
from softcue.cue.signatures import PublicKeys, read_public_keys
from softcue.errors import ConfigurationError, MissingExtraError, RunError, SoftcueError
from softcue.files import convert_write_errors, remove, write_atomically, write_json
from softcue.machine import end_with_parent, usable_cores
from softcue.ray_cluster import connect
from softcue.serving.engine.requests import Ensemble
from softcue.serving.prediction_lines import ROWS_AT_ONCE, LinePredictor
from softcue.tasks import Task
from softcue.tasks.columns import rename_columns
from softcue.types import Example

MOST_DEATHS = 3  # of workers one after the other, without a finished shard between them
OnShard = Callable[[int, int], None]  # finished shards, all shards


class ShardSettings(BaseModel):
    """What decides the lines of all shards."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cues: tuple[str, ...]  # folders
    source: str
    backbone: str | None = None
    backbone_settings: dict[str, Any] = {}  # such as its device; those of the cue go behind
    columns: dict[str, str] = {}
    ensemble: Ensemble | None = None
    batch_size: int = 64
    shard_rows: int = 20_000
    allow_pickle: bool = False
    require_signature: str | None = None

    @property
    def signers(self) -> PublicKeys | None:
        """The public keys of those who may have signed a cue; None: any cue."""
        return None if self.require_signature is None else read_public_keys(self.require_signature)


class ShardFolder:
    """The shards of one input file, from its rows to the lines of the output.

    Example:
        folder = ShardFolder(Path("predictions.jsonl.shards"))
        folder.lay_out(settings, rows)
        predict_in_processes(folder, num_workers=2)
        for lines in folder.lines(): ...
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def lay_out(self, settings: ShardSettings, rows: Callable[[], Iterable[tuple[Example, ...]]]) -> None:
        """Write the rows of all shards, unless the same command has done it before."""
        facts = {"settings": settings.model_dump(mode="json"), "input": _facts_of_input(settings)}
        if self._plan_file.is_file():
            if {name: self._plan[name] for name in facts} != facts:
                raise RunError(
                    setting="output",
                    got=self.path,
                    expected="the folder of an unfinished command with the same cues, input and options",
                    fix="repeat that command to finish it, or remove the folder",
                )
            return
        with convert_write_errors("output", self.path):
            remove(self.path)
            self.path.mkdir(parents=True)
            remaining, num_rows, num_shards = iter(rows()), 0, 0
            while shard := list(islice(remaining, settings.shard_rows)):
                write_atomically(self._rows_file(num_shards), map(_dump_row, shard))
                num_rows, num_shards = num_rows + len(shard), num_shards + 1
            write_json(self._plan_file, {**facts, "rows": num_rows, "shards": num_shards})

    @property
    def _plan_file(self) -> Path:
        return self.path / "plan.json"

    @cached_property
    def _plan(self) -> Mapping[str, Any]:
        plan: Mapping[str, Any] = json.loads(self._plan_file.read_text("utf-8"))
        return plan

    @property
    def settings(self) -> ShardSettings:
        """The settings of all shards."""
        return ShardSettings.model_validate(self._plan["settings"])

    @property
    def num_shards(self) -> int:
        """The number of shards."""
        return int(self._plan["shards"])

    @property
    def num_rows(self) -> int:
        """The number of rows of all shards."""
        return int(self._plan["rows"])

    def missing(self) -> list[int]:
        """The numbers of the shards that are not finished."""
        return [number for number in range(self.num_shards) if not self._lines_file(number).is_file()]

    def rows(self, shard: int) -> Iterator[tuple[Example, ...]]:
        """The rows of a shard."""
        with self._rows_file(shard).open(encoding="utf-8", newline="\n") as lines:
            yield from map(_parse_row, lines)

    def write(self, shard: int, chunks: Iterable[Sequence[Mapping[str, Any]]]) -> None:
        """Write the output of a shard. It appears complete or not at all."""
        text = ("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines) for lines in chunks)
        write_atomically(self._lines_file(shard), (part.encode() for part in text))

    def lines(self) -> Iterator[list[dict[str, Any]]]:
        """The lines of all shards in the order of the input, in chunks; exactly one for each row."""
        num_lines = 0
        for shard in range(self.num_shards):
            with self._lines_file(shard).open(encoding="utf-8", newline="\n") as lines:
                while chunk := [json.loads(line) for line in islice(lines, ROWS_AT_ONCE)]:
                    num_lines += len(chunk)
                    yield chunk
        if num_lines != self.num_rows:
            raise RunError(
                setting="output",
                got=f"{num_lines:,} lines in {self.path}",
                expected=f"{self.num_rows:,}, one for each row",
                fix="remove the folder and start again",
            )

    def remove(self) -> None:
        """Remove the folder, when the output is complete."""
        remove(self.path)

    def _rows_file(self, shard: int) -> Path:
        return self.path / f"rows-{shard:05}.jsonl"

    def _lines_file(self, shard: int) -> Path:
        return self.path / f"lines-{shard:05}.jsonl"


def _facts_of_input(settings: ShardSettings) -> dict[str, Any]:
    """What tells whether input and cues are still those of the plan."""
    path = Path(settings.source)
    versions = [read_cue_file(Path(cue), settings.signers).record_sha256 for cue in settings.cues]
    status = path.stat() if path.is_file() else None
    return {
        "size": status and status.st_size,
        "modified": status and status.st_mtime_ns,
        "versions": versions,
    }


def _dump_row(row: tuple[Example, ...]) -> bytes:
    examples = [
        {"texts": example.texts, "group": example.group, "options": example.options, "offset": example.offset}
        for example in row
    ]
    return (json.dumps(examples, ensure_ascii=False) + "\n").encode()


def _parse_row(line: str) -> tuple[Example, ...]:
    return tuple(
        Example(
            tuple(values["texts"]), group=values["group"], options=tuple(values["options"]), offset=values["offset"]
        )
        for values in json.loads(line)
    )


class ShardWorker:
    """Predicts one shard after the other. It loads the cues once; what it returns and takes is plain data.

    Example:
        ShardWorker("predictions.jsonl.shards")({"shard": 0})
    """

    def __init__(self, folder: str) -> None:
        self._folder = ShardFolder(Path(folder))

    @cached_property
    def _predictor(self) -> LinePredictor:
        settings = self._folder.settings
        first = load(
            settings.cues[0],
            settings.backbone,
            allow_pickle=settings.allow_pickle,
            require_signature=settings.signers,
            **settings.backbone_settings,
        )
        others = [load(path, first.backbone, require_signature=settings.signers) for path in settings.cues[1:]]
        cues: list[Cue] = [first, *others]
        tasks: list[Task] = rename_columns([cue.task for cue in cues], settings.columns, needs_target=False)
        return LinePredictor(cues, tasks, settings.ensemble, settings.batch_size)

    def __call__(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """Predict a shard, and return how many texts were cut; a user's error is returned as its parts."""
        shard = int(item["shard"])
        try:
            predictor, rows = self._predictor, self._folder.rows(shard)
            num_before = predictor.num_truncated
            chunks = iter(lambda: list(islice(rows, ROWS_AT_ONCE)), [])
            self._folder.write(shard, map(predictor.lines, chunks))
            return {"shard": shard, "truncated": predictor.num_truncated - num_before, "error": ""}
        except SoftcueError as error:  # exceptions with several arguments cannot travel between processes
            parts = {"setting": error.setting, "got": str(error.got), "expected": error.expected, "fix": error.fix}
            return {"shard": shard, "truncated": 0, "error": json.dumps(parts)}


def _check_outcome(outcome: Mapping[str, Any]) -> int:
    """The number of texts that were cut, or the worker's error raised."""
    if outcome["error"]:
        raise RunError(**json.loads(outcome["error"]))
    return int(outcome["truncated"])


# --- processes of this machine ---


def predict_in_processes(folder: ShardFolder, num_workers: int | None = None, on_shard: OnShard | None = None) -> int:
    """Predict the missing shards in processes, by default one for each GPU; returns how many texts were cut.

    Example:
        predict_in_processes(ShardFolder(Path("predictions.jsonl.shards")), num_workers=2)
    """
    num_gpus = torch.cuda.device_count()
    num_workers = num_workers or num_gpus or 1
    num_truncated = num_deaths = 0
    while missing := folder.missing():
        context = multiprocessing.get_context("spawn")
        places = context.Queue()
        for number in range(num_workers):
            places.put(number % num_gpus if num_gpus else None)
        threads = max(1, usable_cores() // num_workers)
        with ProcessPoolExecutor(
            min(num_workers, len(missing)), context, _begin_worker, (str(folder.path), places, threads, os.getpid())
        ) as pool:
            waiting: set[Future[dict[str, Any]]] = {pool.submit(_run_shard, shard) for shard in missing}
            try:
                while waiting:
                    ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    num_truncated += sum(_check_outcome(future.result()) for future in ended)
                    num_deaths = 0
                    if on_shard is not None:
                        on_shard(folder.num_shards - len(waiting), folder.num_shards)
            except BrokenProcessPool as error:  # a process died; the others ended with it
                num_deaths += 1
                if num_deaths == MOST_DEATHS:
                    raise RunError(
                        setting="workers",
                        got=f"{MOST_DEATHS} processes that died one after the other",
                        expected="memory for a backbone in each",
                        fix="lower --workers or --batch-size; the same command goes on where it was",
                    ) from error
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
    return num_truncated


_worker: ShardWorker | None = None  # of a worker process


def _begin_worker(folder: str, places: Any, threads: int, parent: int) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes; the parent ends its workers
    end_with_parent(parent)
    gpu = places.get()
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)
    torch.set_num_threads(threads)
    _worker = ShardWorker(folder)


def _run_shard(shard: int) -> dict[str, Any]:
    assert _worker is not None
    return _worker({"shard": shard})


# --- a Ray cluster ---


def predict_on_ray(folder: ShardFolder, num_workers: int | None, address: str, on_shard: OnShard | None = None) -> int:
    """Predict the missing shards with actors of Ray Data on a running cluster; returns how many texts were cut.

    Example:
        predict_on_ray(ShardFolder(Path("/shared/predictions.jsonl.shards")), num_workers=4, address="auto")
    """
    missing = folder.missing()
    if not missing:
        return 0
    try:
        import ray
        import ray.data
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "ray", "ray") from error
    connect(address)
    try:
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        has_gpus = bool(ray.cluster_resources().get("GPU"))
        most = int(ray.cluster_resources().get("GPU" if has_gpus else "CPU", 1))
        if num_workers is not None and num_workers > most:
            raise ConfigurationError(
                setting="workers",
                got=num_workers,
                expected=f"at most {most}, the {'GPUs' if has_gpus else 'CPUs'} of the cluster",
                fix="lower it",
            )
        items = [{"shard": shard} for shard in missing]
        outcomes = ray.data.from_items(items, override_num_blocks=len(items)).map(
            ShardWorker,
            fn_constructor_args=(str(folder.path.resolve()),),
            num_gpus=1 if has_gpus else 0,
            num_cpus=1,
            concurrency=min(num_workers or most, len(items)),
        )
        num_truncated = 0
        num_before = folder.num_shards - len(missing)
        for number, outcome in enumerate(outcomes.iter_rows(), start=num_before + 1):
            num_truncated += _check_outcome(outcome)
            if on_shard is not None:
                on_shard(number, folder.num_shards)
        return num_truncated
    finally:
        ray.shutdown()
