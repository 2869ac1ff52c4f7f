"""The cue folder: one task's trained numbers, what they belong to, and a card a person can read.

    cue.json          method, task, labels, backbone with fingerprint, versions, scores; written last
    cue.safetensors   the numbers, in float32
    metrics.json      scores, history, time and memory
    README.md         the card

Nothing here is pickled. Loading checks everything that could make a cue answer wrongly in silence.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from softcue.backbones import Backbone, BackboneConfig, Fingerprint, load_backbone
from softcue.configuration import as_configuration_error, method_config
from softcue.errors import CueError, DataError
from softcue.evaluation import Evaluation, evaluate, predict
from softcue.files import sha256, tensor_bytes, write_json, write_whole
from softcue.methods import METHODS, TaskModel
from softcue.readouts import ReadoutConfig, make_readout
from softcue.tasks import Source, Task, examples_from
from softcue.types import Counts, Example, Prediction

FORMAT = 1
Text = str | Sequence[str]


class BackboneRecord(BaseModel):
    """The backbone a cue was trained on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    kind: str
    dtype: str
    max_length: int
    fingerprint: dict[str, str]


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


class Cue:
    """A trained task on its frozen backbone.

    Example:
        cue = softcue.load("cues/tickets")
        cue.predict(["My invoice is wrong."])[0].label
    """

    def __init__(self, model: TaskModel, backbone: Backbone, record: CueRecord, path: Path | None = None) -> None:
        self.model, self.backbone, self.record, self.path = model, backbone, record, path

    @property
    def name(self) -> str:
        """The folder's name, else the task's."""
        return self.path.name if self.path else self.record.task.name

    @property
    def task(self) -> Task:
        """The task it was trained on."""
        return self.record.task

    @property
    def scores(self) -> dict[str, dict[str, float]]:
        """Scores by split and metric."""
        return self.record.scores

    @property
    def counts(self) -> Counts:
        """How many numbers it adds to the backbone."""
        return self.model.counts()

    def predict(self, texts: Text | Sequence[Text] | Source, batch_size: int = 64) -> list[Prediction]:
        """Answers, in order, for one text, a list of texts (or pairs), a DataFrame, rows or a file.

        Example:
            cue.predict("Where is my parcel?")[0].label
            cue.predict([("first message", "second message")])     # a task that reads two texts
        """
        requests = [(self.model, example) for example in self.examples(texts)]
        return predict(self.backbone, requests, batch_size).answers

    def evaluate(self, data: Source, batch_size: int = 64) -> Evaluation:
        """Scores on rows with known answers: a file, a DataFrame or a list of dictionaries."""
        return evaluate(self.backbone, self.model, examples_from(data, self.task), batch_size)

    def examples(self, texts: Any) -> list[Example]:
        """Whatever `predict` takes, as checked examples."""
        columns = self.task.text
        if isinstance(texts, Path) or (isinstance(texts, str) and _names_a_file(texts)):
            return examples_from(texts, self.task, needs_target=False)
        if isinstance(texts, str):
            texts = [texts]
        if isinstance(texts, tuple) and len(texts) == len(columns) == 2 and all(isinstance(t, str) for t in texts):
            texts = [texts]
        if not isinstance(texts, Sequence):
            return examples_from(texts, self.task, needs_target=False)
        rows: list[Any] = []
        for number, text in enumerate(texts, start=1):
            if isinstance(text, dict):
                rows.append(text)
                continue
            parts = (text,) if isinstance(text, str) else tuple(text)
            if len(parts) != len(columns):
                raise DataError(f"row {number}", text, f"{len(columns)} text(s): {', '.join(columns)}",
                                "pass one string, or a pair for a task that reads two")  # fmt: skip
            rows.append(dict(zip(columns, parts, strict=True)))
        return examples_from(rows, self.task, needs_target=False) if rows else []

    def save(self, folder: str | Path, metrics: dict[str, Any] | None = None) -> Path:
        """Write the cue folder; cue.json comes last, so a folder that has it is whole."""
        from softcue.card import model_card

        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        tensors = {name: value.float() for name, value in self.model.state_dict().items()}
        for name, value in tensors.items():
            if not bool(torch.isfinite(value).all()):
                raise CueError(f"tensor '{name}'", "NaN or infinity", "finite numbers", "train with a lower rate")
        write_whole(target / "cue.safetensors", tensor_bytes(tensors))
        record = self.record.model_copy(update={"tensors_sha256": sha256(target / "cue.safetensors")})
        write_json(target / "metrics.json", metrics or {"scores": record.scores})
        write_whole(target / "README.md", model_card(record, target.name).encode())
        write_json(target / "cue.json", record.model_dump(mode="json"))
        self.record, self.path = record, target
        return target


