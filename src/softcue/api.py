"""`softcue.train`: from rows to a cue folder, and nothing written before everything has been checked."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import yaml

import softcue
from softcue.backbones import Backbone, load_backbone
from softcue.configuration import (
    RunConfig,
    Settings,
    merged,
    override,
    parse_overrides,
    read_settings,
    resolve,
)
from softcue.cue import Cue, load, start_from
from softcue.data import Rows, rows_of
from softcue.errors import RunError
from softcue.evaluation import evaluate
from softcue.files import writable, write_whole
from softcue.methods import METHODS, TaskModel, make_task_model
from softcue.record import FORMAT, BackboneRecord, CueRecord, read_record
from softcue.recording import Recorder, locked
from softcue.tasks import Source
from softcue.training import Checkpoints, Processes, Result, Trainer
from softcue.training.batches import stream_seed


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
    few_shot: int | None = None,
    seed: int | None = None,
    init_from: str | Path | None = None,
    config: str | Path | Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | Iterable[str] = (),
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
) -> Cue:
    """Train one task on a frozen backbone and write its cue folder.

    Rows come from a bundled task (`task="tickets"`) or from your own files, DataFrames or lists of
    dictionaries with the columns `text` (one or two) and `label`. Settings not given come from the method's
    preset for this kind of backbone; `overrides` sets any of them: `{"training.epochs": 3}`. With `few_shot`, only
    that many training rows are used. `init_from` starts from a finished cue of the same method and backbone.

    Example:
        cue = softcue.train("cues/tickets", task="tickets")
        cue = softcue.train("cues/mine", train=frame, text="message", label="team", backbone="minilm")
    """
    rows_given = {"train": train, "validation": validation, "test": test}
    flags: Settings = {
        "backbone": {"name": backbone.name if isinstance(backbone, Backbone) else backbone},
        "method": {"name": method},
        "task": {"name": task, "text": text, "label": label, "few_shot": few_shot}
        | {split: str(source) if isinstance(source, (str, Path)) else None for split, source in rows_given.items()},
        "training": {"seed": seed, "init_from": None if init_from is None else str(init_from)},
    }
    flags = {section: {k: v for k, v in values.items() if v is not None} for section, values in flags.items()}
    base = read_settings(config) if isinstance(config, (str, Path)) else dict(config or {})
    settings = merged(base, flags, _override_settings(overrides))
    first = resolve(settings)  # complain about settings before loading anything
    processes = Processes()
    rows = rows_of(first.task, {k: v for k, v in rows_given.items() if not isinstance(v, (str, Path, type(None)))})
    frozen = backbone if isinstance(backbone, Backbone) else load_backbone(first.backbone)
    if first.backbone.gradient_checkpointing:
        frozen.checkpoint_layers()
    run = resolve(settings, frozen.kind)
    model = _new_model(run, rows, frozen)
    started_from = start_from(model, run.training.init_from, frozen) if run.training.init_from else ""
    trainer = Trainer(frozen, model, rows.train, rows.validation, run.training, processes=processes)
    folder = Path(output_dir)
    checkpoints = Checkpoints(folder / "checkpoints", _digest(run, rows, model, frozen, started_from))
    with ExitStack() as stack:
        if processes.is_main:
            stack.enter_context(locked(folder))
            _check_output(folder, checkpoints, resume, overwrite)
        if resume and (folder / "cue.json").is_file() and not checkpoints.exist():
            return _finished(folder, frozen, checkpoints.run)
        trainer.checkpoints = checkpoints
        step, notes = _resumed(trainer, checkpoints) if resume else (0, [])
        if processes.is_main:
            _prepare(folder, checkpoints, run, step)
            recorder = stack.enter_context(Recorder(folder, run, trainer.num_steps, progress))
            recorder.start(step)
            recorder.warn(notes)
            trainer.listener = recorder
        processes.wait()
        result = trainer.run()
        cue = _cue(run, rows, frozen, model, result, checkpoints.run)
        if processes.is_main:
            _write(cue, folder, rows, result, checkpoints)
            recorder.warn(result.warnings)
        processes.wait()
    cue.path = folder
    return cue


def _override_settings(overrides: Mapping[str, Any] | Iterable[str]) -> Settings:
    if not isinstance(overrides, Mapping):
        return parse_overrides(overrides)
    return merged(
        *(override(key, str(value) if isinstance(value, Path) else value) for key, value in overrides.items())
    )


def _new_model(run: RunConfig, rows: Rows, backbone: Backbone) -> TaskModel:
    seed = run.training.seed
    generator = torch.Generator().manual_seed(stream_seed(seed, "method"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "model"))
        method = (METHODS[run.method.name], run.method)
        model = make_task_model(rows.task, method, run.readout, backbone, generator, run.backbone.max_length)
    model.readout.see(rows.train)
    if run.readout.head_start == "solved":
        model.start_head(backbone, rows.train)
    return model.to(backbone.device)


def _digest(run: RunConfig, rows: Rows, model: TaskModel, backbone: Backbone, started_from: str) -> str:
    """What makes two runs the same: settings, rows, backbone and the cue it starts from."""
    settings = run.as_settings()
    settings["task"] = {}  # names of files may change; rows and weights count
    settings["backbone"] = run.backbone.max_length
    settings["method"] = model.method.config.model_dump(mode="json")  # with digests of what it reads
    settings["training"]["init_from"] = started_from
    parts = [settings, rows.task.model_dump(mode="json", exclude={"train", "validation", "test"}),
             vars(backbone.fingerprint), str(backbone.dtype)]  # fmt: skip
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
    for part in (rows.train, rows.validation, rows.test):
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


def _resumed(trainer: Trainer, checkpoints: Checkpoints) -> tuple[int, list[str]]:
    """Go on from the newest whole checkpoint; the step it stands at, and what was passed over."""
    checkpoint, skipped = checkpoints.newest()
    if checkpoint is not None:
        trainer.resume(checkpoint)
    return trainer.progress.step, [f"passed over the damaged checkpoint {path}" for path in skipped]


def _prepare(folder: Path, checkpoints: Checkpoints, run: RunConfig, step: int) -> None:
    """The first thing written: the folder and the run's whole configuration."""
    with writable("--output-dir", folder):
        if step == 0:
            checkpoints.remove()
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "config.yaml", yaml.safe_dump(run.as_settings(), sort_keys=False).encode())


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
        method=model.method.config.model_dump(mode="json"),
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
        "health": result.progress.health,
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
