"""Damaged files in every reader: each outcome is success or an error meant for users, in little time and memory."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import random
import resource
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from faults.mutants import mutate_bytes, mutate_value, write_json_bytes
from faults.record import Budget, FaultError, Record, run_trials
from softcue.errors import SoftcueError

SECONDS = 5  # of the processor for one reading; longer is a hang
WAITING_SECONDS = 60  # of the clock: a reader that waits takes no time of the processor
ALARMS = {signal.SIGPROF: (signal.ITIMER_PROF, SECONDS), signal.SIGALRM: (signal.ITIMER_REAL, WAITING_SECONDS)}
BYTES = 1 << 30  # by which one reading may raise the largest memory of the process
MOST_CHARACTERS = 10_000  # of a message
Read = Callable[[bytes], object]


class HangError(BaseException):
    """A reading that takes too long; not an Exception, so that no handler of the reader takes it."""


class Target:
    """A kind of file: an example, how a mutant of it is made, and what reads it."""

    def __init__(self, name: str, example: bytes, read: Read, as_value: Callable[[Any], bytes] | None = None) -> None:
        self.name, self.example, self.read = name, example, read
        self.as_value = as_value  # of formats with values: writes a mutated one, with digests that fit again
        self.value = json.loads(example) if as_value else None
        self.seconds, self.number = 0.0, 0

    def mutant(self, number: int) -> bytes:
        """The damaged file of that number."""
        draw = random.Random(f"{self.name} {number}")
        if self.as_value is not None and draw.random() < 0.7:
            return self.as_value(mutate_value(self.value, draw))
        return mutate_bytes(self.example, draw)


def run(record: Record, budget: Budget) -> None:
    """Read mutants of all kinds of files, each kind for an equal share of the time."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        targets = make_targets(Path(folder))
        reached = record.figures.setdefault("read", {})

        def trial(_: int) -> tuple[str, int]:
            target = min(targets, key=lambda target: target.seconds)
            target.number = reached.get(target.name, 0)
            reached[target.name] = target.number + 1
            return read_mutant(target), 1

        with limited_time():
            run_trials(record, budget, trial)
        record.figures["largest memory, MB"] = largest_kilobytes() >> 10


def memory_folder() -> str | None:
    """A folder whose files are in memory, if the system has one."""
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


@contextlib.contextmanager
def limited_time() -> Iterator[None]:
    """Let the alarm clocks raise HangError in this block."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise HangError

    before = {number: signal.signal(number, ring) for number in ALARMS}
    try:
        yield
    finally:
        set_alarms(False)
        for number, handler in before.items():
            signal.signal(number, handler)


def set_alarms(are_on: bool) -> None:
    """Start the clocks of one reading, or stop them."""
    for clock, seconds in ALARMS.values():
        signal.setitimer(clock, seconds if are_on else 0)


def largest_kilobytes() -> int:
    """The largest memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def read_mutant(target: Target) -> str:
    """Read the target's next mutant; returns "accepted" or "refused", or raises FaultError."""
    data = target.mutant(target.number)
    started = time.perf_counter()
    try:
        return read_file(target, data, f"{target.name} {target.number}")
    finally:
        target.seconds += time.perf_counter() - started


def read_file(target: Target, data: bytes, where: str) -> str:
    """Read a damaged file within the limits; returns "accepted" or "refused", or raises FaultError."""
    largest = largest_kilobytes()
    set_alarms(True)
    try:
        target.read(data)
        outcome = "accepted"
    except SoftcueError as error:
        outcome = "refused"
        if len(str(error)) > MOST_CHARACTERS:
            raise FaultError(f"{where}: a message of {len(str(error)):,} characters") from error
    except HangError:
        raise FaultError(f"{where}: over {SECONDS} s: {traceback.format_exc(limit=-6)}") from None
    except Exception as error:
        raise FaultError(f"{where}: {traceback.format_exc(limit=-4)}; {data[:300]!r}") from error
    finally:
        set_alarms(False)
    grown = (largest_kilobytes() - largest) << 10
    if grown > BYTES:
        raise FaultError(f"{where}: {grown >> 20:,} MB more; {data[:300]!r}")
    return outcome


# --- the targets ---


def make_targets(folder: Path) -> list[Target]:
    """All kinds of files, each with a reader."""
    return [*_data_targets(folder), *_setting_targets(folder), *_cue_targets(folder), *_run_targets(folder)]


def make_target(name: str, folder: Path) -> Target:
    """The target of that name."""
    [target] = [target for target in make_targets(folder) if target.name == name]
    return target


def _written(path: Path, read: Callable[[Path], object]) -> Read:
    """Write the bytes to a path, then read it."""

    def write_and_read(data: bytes) -> object:
        path.write_bytes(data)
        return read(path)

    return write_and_read


