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
from softcue.data import Rows, rows_of, rows_of_each
from softcue.errors import ConfigurationError, RunError
from softcue.evaluation import Evaluation, evaluate
from softcue.files import writable, write_whole
from softcue.methods import METHODS, TaskModel, joint_task, with_readout
from softcue.record import FORMAT, BackboneRecord, CueRecord, read_record
from softcue.recording import Recorder, locked
from softcue.tasks import Source, Task, portable
from softcue.training import Checkpoints, Processes, Result, Studied, Trainer
from softcue.training.batches import stream_seed


def train(
    output_dir: str | Path,
    *,
    backbone: str | Backbone | None = None,
    method: str | None = None,
    task: str | None = None,
    data: str | Path | None = None,
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

    Rows come from a known task (`task="tickets"`, or `task="rte"` with the folder of its published files as `data`) or
    from your own files, DataFrames or lists of dictionaries with the columns `text` and `label`. Settings not given
    come from the method's preset for this kind of backbone; `overrides` sets any of them: `{"training.epochs": 3}`.
    With `few_shot`, only that many training rows are used. `init_from` starts from a finished cue of the same method
    and backbone.

    Example:
        cue = softcue.train("cues/tickets", task="tickets")
        cue = softcue.train("cues/mine", train=frame, text="message", label="team", backbone="minilm")
    """
    rows_given = {"train": train, "validation": validation, "test": test}
    flags: Settings = {
        "backbone": {"name": backbone.name if isinstance(backbone, Backbone) else backbone},
        "method": {"name": method},
        "task": {"name": task, "data": _path(data), "text": text, "label": label, "few_shot": few_shot}
        | {split: str(source) if isinstance(source, (str, Path)) else None for split, source in rows_given.items()},
        "training": {"seed": seed, "init_from": _path(init_from)},
    }
    settings = _settings(config, flags, overrides)
    objects = {k: v for k, v in rows_given.items() if not isinstance(v, (str, Path, type(None)))}
    first = resolve(settings)  # complain about settings before loading anything
    if first.mixture.tasks:
        raise ConfigurationError("mixture.tasks", ", ".join(first.mixture.tasks), "one task",
                                 "several share a prompt with `--tasks A,B` or softcue.train_together")  # fmt: skip
    rows = [rows_of(first.task, objects)]
    return _trained(Path(output_dir), settings, rows, backbone, resume, overwrite, progress)[0]


def train_together(
    output_dir: str | Path,
    tasks: Sequence[str],
    *,
    backbone: str | Backbone | None = None,
    method: str | None = None,
    data: str | Path | None = None,
    few_shot: int | None = None,
    seed: int | None = None,
    init_from: str | Path | None = None,
    config: str | Path | Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | Iterable[str] = (),
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
) -> dict[str, Cue]:
    """Train one prompt for several tasks and write a cue folder for each below `output_dir`, by the task's name.

    Tasks are names of `softcue tasks` or task files (.yaml). `mixture.*` overrides say how rows are mixed; the prompt
    kept is the one with the best mean score over the tasks' validation rows.

    Example:
        cues = softcue.train_together("cues/help-desk", ["tickets", "urgency"])
        cues["urgency"].predict("The office is on fire.")[0].label
    """
    flags: Settings = {
        "backbone": {"name": backbone.name if isinstance(backbone, Backbone) else backbone},
        "method": {"name": method},
        "task": {"data": _path(data), "few_shot": few_shot},
        "mixture": {"tasks": list(tasks) or None},
        "training": {"seed": seed, "init_from": _path(init_from)},
    }
    settings = _settings(config, flags, overrides)
    first = resolve(settings)
    rows = rows_of_each(first.task, first.mixture)
    cues = _trained(Path(output_dir), settings, rows, backbone, resume, overwrite, progress)
    return {cue.task.name: cue for cue in cues}


def _settings(
    config: str | Path | Mapping[str, Any] | None, flags: Settings, overrides: Mapping[str, Any] | Iterable[str]
) -> Settings:
    given = {section: {k: v for k, v in values.items() if v is not None} for section, values in flags.items()}
    base = read_settings(config) if isinstance(config, (str, Path)) else dict(config or {})
    return merged(base, given, _override_settings(overrides))


def _path(value: str | Path | None) -> str | None:
    return None if value is None else str(value)


def _trained(
    folder: Path,
    settings: Settings,
    rows: list[Rows],
    backbone: str | Backbone | None,
    resume: bool,
    overwrite: bool,
    progress: bool,
) -> list[Cue]:
    """A run: one cue in the folder itself, or one per task below it."""
    first = resolve(settings)
    processes = Processes()
    frozen = backbone if isinstance(backbone, Backbone) else load_backbone(first.backbone)
    if first.backbone.gradient_checkpointing:
        frozen.checkpoint_layers()
    run = resolve(settings, frozen.kind)
    models = _new_models(run, [one.task for one in rows], frozen)
    for model, one in zip(models, rows, strict=True):
        _begin(model, run, one, frozen)
    started_from = [start_from(model, run.training.init_from, frozen) for model in models if run.training.init_from]
    studied = [Studied(model, one.train, one.validation) for model, one in zip(models, rows, strict=True)]
    trainer = Trainer(frozen, studied, run.training, processes=processes, mixture=run.mixture)
    cue_folders = [folder] if len(rows) == 1 else [folder / one.task.name for one in rows]
    checkpoints = Checkpoints(folder / "checkpoints", _digest(run, rows, models, frozen, "".join(started_from)))
    with ExitStack() as stack:
        if processes.is_main:
            stack.enter_context(locked(folder))
            _check_output(cue_folders, checkpoints, resume, overwrite)
        if resume and all((one / "cue.json").is_file() for one in cue_folders) and not checkpoints.exist():
            return [_finished(one, frozen, checkpoints.run) for one in cue_folders]
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
        cues = [_cue(run, one, frozen, model, evaluation, result, checkpoints.run)
                for one, model, evaluation in zip(rows, models, result.evaluations, strict=True)]  # fmt: skip
        if processes.is_main:
            for cue, one, target in zip(cues, rows, cue_folders, strict=True):
                _write(cue, target, one, result)
            checkpoints.remove()
            recorder.warn(result.warnings)
        processes.wait()
    for cue, target in zip(cues, cue_folders, strict=True):
        cue.path = target
    return cues


def _override_settings(overrides: Mapping[str, Any] | Iterable[str]) -> Settings:
    if not isinstance(overrides, Mapping):
        return parse_overrides(overrides)
    return merged(
        *(override(key, str(value) if isinstance(value, Path) else value) for key, value in overrides.items())
    )


def _new_models(run: RunConfig, tasks: Sequence[Task], backbone: Backbone) -> list[TaskModel]:
    """A model per task, all on one method."""
    seed = run.training.seed
    generator = torch.Generator().manual_seed(stream_seed(seed, "method"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "model"))
        method = METHODS[run.method.name].build(run.method, run.method.seen(backbone), joint_task(tasks), generator)
        return [with_readout(task, method, run.readout, backbone, run.backbone.max_length) for task in tasks]


def _begin(model: TaskModel, run: RunConfig, rows: Rows, backbone: Backbone) -> None:
    """What a new model takes from its training rows."""
    model.readout.see(rows.train)
    if run.readout.head_start == "solved":
        model.start_head(backbone, rows.train)
    model.to(backbone.device)


def _digest(
    run: RunConfig, rows: Sequence[Rows], models: Sequence[TaskModel], backbone: Backbone, started_from: str
) -> str:
    """What makes two runs the same: settings, rows, backbone and the cue it starts from."""
    settings = run.as_settings()
    settings["task"] = {}  # names of files may change; rows and weights count
    settings["backbone"] = run.backbone.max_length
    settings["method"] = models[0].method.config.model_dump(mode="json")  # with digests of what it reads
    settings["training"]["init_from"] = started_from
    parts = [settings, [portable(one.task).model_dump(mode="json") for one in rows],
             vars(backbone.fingerprint), str(backbone.dtype)]  # fmt: skip
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
    for part in (part for one in rows for part in (one.train, one.validation, one.test)):
        digest.update(repr(part).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _check_output(folders: Sequence[Path], checkpoints: Checkpoints, resume: bool, overwrite: bool) -> None:
    """A run never overwrites a finished one, nor another's checkpoints, unless told."""
    if resume or overwrite:
        return
    for folder in folders:
        if (folder / "cue.json").exists():
            raise RunError("--output-dir", folder, "a folder without a finished cue",
                           "choose another, or pass --overwrite")  # fmt: skip
    if checkpoints.exist():
        raise RunError("--output-dir", checkpoints.folder.parent, "a folder without an unfinished run",
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


def _cue(
    run: RunConfig,
    rows: Rows,
    backbone: Backbone,
    model: TaskModel,
    evaluation: Evaluation,
    result: Result,
    digest: str,
) -> Cue:
    scores = {"validation": evaluation.scores}
    if rows.test:
        scores["test"] = evaluate(backbone, model, rows.test, run.training.evaluation_batch_size).scores
    record = CueRecord(
        format=FORMAT,
        task=portable(rows.task),
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
            **({"together_with": list(run.mixture.tasks)} if run.mixture.tasks else {}),
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


def _write(cue: Cue, folder: Path, rows: Rows, result: Result) -> None:
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
    for leftover in folder.glob("*.partial"):
        shutil.rmtree(leftover, ignore_errors=True) if leftover.is_dir() else leftover.unlink()


def versions() -> dict[str, str]:
    """The packages whose version can change a number."""
    from importlib.metadata import version

    return {"softcue": softcue.__version__, "torch": torch.__version__, "transformers": version("transformers")}
