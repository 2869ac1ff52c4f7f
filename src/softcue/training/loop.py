"""The training loop. It handles steps, batches and processes, and never asks for a method's name."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from softcue.backbones import Backbone
from softcue.devices import send
from softcue.errors import ConfigurationError, DataError, TrainingError, first_line
from softcue.evaluation import Evaluation
from softcue.files import tensor_shapes
from softcue.inference import PreparedRequests, StepOutput, TaskModel
from softcue.inputs.collate import collate
from softcue.inputs.packed_rows import join_rows, lengths_of, num_truncated, weights_of
from softcue.prompts import PromptEncoder
from softcue.randomness import Dropout, rows_of_global_batch
from softcue.readouts import Readout
from softcue.training.advice import describe_cut, describe_start, length_to_try, rates_to_try
from softcue.training.batches import EpochBatches, micro_batches, stream_seed
from softcue.training.checkpoints import Checkpoint, Checkpoints, TrainingState, other_run_error
from softcue.training.config import TrainingConfig
from softcue.training.contrastive import supervised_contrastive
from softcue.training.joint_model import JointModel
from softcue.training.label_rows import label_rows
from softcue.training.mixture import MixtureConfig, epoch_rows
from softcue.training.optimizers import load_optimizer_tensors, make_optimizer, optimizer_tensors, rate_factor
from softcue.training.processes import Processes
from softcue.training.shares import evaluate_requests, prepare_requests, same_scores, training_rows
from softcue.training.solved_heads import HeadSolver
from softcue.training.step_memory import free_memory, is_out_of_memory, rows_that_fit
from softcue.types import Batch, Example, TokenizedRow

NUM_VARIATION_ROWS = 32  # training rows on which the prompts' dependence on the input is measured
NUM_EVALUATIONS = 5  # of a run whose length is `min_steps`
# Receives the kind of event ("step" or "evaluation") and its values.
ProgressListener = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True)
class TaskData:
    """The model and the rows of one task of a run."""

    model: TaskModel
    train: Sequence[Example]
    validation: Sequence[Example]


@dataclass(frozen=True)
class TrainingResult:
    """The result of a run. The models hold the parameters of the best evaluation."""

    state: TrainingState
    evaluations: list[Evaluation]  # of each task's validation rows
    num_truncated: int
    seconds: float
    peak_megabytes: float
    warnings: list[str] = field(default_factory=list)
    refit_gain: float = 0.0  # of heads that were solved again at the end, mean over tasks


def check_finite(loss: float, step: int, fix: str) -> None:
    """Check that the loss of a step, counted from 0, is a number to go on from.

    Example:
        >>> check_finite(0.5, step=0, fix="lower the learning rate")
    """
    if not math.isfinite(loss):
        raise TrainingError(setting=f"loss at step {step + 1}", got=loss, expected="a finite number", fix=fix)


SIZED_DEVICES = ("cuda",)  # whose memory is divided among rows before a run
MAX_SKIPPED_STEPS = 5  # in a row, with a loss that is not finite, before a run stops


def plan_steps(config: TrainingConfig, steps_per_epoch: int) -> tuple[int, int]:
    """Return the number of steps of a run, and the number between evaluations.

    Example:
        >>> plan_steps(TrainingConfig(epochs=10), steps_per_epoch=7)
        (70, 7)
        >>> plan_steps(TrainingConfig(epochs=10, min_steps=150), steps_per_epoch=7)
        (150, 30)
    """
    num_steps = config.steps or config.epochs * steps_per_epoch
    evaluate_every = config.evaluate_every or steps_per_epoch
    if not config.takes_min_steps(steps_per_epoch):
        return num_steps, evaluate_every
    return config.min_steps, config.evaluate_every or math.ceil(config.min_steps / NUM_EVALUATIONS)


def scaled_weights(readout: Readout, rows: Sequence[TokenizedRow]) -> list[float]:
    """Return the weights of a task's rows, scaled so that their mean over all terms of the loss is 1.

    The expected loss of a step is then the weighted mean over all rows, as if each row were there as often as its
    weight says. A division by the weights of the step's own rows would give rows of heavy steps too little.

    Example:
        scaled_weights(model.readout, rows)     # two rows of weights 1 and 3: [0.5, 1.5]
    """
    weights = weights_of(rows)
    if (weights == 1.0).all():
        return [1.0] * len(rows)
    num_terms = [readout.num_losses([row]) for row in rows]
    total = sum(weight * num for weight, num in zip(weights.tolist(), num_terms, strict=True))
    scale = sum(num_terms) / total if total else 1.0
    return [weight * scale for weight in weights.tolist()]


class Trainer:
    """Trains the model of a task on a frozen backbone, or the models of several tasks that share a method.

    `recipe_rates` are the learning rates of the recipe by the name of their setting, for advice alone.

    Example:
        result = Trainer(backbone, [TaskData(model, train, validation)], TrainingConfig(epochs=3)).run()
    """

    def __init__(
        self,
        backbone: Backbone,
        tasks: Sequence[TaskData],
        config: TrainingConfig,
        checkpoints: Checkpoints | None = None,
        listener: ProgressListener | None = None,
        processes: Processes | None = None,
        mixture: MixtureConfig | None = None,
        backbone_dropout: float = 0.0,
        recipe_rates: Mapping[str, float] | None = None,
    ) -> None:
        self._started = time.monotonic()  # tokenizing and computing M(x) count as training time
        self.backbone, self.tasks, self.config = backbone, tasks, config
        self.models = [task.model for task in tasks]
        self.model: TaskModel | JointModel = self.models[0] if len(tasks) == 1 else JointModel(self.models)
        self.mixture = mixture or MixtureConfig()
        self.backbone_dropout = backbone_dropout
        self.recipe_rates = recipe_rates or {}
        self.checkpoints = checkpoints
        self.processes = processes or Processes()
        self.listener = listener or (lambda kind, values: None)
        self.needs_training = self.model.method.needs_training
        rows_by_task: list[Sequence[TokenizedRow]] = [
            training_rows(task.model, backbone, task.train, self.processes) if self.needs_training else []
            for task in tasks
        ]
        self.num_given_by_task = [len(task_rows) for task_rows in rows_by_task]
        for number, task in enumerate(tasks):
            if added := self._label_rows(task):
                rows_by_task[number] = join_rows([rows_by_task[number], added])
        self.rows: Sequence[TokenizedRow] = join_rows(rows_by_task)
        self.num_rows_by_task = [len(task_rows) for task_rows in rows_by_task]
        self.task_numbers = [number for number, size in enumerate(self.num_rows_by_task) for _ in range(size)]
        self.lengths = lengths_of(self.rows)
        self.row_weights = [
            weight
            for model, task_rows in zip(self.models, rows_by_task, strict=True)
            for weight in scaled_weights(model.readout, task_rows)
        ]
        self._check_trainable()
        self.steps_per_epoch = math.ceil(len(self.rows) / config.batch_size)
        self.num_steps, self.evaluate_every = plan_steps(config, self.steps_per_epoch)
        if not self.needs_training:
            self.num_steps = 0
        elif self._closed_form() is not None:
            self.num_steps = self.model.method.num_solutions or self.num_steps
        self.optimizer = make_optimizer(self.model, config)
        self._memory_ran_out = False
        self.rows_at_once = self._size_pieces()  # 0: as many as the configuration allows
        self.state = TrainingState()
        self.best: dict[str, Tensor] = {}
        self._best_evaluations: list[Evaluation] = []  # of `best`; empty if it was loaded from a checkpoint
        # an epoch, its row numbers if it has not each row once, and its batches
        self._batches: tuple[int, list[int] | None, EpochBatches] | None = None
        self._validation: list[PreparedRequests] = []  # tokenized at the first evaluation
        self._has_begun = self._has_closed_form = False
        if backbone.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(backbone.device)

    def _label_rows(self, task: TaskData) -> Sequence[TokenizedRow]:
        """The labels' texts as rows, if the settings ask for them and steps learn from rows."""
        model = task.model
        has_steps = self.needs_training and not model.has_frozen_features
        if not self.config.label_share or not has_steps or model.reformulation is not None:
            return []
        examples = label_rows(model.task, len(task.train), self.config.label_share)
        return training_rows(model, self.backbone, examples, self.processes) if examples else []

    def _check_trainable(self) -> None:
        """Check that each task has rows to learn from, that dropout acts once, and that there is something to train."""
        if not self.needs_training:
            return
        for task, num_rows in zip(self.tasks, self.num_given_by_task, strict=True):
            if not num_rows:
                raise DataError(
                    setting="training rows",
                    got=task.model.task.name,
                    expected="at least one row that can be learned from",
                    fix="check them: a text-to-text backbone learns referents from true rows",
                )
        if self.backbone_dropout:
            self.model.train()
            self.model.method.view_of(self.backbone).check_dropout(self.backbone_dropout)
        if not any(parameter.requires_grad for parameter in self.model.parameters()):
            raise ConfigurationError(
                setting="method.name",
                got=self.model.method.config.name,
                expected="something to train: a prompt or a readout with a head",
                fix="choose another method, or readout.name=classifier",
            )

    def resume(self, checkpoint: Checkpoint[TrainingState]) -> None:
        """Continue from a checkpoint, which must be one of this model and these steps."""
        tensors = self._tensors()
        model, best, state = checkpoint.tensors["model"], checkpoint.tensors["best"], checkpoint.state
        is_of_model = tensor_shapes(model) == tensor_shapes(tensors) and tensor_shapes(best) == tensor_shapes(
            self.model.state_dict()
        )
        if not is_of_model or not state.is_possible(self.num_steps):
            raise other_run_error(
                f"a checkpoint of step {state.step}", f"tensors of this model, and a step up to {self.num_steps}"
            )
        self.state = state
        for name, tensor in tensors.items():
            tensor.copy_(model[name])
        self.best = best
        load_optimizer_tensors(self.model, self.optimizer, checkpoint.tensors["optimizer"])

    def run(self) -> TrainingResult:
        """Train to the end. Afterwards the model holds the parameters of its best evaluation."""
        self.advance(self.num_steps)
        return self.finish()

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to train: all steps are taken, or it stopped early, or it takes none."""
        takes_no_steps = not self.needs_training or self._has_closed_form
        is_over = takes_no_steps or self.state.step >= self.num_steps or self.state.is_over
        return self._has_begun and is_over

    def advance(self, step: int) -> None:
        """Train up to a step. What is solved in closed form, or trains nothing, is done at once.

        Example:
            trainer.advance(trainer.num_steps // 2)
        """
        if not self._has_begun:
            self._begin()
        with torch.random.fork_rng(devices=[]):
            while self.state.step < step and not self.is_done:
                self._step()
                self._after_step()

    def finish(self) -> TrainingResult:
        """End training here. Afterwards the model holds the parameters of its best evaluation."""
        self.model.load_state_dict(self.best)
        self.model.eval()
        trained = evaluations = self._best_evaluations or self._score_validation()
        if self.needs_training and not self._has_closed_form:
            evaluations = self._refit_heads(trained)
        return TrainingResult(
            self.state,
            evaluations,
            num_truncated(self.rows),
            time.monotonic() - self._started,
            peak_megabytes(self.backbone.device),
            self._warnings(evaluations),
            fmean(after.main - before.main for before, after in zip(trained, evaluations, strict=True)),
        )

    def _begin(self) -> None:
        """What comes before the first step of this process: closed forms, or the start of a run by steps."""
        self._has_begun = True
        self.processes.share_first(list(self._tensors().values()))
        closed_form_solutions = self._closed_form()
        self._has_closed_form = closed_form_solutions is not None
        if self._has_closed_form and len(self.models) > 1:
            raise ConfigurationError(
                setting="method.name",
                got=self.model.method.config.name,
                expected="a method that tasks can share",
                fix="train a cue per task: it has a closed form for each",
            )
        for _ in closed_form_solutions or ():
            self.processes.share_first(list(self._tensors().values()))
            self.state.step += 1
            self._evaluate()
        if not self.needs_training:
            self._evaluate()
        elif not self._has_closed_form and self.state.step == 0:
            self._start()

    def _closed_form(self) -> Iterator[None] | None:
        """What solves the model in closed form, if its method has such solutions."""
        return self.model.method.closed_form_solutions(self.models[0].readout, self.rows)

    def _start(self) -> None:
        """Fit and solve the heads whose settings ask for it, and evaluate the model before its first step."""
        solved = [solver.start(self.backbone) for solver in self._head_solvers()]
        self.processes.share_first(list(self._tensors().values()))
        evaluations = [same_scores(evaluation, self.processes) for evaluation in solved if evaluation is not None]
        encoder = self.model.method.prompt_encoder()
        if encoder is not None and not encoder.is_ready:
            return
        if len(evaluations) == len(self.tasks):
            self._evaluate(evaluations)
        elif evaluations or self.config.evaluate_start:
            self._evaluate()

    def _head_solvers(self) -> list[HeadSolver]:
        """What solves the head of each task."""
        return [
            HeadSolver(
                task.model,
                self._rows_of_task(number),
                validation,
                self.config.evaluation_batch_size,
                self.processes,
            )
            for number, (task, validation) in enumerate(zip(self.tasks, self._validation_requests(), strict=True))
        ]

    def _refit_heads(self, evaluations: list[Evaluation]) -> list[Evaluation]:
        """Solve the heads that ask for it again on the vectors of the trained prompts; keep those that score higher."""
        kept = list(evaluations)
        for number, solver in enumerate(self._head_solvers()):
            readout = solver.model.readout
            if readout.config.refit and readout.is_solvable and solver.has_classes_or_scores:
                kept[number] = same_scores(solver.refit(self.backbone), self.processes)
                self.processes.share_first(list(readout.state_dict().values()))
        return kept

    def _step(self) -> None:
        """One optimizer step."""
        step = self.state.step
        rows = self._batch_of_step(step)
        self.model.train()
        factor = rate_factor(self.config, step, self.num_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = group["base_rate"] * factor
        self.optimizer.zero_grad(set_to_none=True)
        loss_sum, statistics = self._backward(rows)
        loss = float(self.processes.total(loss_sum))
        if not math.isfinite(loss):
            self._skip_step(loss)
            return
        self._reduce_and_update()
        health = self._update_method_state(statistics)
        self.state.step += 1
        self.state.num_skipped = 0
        self.state.health = {**self.state.health, **health}
        self.listener(
            "step",
            {
                "step": self.state.step,
                "epoch": step / self.steps_per_epoch,
                "loss": loss,
                "rate_factor": factor,
                "rows": len(rows),
                **health,
            },
        )

    def _skip_step(self, loss: float) -> None:
        """Take no update from a loss that is not finite. After several in a row, end with the best parameters."""
        state = self.state
        state.num_skipped += 1
        state.total_skipped += 1
        if state.num_skipped >= MAX_SKIPPED_STEPS or state.step + 1 == self.num_steps:
            if not state.best_step:  # nothing that was trained has been evaluated
                check_finite(loss, state.step, fix=self._slower)
            state.is_over = True
        state.step += 1

    @property
    def _slower(self) -> str:
        """Advice for a run whose loss is not finite."""
        return (
            f"lower training.learning_rate (now {self.config.learning_rate}) or "
            "training.network_learning_rate, or set training.clip_norm=1.0"
        )

    def _backward(self, rows: Sequence[int]) -> tuple[Tensor, dict[str, Tensor]]:
        """Add up the gradients of this process' micro-batches; returns the summed loss and statistics.

        If memory runs out, the micro-batches are halved for the rest of the run and the step begins again. Noise
        belongs to rows, so it has the same numbers.
        """
        while True:
            try:
                return self._add_gradients(rows)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                problem = first_line(error)[:80]  # the error itself holds the tensors of the step
            self.optimizer.zero_grad(set_to_none=True)
            self._halve_pieces(rows, problem)

    def _halve_pieces(self, rows: Sequence[int], problem: str) -> None:
        """Take half as many rows at once from now on."""
        largest = max(len(micro_batch) for micro_batch in self._micro_batches(rows))
        longest = max(int(self.lengths[row]) for row in rows)
        encoder = self.model.method.prompt_encoder()
        compares = (encoder is not None and encoder.compared_shape is not None) or self.config.contrastive > 0
        if largest == 1 or (self.processes.world_size > 1 and compares):
            settings = [] if self.backbone.checkpoints_layers else ["backbone.gradient_checkpointing=true"]
            settings += [] if self.backbone.dtype == torch.bfloat16 else ["backbone.dtype=bfloat16"]
            settings.append(f"backbone.max_length below {longest}")
            raise TrainingError(
                setting="training.micro_batch_size",
                got=f"{largest} at once, {longest} tokens at most",
                expected=f"rows that fit the memory of {self.backbone.device} ({problem})",
                fix=f"set {' or '.join(settings)}, or take a smaller backbone",
            )
        self.rows_at_once = largest // 2
        if self.backbone.device.type == "cuda":
            torch.cuda.empty_cache()
        self._memory_ran_out = True

    def _size_pieces(self) -> int:
        """The most rows that a GPU holds at once, as their memory is foreseen; 0 if all that a setting allows.

        It is not foreseen for prompts that enter at a later layer, for weights that are trained, and for a model on
        several devices: there pieces are halved if memory runs out.
        """
        device, model = self.backbone.device, self.models[0]
        if device.type not in SIZED_DEVICES or self.config.micro_batch_size or not self.needs_training:
            return 0
        view = model.method.view_of(self.backbone)
        is_split = len({weight.device for weight in self.backbone.model.parameters()}) > 1
        is_foreseen = model.method.weights is None and view.whole is view and not is_split
        free = free_memory(device)
        if free is None or model.has_frozen_features or not is_foreseen:
            return 0
        length = max(len(row.ids) for row in self.rows)
        target_length = max(len(row.target_ids) for row in self.rows)
        return rows_that_fit(self.backbone, model, length, target_length, self.config, free)

    def _add_gradients(self, rows: Sequence[int]) -> tuple[Tensor, dict[str, Tensor]]:
        """Forward and backward pass of each of this process' micro-batches."""
        num_rows = len(rows)
        # A task's loss is a mean, weighted by the task's share of rows: losses over words and over rows are not mixed.
        weights = {
            model: len(positions) / num_rows / model.readout.num_losses([self.rows[rows[p]] for p in positions])
            for model, positions in self._group_by_task(rows, range(num_rows))
        }
        loss_sum = torch.zeros((), device=self.backbone.device)
        encoder = self.model.method.prompt_encoder()
        statistics = {} if encoder is None else encoder.zero_statistics()
        pieces = [
            piece for micro_batch in self._micro_batches(rows) for piece in self._group_by_task(rows, micro_batch)
        ]
        gradient = None  # [B ...] of the loss that compares rows, if no piece has all of them
        if encoder is not None and (num_rows > 1 if self.processes.world_size > 1 else len(pieces) > 1):
            gradient = self._compare_rows(encoder, rows, pieces, loss_sum, statistics)
        dropout = None
        if self.backbone_dropout:
            seed = stream_seed(self.config.seed, "backbone dropout", self.state.step)
            dropout = Dropout(self.backbone_dropout, seed)
        contrast = self._contrast_pieces(rows, pieces, dropout, loss_sum)
        for model, positions in pieces:
            with self._as_part_of_batch(rows, positions) as batch:
                output: StepOutput = model(self.backbone, batch, dropout, with_features=self._contrasts(model))
            row_weights = self._weights_of(rows, positions)  # [B]
            loss = (output.losses * row_weights).sum() * weights[model]
            loss = loss + output.aux_loss * (len(positions) / num_rows)  # it knows no targets, so no weights
            if output.features is not None and contrast is None:
                assert batch.labels is not None
                share = len(positions) / num_rows
                loss = loss + self._contrastive_loss(output.features, batch.labels, row_weights, share)
            loss_sum += loss.detach()
            if output.features is not None and contrast is not None:
                loss = (
                    loss + (output.features * contrast[model][self._index(positions)]).sum()
                )  # its gradient is that of the loss
            _add(statistics, output.statistics)
            if output.compared is not None and encoder is not None:
                if gradient is None:
                    batch_loss, sums = encoder.batch_loss(output.compared)
                    loss_sum += batch_loss.detach()
                    _add(statistics, sums)
                else:
                    batch_loss = (
                        output.compared * gradient[self._index(positions)]
                    ).sum()  # its gradient is that of the loss
                loss = loss + batch_loss
            loss.backward()
        self._pad_passes(rows, len(pieces))
        return loss_sum, statistics

    def _micro_batches(self, rows: Sequence[int]) -> list[list[int]]:
        """The micro-batches of this process: positions in the global batch."""
        return self._micro_batches_of(rows, self.processes.rank)

    def _micro_batches_of(self, rows: Sequence[int], rank: int) -> list[list[int]]:
        return micro_batches(
            [int(self.lengths[row]) + self.models[self.task_numbers[row]].method.prompt_length for row in rows],
            rank,
            self.processes.world_size,
            self.rows_at_once or self.config.micro_batch_size,
            self.config.micro_batch_tokens,
        )

    def _pad_passes(self, rows: Sequence[int], num_pieces: int) -> None:
        """Run passes that change nothing, until this process has taken as many as the one with most micro-batches.

        A layer that is divided over processes runs only when it runs in all of them.
        """
        if not self.processes.is_in_step:
            return
        most = max(len(self._micro_batches_of(rows, rank)) for rank in range(self.processes.world_size))
        [(model, positions)] = self._group_by_task(rows, [0])
        for _ in range(most - num_pieces):
            with self._as_part_of_batch(rows, positions) as batch:
                output: StepOutput = model(self.backbone, batch)
            if torch.is_grad_enabled():
                (output.losses.sum() * 0.0).backward()

    @contextmanager
    def _as_part_of_batch(self, rows: Sequence[int], positions: Sequence[int]) -> Iterator[Batch]:
        """The rows at these positions of the global batch, with their noise: the same however often they run."""
        tokenized = [self.rows[rows[position]] for position in positions]
        batch = collate(tokenized, self.backbone.tokenizer.pad_token_id)
        torch.manual_seed(stream_seed(self.config.seed, "step", self.state.step))
        with rows_of_global_batch(positions, len(rows)):
            yield batch.to(self.backbone.device)

    def _compare_rows(
        self,
        encoder: PromptEncoder,
        rows: Sequence[int],
        pieces: Sequence[tuple[TaskModel, list[int]]],
        loss_sum: Tensor,
        statistics: dict[str, Tensor],
    ) -> Tensor | None:
        """The gradient of the loss that compares all rows of the step, at what it compares; None without such a loss.

        What is compared is computed twice: here without gradient for all rows, and again with each piece. The main
        process adds the loss and its statistics.
        """
        if encoder.compared_shape is None:
            return None
        compared = torch.zeros(len(rows), *encoder.compared_shape, device=self.backbone.device)
        with torch.no_grad():
            for model, positions in pieces:
                with self._as_part_of_batch(rows, positions) as batch:
                    vectors = model.compared(self.backbone, batch)
                assert vectors is not None
                compared[self._index(positions)] = vectors
        self.processes.total(compared).requires_grad_()
        loss, sums = encoder.batch_loss(compared)
        if self.processes.is_main:
            loss_sum += loss.detach()
            _add(statistics, sums)
        return torch.autograd.grad(loss, compared)[0]

    def _contrasts(self, model: TaskModel) -> bool:
        """Whether the contrastive term applies to a task: to heads with classes."""
        has_classes = model.readout.task.has_classes and model.readout.summary is not None
        return self.config.contrastive > 0 and has_classes and not model.has_frozen_features

    def _weights_of(self, rows: Sequence[int], positions: Sequence[int]) -> Tensor:
        """The scaled weights of the rows at these positions of the global batch. [B]"""
        weights = torch.tensor([self.row_weights[rows[position]] for position in positions])
        return send(weights, self.backbone.device)

    def _index(self, positions: Sequence[int]) -> Tensor:
        """Positions as an index on the backbone's device. [B]"""
        return send(torch.tensor(positions), self.backbone.device)

    def _contrastive_loss(self, features: Tensor, labels: Tensor, weights: Tensor, share: float) -> Tensor:
        """The contrastive term of a task's rows in a batch, weighted by their share of it."""
        if labels.is_floating_point():  # probabilities: no classes to draw together
            return features.sum() * 0.0
        loss = supervised_contrastive(features.float(), labels, self.config.contrastive_temperature, weights)
        return self.config.contrastive * share * loss

    def _contrast_pieces(
        self, rows: Sequence[int], pieces: Sequence[tuple[TaskModel, list[int]]], dropout: Dropout | None, loss: Tensor
    ) -> dict[TaskModel, Tensor] | None:
        """The gradient of the contrastive term at the features of all rows, by task; None if no piece needs it.

        A piece that has all rows of its task computes the term itself. Otherwise features are computed twice: here
        without gradient for all rows, and again with each piece. The main process adds the loss.
        """
        groups = [group for group in self._group_by_task(rows, range(len(rows))) if self._contrasts(group[0])]
        is_whole = self.processes.world_size == 1 and len(pieces) == len({id(model) for model, _ in pieces})
        if not groups or is_whole:
            return None
        gradients = {}
        for model, positions in groups:
            features = torch.zeros(len(rows), model.readout.feature_width, device=self.backbone.device)
            with torch.no_grad():
                for piece_model, piece_positions in pieces:
                    if piece_model is model:
                        with self._as_part_of_batch(rows, piece_positions) as batch:
                            output: StepOutput = model(self.backbone, batch, dropout, with_features=True)
                        assert output.features is not None
                        features[self._index(piece_positions)] = output.features.float()
                self._pad_passes(rows, len(pieces))
            self.processes.total(features).requires_grad_()
            labels = torch.tensor([self.rows[rows[position]].label for position in positions])
            term = self._contrastive_loss(
                features[self._index(positions)],
                send(labels, self.backbone.device),
                self._weights_of(rows, positions),
                len(positions) / len(rows),
            )
            if self.processes.is_main:
                loss += term.detach()
            gradients[model] = torch.autograd.grad(term, features)[0]
        return gradients

    def _group_by_task(self, rows: Sequence[int], positions: Sequence[int]) -> list[tuple[TaskModel, list[int]]]:
        """Positions in a batch, grouped by the task of their rows."""
        groups: dict[int, list[int]] = {}
        for position in positions:
            groups.setdefault(self.task_numbers[rows[position]], []).append(position)
        return [(self.models[task_number], members) for task_number, members in groups.items()]

    def _reduce_and_update(self) -> None:
        """Sum the gradients over all processes, clip them and update the parameters."""
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        self.processes.sum_gradients(trainable)
        if self.config.clip_norm > 0:
            torch.nn.utils.clip_grad_norm_(trainable, self.config.clip_norm)
        self.optimizer.step()

    def _update_method_state(self, statistics: dict[str, Tensor]) -> dict[str, float]:
        """Update the state that no gradient changes, such as a codebook; returns the method's finite measures."""
        encoder = self.model.method.prompt_encoder()
        if encoder is None:
            return {}
        summed = {name: self.processes.total(sums) for name, sums in statistics.items()}
        health = encoder.update_state(summed, epoch_begins=self.state.step % self.steps_per_epoch == 0)
        return {name: value for name, value in health.items() if math.isfinite(value)}

    def _after_step(self) -> None:
        """Evaluate and write a checkpoint if they are due."""
        step, config = self.state.step, self.config
        is_last = step == self.num_steps
        # Parameters that give no finite loss give no predictions to score.
        should_evaluate = (is_last or step % self.evaluate_every == 0) and not self.state.num_skipped
        if should_evaluate:
            self._evaluate()
        should_save = should_evaluate if config.checkpoint_every == 0 else step % config.checkpoint_every == 0
        if self.checkpoints and (should_save or is_last or self.state.is_over) and self.processes.is_main:
            self.checkpoints.save(self._checkpoint())

    def _evaluate(self, evaluations: list[Evaluation] | None = None) -> None:
        """Score the validation rows unless it is done, keep the model if it is the best, and report."""
        state = self.state
        self.model.eval()
        evaluations = evaluations or self._score_validation()
        mean_score = fmean(evaluation.main for evaluation in evaluations)
        is_better = state.best_score is None or mean_score > state.best_score
        state.num_worse = 0 if is_better else state.num_worse + 1
        if is_better or mean_score == state.best_score:  # the later of equal scores has seen more rows
            state.best_score, state.best_step = mean_score, state.step
            self._best_evaluations = evaluations
            self.best = {name: value.detach().cpu().clone() for name, value in self.model.state_dict().items()}
        has_collapsed = all(evaluation.has_collapsed for evaluation in evaluations)
        state.num_collapsed = state.num_collapsed + 1 if has_collapsed else 0
        state.is_over = bool(self.config.patience) and state.num_worse >= self.config.patience
        entry = {"step": state.step, "score": mean_score}
        for model, evaluation in zip(self.models, evaluations, strict=True):
            prefix = "" if len(self.models) == 1 else f"{model.task.name}/"
            entry |= {f"{prefix}{name}": value for name, value in evaluation.scores.items()}
        sample = self._rows_of_task(0)[:NUM_VARIATION_ROWS]
        variation = self.models[0].variation(self.backbone, sample)
        if variation is not None:
            state.health = {**state.health, "prompt_variation": variation}
            entry["prompt_variation"] = variation
        state.history.append(entry)
        self.listener("evaluation", {**entry, "best_score": state.best_score})

    def _score_validation(self) -> list[Evaluation]:
        """Scores of each task's validation rows."""
        return [
            evaluate_requests(self.backbone, task.model, requests, self.config.evaluation_batch_size, self.processes)
            for task, requests in zip(self.tasks, self._validation_requests(), strict=True)
        ]

    def _validation_requests(self) -> list[PreparedRequests]:
        """The validation rows of each task, tokenized at the first use."""
        if not self._validation:
            requests = [[(task.model, example) for example in task.validation] for task in self.tasks]
            self._validation = [
                prepare_requests(self.backbone, task_requests, self.processes) for task_requests in requests
            ]
        return self._validation

    def _checkpoint(self) -> Checkpoint[TrainingState]:
        best = self.best or {name: value.detach().cpu() for name, value in self.model.state_dict().items()}
        optimizer = optimizer_tensors(self.model, self.optimizer)
        return Checkpoint(self.state, {"model": self._tensors(), "best": best, "optimizer": optimizer})

    def _tensors(self) -> dict[str, Tensor]:
        """All tensors a step may change: those of the cue, and buffers that only training needs."""
        return {**self.model.state_dict(), **dict(self.model.named_buffers())}

    def _rows_of_task(self, number: int) -> Sequence[TokenizedRow]:
        """The rows that one task was given. Rows lie one task after the other, each with its labels' texts behind."""
        first = sum(self.num_rows_by_task[:number])
        return self.rows[first : first + self.num_given_by_task[number]]

    def _batch_of_step(self, step: int) -> list[int]:
        """The row numbers of a step's global batch."""
        epoch, position = divmod(step, self.steps_per_epoch)
        if self._batches is None or self._batches[0] != epoch:
            seed, numbers, lengths = self.config.seed, None, self.lengths
            if len(self.tasks) > 1:
                numbers = epoch_rows(self.num_rows_by_task, self.mixture, seed, epoch)
                lengths = lengths[numbers]
            self._batches = (epoch, numbers, EpochBatches(lengths, self.config.batch_size, seed, epoch))
        _, numbers, batches = self._batches
        return batches[position] if numbers is None else [numbers[index] for index in batches[position]]

    def _warnings(self, evaluations: Sequence[Evaluation]) -> list[str]:
        """Warnings about the method, and about each task."""
        encoder = self.model.method.prompt_encoder()
        warnings = [] if encoder is None else encoder.health_warnings(self.state.health)
        if self._memory_ran_out:
            warnings.append(
                f"memory ran out, so steps took {self.rows_at_once} rows at once: set "
                f"training.micro_batch_size={self.rows_at_once} to begin with that"
            )
        if self.state.num_skipped:
            warnings.append(
                f"the loss was not finite in the last {self.state.num_skipped} of {self.state.step} steps, so training "
                f"stopped with the parameters of step {self.state.best_step}: {self._slower}"
            )
        elif self.state.total_skipped:
            warnings.append(
                f"{self.state.total_skipped} of {self.state.step} steps changed nothing, because their loss was not "
                f"finite: {self._slower}; rows that always give such a loss were not learned"
            )
        if start := "" if self._has_closed_form else describe_start(self.models[0], self.config, self.state):
            settings = self._settings_to_try(self.models[0], only_lower=True)
            has_advice = any(evaluation.has_collapsed for evaluation in evaluations)  # with that warning
            warnings.append(start if has_advice else f"{start}. Try one of: {', '.join(settings)}")
        for number, (model, evaluation) in enumerate(zip(self.models, evaluations, strict=True)):
            rows = self._rows_of_task(number)
            prefix = "" if len(self.models) == 1 else f"{model.task.name}: "
            warnings += [prefix + warning for warning in self._task_warnings(model, rows, evaluation)]
        return warnings

    def _task_warnings(self, model: TaskModel, rows: Sequence[TokenizedRow], evaluation: Evaluation) -> list[str]:
        warnings = []
        if evaluation.has_collapsed:
            label = next(iter(evaluation.predicted_labels))
            settings = ", ".join(self._settings_to_try(model))
            warnings.append(
                f"each of the {evaluation.num_rows} validation rows is predicted as '{label}': "
                + ("nothing was learned" if self.needs_training else "the prompt does not tell labels apart")
                + (f". Try one of: {settings}" if settings else "")
            )
        if num_cut := num_truncated(rows):
            warnings.append(f"{num_cut} of {len(rows)} training rows were cut: {describe_cut(model)}")
        if evaluation.num_truncated:
            warnings.append(f"{evaluation.num_truncated} of {evaluation.num_rows} validation texts were cut likewise")
        return warnings

    def _settings_to_try(self, model: TaskModel, only_lower: bool = False) -> list[str]:
        """Settings that may help when nothing was learned. Only those that have an effect on this model."""
        if not self.needs_training:
            return model.method.config.settings_to_try(model.task)
        if self._closed_form() is not None:
            return []  # there are no steps to change
        return [
            *rates_to_try(model, self.config, self.recipe_rates, only_lower),
            length_to_try(self.config, self.steps_per_epoch, self.state),
            *model.method.config.settings_to_try(model.task),
            *model.readout.settings_to_try(),
        ]


def _add(totals: dict[str, Tensor], sums: Mapping[str, Tensor]) -> None:
    """Add sums to the totals of the same names."""
    for name, value in sums.items():
        totals[name] += value


def peak_megabytes(device: torch.device) -> float:
    """Peak memory: on a GPU since the run began, on the CPU since the process or its run of a study began."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
