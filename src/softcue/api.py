"""`softcue.train`: from rows to a cue folder, and nothing written before everything has been checked."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from pydantic import ValidationError

import softcue
from softcue.backbones import Backbone, load_backbone
from softcue.configuration import (
    RunConfig,
    Settings,
    TaskConfig,
    as_configuration_error,
    merged,
    parse_overrides,
    read_settings,
    resolve,
)
from softcue.cue import Cue, load
from softcue.errors import ConfigurationError, RunError
from softcue.evaluation import check_metric, evaluate
from softcue.files import write_whole
from softcue.methods import METHODS, TaskModel
from softcue.readouts import make_readout
from softcue.record import FORMAT, BackboneRecord, CueRecord, read_record
from softcue.recording import Recorder, locked
from softcue.tasks import Source, Task, examples_from, library_task, sample, split_off, with_labels
from softcue.tasks.catalogue import library_names
from softcue.training import Checkpoints, Processes, Result, Trainer
from softcue.training.batches import stream_seed
from softcue.types import Example


@dataclass(frozen=True)
class Rows:
    """A task and its examples, all checked."""

    task: Task
    train: list[Example]
    validation: list[Example]
    test: list[Example]


def train(
    output_dir: str | Path,
    *,
    backbone: str | Backbone | None = None,
    method: str | None = None,
    task: str | None = None,
    train: Source | None = None,
    validation: Source | None = None,
    test: Source | None = None,
    text: str | Sequence[str] | None = None,
    label: str | None = None,
    seed: int | None = None,
    config: str | Path | Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | Iterable[str] = (),
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
) -> Cue:
    """Train one task on a frozen backbone and write its cue folder.

    Rows come from a bundled task (`task="tickets"`) or from your own files, DataFrames or lists of
    dictionaries with the columns `text` (one or two) and `label`. Settings not given come from the method's
    preset for this kind of backbone; `overrides` sets any of them: `{"training.epochs": 3}`.

    Example:
        cue = softcue.train("cues/tickets", task="tickets")
        cue = softcue.train("cues/mine", train=frame, text="message", label="team", backbone="minilm")
    """
    rows_given = {"train": train, "validation": validation, "test": test}
    flags: Settings = {
        "backbone": {"name": backbone.name if isinstance(backbone, Backbone) else backbone},
        "method": {"name": method},
        "task": {"name": task, "text": text, "label": label}
        | {split: str(source) if isinstance(source, (str, Path)) else None for split, source in rows_given.items()},
        "training": {"seed": seed},
    }
    flags = {section: {k: v for k, v in values.items() if v is not None} for section, values in flags.items()}
    base = read_settings(config) if isinstance(config, (str, Path)) else dict(config or {})
    settings = merged(base, flags, _override_settings(overrides))
    first = resolve(settings)  # complain about settings before loading anything
    processes = Processes()
    rows = _rows(first.task, {k: v for k, v in rows_given.items() if not isinstance(v, (str, Path, type(None)))})
    check_metric(rows.task.main_metric, rows.task.kind)
    frozen = backbone if isinstance(backbone, Backbone) else load_backbone(first.backbone)
    run = resolve(settings, frozen.kind)
    model = _new_model(run, rows, frozen)
    trainer = _trainer(run, rows, frozen, model, processes)
    folder = Path(output_dir)
    checkpoints = Checkpoints(folder / "checkpoints", _digest(run, rows, frozen))
    with ExitStack() as stack:
        if processes.is_main:
            stack.enter_context(locked(folder))
            _check_output(folder, checkpoints, resume, overwrite)
        if resume and (folder / "cue.json").is_file() and not checkpoints.exist():
            return _finished(folder, frozen, checkpoints.run)
        recorder = stack.enter_context(
            Recorder(folder, run, trainer.num_steps, len(rows.train), progress) if processes.is_main else ExitStack()
        )
        if isinstance(recorder, Recorder):
            trainer.listener = recorder
        _start(trainer, checkpoints, folder, run, resume, recorder)
        result = trainer.run()
        cue = _cue(run, rows, frozen, model, result, checkpoints.run)
        if processes.is_main:
            _write(cue, folder, rows, result, checkpoints)
            if isinstance(recorder, Recorder):
                recorder.warn(result.warnings)
        processes.wait()
    cue.path = folder
    return cue


def rows_of_run(folder: str | Path) -> Rows:
    """The very rows a run was trained and scored on, read again from its config.yaml.

    Example:
        rows_of_run("cues/tickets").test[0].texts
    """
    return _rows(resolve(read_settings(Path(folder) / "config.yaml")).task, {})


def _override_settings(overrides: Mapping[str, Any] | Iterable[str]) -> Settings:
    if isinstance(overrides, Mapping):
        overrides = [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
    return parse_overrides(overrides)


def _rows(config: TaskConfig, objects: Mapping[str, Any]) -> Rows:
    """Read and check every row the run will touch."""
    task = _task(config)
    sources: dict[str, Source] = {split: getattr(task, split) for split in ("train", "validation", "test")}
    if "train" in objects:  # a bundled task's other splits do not belong to the user's rows
        sources |= {"validation": config.validation, "test": config.test}
    sources |= objects
    if isinstance(sources["train"], str) and not sources["train"]:
        raise ConfigurationError("task.train", "", "training rows",
                                 f"pass --train FILE or --task NAME ({', '.join(library_names())})")  # fmt: skip
    train = examples_from(sources["train"], task)
    if task.kind == "classification":
        task = with_labels(task, train, config.label_words)
    found = {
        split: [] if isinstance(sources[split], str) and not sources[split] else examples_from(sources[split], task)
        for split in ("validation", "test")
    }
    if not found["validation"]:
        by_class = task.kind == "classification"
        train, found["validation"] = split_off(train, config.validation_share, config.sample_seed, by_class=by_class)
        if not found["validation"]:
            raise ConfigurationError("task.validation", "", "validation rows", "pass --validation FILE: "
                                     "too few training rows to hold any out")  # fmt: skip
    limits = {"train": config.train_rows, "validation": config.validation_rows, "test": config.test_rows}
    found["train"] = train
    sampled = {
        split: sample(rows, limits[split], config.sample_seed) if limits[split] else rows
        for split, rows in found.items()
    }
    return Rows(task, sampled["train"], sampled["validation"], sampled["test"])


def _task(config: TaskConfig) -> Task:
    """The bundled task of that name with the user's changes, or a new one from the user's columns."""
    given: dict[str, Any] = {
        key: value
        for key in ("train", "validation", "test", "text", "label", "kind", "metric", "template")
        if (value := getattr(config, key))
    }
    is_bundled = config.name in library_names() or (config.name and not (config.text or config.label))
    base = library_task(config.name).model_dump() if is_bundled else {"name": config.name or "task"}
    if config.train:
        base |= {"validation": "", "test": ""}
    try:
        return Task.model_validate(base | given)
    except ValidationError as error:
        raise as_configuration_error("task", error) from error


def _new_model(run: RunConfig, rows: Rows, backbone: Backbone) -> TaskModel:
    seed = run.training.seed
    generator = torch.Generator().manual_seed(stream_seed(seed, "method"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "model"))
        method = METHODS[run.method.name].build(run.method, backbone, rows.task, generator)
        readout = make_readout(run.readout, rows.task, backbone)
    readout.see(rows.train)
    model = TaskModel(rows.task, method, readout, backbone, run.backbone.max_length)
    return model.to(backbone.device)


def _trainer(run: RunConfig, rows: Rows, backbone: Backbone, model: TaskModel, processes: Processes) -> Trainer:
    return Trainer(backbone, model, rows.train, rows.validation, run.training, processes=processes)


def _digest(run: RunConfig, rows: Rows, backbone: Backbone) -> str:
    """What makes two runs the same: settings, rows and backbone."""
    settings = run.as_settings()
    settings["task"] = {}  # file names may change; the rows count
    parts = [settings, rows.task.model_dump(mode="json", exclude={"train", "validation", "test"}),
             vars(backbone.fingerprint), str(backbone.dtype)]  # fmt: skip
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
    for part in (rows.train, rows.validation):
        digest.update(repr(part).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _check_output(folder: Path, checkpoints: Checkpoints, resume: bool, overwrite: bool) -> None:
    """A run never overwrites a finished one, nor another's checkpoints, unless told."""
    if resume or overwrite:
        return
    if (folder / "cue.json").exists():
        raise RunError("--output-dir", folder, "a folder without a finished cue",
                       "choose another, or pass --overwrite")  # fmt: skip
    if checkpoints.exist():
        raise RunError("--output-dir", folder, "a folder without an unfinished run",
                       "pass --resume to go on with it, or --overwrite to start again")  # fmt: skip


