"""The one training loop. It knows steps, batches and processes, but no method by name."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from softcue.backbones import Backbone
from softcue.errors import ConfigurationError, DataError, TrainingError
from softcue.evaluation import Evaluation, score
from softcue.inference import PreparedRequests, StepOutput, TaskModel, predict
from softcue.inputs.collate import collate
from softcue.randomness import rows_of_global_batch
from softcue.training.batches import epoch_batches, own_share, stream_seed
from softcue.training.checkpoints import Checkpoint, Checkpoints, Progress
from softcue.training.config import TrainingConfig
from softcue.training.joint_model import JointModel
from softcue.training.mixture import MixtureConfig, epoch_rows
from softcue.training.optimizers import load_optimizer_tensors, make_optimizer, optimizer_tensors, rate_factor
from softcue.training.processes import Processes
from softcue.types import Example, TokenizedRow

LOOKED_AT = 32  # training rows by which the prompts' dependence on the input is measured
# kind ("step" or "evaluation"), values: told to the progress bar, metrics.jsonl and tensorboard
ProgressListener = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True)
class TaskData:
    """One task of a run."""

    model: TaskModel
    train: Sequence[Example]
    validation: Sequence[Example]


@dataclass(frozen=True)
class TrainingResult:
    """What a run leaves: the models hold the best numbers."""

    progress: Progress
    evaluations: list[Evaluation]  # of each task's validation rows
    num_truncated: int
    seconds: float
    peak_megabytes: float
    warnings: list[str] = field(default_factory=list)


class Trainer:
    """Trains a task's model on a frozen backbone, or those of several tasks that share a method."""

    def __init__(
        self,
        backbone: Backbone,
        studied: Sequence[TaskData],
        config: TrainingConfig,
        checkpoints: Checkpoints | None = None,
        listener: ProgressListener | None = None,
        processes: Processes | None = None,
        mixture: MixtureConfig | None = None,
    ) -> None:
        self._started = time.monotonic()  # tokens and M(x) are part of what training costs
        self.backbone, self.studied, self.config = backbone, studied, config
        self.models = [one.model for one in studied]
        model = self.models[0] if len(studied) == 1 else JointModel(self.models)
        self.model: TaskModel | JointModel = model
        self.mixture = mixture or MixtureConfig()
        self.checkpoints = checkpoints
        self.processes = processes or Processes()
        self.listener = listener or (lambda kind, values: None)
        per_task = [
            one.model.rows(backbone, one.model.training_examples(one.train), with_answer=True) for one in studied
        ]
        self.rows: list[TokenizedRow] = [row for rows in per_task for row in rows]
        self.owners = [number for number, rows in enumerate(per_task) for _ in rows]
        self.sizes = [len(rows) for rows in per_task]
        for one, rows in zip(studied, per_task, strict=True):
            if not rows:
                raise DataError(
                    setting="training rows",
                    got=one.model.task.name,
                    expected="at least one row that can be learned from",
                    fix="check them: a text-to-text backbone learns referents from true rows",
                )
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ConfigurationError(
                setting="method.name",
                got=model.method.config.name,
                expected="something to train: a prompt or a readout with a head",
                fix="choose another method, or readout.name=classifier",
            )
        self.steps_per_epoch = math.ceil(len(self.rows) / config.batch_size)
        self.num_steps = config.steps or config.epochs * self.steps_per_epoch
        self.evaluate_every = config.evaluate_every or self.steps_per_epoch
        self.optimizer = make_optimizer(model, config)
        self.progress = Progress()
        self.best: dict[str, Tensor] = {}
        self._best_evaluations: list[Evaluation] = []  # of `best`; a resumed run may not have seen them
        self._batches: tuple[int, list[list[int]]] = (-1, [])
        self._validation: list[PreparedRequests] = []  # made at the first evaluation
        if backbone.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(backbone.device)

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint."""
        self.progress = checkpoint.progress
        state = self._state()
        for name in state.keys() | checkpoint.model.keys():  # a name only one of them has is an error
            state[name].copy_(checkpoint.model[name])
        self.best = checkpoint.best
        load_optimizer_tensors(self.model, self.optimizer, checkpoint.optimizer)

    def run(self) -> TrainingResult:
        """Train to the end; afterwards the model holds the numbers of its best evaluation."""
        self.processes.share_first(list(self._state().values()))
        solutions = self.model.method.solutions(self.models[0].readout, self.rows)
        if solutions is not None and len(self.models) > 1:
            raise ConfigurationError(
                setting="method.name",
                got=self.model.method.config.name,
                expected="a method that tasks can share",
                fix="train a cue per task: it has a closed form for each",
            )
        for _ in solutions or ():
            self.progress.step += 1
            self._evaluate()
        with torch.random.fork_rng(devices=[]):
            while solutions is None and self.progress.step < self.num_steps and not self.progress.is_over:
                self._step()
                self._after_step()
        self.model.load_state_dict(self.best)
        self.model.eval()
        evaluations = self._best_evaluations or self._validated()
        return TrainingResult(
            self.progress,
            evaluations,
            sum(row.is_truncated for row in self.rows),
            time.monotonic() - self._started,
            peak_megabytes(self.backbone.device),
            self._warnings(evaluations),
        )

    def _validated(self) -> list[Evaluation]:
        if not self._validation:
            requests = [[(one.model, example) for example in one.validation] for one in self.studied]
            self._validation = [PreparedRequests.of(self.backbone, asked) for asked in requests]
        found = [predict(self.backbone, rows, self.config.evaluation_batch_size) for rows in self._validation]
        return [
            score(one.model.task, own.answers, one.validation, own.num_truncated)
            for one, own in zip(self.studied, found, strict=True)
        ]

    def _step(self) -> None:
        step, config = self.progress.step, self.config
        rows = self._rows_of(step)
        # A task's loss is its mean, and weighs as much as the task has rows: words and rows are not added up.
        weights = {
            model: len(places) / len(rows) / model.readout.num_losses([self.rows[rows[place]] for place in places])
            for model, places in self._by_owner(rows, range(len(rows)))
        }
        rank, world = self.processes.rank, self.processes.world_size
        self.model.train()
        factor = rate_factor(config, step, self.num_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = group["base_rate"] * factor
        self.optimizer.zero_grad(set_to_none=True)
        loss_sum = torch.zeros((), device=self.backbone.device)
        encoder = self.model.method.prompt_encoder()
        statistics = {} if encoder is None else encoder.zero_statistics()
        prompt_length = self.model.method.prompt_length
        lengths = [self._length(row) + prompt_length for row in rows]
        pieces = own_share(lengths, rank, world, config.micro_batch_size, config.micro_batch_tokens)
        for model, places in (own for piece in pieces for own in self._by_owner(rows, piece)):
            batch = collate([self.rows[rows[place]] for place in places], self.backbone.tokenizer.pad_token_id)
            torch.manual_seed(stream_seed(config.seed, "step", step))
            with rows_of_global_batch(places, len(rows)):
                outcome: StepOutput = model(self.backbone, batch.to(self.backbone.device))
            whole = outcome.loss.total * weights[model] + outcome.aux_loss * (len(places) / len(rows))
            whole.backward()
            loss_sum += whole.detach()
            for name, sums in outcome.statistics.items():
                statistics[name] += sums
        self._reduce_and_update()
        value = float(self.processes.total(loss_sum))
        if not math.isfinite(value):
            raise TrainingError(
                setting=f"loss at step {step + 1}",
                got=value,
                expected="a finite number",
                fix=f"lower training.learning_rate (now {config.learning_rate}) or training.network_learning_rate, "
                "or set training.clip_norm=1.0",
            )
        health: dict[str, float] = {}
        if encoder is not None:
            summed = {name: self.processes.total(sums) for name, sums in statistics.items()}
            health = encoder.update_state(summed, epoch_begins=step % self.steps_per_epoch == 0)
        health = {name: found for name, found in health.items() if math.isfinite(found)}
        self.progress.step += 1
        self.progress.health = {**self.progress.health, **health}
        self.listener(
            "step",
            {
                "step": self.progress.step,
                "epoch": step / self.steps_per_epoch,
                "loss": value,
                "rate_factor": factor,
                "rows": len(rows),
                **health,
            },
        )

    def _by_owner(self, rows: Sequence[int], places: Sequence[int]) -> list[tuple[TaskModel, list[int]]]:
        """Places of a batch by the task their rows belong to."""
        found: dict[int, list[int]] = {}
        for place in places:
            found.setdefault(self.owners[rows[place]], []).append(place)
        return [(self.models[owner], own) for owner, own in found.items()]

    def _reduce_and_update(self) -> None:
        trained = [p for p in self.model.parameters() if p.requires_grad]
        if self.processes.world_size > 1:
            for parameter in trained:  # a process without rows in this batch has no gradient yet
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            flat = torch.cat([p.grad.reshape(-1) for p in trained])  # type: ignore[union-attr]
            pieces = self.processes.total(flat).split([p.numel() for p in trained])
            for parameter, piece in zip(trained, pieces, strict=True):
                parameter.grad = piece.view_as(parameter).clone()
        if self.config.clip_norm > 0:
            torch.nn.utils.clip_grad_norm_(trained, self.config.clip_norm)
        self.optimizer.step()

    def _after_step(self) -> None:
        step, config = self.progress.step, self.config
        is_last = step == self.num_steps
        evaluates = is_last or step % self.evaluate_every == 0
        if evaluates:
            self._evaluate()
        saves = evaluates if config.checkpoint_every == 0 else step % config.checkpoint_every == 0
        if self.checkpoints and (saves or is_last or self.progress.is_over) and self.processes.is_main:
            self.checkpoints.save(self._checkpoint())
        self.processes.wait()

    def _evaluate(self) -> None:
        progress = self.progress
        self.model.eval()
        found = self._validated()
        score = fmean(one.main for one in found)
        is_better = progress.best_score is None or score > progress.best_score
        progress.num_worse = 0 if is_better else progress.num_worse + 1
        if is_better or score == progress.best_score:  # of equals the later: it has seen more rows
            progress.best_score, progress.best_step = score, progress.step
            self._best_evaluations = found
            self.best = {name: value.detach().cpu().clone() for name, value in self.model.state_dict().items()}
        progress.is_over = bool(self.config.patience) and progress.num_worse >= self.config.patience
        entry = {"step": progress.step, "score": score}
        for model, one in zip(self.models, found, strict=True):
            prefix = "" if len(self.models) == 1 else f"{model.task.name}/"
            entry |= {f"{prefix}{name}": value for name, value in one.scores.items()}
        variation = self.models[0].variation(self.backbone, self.rows[: min(LOOKED_AT, self.sizes[0])])
        if variation is not None:
            progress.health = {**progress.health, "prompt_variation": variation}
            entry["prompt_variation"] = variation
        progress.history.append(entry)
        self.listener("evaluation", {**entry, "best_score": progress.best_score})

    def _checkpoint(self) -> Checkpoint:
        best = self.best or {name: value.detach().cpu() for name, value in self.model.state_dict().items()}
        return Checkpoint(self.progress, self._state(), best, optimizer_tensors(self.model, self.optimizer))

    def _state(self) -> dict[str, Tensor]:
        """Every number that a step may change: the cue's, and buffers that only training needs."""
        return {**self.model.state_dict(), **dict(self.model.named_buffers())}

    def _length(self, row: int) -> int:
        return len(self.rows[row].ids) + len(self.rows[row].target_ids)

    def _rows_of(self, step: int) -> list[int]:
        epoch, position = divmod(step, self.steps_per_epoch)
        if self._batches[0] != epoch:
            seed = self.config.seed
            numbers = list(range(len(self.rows)))
            if len(self.sizes) > 1:
                numbers = epoch_rows(self.sizes, self.mixture, seed, epoch)
            lengths = [self._length(number) for number in numbers]
            batches = epoch_batches(lengths, self.config.batch_size, seed, epoch)
            self._batches = (epoch, [[numbers[place] for place in batch] for batch in batches])
        return self._batches[1][position]

    def _warnings(self, evaluations: Sequence[Evaluation]) -> list[str]:
        encoder = self.model.method.prompt_encoder()
        found = [] if encoder is None else encoder.health_warnings(self.progress.health)
        for number, (model, evaluation) in enumerate(zip(self.models, evaluations, strict=True)):
            own = [row for row, owner in zip(self.rows, self.owners, strict=True) if owner == number]
            prefix = "" if len(self.models) == 1 else f"{model.task.name}: "
            found += [prefix + warning for warning in self._warnings_of(model, own, evaluation)]
        return found

    def _warnings_of(self, model: TaskModel, rows: Sequence[TokenizedRow], evaluation: Evaluation) -> list[str]:
        found = []
        if evaluation.has_collapsed:
            label = next(iter(evaluation.predicted_labels))
            found.append(
                f"every validation row is predicted as '{label}': nothing was learned. Try "
                f"training.learning_rate={self.config.learning_rate / 3:.2g} or {self.config.learning_rate * 3:.2g}, "
                f"more training.epochs (now {self.config.epochs}), method.init=labels, or readout.pooling=mean"
            )
        if truncated := sum(row.is_truncated for row in rows):
            found.append(
                f"{truncated} of {len(rows)} training rows were cut: texts to {model.formatter.limit} tokens "
                f"({model.max_length} less prompt and answer), answers to {model.readout.max_target_length}"
            )
        if evaluation.num_truncated:
            found.append(f"{evaluation.num_truncated} of {evaluation.num_rows} validation texts were cut likewise")
        return found


def peak_megabytes(device: torch.device) -> float:
    """The most memory held: on a GPU since the run began, elsewhere by this process so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
