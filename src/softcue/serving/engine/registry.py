"""Cues of one folder by name, loaded, replaced and unloaded while others are served.

A cue that cannot be loaded is reported and does not affect the others. A `LoadedCue` stays valid after it is replaced:
rows in flight finish on the version they started with.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import get_args

from softcue.backbones import Backbone, Quantization
from softcue.cue.cue import LOADED_FORMATS, Cue, load
from softcue.cue.cue_file import CueBackbone, CueFile, read_cue_file
from softcue.cue.signatures import PublicKeys
from softcue.errors import BackboneMismatchError, ConfigurationError, SoftcueError
from softcue.inference import TaskModel
from softcue.inference.task_model import with_readout
from softcue.serving.errors import RequestError, load_deadline_exceeded, unknown_task
from softcue.serving.vllm.connect import check_cue
from softcue.tasks import Task

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
FILES = ("cue.json", "cue.safetensors")
VERSION_LENGTH = 12  # hexadecimal digits of the cue file's digest
MAX_MODELS = 8  # models of a cue that are kept for other values of max_new_tokens
LOADS_AT_ONCE = 4
LOAD_SECONDS = 300.0  # after which nobody waits for a cue any more, as on a file system that does not answer
logger = logging.getLogger("softcue.serving")


@dataclass(frozen=True, eq=False)
class LoadedCue:
    """One version of a cue."""

    name: str
    version: str
    cue: Cue
    task: Task
    model: TaskModel
    _models: dict[int, TaskModel] = field(default_factory=dict, repr=False)  # by max_new_tokens

    @classmethod
    def of(cls, name: str, cue: Cue) -> LoadedCue:
        """A loaded cue under a name."""
        return cls(name, cue.cue_file.record_sha256[:VERSION_LENGTH], cue, cue.task, cue.model)

    @cached_property
    def versions(self) -> Mapping[str, str]:
        """The version by the name, as a prediction of this cue alone says it."""
        return {self.name: self.version}

    def model_for(self, max_new_tokens: int) -> TaskModel:
        """The cue's model with another limit of generated tokens; requests with equal limits share a pass."""
        if (cached := self._models.get(max_new_tokens)) is not None:
            return cached
        readout = self.model.readout.config.model_copy(update={"max_new_tokens": max_new_tokens})
        model = with_readout(self.task, self.model.method, readout, self.cue.backbone, self.model.max_length).eval()
        if len(self._models) < MAX_MODELS:
            self._models[max_new_tokens] = model
        return model

    def as_dict(self) -> dict[str, object]:
        """The facts of the cue that a client needs, for JSON."""
        record = self.cue.cue_file
        return {
            "name": self.name,
            "version": self.version,
            "task": record.task.name,
            "description": record.task.description,
            "kind": record.task.kind,
            "text": list(record.task.text),
            "labels": [record.task.label_value(name) for name in record.task.label_names],
            "method": record.method["name"],
            "prompt_length": self.model.method.prompt_length,
            "max_length": self.model.formatter.limit,
            "metric": record.task.main_metric,
            "scores": record.scores,
            "rows": split_rows(record),
        }


