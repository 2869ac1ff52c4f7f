"""A training run: resolve settings, read rows, build models, train, and write a cue folder for each task."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import torch
import yaml
from pydantic import BaseModel

from softcue.backbones import Backbone, load_backbone
from softcue.configuration import RunConfig, Settings, merged, read_settings, resolve
from softcue.cue import Cue, CueFile, load, read_cue_file, start_from
from softcue.cue.cue_file import FORMAT, CueBackbone, CueRecipe, package_versions
from softcue.errors import ConfigurationError, RunError, SoftcueError
from softcue.evaluation import (
    Evaluation,
    check_metric,
    constant_prediction,
    describe_better_baselines,
    predict_baselines,
    score,
)
from softcue.files import (
    TEMPORARY_SUFFIX,
    convert_disk_errors,
    convert_write_errors,
    lock_folder,
    remove,
    write_atomically,
)
from softcue.inference import TaskModel, with_readout
from softcue.methods import METHODS
from softcue.recipe_summary import summarise
from softcue.recipes import TaskForm, check_recipe, paper_recipe
from softcue.selection import CANDIDATES, SelectionRecord
from softcue.tasks import joint_task, portable
from softcue.tasks.splits import Splits, copies_notes, read_splits, read_splits_of_each
from softcue.training import Checkpoints, Processes, TaskData, Trainer, TrainingResult
from softcue.training.batches import stream_seed
from softcue.training.checkpoints import newest_of_all
from softcue.training.optimizers import group_parameters, prompt_rate
from softcue.training.progress import ProgressRecorder
from softcue.training.shares import baseline_predictions, evaluate_examples
from softcue.training.trackers import Reports, TrackedRun, check_installed, flatten, name_run

Config = TypeVar("Config", bound=BaseModel)
RATES = ("learning_rate", "relative_rate", "network_learning_rate")  # of which the recipe's are known to the trainer
MIN_ROWS_PER_PROCESS = 4  # of a step: with fewer, messages between processes take more time than the rows


class Run:
    """Trains one task, or several that share a prompt. Nothing is written before everything is checked.

    `tables` holds rows given as objects instead of files, by split; `splits` are rows that are read already. With
    `is_joint`, the tasks are `mixture.tasks`. `recipe` names the settings below those given: the method's preset
    (default) or those of its paper. `selection` tells how the method was chosen, for metrics.json and the model card.

    Example:
        [cue] = Run(Path("cues/tickets"), {"task": {"name": "tickets"}}).execute()
    """

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        *,
        backbone: Backbone | None = None,
        tables: Mapping[str, Any] | None = None,
        splits: Splits | None = None,
        is_joint: bool = False,
        recipe: str = "default",
        selection: SelectionRecord | None = None,
    ) -> None:
        self.folder, self.is_joint, self.recipe = folder, is_joint, check_recipe(recipe)
        self.selection = selection
        settings = with_method_of_first_stage(settings)
        requested = resolve(settings)  # wrong settings are errors before anything is read or loaded
        check_installed(requested.training.report_to)
        self.splits = self._read_rows(requested, tables or {}) if splits is None else [splits]
        self.processes = Processes(requested.training.process_timeout)
        self.backbone = backbone or load_backbone(requested.backbone)
        if requested.backbone.gradient_checkpointing:
            self.backbone.checkpoint_layers()
        form = self._task_form(requested)
        self.config: RunConfig = resolve(settings, self.backbone.kind, recipe, form)  # with the recipe for this kind
        self._keep_in_step()
        self.models = self._build_models()
        self.recipe_rates = self._recipe_rates(settings, form)
        self.config = self._replace_auto(self.config)
        paper = paper_recipe(self.config.method.name, self.backbone.kind, form)
        self.recipe_summary = summarise(recipe, paper, self.config.as_settings())
        first_cues = self._initialise_models()
        self.warnings = _settings_without_effect(settings, self.models[0])
        if self.config.backbone.dropout and self.models[0].has_frozen_features:
            name = self.config.method.name
            self.warnings.append(f"backbone.dropout has no effect on {name}: the backbone's vectors are computed once")
        if (self.config.backbone.max_length or 0) > self.models[0].max_length:
            self.warnings.append(
                f"backbone.max_length={self.config.backbone.max_length} has no effect: {self.backbone.name} takes "
                f"{self.models[0].max_length} tokens, prompt included, and texts are cut to them"
            )
        has_adafactor = self.config.training.optimizer == "adafactor"
        if settings.get("training", {}).get("parameter_scaling") and not has_adafactor:
            self.warnings.append("training.parameter_scaling has no effect on adamw: set training.optimizer=adafactor")
        if settings.get("selection"):
            name = self.config.method.name
            self.warnings.append(f"selection.* has no effect on {name}: set method.name=auto to try several methods")
        num_processes, batch_size = self.processes.world_size, self.config.training.batch_size
        if num_processes > 1 and batch_size < MIN_ROWS_PER_PROCESS * num_processes:
            self.warnings.append(
                f"a step has {batch_size} rows for {num_processes} processes; faster would be "
                f"torchrun --nproc-per-node {max(1, batch_size // MIN_ROWS_PER_PROCESS)}, or "
                f"training.batch_size={MIN_ROWS_PER_PROCESS * num_processes}, which changes what is learned"
            )
        self.cue_folders = [folder / splits.task.name for splits in self.splits] if is_joint else [folder]
        self.checkpoints = Checkpoints(folder / "checkpoints", self._digest(first_cues))

    def make_trainer(self, num_validation_rows: int | None = None) -> Trainer:
        """Make the trainer of this run; with fewer validation rows for a trial of its speed."""
        return Trainer(
            self.backbone,
            [
                TaskData(model, splits.train, splits.validation[:num_validation_rows])
                for model, splits in zip(self.models, self.splits, strict=True)
            ],
            self.config.training,
            processes=self.processes,
            mixture=self.config.mixture,
            backbone_dropout=self.config.backbone.dropout,
            recipe_rates=self.recipe_rates,
        )

    def execute(self, *, resume: bool = False, overwrite: bool = False, progress: bool = True) -> list[Cue]:
        """Train, and write a cue for each task. If a finished run is resumed, its cues are only loaded."""
        self._check_same_run()
        trainer = self.make_trainer()
        with ExitStack() as stack:
            stack.enter_context(convert_disk_errors(self.folder))
            problem: SoftcueError | None = None
            if self.processes.is_main:
                try:
                    stack.enter_context(lock_folder(self.folder))
                    if not resume and not overwrite:
                        check_output(self.folder, self.cue_folders)
                except SoftcueError as error:
                    problem = error
            self.processes.raise_together(problem)
            is_finished = all((folder / "cue.json").is_file() for folder in self.cue_folders)
            if self.processes.decide(resume and is_finished and not self.checkpoints.exist()):
                return [self._load_finished_together(folder) for folder in self.cue_folders]
            return self.complete(trainer, resume=resume, progress=progress)

    def _keep_in_step(self) -> None:
        """If the backbone's layers are divided over the processes, let them take the same passes."""
        self.processes.is_in_step = self.backbone.is_sharded
        if self.backbone.is_sharded and self.is_joint:
            raise ConfigurationError(
                setting="backbone.shard_layers",
                got=True,
                expected="one task: rows of several tasks take different passes in each process",
                fix="train a cue per task",
            )

    def _check_same_run(self) -> None:
        """Check that all processes have the same settings, rows and backbone: each machine reads its own files."""
        digests = self.processes.gather(self.checkpoints.run)
        other = next((rank for rank, digest in enumerate(digests) if digest != digests[0]), None)
        if other is not None:
            raise RunError(
                setting="processes",
                got=f"another run in process {other} than in process 0",
                expected="the same settings, rows, backbone and softcue version in all processes",
                fix="give all machines the same files",
            )

    def complete(self, trainer: Trainer, *, resume: bool, progress: bool) -> list[Cue]:
        """Train to the end and write the cues. The caller has locked the folder and checked what is in it."""
        with ExitStack() as stack:
            recorder = self._begin(trainer, stack, resume, progress)
            self.processes.wait()
            stack.enter_context(self.processes.tell_lost())
            result = trainer.run()
            cues = [
                self._make_cue(model, splits, evaluation, result)
                for model, splits, evaluation in zip(self.models, self.splits, result.evaluations, strict=True)
            ]
            result = replace(result, warnings=[*result.warnings, *self._baseline_warnings(cues, result)])
            if recorder is not None:
                self._write(cues, result)
                if result.refit_gain:
                    recorder.note(_describe_refit(recorder.score_name, result))
                recorder.warn(result.warnings)
                recorder.final_scores = self._final_scores(cues)
            self.processes.wait()
        for cue, folder in zip(cues, self.cue_folders, strict=True):
            cue.path = folder
        return cues

    def _baseline_warnings(self, cues: Sequence[Cue], result: TrainingResult) -> list[str]:
        """Warnings about cues that validation rows do not show to be better than baselines."""
        warnings = []
        for cue, evaluation in zip(cues, result.evaluations, strict=True):
            prefix = f"{cue.task.name}: " if self.is_joint else ""
            if warning := describe_better_baselines(cue.task, evaluation, cue.cue_file.baselines["validation"]):
                warnings.append(prefix + warning)
        return warnings

    def _read_rows(self, config: RunConfig, tables: Mapping[str, Any]) -> list[Splits]:
        """The rows of each task. The metric of a task is checked before its rows are read."""
        if self.is_joint:
            return read_splits_of_each(config.task, config.mixture.tasks, config.mixture.cap, check_metric)
        if config.mixture.tasks:
            raise ConfigurationError(
                setting="mixture.tasks",
                got=", ".join(config.mixture.tasks),
                expected="one task",
                fix="name several with `tasks=A,B`",
            )
        return [read_splits(config.task, tables, check_metric)]

    def _task_form(self, config: RunConfig) -> TaskForm:
        """What the paper's recipe depends on. Of several tasks, only what all of them have in common counts."""
        tasks = [splits.task for splits in self.splits]
        kinds = {task.kind for task in tasks}
        return TaskForm(
            num_texts=min(task.num_sentences for task in tasks),
            task_kind=tasks[0].kind if len(kinds) == 1 else "",
            num_rows=sum(len(splits.train) for splits in self.splits),
            has_several_tasks=self.is_joint,
            is_few_shot=config.task.is_few_shot,
            tunes_backbone=config.method.tunes_backbone,
        )

    def _build_models(self) -> list[TaskModel]:
        """A model for each task, all on one method."""
        config, backbone = self.config, self.backbone
        tasks = [splits.task for splits in self.splits]
        generator = torch.Generator().manual_seed(stream_seed(config.training.seed, "method"))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(config.training.seed, "model"))
            method_class, method_config = METHODS[config.method.name], config.method
            if config.training.init_from:
                method_config = method_config.after(read_cue_file(Path(config.training.init_from)).method)
            method = method_class.make(method_config, backbone, joint_task(tasks), generator)
            methods = [method.make_for_task(method_config, backbone, task) for task in tasks]
            models = [
                with_readout(splits.task, task_method, config.readout, backbone, config.backbone.max_length)
                for splits, task_method in zip(self.splits, methods, strict=True)
            ]
            if config.readout.pooling == "measured":
                models = [
                    model.with_measured_pooling(backbone, splits.train, may_compare=config.readout.pairs == "auto")
                    for model, splits in zip(models, self.splits, strict=True)
                ]
            seed = stream_seed(config.training.seed, "rows of the method")
            return [
                model.with_rows(backbone, splits.train, seed) for model, splits in zip(models, self.splits, strict=True)
            ]

    def _replace_auto(self, config: RunConfig) -> RunConfig:
        """The configuration with what each `auto` became, for config.yaml. The device may be another one next time.

        Tasks of a joint run may have different readouts: then `auto` stays.
        """
        readouts = [model.readout.config for model in self.models]
        is_same_readout = all(readout == readouts[0] for readout in readouts)
        loaded = {"dtype": _dtype_name(self.backbone), "attention": self.backbone.attention}
        return replace(
            config,
            backbone=_with_values_for_auto(config.backbone, loaded),
            method=_with_values_for_auto(config.method, dict(self.models[0].method.config)),
            readout=_with_values_for_auto(config.readout, dict(readouts[0])) if is_same_readout else config.readout,
            training=config.training.model_copy(
                update={"learning_rate": prompt_rate(self.models[0].method, config.training), "relative_rate": 0.0}
            ),
        )

    def _recipe_rates(self, settings: Settings, form: TaskForm) -> dict[str, float]:
        """The learning rates that the recipe alone has for parameters of the model, by the name of their setting."""
        training = {name: value for name, value in settings.get("training", {}).items() if name not in RATES}
        recipe = resolve({**settings, "training": training}, self.backbone.kind, self.recipe, form).training
        groups = group_parameters(self.models[0])
        uses_network_rate = groups["network_learning_rate"] or (
            groups["head_learning_rate"] and self.config.training.head_learning_rate is None
        )
        rates = {"learning_rate": prompt_rate(self.models[0].method, recipe)} if groups["learning_rate"] else {}
        return rates | ({"network_learning_rate": recipe.network_learning_rate} if uses_network_rate else {})

    def describe(self) -> list[str]:
        """Lines for the user: what is trained on what, with what each `auto` became."""
        backbone, model, config = self.backbone, self.models[0], self.config
        counts = model.counts()
        parameters = f"{counts.gradient:,} trainable parameters"
        if tuned := group_parameters(model)["backbone_learning_rate"]:
            parameters += f" ({sum(weight.numel() for weight in tuned):,} of them the backbone's)"
        if counts.head:
            parameters += f" and a head of {counts.head:,}"
        pooling = model.readout.config.pooling
        readout = model.readout.config.name + (f" with {pooling} pooling" if model.readout.summary == pooling else "")
        lines = [
            f"{config.method.name} on {describe_backbone(backbone)}",
            f"readout {readout}; {parameters}",
            self.recipe_summary.line,
        ]
        for splits in self.splits:
            rows = describe_rows(splits)
            lines.append(f"{splits.task.name}: {rows} rows" if self.is_joint else f"rows: {rows}")
        for other in self.models:
            prefix = f"{other.task.name}: " if self.is_joint else ""
            lines += [prefix + note for note in (*other.method.notes(), *other.readout.notes())]
        return lines

    def _initialise_models(self) -> str:
        """Set initial values that depend on rows or on another cue; returns the digests of those cues."""
        for model, splits in zip(self.models, self.splits, strict=True):
            model.readout.fit_statistics(splits.train)
            if self.config.readout.head_start == "words":
                model.readout.start_from_words(self.backbone)
            model.to(self.backbone.device)
        origin = self.config.training.init_from
        return "".join(start_from(model, origin, self.backbone) for model in self.models if origin)

    def connect(self, trainer: Trainer, resume: bool) -> list[Path]:
        """Let a trainer write this run's checkpoints, and go on from the newest; returns damaged ones.

        Example:
            run.connect(trainer, resume=True)
        """
        trainer.checkpoints = self.checkpoints
        checkpoint, damaged = newest_of_all(self.checkpoints, self.processes) if resume else (None, [])
        if checkpoint is not None:
            trainer.resume(checkpoint)
        return damaged

    def _begin(self, trainer: Trainer, stack: ExitStack, resume: bool, progress: bool) -> ProgressRecorder | None:
        """Load the newest checkpoint and begin the run folder; only the main process gets a recorder."""
        has_begun = (self.folder / "metrics.jsonl").is_file()
        damaged = self.connect(trainer, resume)
        if not self.processes.is_main:
            return None
        if resume and has_begun and not trainer.state.step:
            self.warnings.append("the checkpoints of this run are lost: no process has one, so it begins again")
        self._begin_folder(trainer.state.step)
        tasks = [splits.task for splits in self.splits]
        recorder = ProgressRecorder(
            self.folder,
            trainer.num_steps,
            progress,
            score_name="mean score" if self.is_joint else tasks[0].main_metric,
            num_validation_rows=sum(len(splits.validation) for splits in self.splits),
            reports=self._reports(),
        )
        for line in self.describe():
            recorder.note(line)
        stack.enter_context(recorder)
        recorder.start(trainer.state.step)
        recorder.warn(self.warnings)
        for splits in self.splits:
            prefix = f"{splits.task.name}: " if self.is_joint else ""
            recorder.warn([prefix + note for note in copies_notes(splits)])
        recorder.warn([f"passed over the damaged checkpoint {path}" for path in damaged])
        trainer.listener = recorder
        return recorder

    def _reports(self) -> Reports:
        """The trackers that the settings name, with what they are told about the run."""
        config = self.config
        group = config.training.report_group
        tags = {
            "method": config.method.name,
            "backbone": Path(self.backbone.name).name,
            "task": ", ".join(splits.task.name for splits in self.splits),
        }
        settings = flatten({"recipe": self.recipe, **config.as_settings()})
        run = TrackedRun(self.folder, name_run(self.folder, group), group, settings, tags)
        return Reports(run, config.training.report_to)

    def _final_scores(self, cues: Sequence[Cue]) -> dict[str, float]:
        """The scores of the written cues by split and metric; of several tasks, by task as well."""
        return {
            f"{f'{cue.task.name}/' if self.is_joint else ''}{split}/{metric}": value
            for cue in cues
            for split, scores in cue.scores.items()
            for metric, value in scores.items()
        }

    def _write(self, cues: Sequence[Cue], result: TrainingResult) -> None:
        """Write the cue folders, then remove files that are no longer needed."""
        for cue, splits, folder in zip(cues, self.splits, self.cue_folders, strict=True):
            cue.save(folder, _metrics(cue, splits, result, self.selection))
            for leftover in folder.glob(f"*{TEMPORARY_SUFFIX}"):
                remove(leftover)
        self.checkpoints.remove()

    def _digest(self, first_cues: str) -> str:
        """Digest of everything that makes two runs the same: settings, rows, backbone and the cues they start from."""
        settings = self.config.as_settings()
        settings["task"] = {}  # file names may change: the digest covers rows and weights
        settings["backbone"] = self.config.backbone.max_length
        if self.backbone.quantization != "none":  # runs of earlier versions had none
            settings["quantization"] = self.backbone.quantization
        if self.config.backbone.dropout:
            settings["backbone_dropout"] = self.config.backbone.dropout
        settings["method"] = self.models[0].method.config.model_dump(mode="json")  # with digests of the files it reads
        settings["training"] = {**self.config.training.without_reporting(), "init_from": first_cues}
        settings["training"]["tensorboard"] = False  # a setting of earlier versions, whose runs can be resumed
        tasks = [portable(splits.task).model_dump(mode="json") for splits in self.splits]
        facts = [settings, tasks, vars(self.backbone.fingerprint), str(self.backbone.dtype)]
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
        for splits in self.splits:
            for examples in (splits.train, splits.validation, splits.test):
                for part in _list_text(map(repr, examples)):  # as the repr of a list, which may be larger than memory
                    digest.update(part.encode("utf-8", "surrogatepass"))
                if any(example.weight != 1.0 for example in examples):  # runs of earlier versions had none
                    digest.update(repr([example.weight for example in examples]).encode())
        return digest.hexdigest()

    def _load_finished_together(self, folder: Path) -> Cue:
        """Load the cue of a finished run in all processes. Those whose machine has not the folder get its files."""
        path = folder / "cue.json"
        cue_file = self.processes.decide(path.read_bytes() if self.processes.is_main else b"")
        has_folder = path.is_file() and path.read_bytes() == cue_file
        files: dict[str, bytes] = {}
        if not all(self.processes.gather(has_folder)):
            if self.processes.is_main:
                files = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
            files = self.processes.decide(files)
        if has_folder:
            return self.load_finished(folder)
        with tempfile.TemporaryDirectory() as copy:
            for name, data in files.items():
                (Path(copy) / name).write_bytes(data)
            cue = self.load_finished(Path(copy))
        cue.path = folder
        return cue

    def load_finished(self, folder: Path) -> Cue:
        """Load the cue of a finished run after checking that it is the same run."""
        if read_cue_file(folder).training.get("run") != self.checkpoints.run:
            raise finished_by_another_run(folder)
        return load(folder, self.backbone)

    def _begin_folder(self, step: int) -> None:
        """Create the run folder with the resolved configuration."""
        with convert_write_errors("output_dir", self.folder):
            if step == 0:
                self.checkpoints.remove()
            self.folder.mkdir(parents=True, exist_ok=True)
            text = yaml.safe_dump({"recipe": self.recipe, **self.config.as_settings()}, sort_keys=False)
            write_atomically(self.folder / "config.yaml", text.encode())

    def _make_cue(self, model: TaskModel, splits: Splits, evaluation: Evaluation, result: TrainingResult) -> Cue:
        """The trained model of one task with the content of its cue.json."""
        config, backbone, task = self.config, self.backbone, splits.task
        scores = {"validation": evaluation.scores}
        batch_size = config.training.evaluation_batch_size
        if splits.test:
            scores["test"] = evaluate_examples(backbone, model, splits.test, batch_size, self.processes).scores
        scored = {"validation": splits.validation, "test": splits.test}
        constant = constant_prediction(task, splits.train)
        sentinel = model.readout.config.sentinel
        baseline_scores = {
            split: {
                name: score(task, predictions, scored[split]).scores
                for name, predictions in baseline_predictions(
                    scored[split],
                    lambda share: predict_baselines(backbone, task, constant, share, batch_size, sentinel),
                    self.processes,
                ).items()
            }
            for split in scores
        }
        training = {
            **config.training.without_reporting(),
            "steps_done": result.state.step,
            "best_step": result.state.best_step,
            "train_rows": len(splits.train),
            "validation_rows": len(splits.validation),
            "constant_prediction": constant,
            "run": self.checkpoints.run,
        }
        if config.backbone.dropout:
            training["backbone_dropout"] = config.backbone.dropout
        if config.mixture.tasks:
            training["together_with"] = list(config.mixture.tasks)
        cue_file = CueFile(
            format=FORMAT,
            task=portable(splits.task),
            method=model.method.config.model_dump(mode="json"),
            readout=model.readout.config,
            backbone=CueBackbone.of(backbone, model.max_length),
            training=training,
            scores=scores,
            rows=_count_rows(splits),
            baselines=baseline_scores,
            counts=asdict(model.counts()),
            recipe=CueRecipe(name=self.recipe, summary=self.recipe_summary.text),
            versions=package_versions(),
            tensors_sha256="",
        )
        return Cue(model, backbone, cue_file)