def _start(
    trainer: Trainer, checkpoints: Checkpoints, folder: Path, run: RunConfig, resume: bool, recorder: Any
) -> None:
    """Make the folder, or go on from its newest whole checkpoint."""
    step = 0
    if resume:
        checkpoint, skipped = checkpoints.newest()
        if checkpoint is not None:
            trainer.resume(checkpoint)
            step = checkpoint.progress.step
        if isinstance(recorder, Recorder):
            recorder.warn([f"passed over the damaged checkpoint {path}" for path in skipped])
    trainer.checkpoints = checkpoints
    if isinstance(recorder, Recorder):
        if step == 0:
            checkpoints.remove()
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "config.yaml", yaml.safe_dump(run.as_settings(), sort_keys=False).encode())
        recorder.start(step)
    trainer.processes.wait()


def _finished(folder: Path, backbone: Backbone, run: str) -> Cue:
    """A finished run has nothing to resume; its cue is loaded, if it is the run that was asked for."""
    if read_record(folder).training.get("run") != run:
        raise RunError("--resume", folder, "a run with the same backbone, data and settings",
                       "its cue is finished, with others: choose another folder, or pass --overwrite")  # fmt: skip
    return load(folder, backbone)


def _cue(run: RunConfig, rows: Rows, backbone: Backbone, model: TaskModel, result: Result, digest: str) -> Cue:
    scores = {"validation": result.evaluation.scores}
    if rows.test:
        scores["test"] = evaluate(backbone, model, rows.test, run.training.evaluation_batch_size).scores
    record = CueRecord(
        format=FORMAT,
        task=rows.task.model_copy(update={"train": "", "validation": "", "test": ""}),
        method=run.method.model_dump(mode="json"),
        readout=model.readout.config,
        backbone=BackboneRecord(
            name=_portable_name(backbone), kind=backbone.kind, dtype=str(backbone.dtype).removeprefix("torch."),
            max_length=model.max_length, fingerprint=asdict(backbone.fingerprint),
        ),
        training={
            **run.training.model_dump(mode="json"),
            "steps_done": result.progress.step, "best_step": result.progress.best_step,
            "train_rows": len(rows.train), "validation_rows": len(rows.validation), "run": digest,
        },
        scores=scores,
        counts=asdict(model.counts()),
        versions=versions(),
        tensors_sha256="",
    )  # fmt: skip
    return Cue(model, backbone, record)