class Registry:
    """The loaded cues of a folder, or cues that are loaded already.

    Example:
        registry = Registry(Path("cues"), backbone)
        registry.load_all()
        registry["tickets"].version
    """

    def __init__(
        self,
        folder: Path | None,
        backbone: Backbone,
        cues: Mapping[str, Cue] | None = None,
        signers: PublicKeys | None = None,
    ) -> None:
        if folder is not None and not folder.is_dir():
            raise ConfigurationError(
                setting="cues folder", got=folder, expected="a folder with a folder per cue", fix="check the path"
            )
        self._folder, self._backbone = None if folder is None else folder.resolve(), backbone
        for cue in (cues or {}).values():
            self._check(cue)
        self._signers = signers  # of the cues of the folder; None: any cue
        # Both mappings are replaced as a whole: readers need no lock.
        self._loaded: Mapping[str, LoadedCue] = {name: LoadedCue.of(name, cue) for name, cue in (cues or {}).items()}
        self._broken: Mapping[str, RequestError] = {}
        # Held only while a mapping is replaced, never while a folder is read: its file system may not answer.
        self._lock = threading.Lock()
        self._num_changes = 0
        self._changes: dict[str, int] = {}  # name -> the newest load or unload that took effect
        self._slots = threading.Semaphore(LOADS_AT_ONCE)

    def __getitem__(self, name: str) -> LoadedCue:
        """The current version of a cue."""
        if (loaded_cue := self._loaded.get(name)) is not None:
            return loaded_cue
        error = self._broken.get(name)
        raise unknown_task(name, self._loaded) if error is None else error.copy()

    def __len__(self) -> int:
        """The number of loaded cues."""
        return len(self._loaded)

    def loaded(self) -> list[LoadedCue]:
        """All loaded cues, by name."""
        return [loaded_cue for _, loaded_cue in sorted(self._loaded.items())]

    def broken(self) -> dict[str, RequestError]:
        """Cues that could not be loaded, with their errors."""
        return dict(sorted(self._broken.items()))

    def of_task(self, task: str) -> list[LoadedCue]:
        """All loaded cues that were trained on a task of that name."""
        return [loaded_cue for loaded_cue in self.loaded() if loaded_cue.task.name == task]

    def load_all(self) -> None:
        """Load every cue of the folder; cues that cannot be loaded are in `broken`."""
        for path in sorted(self._folder.iterdir()) if self._folder else ():
            try:
                if not (path / "cue.json").is_file():
                    continue
            except OSError as error:  # such as lost+found of a volume
                facts = {"folder": path.name, "error": type(error).__name__}
                logger.warning("folder not read", extra={"facts": facts})
                continue
            try:
                self.load(path.name)
            except RequestError as request_error:
                if request_error.code == "invalid":  # the folder has a bad name: report it as a broken cue
                    self._broken = {**self._broken, path.name: request_error}
                logger.warning("cue not loaded", extra={"facts": {"cue": path.name, **request_error.as_dict()}})

    def load(self, name: str) -> LoadedCue:
        """Load a cue, or replace it by the current content of its folder; after an error the old version stays."""
        try:
            return self.start_load(name).result(LOAD_SECONDS)
        except TimeoutError:
            raise load_deadline_exceeded() from None

    def start_load(self, name: str) -> Future[LoadedCue]:
        """Load a cue in a thread of its own. Other cues can be loaded and unloaded meanwhile.

        Example:
            await asyncio.wait_for(asyncio.wrap_future(registry.start_load("tickets")), LOAD_SECONDS)
        """
        with self._lock:
            self._num_changes += 1
            number = self._num_changes
        result: Future[LoadedCue] = Future()
        result.set_running_or_notify_cancel()
        # A daemon: a file system that never answers does not keep the process from ending.
        threading.Thread(target=self._load, args=(name, number, result), name="softcue-load", daemon=True).start()
        return result

    def _load(self, name: str, number: int, result: Future[LoadedCue]) -> None:
        """Read a cue and put it in place, unless it was loaded or unloaded by a later request meanwhile."""
        try:
            with self._slots:
                loaded_cue = self._read(name)
        except RequestError as error:
            with self._lock:
                others = {other: reason for other, reason in self._broken.items() if other != name}
                is_broken = name not in self._loaded and error.code in ("broken_cue", "wrong_backbone")
                self._broken = {**others, name: error.copy()} if is_broken else others
            result.set_exception(error)
            return
        except BaseException as error:  # nobody should wait until the deadline
            result.set_exception(error)
            raise
        with self._lock:
            if number > self._changes.get(name, 0):
                self._changes[name] = number
                self._loaded = {**self._loaded, name: loaded_cue}
                self._broken = {other: reason for other, reason in self._broken.items() if other != name}
        result.set_result(loaded_cue)

    def unload(self, name: str) -> LoadedCue:
        """Remove a cue; its folder stays."""
        with self._lock:
            if name not in self._loaded:
                raise unknown_task(name, self._loaded)
            self._num_changes += 1
            self._changes[name] = self._num_changes
            unloaded = self._loaded[name]
            self._loaded = {other: loaded_cue for other, loaded_cue in self._loaded.items() if other != name}
            return unloaded

    def _read(self, name: str) -> LoadedCue:
        try:
            cue = load(self._folder_of(name), self._backbone, require_signature=self._signers)
            self._check(cue)
        except RequestError:
            raise
        except BackboneMismatchError as error:
            raise RequestError(
                "wrong_backbone",
                setting="cue",
                problem=f"it was trained on another backbone than the one served, {self._backbone.name} "
                f"({' and '.join(error.differences)} differ)",
                fix="serve it with its own backbone",
            ) from error
        except SoftcueError as error:
            where = Path(error.setting).name  # without the path of this machine
            raise RequestError(
                "broken_cue", setting=f"cue folder ({where})", expected=error.expected, fix=error.fix
            ) from error
        except Exception as error:  # an error of one folder must not stop the others
            raise RequestError(
                "broken_cue",
                setting=f"cue folder ({type(error).__name__})",
                expected="a cue that can be loaded",
                fix="see the server's log",
            ) from error
        self._warn_of_other_numbers(name, cue)
        if cue.model.runs_in_torch:
            logger.warning("cue runs in torch", extra={"facts": {"cue": name}})
        return LoadedCue.of(name, cue)

    def _warn_of_other_numbers(self, name: str, cue: Cue) -> None:
        """Log that a cue was trained in more digits than it is served in: its probabilities move by rounding."""
        trained, served = cue.cue_file.backbone.dtype, str(self._backbone.dtype).removeprefix("torch.")
        if trained != served and served != "float32":
            facts = {"cue": name, "trained": trained, "served": served, "fix": "serve with --dtype float32"}
            logger.warning("cue in another number format", extra={"facts": facts})

    def _check(self, cue: Cue) -> None:
        """Raise an error if the program that runs the backbone cannot compute the cue's predictions."""
        if self._backbone.server is not None:
            check_cue(cue.name, cue.model, self._backbone)

    def _folder_of(self, name: str) -> Path:
        """The folder of a cue; neither the folder nor its files may lead out of the cues folder."""
        if not NAME.fullmatch(name):
            raise RequestError(
                "invalid",
                setting="name",
                expected="letters, digits, '.', '_' and '-', at most 64, a letter or digit first",
                fix="rename the folder",
            )
        if self._folder is None:
            raise RequestError(
                "unknown_task",
                setting="cue",
                problem="this engine was given its cues, and has no cues folder to look in",
                fix="start it with a cues folder",
            )
        if not (folder := self._folder / name).is_dir():
            raise self._no_folder(name, self._folder)
        for path in (folder, *(folder / file for file in FILES)):
            if not path.resolve().is_relative_to(self._folder):
                raise RequestError(
                    "broken_cue",
                    setting="cue folder",
                    expected="files inside the cues folder",
                    fix="copy the files instead of linking them",
                )
        if not (folder / "cue.json").is_file():
            raise RequestError(
                "broken_cue",
                setting="cue folder",
                problem=f"{name}/ has no cue.json in it",
                fix="finish its training run with `softcue train --resume`, or copy the whole folder",
            )
        return folder

    def _no_folder(self, name: str, cues_folder: Path) -> RequestError:
        """The error for a cue without a folder: only an admin gets it, so it has the path of the cues folder."""
        names = [path.parent.name for path in sorted(cues_folder.glob("*/cue.json"))]
        close = get_close_matches(name, names, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        return RequestError(
            "unknown_task",
            setting="cue",
            problem=f"there is no folder {name}/ in the cues folder of the server, {cues_folder}",
            fix=f"put the cue's folder there, or correct the name{hint}",
        )


def split_rows(cue_file: CueFile) -> dict[str, int]:
    """The number of rows behind the scores of each split, as far as the cue file has it.

    Example:
        split_rows(cue.cue_file)     # {"validation": 66, "test": 126}
    """
    counts = {split: cue_file.num_rows(split) for split in cue_file.scores}
    return {split: num_rows for split, num_rows in counts.items() if num_rows is not None}


def recorded_settings(folder: Path, signers: PublicKeys | None = None) -> dict[str, str]:
    """The number format and the quantization in which most cues of a folder were trained.

    Served predictions of these cues equal the offline ones. If two formats have as many cues, it is float32.

    Example:
        recorded_settings(Path("cues"))     # {"dtype": "auto", "quantization": "none"}: most are in bfloat16
    """
    trained: list[CueBackbone] = []
    for path in sorted(folder.glob("*/cue.json")):
        try:
            trained.append(read_cue_file(path.parent, signers).backbone)
        except SoftcueError:
            continue  # the registry reports it when it loads the cue
    dtype = _most_common([backbone.dtype for backbone in trained], "float32")
    quantization = _most_common([backbone.quantization for backbone in trained], "none")
    is_setting = quantization in get_args(Quantization)  # else it is the checkpoint's
    return {"dtype": LOADED_FORMATS.get(dtype, "float32"), "quantization": quantization if is_setting else "none"}


def _most_common(values: Sequence[str], default: str) -> str:
    """The value that occurs most often; the default if several do, or if there are none."""
    counts = Counter(values).most_common(2)
    is_clear = len(counts) == 1 or (len(counts) == 2 and counts[0][1] > counts[1][1])
    return counts[0][0] if is_clear else default
