"""One epoch of prompt tuning on texts of real lengths: our trainer against PEFT's model in transformers' Trainer.

Further contestants show where the difference comes from: PEFT in batches drawn at random (the Trainer's default),
without the frozen model's dropout, and in our batches in a plain loop. Each contestant runs a few batches that
represent the epoch its sampler makes of all rows (texts.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.measuring import interleave_values, make_figure, median_ratio
from benchmarks.peft_models import copy_without_dropout, make_peft_model, make_trainer_epoch, trainer_batches
from benchmarks.plan import Figures, Plan
from benchmarks.random_models import random_backbone, random_cue, random_examples, random_model
from benchmarks.texts import real_lengths, real_splits, representative_rows
from benchmarks.training_steps import NUM_ROWS, PROMPT_LENGTH, prompt_settings
from softcue.backbones import Backbone, load_backbone
from softcue.backbones.attention import chosen_attention
from softcue.configuration import method_config
from softcue.inference import TaskModel, make_task_model
from softcue.inputs.collate import collate
from softcue.methods import METHODS
from softcue.readouts import ReadoutConfig
from softcue.training import TaskData, Trainer, TrainingConfig
from softcue.training.batches import EpochBatches
from softcue.types import Example, TokenizedRow

EPOCH_ROWS, NUM_BATCHES = 1600, 4  # rows of the whole epoch; number of batches that are run
DEFAULT_BATCHES = 20  # the same for defaults against defaults, where our start would be a third of four batches
CONTESTANTS = ("ours", "grouped", "random", "no dropout", "our batches")
Epoch = Callable[[], float]  # runs, and returns the seconds before its first step, which do not grow with the epoch
FIGURE_NAMES = {"encoder": "encoder_train_vs_peft", "encoder-decoder": "t5_train_vs_peft"}


@dataclass(frozen=True)
class EpochContest:
    """A cue, the rows of its epoch, and the transformers model that PEFT trains."""

    backbone: Backbone
    cue: TaskModel
    examples: Sequence[Example]
    peer: Any


def random_epoch_figures(plan: Plan) -> Figures:
    """Epochs on random weights in the shapes of MiniLM and T5 v1.1 small."""
    lengths = real_lengths(plan.data, EPOCH_ROWS)
    figures: Figures = {}
    for kind, name in FIGURE_NAMES.items():
        contest = random_epoch_contest(kind, lengths)
        figures |= epoch_figures(plan, name, contest, f"{kind} of random weights")
    return figures


def default_epoch_figures(plan: Plan) -> Figures:
    """Defaults against defaults: ours in the number format and attention that `auto` takes here, PEFT's in float32.

    More batches stand for the epoch than elsewhere, because our start counts in full.
    """
    lengths = real_lengths(plan.data, EPOCH_ROWS)
    figures: Figures = {}
    for kind, name in FIGURE_NAMES.items():
        contest = random_epoch_contest(kind, lengths, with_defaults=True)
        epochs = make_epochs(contest, DEFAULT_BATCHES, ("ours", "random"))
        turns = {name: time_share_of_epoch(epoch, DEFAULT_BATCHES) for name, epoch in epochs.items()}
        ratio, spread = median_ratio(interleave_values(turns, plan.repeats, warmup=1), "random", "ours")
        model = contest.backbone.model
        format_name, attention = str(model.dtype).removeprefix("torch."), chosen_attention(model.config)
        meaning = (
            f"PEFT in transformers' Trainer, rows drawn at random, float32 / ours in {format_name} with {attention} "
            f"attention: one epoch, {kind}"
        )
        figures[f"{name}_defaults"] = make_figure(ratio, 3.0, spread, plan.repeats, meaning, ">=")
    return figures


def real_epoch_figures(plan: Plan) -> Figures:
    """Epochs on the real MiniLM with rows of a real task."""
    from transformers import AutoModelForSequenceClassification

    backbone = load_backbone("minilm")
    splits = real_splits(plan.data, train_rows=EPOCH_ROWS if plan.data else 0)
    config = method_config({"name": "prompt-tuning", "prompt_length": PROMPT_LENGTH})
    cue = make_task_model(
        splits.task, (METHODS["prompt-tuning"], config), ReadoutConfig(), backbone, torch.Generator().manual_seed(0)
    )
    peer = AutoModelForSequenceClassification.from_pretrained(backbone.folder, num_labels=len(splits.task.labels))
    contest = EpochContest(backbone, cue, splits.train, peer)
    return epoch_figures(plan, "minilm_train_vs_peft", contest, f"MiniLM on {splits.task.name}")


def random_epoch_contest(kind: str, lengths: Sequence[int], with_defaults: bool = False) -> EpochContest:
    """Texts of these lengths on random weights. `with_defaults`: our backbone is loaded as usual."""
    backbone = random_backbone(kind, with_defaults)
    cue = random_cue(backbone, "prompt-tuning", prompt_settings(PROMPT_LENGTH))
    return EpochContest(backbone, cue, random_examples(lengths), random_model(kind, with_head=True))


def epoch_figures(plan: Plan, name: str, contest: EpochContest, where: str) -> Figures:
    """PEFT in its best documented setting, then in the settings that explain the difference."""
    epochs = make_epochs(contest, NUM_BATCHES)
    turns = {name: time_share_of_epoch(epoch, NUM_BATCHES) for name, epoch in epochs.items()}
    seconds = interleave_values(turns, plan.repeats, warmup=1)
    meaning = f"one epoch, {PROMPT_LENGTH} vectors, {NUM_ROWS} rows a batch, {where}"
    figures: Figures = {}
    for key, peer, target, description in (
        ("", "grouped", 1.0, "PEFT in transformers' Trainer, rows grouped by length"),
        ("_random_batches", "random", 1.7, "PEFT in transformers' Trainer, rows drawn at random (its default)"),
        ("_without_dropout", "no dropout", 1.0, "the same Trainer, grouped, the frozen model without dropout"),
        ("_our_batches", "our batches", 1.0, "PEFT in our batches, plain loop, no dropout: the model's share"),
    ):
        ratio, spread = median_ratio(seconds, peer, "ours")
        figures[name + key] = make_figure(ratio, target, spread, plan.repeats, f"{description} / ours: {meaning}", ">=")
    return figures


def time_share_of_epoch(epoch: Epoch, num_batches: int) -> Callable[[], float]:
    """Time the batches that are run. The start counts by their share of the whole epoch."""
    uncounted_share = 1 - num_batches * NUM_ROWS / EPOCH_ROWS

    def seconds() -> float:
        started = time.perf_counter()
        start_seconds = epoch()
        return time.perf_counter() - started - uncounted_share * start_seconds

    return seconds


def make_epochs(contest: EpochContest, num_batches: int, names: Collection[str] = CONTESTANTS) -> dict[str, Epoch]:
    """An epoch of each contestant. Several share one PEFT model, because only their time matters."""
    rows = contest.cue.rows(contest.backbone, contest.cue.training_examples(contest.examples), with_target=True)
    lengths = [len(row.ids) for row in rows]
    kind = contest.backbone.kind

    def choose_rows(batches: Sequence[Sequence[int]]) -> list[int]:
        return representative_rows(batches, lengths, num_batches)

    def trainer_rows(is_grouped: bool) -> list[dict[str, Any]]:
        batches = trainer_batches(lengths, NUM_ROWS, is_grouped=is_grouped)
        return [_as_trainer_row(rows[index]) for index in choose_rows(batches)]

    our_rows = choose_rows(EpochBatches(lengths, NUM_ROWS, seed=0, epoch=0))
    model = make_peft_model(kind, contest.peer, PROMPT_LENGTH)
    model_without_dropout = make_peft_model(kind, copy_without_dropout(contest.peer), PROMPT_LENGTH)
    makers: dict[str, Callable[[], Epoch]] = {
        "ours": lambda: our_epoch(contest, [contest.examples[index] for index in our_rows]),
        "grouped": lambda: make_trainer_epoch(model, trainer_rows(is_grouped=True), NUM_ROWS),
        "random": lambda: make_trainer_epoch(model, trainer_rows(is_grouped=False), NUM_ROWS),
        "no dropout": lambda: make_trainer_epoch(model_without_dropout, trainer_rows(is_grouped=True), NUM_ROWS),
        "our batches": lambda: plain_epoch(model_without_dropout, [rows[index] for index in our_rows]),
    }
    return {name: makers[name]() for name in names}


def our_epoch(contest: EpochContest, examples: list[Example]) -> Epoch:
    """From texts to the best checkpoint, with one validation row. Its start counts in full."""
    config = TrainingConfig(epochs=1, batch_size=NUM_ROWS, optimizer="adamw")
    tasks = [TaskData(contest.cue, examples, examples[:1])]

    def run_epoch() -> float:
        Trainer(contest.backbone, tasks, config).run()
        return 0.0

    return run_epoch


def plain_epoch(model: Any, rows: Sequence[TokenizedRow]) -> Epoch:
    """PEFT's model in our batches, bucketed by length and collated like ours."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    lengths = [len(row.ids) for row in rows]

    def run_epoch() -> float:
        model.train()
        for indices in EpochBatches(lengths, NUM_ROWS, seed=0, epoch=0):
            batch = collate([rows[index] for index in indices], pad_id=0)
            labels = batch.labels if batch.labels is not None else batch.target_ids.where(batch.target_mask, -100)
            optimizer.zero_grad(set_to_none=True)
            model(input_ids=batch.ids, attention_mask=batch.mask.long(), labels=labels).loss.backward()
            optimizer.step()
        return 0.0

    return run_epoch


def _as_trainer_row(row: TokenizedRow) -> dict[str, Any]:
    labels = list(row.target_ids) if row.label is None else row.label
    return {"input_ids": list(row.ids), "attention_mask": [1] * len(row.ids), "labels": labels}