def _data_targets(folder: Path) -> list[Target]:
    import pyarrow
    import pyarrow.parquet

    from softcue.tasks import Label, Task, examples_from

    task = Task(name="toy", labels={"a": Label(words="account"), "b": Label(words="billing")})
    rows = [{"text": f'my invoice {number} is wrong, "twice"', "label": "ab"[number % 2]} for number in range(8)]
    csv = "text,label\n" + "".join(f'"my invoice {row}, again",{"ab"[row % 2]}\n' for row in range(8))
    tsv = "text\tlabel\n" + "".join(f"my invoice {row}, again\t{'ab'[row % 2]}\n" for row in range(8))
    jsonl = "".join(json.dumps(row) + "\n" for row in rows).encode()
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), buffer)
    read = lambda path: examples_from(path, task)  # noqa: E731
    spans = Task(name="spans", kind="span", text=("question", "context"))
    answers = {"question": "Who?", "context": "Ann came.", "answers": ["Ann"]}
    tags = Task(name="tags", kind="tags", labels={"PER": Label(words="person")})
    tokens = {"text": "Ann came", "spans": [{"label": "PER", "start": 0, "end": 3}]}
    sets = Task(name="sets", kind="multi-label", labels=task.labels)
    files: list[tuple[str, bytes, Callable[[Path], object], Callable[[Any], bytes] | None]] = [
        ("rows.csv", csv.encode(), read, None),
        ("rows.tsv", tsv.encode(), read, None),
        ("rows.jsonl", jsonl, read, None),
        ("rows.json", json.dumps(rows).encode(), read, write_json_bytes),
        ("rows.parquet", buffer.getvalue(), read, None),
        ("rows.jsonl.gz", gzip.compress(jsonl, mtime=0), read, None),
        ("spans.json", json.dumps([answers] * 2).encode(), lambda path: examples_from(path, spans), write_json_bytes),
        ("tags.json", json.dumps([tokens] * 2).encode(), lambda path: examples_from(path, tags), write_json_bytes),
        ("sets.json", json.dumps(rows[:3]).encode(), lambda path: examples_from(path, sets), write_json_bytes),
    ]
    return [Target(name, data, _written(folder / name, reader), values) for name, data, reader, values in files]


def _setting_targets(folder: Path) -> list[Target]:
    from softcue.configuration import merged, parse_overrides, read_settings, resolve
    from softcue.studies import read_study
    from softcue.tasks import find_task

    task = {
        "name": "tickets",
        "text": ["message"],
        "label": "team",
        "kind": "classification",
        "labels": {"billing": {"words": "billing", "description": "It is about a bill"}, "other": {"words": "other"}},
        "template": "{message} It is about:",
        "metric": "accuracy",
        "train": "train.csv",
    }
    settings = {
        "backbone": {"name": "minilm", "dtype": "float32"},
        "task": {"train": "rows.csv", "text": "text", "label": "label"},
        "method": {"name": "m-idpg-phm", "prompt_length": 5, "phm_n": 4, "bottleneck": 16},
        "readout": {"name": "classifier", "dropout": 0.1},
        "training": {"epochs": 3, "batch_size": 16, "learning_rate": 0.3, "seed": 1},
    }
    study = {
        "name": "small",
        "backbones": ["minilm"],
        "tasks": ["tickets"],
        "methods": ["linear-probe", {"name": "prompt-tuning", "settings": {"method.prompt_length": 2}}],
        "seeds": 2,
        "settings": {"training.steps": 2},
    }

    def read_configuration(path: Path) -> object:
        return resolve(merged(read_settings(path)), "encoder")

    def read_words(data: bytes) -> object:
        return resolve(parse_overrides(data.decode("utf-8", "surrogateescape").split(" ")), "encoder")

    words = b"training.epochs=3 method.name=vip method.prompt_length=10 task.label_words.0=negative training.seed=1"
    return [
        Target("task.yaml", write_json_bytes(task), _written(folder / "task.yaml", find_task), write_json_bytes),
        Target(
            "run.yaml", write_json_bytes(settings), _written(folder / "run.yaml", read_configuration), write_json_bytes
        ),
        Target("study.yaml", write_json_bytes(study), _written(folder / "study.yaml", read_study), write_json_bytes),
        Target("overrides", words, read_words),
    ]