def describe_backbone(backbone: Backbone) -> str:
    """The name of a backbone with its kind, device, number format and attention, in one line.

    Example:
        describe_backbone(softcue.load_backbone("minilm"))     # "minilm: encoder, cpu, float32, sdpa attention"
    """
    return (
        f"{backbone.name}: {backbone.kind}, {backbone.device.type}, {_dtype_name(backbone)}, "
        f"{backbone.attention} attention"
    )


def describe_rows(splits: Splits) -> str:
    """The number of rows of each split that has some, and where the validation rows are from.

    Example:
        describe_rows(splits_of_run("cues/tickets"))     # "252 training, 54 validation, 126 test"
    """
    sizes = {"training": splits.train, "validation": splits.validation, "test": splits.test}
    notes = {"validation": f" ({splits.origin})" if splits.origin else ""}
    return ", ".join(
        f"{len(examples):,} {split}{notes.get(split, '')}" for split, examples in sizes.items() if examples
    )


def check_output(folder: Path, cue_folders: Sequence[Path]) -> None:
    """Check that a run folder holds no finished cue and no unfinished run.

    Example:
        check_output(Path("cues/tickets"), [Path("cues/tickets")])
    """
    for cue_folder in cue_folders:
        if (cue_folder / "cue.json").exists():
            raise RunError(
                setting="output_dir",
                got=cue_folder,
                expected="a folder without a finished cue",
                fix="choose another, or pass `overwrite=True`",
            )
    unfinished = [part for part in ("checkpoints", CANDIDATES) if (folder / part).is_dir()]
    if any(any((folder / part).iterdir()) for part in unfinished):
        raise RunError(
            setting="output_dir",
            got=folder,
            expected="a folder without an unfinished run",
            fix="pass `resume=True` to continue it, or `overwrite=True` to start again",
        )