def _portable_name(backbone: Backbone) -> str:
    """A model folder by its full path, so that the cue finds it from any working directory."""
    is_folder = backbone.folder is not None and Path(backbone.name).is_dir()
    return str(backbone.folder.resolve()) if is_folder and backbone.folder else backbone.name


def _write(cue: Cue, folder: Path, rows: Rows, result: Result, checkpoints: Checkpoints) -> None:
    metrics = {
        "scores": cue.record.scores,
        "history": result.progress.history,
        "best_step": result.progress.best_step,
        "steps": result.progress.step,
        "seconds": round(result.seconds, 1),
        "peak_megabytes": round(result.peak_megabytes, 1),
        "truncated_training_texts": result.num_truncated,
        "rows": {"train": len(rows.train), "validation": len(rows.validation), "test": len(rows.test)},
        "warnings": result.warnings,
    }
    cue.save(folder, metrics)
    checkpoints.remove()
    for leftover in folder.glob("*.partial"):
        shutil.rmtree(leftover, ignore_errors=True) if leftover.is_dir() else leftover.unlink()


def versions() -> dict[str, str]:
    """The packages whose version can change a number."""
    from importlib.metadata import version

    return {"softcue": softcue.__version__, "torch": torch.__version__, "transformers": version("transformers")}