def _cue_targets(folder: Path) -> list[Target]:
    """Cues whose cue.json is damaged, or changed with a digest that fits again; and their tensors, in the same ways."""
    from serving_cues import TOPICS, save_cue
    from tiny import tiny

    import softcue
    from softcue.cue.cue_file import cue_file_digest
    from softcue.cue.signatures import read_public_keys, sign_cue, write_new_key

    backbone = tiny("bert")
    targets = []
    for case in ("prompt-tuning", "m-idpg-phm", "vip"):
        cue = folder / f"cue-{case}"
        save_cue(cue, TOPICS, case)
        files = {name: (cue / name).read_bytes() for name in ("cue.json", "cue.safetensors")}

        def load(data: bytes, name: str, cue: Path = cue, files: dict[str, bytes] = files) -> object:
            (cue / name).write_bytes(data)
            try:
                return softcue.load(cue, backbone)
            finally:
                (cue / name).write_bytes(files[name])

        def load_tensors(data: bytes, cue: Path = cue, files: dict[str, bytes] = files) -> object:
            record = json.loads(files["cue.json"])
            record["tensors_sha256"] = hashlib.sha256(data).hexdigest()
            (cue / "cue.json").write_bytes(resigned(record))
            (cue / "cue.safetensors").write_bytes(data)
            try:
                return softcue.load(cue, backbone)
            finally:
                for name, content in files.items():
                    (cue / name).write_bytes(content)

        def resigned(value: Any) -> bytes:
            if isinstance(value, dict):
                value["record_sha256"] = cue_file_digest(value)
            return write_json_bytes(value)

        targets += [
            Target(f"cue.json, {case}", files["cue.json"], partial(load, name="cue.json"), resigned),
            Target(f"cue.safetensors, {case}", files["cue.safetensors"], load_tensors),
        ]
    public = write_new_key(folder / "team.key")
    signature = sign_cue(folder / "cue-vip", folder / "team.key")
    example = signature.read_bytes()

    def check_signature(data: bytes) -> object:
        signature.write_bytes(data)
        try:
            return softcue.load(signature.parent, backbone, require_signature=public)
        finally:
            signature.write_bytes(example)

    keys = Target("public keys", public.read_bytes(), _written(folder / "other.pub", read_public_keys))
    return [*targets, Target("signature", example, check_signature), keys]


def _run_targets(folder: Path) -> list[Target]:
    """Checkpoints and tokens on disk, whose digests fit again after the change."""
    import torch
    from tiny import tiny
    from toy import EXAMPLES, make_model

    from softcue.inputs import token_cache
    from softcue.inputs.packed_rows import pack_rows
    from softcue.training.checkpoints import Checkpoint, Checkpoints, TrainingState

    checkpoints = Checkpoints(folder / "run" / "checkpoints", "digest")
    tensors = {"method.prompt": torch.randn(4, 8)}
    parts = {"model": tensors, "best": tensors, "optimizer": {"method.prompt/exp_avg": torch.randn(4, 8)}}
    checkpoints.save(Checkpoint(TrainingState(3, [{"step": 3, "score": 0.5}], best_step=2, num_worse=1), parts))
    [saved] = checkpoints.folder.iterdir()
    files = {name: (saved / name).read_bytes() for name in ("state.json", "state.safetensors", "manifest.json")}

    def read_checkpoint(name: str) -> Read:
        def read(data: bytes) -> object:
            changed = files | {name: data}
            if name != "manifest.json":
                digests = {file: hashlib.sha256(content).hexdigest() for file, content in changed.items()}
                changed["manifest.json"] = json.dumps(
                    {key: digests[key] for key in digests if key != "manifest.json"}
                ).encode()
            for file, content in changed.items():
                (saved / file).write_bytes(content)
            checkpoint, _ = checkpoints.newest()
            return checkpoint is not None and checkpoint.state.is_possible(10)

        return read

    formatter = make_model(tiny("bert")).formatter
    packed = pack_rows(formatter.iterate_sources(EXAMPLES))
    whole = b"".join(token_cache.file_chunks(packed.arrays))
    path = folder / "tokens.safetensors"

    def read_resigned_tokens(data: bytes) -> object:
        """The arrays of a damaged file with a digest that fits, if they can be read at all."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        with contextlib.suppress(SafetensorError, ValueError, KeyError):
            changed = {name: value for name, value in load(data).items() if name != token_cache.DIGEST}
            data = b"".join(token_cache.file_chunks(changed))
        path.write_bytes(data)
        return token_cache._read(path, len(EXAMPLES), formatter)

    return [
        Target("state.json", files["state.json"], read_checkpoint("state.json"), write_json_bytes),
        Target("state.safetensors", files["state.safetensors"], read_checkpoint("state.safetensors")),
        Target("manifest.json", files["manifest.json"], read_checkpoint("manifest.json"), write_json_bytes),
        Target(
            "tokens.safetensors", whole, _written(path, lambda file: token_cache._read(file, len(EXAMPLES), formatter))
        ),
        Target("tokens.safetensors, digest renewed", whole, read_resigned_tokens),
    ]