def finished_by_another_run(folder: Path) -> RunError:
    """The error for a finished cue that a run with other settings or rows cannot resume.

    Example:
        raise finished_by_another_run(Path("cues/tickets"))
    """
    return RunError(
        setting="resume",
        got=folder,
        expected="a run with the same backbone, data, settings and softcue version",
        fix="its cue is finished, with others: choose another folder, or pass `overwrite=True`",
    )


def splits_of_run(folder: str | Path) -> Splits:
    """Read again the rows a run was trained and scored on, by its config.yaml.

    Example:
        splits_of_run("cues/tickets").test[0].texts
    """
    settings = read_settings(Path(folder) / "config.yaml")
    task = {"spread_numbers": False, **settings.get("task", {})}  # an older run has no such setting
    return read_splits(resolve({"task": task}).task, {})  # other sections may be of version 0.1


def with_method_of_first_stage(settings: Settings) -> Settings:
    """Settings whose method, where none is named, is that of the cue which the run starts from.

    Example:
        with_method_of_first_stage({"training": {"init_from": "cues/nli"}})["method"]     # {"name": "m-idpg-phm"}
    """
    origin = settings.get("training", {}).get("init_from")
    if not origin or not isinstance(origin, str) or "name" in settings.get("method", {}):
        return settings
    return merged(settings, {"method": {"name": read_cue_file(Path(origin)).method["name"]}})


