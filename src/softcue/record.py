"""What cue.json holds: everything a cue depends on besides its numbers, checked when it is read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from softcue.backbones import Fingerprint
from softcue.configuration import as_configuration_error
from softcue.errors import CueError
from softcue.readouts import ReadoutConfig
from softcue.tasks import Task

FORMAT = 1
TRY_AGAIN = "restore the folder or train again"


class BackboneRecord(BaseModel):
    """The backbone a cue was trained on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    kind: str
    dtype: str
    max_length: int
    fingerprint: dict[str, str]

    @field_validator("fingerprint")
    @classmethod
    def _all_parts(cls, parts: dict[str, str]) -> dict[str, str]:
        if parts.keys() != Fingerprint.__dataclass_fields__.keys():
            raise ValueError(f"digests of {', '.join(Fingerprint.__dataclass_fields__)}")
        return parts


class CueRecord(BaseModel):
    """What cue.json holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int
    task: Task
    method: dict[str, Any]
    readout: ReadoutConfig
    backbone: BackboneRecord
    training: dict[str, Any] = Field(default_factory=dict)
    scores: dict[str, dict[str, float]] = Field(default_factory=dict)  # split -> metric -> score
    counts: dict[str, int] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)
    tensors_sha256: str
    record_sha256: str = ""  # of everything above, so that a changed label or length cannot answer wrongly


def read_record(folder: Path) -> CueRecord:
    """cue.json, checked."""
    file = folder / "cue.json"
    if not os.path.isfile(file):  # os.path, because pathlib raises for names no file can have
        hint = "finish its run with --resume" if os.path.isdir(folder / "checkpoints") else "check the path"
        raise CueError("cue", folder, "a folder with cue.json", hint)
    try:
        values = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CueError(str(file), str(error), "valid JSON", TRY_AGAIN) from error
    if isinstance(values, dict) and values.get("format", FORMAT) != FORMAT:
        advice = "load it with a newer softcue"
        raise CueError(f"{file}, format", values["format"], f"format {FORMAT}", advice)
    try:
        record = CueRecord.model_validate(values)
    except ValidationError as error:
        reason = str(as_configuration_error("cue.json", error))
        raise CueError(str(file), reason, "a cue record of softcue", TRY_AGAIN) from error
    if (digest := record_digest(values)) != record.record_sha256:
        raise CueError(str(file), f"content with sha256 {digest}", f"sha256 {record.record_sha256}",
                       f"it was changed after it was written; {TRY_AGAIN}")  # fmt: skip
    return record


def record_digest(values: Mapping[str, Any]) -> str:
    """Of a record's content, however it is laid out."""
    content = {key: value for key, value in values.items() if key != "record_sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
