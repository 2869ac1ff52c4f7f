"""The content of cue.json: everything a cue depends on besides its parameters, checked when it is read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

import softcue
from softcue.backbones import Backbone, Fingerprint
from softcue.cue.signatures import PublicKeys, check_signature
from softcue.errors import ConfigurationError, CueError, as_configuration_error
from softcue.files import read_within, sha256
from softcue.readouts import ReadoutConfig
from softcue.selection import CANDIDATES
from softcue.tasks import Task
from softcue.tasks.task import is_unicode
from softcue.types import ConstantPrediction

FORMAT = 1
SIZE_LIMIT = 16 << 20  # bytes of cue.json
TRY_AGAIN = "restore the folder or train again"


class CueBackbone(BaseModel):
    """The backbone a cue was trained on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    kind: str
    dtype: str
    quantization: str = "none"  # of the frozen weights; cues of version 0.1 do not say it
    max_length: int
    fingerprint: dict[str, str]

    @classmethod
    def of(cls, backbone: Backbone, max_length: int) -> Self:
        """Describe a backbone: a folder or file by its full path, so that a cue loads from any working directory."""
        name, folder = backbone.name, backbone.folder
        if name.endswith(".gguf") and Path(name).is_file():
            name = str(Path(name).resolve())
        elif folder is not None and Path(name).is_dir():
            name = str(folder.resolve())
        return cls(
            name=name,
            kind=backbone.kind,
            dtype=str(backbone.dtype).removeprefix("torch."),
            quantization=backbone.quantization,
            max_length=max_length,
            fingerprint=asdict(backbone.fingerprint),
        )

    @field_validator("fingerprint")
    @classmethod
    def _all_parts(cls, parts: dict[str, str]) -> dict[str, str]:
        if parts.keys() != Fingerprint.__dataclass_fields__.keys():
            raise ValueError(f"digests of {', '.join(Fingerprint.__dataclass_fields__)}")
        return parts


class CueRecipe(BaseModel):
    """The recipe a cue was trained with."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str  # default or paper
    summary: str  # one sentence: how its settings differ from the paper's


class CueFile(BaseModel):
    """The content of cue.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int
    task: Task
    method: dict[str, Any]
    readout: ReadoutConfig
    backbone: CueBackbone
    training: dict[str, Any] = Field(default_factory=dict)
    scores: dict[str, dict[str, float]] = Field(default_factory=dict)  # split -> metric -> score
    rows: dict[str, int] = Field(default_factory=dict)  # split -> number of rows; empty in cues of version 0.1
    baselines: dict[str, dict[str, dict[str, float]]] = Field(default_factory=dict)  # split -> baseline -> metric
    counts: dict[str, int] = Field(default_factory=dict)
    recipe: CueRecipe | None = None  # None in cues of version 0.1
    versions: dict[str, str] = Field(default_factory=dict)
    tensors_sha256: str
    record_sha256: str = ""  # of everything above, so that an edited file is an error

    @property
    def imported_from(self) -> str:
        """Where the parameters come from if softcue has not trained them; else empty."""
        return str(self.training.get("imported_from", ""))

    @property
    def has_kept_start(self) -> bool:
        """Whether training took steps and none was better than the start, so that the parameters are as they began."""
        best_step, num_steps = self.training.get("best_step"), self.training.get("steps_done")
        return best_step == 0 and isinstance(num_steps, int) and num_steps > 0

    def num_rows(self, split: str) -> int | None:
        """The number of rows of a split; None if the cue does not say it (the test rows of version 0.1).

        Example:
            read_cue_file(Path("cues/tickets")).num_rows("test")
        """
        num_rows = self.rows.get(split, self.training.get(f"{split}_rows"))
        return num_rows if isinstance(num_rows, int) else None

    @property
    def constant_prediction(self) -> ConstantPrediction:
        """The training rows' most frequent label or set of labels, or their mean target; None if it is not recorded."""
        value = self.training.get("constant_prediction")
        if isinstance(value, (list, tuple)):
            return tuple(map(str, value))
        return value if isinstance(value, (str, float)) else None


def check_each_once(paths: Sequence[Path]) -> None:
    """Raise an error if a cue folder is named twice.

    Example:
        check_each_once([Path("cues/tickets"), Path("cues/urgency")])
    """
    if len({path.resolve() for path in paths}) < len(paths):
        raise ConfigurationError(
            setting="cues", got=", ".join(map(str, paths)), expected="every cue once", fix="leave out the copy"
        )


def read_cue_file(folder: Path, signers: PublicKeys | None = None) -> CueFile:
    """Read and check cue.json; with `signers`, also that one of them has signed it.

    Example:
        read_cue_file(Path("cues/tickets")).task.labels
    """
    file = folder / "cue.json"
    if not os.path.isfile(file):  # os.path, because pathlib raises for names no file can have
        is_unfinished = any(os.path.isdir(folder / part) for part in ("checkpoints", CANDIDATES))
        hint = "finish its run with `resume=True`" if is_unfinished else "check the path"
        raise CueError(setting="cue", got=folder, expected="a folder with cue.json", fix=hint)
    try:
        data = read_within(file, SIZE_LIMIT)  # once: what is signed is what is read
        if signers is not None:
            check_signature(folder, data, signers)
        values = json.loads(data.decode())
        if not is_unicode(values):
            raise ValueError("half of a character in an escape sequence")
    except (OSError, ValueError, RecursionError) as error:
        raise CueError(setting=str(file), got=str(error), expected="valid JSON", fix=TRY_AGAIN) from error
    if isinstance(values, dict) and values.get("format", FORMAT) != FORMAT:
        advice = "load it with a newer softcue"
        raise CueError(setting=f"{file}, format", got=values["format"], expected=f"format {FORMAT}", fix=advice)
    try:
        cue_file = CueFile.model_validate(values)
    except ValidationError as error:
        reason = str(as_configuration_error("cue.json", error))
        raise CueError(setting=str(file), got=reason, expected="a cue record of softcue", fix=TRY_AGAIN) from error
    if (digest := cue_file_digest(values)) != cue_file.record_sha256:
        raise CueError(
            setting=str(file),
            got=f"content with sha256 {digest}",
            expected=f"sha256 {cue_file.record_sha256}",
            fix=f"it was changed after it was written; {TRY_AGAIN}",
        )
    return cue_file


def check_tensors(folder: Path, cue_file: CueFile) -> None:
    """Raise an error unless the parameters beside cue.json are those that it records.

    Example:
        check_tensors(folder, read_cue_file(folder))
    """
    file = folder / "cue.safetensors"
    try:
        digest = sha256(file)
    except OSError as error:
        raise CueError(
            setting=str(file), got=error.strerror or "unreadable", expected="the cue's parameters", fix=TRY_AGAIN
        ) from error
    if digest != cue_file.tensors_sha256:
        expected = f"sha256 {cue_file.tensors_sha256}, as in a whole cue"
        raise CueError(setting=str(file), got=f"sha256 {digest}", expected=expected, fix=TRY_AGAIN)


def cue_file_digest(values: Mapping[str, Any]) -> str:
    """Digest of the content of cue.json, whatever the layout of the file."""
    content = {key: value for key, value in values.items() if key != "record_sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def package_versions() -> dict[str, str]:
    """Versions of the packages that can change a result."""
    return {"softcue": softcue.__version__, "torch": version("torch"), "transformers": version("transformers")}
