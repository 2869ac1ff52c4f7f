"""The cue folder: one task's trained numbers, what they belong to, and a card a person can read.

    cue.json          method, task, labels, backbone with fingerprint, versions, scores; written last
    cue.safetensors   the numbers, in float32
    metrics.json      scores, history, time and memory
    README.md         the card

Nothing here is pickled. Loading checks everything that could make a cue answer wrongly in silence.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from softcue.backbones import Backbone, BackboneConfig, Fingerprint, load_backbone
from softcue.configuration import method_config
from softcue.cue.cue_file import TRY_AGAIN, CueFile, cue_file_digest, read_cue_file
from softcue.cue.model_card import model_card
from softcue.errors import BackboneMismatchError, ConfigurationError, CueError, DataError
from softcue.evaluation import Evaluation
from softcue.evaluation.evaluation_set import evaluation_set
from softcue.files import sha256, tensor_bytes, writable, write_json, write_whole
from softcue.inference import TaskModel, make_task_model, predict
from softcue.methods import METHODS
from softcue.tasks import Source, Task, examples_from
from softcue.types import Counts, Example, Prediction

Text = str | Sequence[str]
DATA_SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".gz", ".parquet")


class Cue:
    """A trained task on its frozen backbone.

    Example:
        cue = softcue.load("cues/tickets")
        cue.predict(["My invoice is wrong."])[0].label
    """

    def __init__(self, model: TaskModel, backbone: Backbone, record: CueFile, path: Path | None = None) -> None:
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
        found = predict(self.backbone, requests, batch_size)
        if found.num_truncated:
            limit = self.model.formatter.limit
            warnings.warn(f"{found.num_truncated} of {len(requests)} texts were cut to {limit} tokens", stacklevel=2)
        return found.answers

    def evaluate(
        self,
        data: Source | None = None,
        batch_size: int = 64,
        *,
        task: str = "",
        split: str = "",
        num_rows: int = 0,
        skip_bad_rows: bool = False,
    ) -> Evaluation:
        """Scores on rows with known answers: a file, a DataFrame, a list of dictionaries, or another task's rows.

        Example:
            cue.evaluate("held-out.csv").main
            cue.evaluate("../data", task="mrpc").scores     # out of domain: a folder with MRPC's published files
        """
        test = evaluation_set(self.task, data, task, split, num_rows, skip_bad_rows)
        found = predict(self.backbone, [(self.model, example) for example in test.examples], batch_size)
        return test.transfer.score(found.answers, test.examples, found.num_truncated)

    def examples(self, texts: Any) -> list[Example]:
        """Whatever `predict` takes, as checked examples."""
        columns = self.task.text
        is_file = isinstance(texts, Path) or (isinstance(texts, str) and _names_a_file(texts))
        if is_file or (hasattr(texts, "columns") and hasattr(texts, "to_dict")):  # a file or a DataFrame
            return examples_from(texts, self.task, needs_target=False)
        is_pair = isinstance(texts, tuple) and len(texts) == len(columns) == 2
        if isinstance(texts, (str, Mapping)) or (is_pair and all(isinstance(text, str) for text in texts)):
            texts = [texts]
        advice = "pass one string, or a pair for a task that reads two"
        if isinstance(texts, bytes) or not isinstance(texts, Iterable):
            raise DataError(setting="texts", got=texts, expected="a text, a list of texts, rows or a file", fix=advice)
        rows: list[Any] = []
        for number, text in enumerate(texts, start=1):
            if isinstance(text, Mapping):
                rows.append(text)
                continue
            parts = tuple(text) if isinstance(text, (list, tuple)) else (text,)
            if len(parts) != len(columns):
                expected = f"{len(columns)} text(s): {', '.join(columns)}"
                raise DataError(setting=f"row {number}", got=text, expected=expected, fix=advice)
            rows.append(dict(zip(columns, parts, strict=True)))
        return examples_from(rows, self.task, needs_target=False) if rows else []

    def save(self, folder: str | Path, metrics: dict[str, Any] | None = None) -> Path:
        """Write the cue folder; cue.json comes last, so a folder that has it is whole."""
        target = Path(folder)
        tensors = {name: value.float() for name, value in self.model.state_dict().items()}
        for name, value in tensors.items():
            if not bool(torch.isfinite(value).all()):
                advice = "train with a lower rate"
                raise CueError(setting=f"tensor '{name}'", got="NaN or infinity", expected="finite numbers", fix=advice)
        with writable("cue folder", target):
            target.mkdir(parents=True, exist_ok=True)
            write_whole(target / "cue.safetensors", tensor_bytes(tensors))
        record = self.record.model_copy(update={"tensors_sha256": sha256(target / "cue.safetensors")})
        record = record.model_copy(update={"record_sha256": cue_file_digest(record.model_dump(mode="json"))})
        write_json(target / "metrics.json", metrics or {"scores": record.scores})
        write_whole(target / "README.md", model_card(record, target.name).encode())
        write_json(target / "cue.json", record.model_dump(mode="json"))
        self.record, self.path = record, target
        return target


def load(path: str | Path, backbone: Backbone | str | Path | None = None) -> Cue:
    """A cue from its folder, on its own backbone or on one given (shared by several cues, say).

    Example:
        tickets = softcue.load("cues/tickets")
        urgency = softcue.load("cues/urgency", backbone=tickets.backbone)
    """
    folder = Path(path)
    record = read_cue_file(folder)
    if not isinstance(backbone, Backbone):
        settings = {} if record.backbone.dtype == "bfloat16" else {"dtype": "float32"}
        name = str(backbone or record.backbone.name)
        backbone = load_backbone(BackboneConfig.model_validate({"name": name, **settings}))
    _check_backbone(folder, record, backbone)
    try:
        with torch.random.fork_rng(devices=[]):  # a head draws first numbers, soon replaced
            model = build_model(record, backbone)
    except ConfigurationError as error:
        expected = "a method and a readout of this softcue"
        raise CueError(setting=str(folder / "cue.json"), got=str(error), expected=expected, fix=TRY_AGAIN) from error
    model.load_state_dict(_checked_tensors(folder, record, model))
    return Cue(model.to(backbone.device).eval(), backbone, record, folder)


def build_model(record: CueFile, backbone: Backbone) -> TaskModel:
    """The model a record describes, its numbers still to be loaded."""
    config = method_config(record.method)
    method = (METHODS[config.name], config)
    return make_task_model(record.task, method, record.readout, backbone, None, record.backbone.max_length)


def start_from(model: TaskModel, origin: str, backbone: Backbone) -> str:
    """Give a new model the numbers of a finished cue, and its head's too if both have the same labels.

    Returns the digest of the cue. Supplementary training is this: a first cue on NLI rows, a second from it.
    """
    cue = load(origin, backbone)
    theirs, ours = cue.model.method.state_dict(), model.method.state_dict()
    shapes = [{name: tuple(value.shape) for name, value in state.items()} for state in (theirs, ours)]
    meanings = [one.method.config.meaning() for one in (cue.model, model)]
    if not ours or shapes[0] != shapes[1] or meanings[0] != meanings[1]:
        raise ConfigurationError(
            setting="training.init_from",
            got=f"{origin} ({cue.record.method['name']})",
            expected=f"a cue of the same method and settings as this run ({model.method.config.name})",
            fix="train it with the same method.* settings",
        )
    model.method.load_state_dict(theirs)
    # Only what was trained: the spread of scores, say, belongs to the new rows.
    head, new_head = (dict(one.readout.named_parameters()) for one in (cue.model, model))
    same_labels = cue.model.readout.task.label_names == model.readout.task.label_names
    if same_labels and {k: v.shape for k, v in head.items()} == {k: v.shape for k, v in new_head.items()}:
        for name, value in head.items():
            new_head[name].data.copy_(value.data)
    return cue.record.record_sha256


def _check_backbone(folder: Path, record: CueFile, backbone: Backbone) -> None:
    expected = Fingerprint(**record.backbone.fingerprint)
    if differences := expected.differences(backbone.fingerprint):
        raise BackboneMismatchError(
            differences,
            setting=f"backbone of {folder}",
            got=f"{_shown(backbone.fingerprint)} ({backbone.name})",
            expected=f"{_shown(expected)} ({record.backbone.name})",
        )


def _shown(fingerprint: Fingerprint) -> str:
    return " ".join(f"{part} {digest}" for part, digest in vars(fingerprint).items())


def _checked_tensors(folder: Path, record: CueFile, model: TaskModel) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = folder / "cue.safetensors"
    try:
        digest = sha256(file)
    except OSError as error:
        raise CueError(
            setting=str(file), got=error.strerror or "unreadable", expected="the cue's numbers", fix=TRY_AGAIN
        ) from error
    if digest != record.tensors_sha256:
        raise CueError(
            setting=str(file),
            got="other content than cue.json records",
            expected=f"sha256 {record.tensors_sha256}",
            fix="restore the file; if a run was interrupted here, continue it with `resume=True`",
        )
    try:
        tensors: dict[str, Tensor] = load_file(file)
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise CueError(
            setting=str(file), got=str(error), expected="a readable safetensors file", fix=TRY_AGAIN
        ) from error
    expected = model.state_dict()
    if missing := sorted(set(expected) - set(tensors)):
        raise CueError(
            setting=str(file), got=f"no tensor '{missing[0]}'", expected=f"tensors {sorted(expected)}", fix=TRY_AGAIN
        )
    if extra := sorted(set(tensors) - set(expected)):
        raise CueError(
            setting=str(file), got=f"tensor '{extra[0]}'", expected=f"tensors {sorted(expected)} only", fix=TRY_AGAIN
        )
    for name, value in tensors.items():
        where = f"{file}, tensor '{name}'"
        if value.shape != expected[name].shape:
            raise CueError(
                setting=where, got=list(value.shape), expected=f"shape {list(expected[name].shape)}", fix=TRY_AGAIN
            )
        if value.dtype != torch.float32:
            raise CueError(setting=where, got=value.dtype, expected="float32", fix=TRY_AGAIN)
        if not bool(torch.isfinite(value).all()):
            raise CueError(setting=where, got="NaN or infinity", expected="finite numbers", fix=TRY_AGAIN)
    return tensors


def _names_a_file(text: str) -> bool:
    """A path to rows rather than a text to read: a data suffix and an existing file."""
    return text.lower().endswith(DATA_SUFFIXES) and os.path.isfile(text)