def load(path: str | Path, backbone: Backbone | str | None = None) -> Cue:
    """A cue from its folder, on its own backbone or on one given (shared by several cues, say).

    Example:
        tickets = softcue.load("cues/tickets")
        urgency = softcue.load("cues/urgency", backbone=tickets.backbone)
    """
    folder = Path(path)
    record = read_record(folder)
    if not isinstance(backbone, Backbone):
        settings = {} if record.backbone.dtype == "bfloat16" else {"dtype": "float32"}
        name = backbone or record.backbone.name
        backbone = load_backbone(BackboneConfig.model_validate({"name": name, **settings}))
    _check_backbone(folder, record, backbone)
    model = build_model(record, backbone)
    model.load_state_dict(_checked_tensors(folder, record, model))
    return Cue(model.to(backbone.device).eval(), backbone, record, folder)


def build_model(record: CueRecord, backbone: Backbone) -> TaskModel:
    """The model a record describes, its numbers still to be loaded."""
    config = method_config(record.method)
    method = METHODS[config.name].build(config, backbone, record.task, None)
    readout = make_readout(record.readout, record.task, backbone)
    return TaskModel(record.task, method, readout, backbone, record.backbone.max_length)


def read_record(folder: Path) -> CueRecord:
    """cue.json, checked."""
    file = folder / "cue.json"
    if not file.is_file():
        hint = "finish its run with --resume" if (folder / "checkpoints").is_dir() else "check the path"
        raise CueError("cue", folder, "a folder with cue.json", hint)
    try:
        values = json.loads(file.read_text("utf-8"))
        if isinstance(values, dict) and values.get("format", FORMAT) != FORMAT:
            raise CueError(f"{file}, format", values["format"], f"format {FORMAT}", "load it with a newer softcue")
        return CueRecord.model_validate(values)
    except ValidationError as error:
        raise CueError(str(file), str(as_configuration_error("cue.json", error)), "a cue record of softcue",
                       "restore the folder or train again") from error  # fmt: skip
    except ValueError as error:
        raise CueError(str(file), str(error), "valid JSON", "restore the folder or train again") from error


def _check_backbone(folder: Path, record: CueRecord, backbone: Backbone) -> None:
    expected = Fingerprint(**record.backbone.fingerprint)
    if differences := expected.differences(backbone.fingerprint):
        raise CueError(
            f"backbone of {folder}", f"{backbone.name} {vars(backbone.fingerprint)}",
            f"{record.backbone.name} {vars(expected)}",
            f"{' and '.join(differences)} differ; load the cue on the backbone it was trained on",
        )  # fmt: skip


def _checked_tensors(folder: Path, record: CueRecord, model: TaskModel) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = folder / "cue.safetensors"
    again = "restore the folder or train again"
    if not file.is_file():
        raise CueError(str(file), "no such file", "the cue's numbers", again)
    if sha256(file) != record.tensors_sha256:
        raise CueError(str(file), "other content than cue.json records", f"sha256 {record.tensors_sha256}",
                       "restore the file; if a run was interrupted here, --resume it")  # fmt: skip
    try:
        tensors: dict[str, Tensor] = load_file(file)
    except (SafetensorError, OSError, ValueError) as error:
        raise CueError(str(file), str(error), "a readable safetensors file", again) from error
    expected = model.state_dict()
    if missing := sorted(set(expected) - set(tensors)):
        raise CueError(str(file), f"no tensor '{missing[0]}'", f"tensors {sorted(expected)}", again)
    if extra := sorted(set(tensors) - set(expected)):
        raise CueError(str(file), f"tensor '{extra[0]}'", f"tensors {sorted(expected)} only", again)
    for name, value in tensors.items():
        if value.shape != expected[name].shape:
            raise CueError(f"{file}, tensor '{name}'", list(value.shape), f"shape {list(expected[name].shape)}", again)
        if not math.isfinite(float(value.double().abs().sum())):
            raise CueError(f"{file}, tensor '{name}'", "NaN or infinity", "finite numbers", again)
    return tensors


def _names_a_file(text: str) -> bool:
    """A path to rows rather than a text to read: a data suffix and an existing file."""
    return len(text) < 4096 and text.endswith((".csv", ".tsv", ".jsonl", ".parquet")) and Path(text).is_file()