def _settings_without_effect(settings: Settings, model: TaskModel) -> list[str]:
    """Warnings about learning rates that the user has set and that no parameter uses."""
    given = settings.get("training", {})
    groups = group_parameters(model)
    name = model.method.config.name
    has_closed_form = model.method.closed_form_solutions(model.readout, []) is not None
    if has_closed_form or not model.method.needs_training:
        reason = "it is solved in closed form, which has no learning rate" if has_closed_form else "it trains nothing"
        rates = [rate for rate in groups if given.get(rate) is not None]
        return [f"training.{rate} has no effect on {name}: {reason}" for rate in rates]
    warnings = []
    if "learning_rate" in given and not groups["learning_rate"]:
        warnings.append(f"training.learning_rate has no effect on {name}: set training.network_learning_rate")
    elif "network_learning_rate" in given and not groups["network_learning_rate"] + groups["head_learning_rate"]:
        warnings.append(
            f"training.network_learning_rate has no effect on {name} with this readout: set training.learning_rate"
        )
    if given.get("head_learning_rate") is not None and not groups["head_learning_rate"]:
        warnings.append(
            f"training.head_learning_rate has no effect on {name} with this readout: set readout.head_start=solved"
        )
    if "backbone_learning_rate" in given and not groups["backbone_learning_rate"]:
        has_weights = model.method.weights is not None
        advice = "training.learning_rate is its rate" if has_weights else "set method.tune_backbone=true"
        warnings.append(f"training.backbone_learning_rate has no effect on {name}: {advice}")
    return warnings


