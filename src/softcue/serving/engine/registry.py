"""Cues of one folder by name, loaded, replaced and unloaded while others are answered.

A cue that cannot be loaded is reported and never disturbs the rest. Whoever holds a `LoadedCue` cue keeps it: rows that
are under way when it is replaced finish on the version they began with.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from softcue.backbones import Backbone, Fingerprint
from softcue.cue.cue import Cue, load
from softcue.cue.cue_file import CueFile, read_cue_file
from softcue.errors import ConfigurationError, SoftcueError
from softcue.inference import TaskModel
from softcue.inference.task_model import with_readout
from softcue.serving.errors import RequestError, unknown_task

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
FILES = ("cue.json", "cue.safetensors")
VERSION_LENGTH = 12  # hexadecimal digits of the record's digest
KEPT_LENGTHS = 8  # answer lengths of a cue whose model is kept
logger = logging.getLogger("softcue.serving")


@dataclass(frozen=True, eq=False)
class LoadedCue:
    """One version of a cue."""

    name: str
    version: str
    cue: Cue
    _writing: dict[int, TaskModel] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, name: str, cue: Cue) -> LoadedCue:
        """A loaded cue under a name."""
        return cls(name, cue.cue_file.record_sha256[:VERSION_LENGTH], cue)

    def writing(self, max_new_tokens: int) -> TaskModel:
        """The cue's model, but with answers of at most so many tokens; rows that ask for the same share a pass."""
        if (known := self._writing.get(max_new_tokens)) is not None:
            return known
        model = self.cue.model
        readout = model.readout.config.model_copy(update={"max_new_tokens": max_new_tokens})
        found = with_readout(model.task, model.method, readout, self.cue.backbone, model.max_length).eval()
        if len(self._writing) < KEPT_LENGTHS:
            self._writing[max_new_tokens] = found
        return found

    def as_dict(self) -> dict[str, object]:
        """What a client should know of it, for JSON."""
        record = self.cue.cue_file
        return {
            "name": self.name,
            "version": self.version,
            "task": record.task.name,
            "description": record.task.description,
            "kind": record.task.kind,
            "text": list(record.task.text),
            "labels": list(record.task.label_names),
            "method": record.method["name"],
            "prompt_length": self.cue.model.method.prompt_length,
            "max_length": self.cue.model.formatter.limit,
            "scores": record.scores,
        }


class Registry:
    """The loaded cues of a folder, or cues that are loaded already.

    Example:
        registry = Registry(Path("cues"), backbone)
        registry.load_all()
        registry["tickets"].version
    """

    def __init__(self, folder: Path | None, backbone: Backbone, cues: Mapping[str, Cue] | None = None) -> None:
        if folder is not None and not folder.is_dir():
            raise ConfigurationError(
                setting="cues folder", got=folder, expected="a folder with a folder per cue", fix="check the path"
            )
        self._folder, self._backbone = None if folder is None else folder.resolve(), backbone
        # replaced as a whole: readers need no lock
        self._served: Mapping[str, LoadedCue] = {name: LoadedCue.of(name, cue) for name, cue in (cues or {}).items()}
        self._broken: Mapping[str, RequestError] = {}
        self._changing = threading.Lock()

    def __getitem__(self, name: str) -> LoadedCue:
        """The cue of that name as it is now."""
        if (found := self._served.get(name)) is not None:
            return found
        why = self._broken.get(name)
        raise unknown_task() if why is None else why.again()

    def __len__(self) -> int:
        """How many are loaded."""
        return len(self._served)

    def loaded(self) -> list[LoadedCue]:
        """All loaded cues, by name."""
        return [served for _, served in sorted(self._served.items())]

    def broken(self) -> dict[str, RequestError]:
        """Cues that could not be loaded, and why."""
        return dict(sorted(self._broken.items()))

    def of_task(self, task: str) -> list[LoadedCue]:
        """All loaded cues that were trained on a task of that name."""
        return [served for served in self.loaded() if served.cue.task.name == task]

    def load_all(self) -> None:
        """Load every cue of the folder; what cannot be loaded is in `broken`."""
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
            except RequestError as refusal:
                if refusal.code == "invalid":  # its folder's name: here it is a cue that is missed
                    self._broken = {**self._broken, path.name: refusal}
                logger.warning("cue not loaded", extra={"facts": {"cue": path.name, **refusal.as_dict()}})

    def load(self, name: str) -> LoadedCue:
        """Load a cue, or replace it by what its folder holds now; after a failure the old version stays."""
        with self._changing:
            try:
                found = self._read(name)
            except RequestError as refusal:
                others = {other: why for other, why in self._broken.items() if other != name}
                is_kept = name not in self._served and refusal.code in ("broken_cue", "wrong_backbone")
                self._broken = {**others, name: refusal} if is_kept else others
                raise
            self._served = {**self._served, name: found}
            self._broken = {other: why for other, why in self._broken.items() if other != name}
            return found

    def unload(self, name: str) -> LoadedCue:
        """Forget a cue; its folder stays."""
        with self._changing:
            if name not in self._served:
                raise unknown_task()
            found = self._served[name]
            self._served = {other: served for other, served in self._served.items() if other != name}
            return found

    def _read(self, name: str) -> LoadedCue:
        try:
            folder = self._folder_of(name)
            record = read_cue_file(folder)
            self._check_backbone(record)
            cue = load(folder, self._backbone)
        except RequestError:
            raise
        except SoftcueError as error:
            where = Path(error.setting).name  # no path of this machine
            raise RequestError(
                "broken_cue", setting=f"cue folder ({where})", expected=error.expected, fix=error.fix
            ) from error
        except Exception as error:  # whatever is wrong with one folder, the others are served
            raise RequestError(
                "broken_cue",
                setting=f"cue folder ({type(error).__name__})",
                expected="a cue that can be loaded",
                fix="see the server's log",
            ) from error
        return LoadedCue.of(name, cue)

    def _folder_of(self, name: str) -> Path:
        """The folder of a name; neither it nor its files may lead out of the cues folder."""
        if not NAME.fullmatch(name):
            raise RequestError(
                "invalid",
                setting="name",
                expected="letters, digits, '.', '_' and '-', at most 64, a letter or digit first",
                fix="rename the folder",
            )
        if self._folder is None or not (folder := self._folder / name).is_dir():
            raise unknown_task()
        for path in (folder, *(folder / file for file in FILES)):
            if not path.resolve().is_relative_to(self._folder):
                raise RequestError(
                    "broken_cue",
                    setting="cue folder",
                    expected="files inside the cues folder",
                    fix="copy them, no links",
                )
        return folder

    def _check_backbone(self, record: CueFile) -> None:
        own = Fingerprint(**record.backbone.fingerprint)
        if differences := own.differences(self._backbone.fingerprint):
            raise RequestError(
                "wrong_backbone",
                setting="cue",
                expected=f"one of {self._backbone.name}, the backbone served",
                fix=f"{' and '.join(differences)} differ; serve it where its own backbone is",
            )


def recorded_dtype(folder: Path) -> str:
    """The number format in which a folder's cues answer as they do offline: theirs, if all have one, else float32.

    Example:
        recorded_dtype(Path("cues"))     # "auto" where every cue was trained in bfloat16
    """
    found = set()
    for path in sorted(folder.glob("*/cue.json")):
        try:
            found.add(read_cue_file(path.parent).backbone.dtype)
        except SoftcueError:
            continue  # told of when it is loaded
    return "auto" if found == {"bfloat16"} else "float32"