def _describe_refit(score_name: str, result: TrainingResult) -> str:
    """Why the scores of the cue are higher than those of its best step."""
    score = fmean(evaluation.main for evaluation in result.evaluations)
    return (
        f"the head was solved again at the end (best step {result.state.best_step}): {score_name} "
        f"{score - result.refit_gain:.1f} -> {score:.1f} on the validation rows"
    )


def _list_text(items: Iterable[str]) -> Iterator[str]:
    """The text of a list, in parts."""
    yield "["
    for number, item in enumerate(items):
        yield f", {item}" if number else item
    yield "]"


def _dtype_name(backbone: Backbone) -> str:
    return str(backbone.dtype).removeprefix("torch.")


def _with_values_for_auto(config: Config, chosen: Mapping[str, Any]) -> Config:
    """Replace each value `auto` by the value that was chosen for it, if there is one."""
    is_auto = [name for name, value in config if value in ("auto", "measured")]
    return config.model_copy(update={name: chosen[name] for name in is_auto if name in chosen})


def _count_rows(splits: Splits) -> dict[str, int]:
    return {"train": len(splits.train), "validation": len(splits.validation), "test": len(splits.test)}


def _metrics(cue: Cue, splits: Splits, result: TrainingResult, selection: SelectionRecord | None) -> dict[str, Any]:
    """The content of metrics.json. Its seconds count the choice of the method too."""
    seconds = result.seconds + (0.0 if selection is None else selection.seconds)
    return {
        "scores": cue.scores,
        "history": result.state.history,
        "health": result.state.health,
        "best_step": result.state.best_step,
        "refit_gain": result.refit_gain,
        "steps": result.state.step,
        "seconds": round(seconds, 1),
        "peak_megabytes": round(result.peak_megabytes, 1),
        "truncated_training_texts": result.num_truncated,
        "rows": _count_rows(splits),
        "baselines": cue.cue_file.baselines,
        "warnings": result.warnings,
        **({} if selection is None else {"selection": selection.as_dict()}),
    }
