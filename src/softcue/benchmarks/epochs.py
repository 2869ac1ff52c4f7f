"""One epoch of prompt tuning on texts of real lengths: our trainer against PEFT's model in transformers' Trainer.

What makes the difference is told apart by more peers: PEFT in batches drawn at random (the Trainer's default), without
the frozen model's dropout, and in our batches in a plain loop. Each contestant runs a few batches that stand for the
epoch its own sampler makes of all rows (texts.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from softcue.backbones import Backbone, load_backbone
from softcue.benchmarks.contestants import random_backbone, random_cue, random_examples, random_model
from softcue.benchmarks.measuring import figure, interleaved_values, ratio_of
from softcue.benchmarks.parts import Figures, Plan
from softcue.benchmarks.peers import dropout_free, peft_model, trainer_batches, trainer_epoch
from softcue.benchmarks.steps import PROMPT, ROWS, prompt_of
from softcue.benchmarks.texts import real_lengths, real_rows, standing_for
from softcue.configuration import method_config
from softcue.inference import TaskModel, make_task_model
from softcue.inputs.collate import collate
from softcue.methods import METHODS
from softcue.readouts import ReadoutConfig
from softcue.training import TaskData, Trainer, TrainingConfig
from softcue.training.batches import epoch_batches
from softcue.types import Example, TokenizedRow

EPOCH, BATCHES = 1600, 4  # rows of the whole epoch; batches of it that are run
Epoch = Callable[[], float]  # runs, and gives the seconds of its start, which do not grow with the epoch
NAMES = {"encoder": "encoder_train_vs_peft", "encoder-decoder": "t5_train_vs_peft"}


@dataclass(frozen=True)
class Course:
    """A cue, the rows of its epoch, and the transformers model that PEFT trains beside it."""

    backbone: Backbone
    cue: TaskModel
    examples: list[Example]
    peer: Any


def shape_epoch_figures(plan: Plan) -> Figures:
    """Random weights of MiniLM's and T5 v1.1 small's shape."""
    lengths = real_lengths(plan.data, EPOCH)
    figures: Figures = {}
    for kind, name in NAMES.items():
        figures |= course_figures(plan, name, shape_course(kind, lengths), f"{kind} of random weights")
    return figures


def real_epoch_figures(plan: Plan) -> Figures:
    """MiniLM itself on rows of a real task."""
    from transformers import AutoModelForSequenceClassification

    backbone = load_backbone("minilm")
    rows = real_rows(plan.data, train_rows=EPOCH if plan.data else 0)
    config = method_config({"name": "prompt-tuning", "prompt_length": PROMPT})
    cue = make_task_model(
        rows.task, (METHODS["prompt-tuning"], config), ReadoutConfig(), backbone, torch.Generator().manual_seed(0)
    )
    peer = AutoModelForSequenceClassification.from_pretrained(backbone.folder, num_labels=len(rows.task.labels))
    course = Course(backbone, cue, rows.train, peer)
    return course_figures(plan, "minilm_train_vs_peft", course, f"MiniLM on {rows.task.name}")


def shape_course(kind: str, lengths: Sequence[int]) -> Course:
    """Texts of these lengths on random weights."""
    backbone = random_backbone(kind)
    cue = random_cue(backbone, "prompt-tuning", prompt_of(PROMPT))
    return Course(backbone, cue, random_examples(lengths), random_model(kind, with_head=True))


def course_figures(plan: Plan, name: str, course: Course, where: str) -> Figures:
    """PEFT at its best documented setting, then what it is made of."""
    epochs = {name: share_of_epoch(epoch) for name, epoch in contestants(course).items()}
    seconds = interleaved_values(epochs, plan.repeats, warmup=1)
    meaning = f"one epoch, {PROMPT} vectors, {ROWS} rows a batch, {where}"
    figures: Figures = {}
    for key, peer, target, what in (
        ("", "grouped", 1.7, "PEFT in transformers' Trainer, rows grouped by length"),
        ("_random_batches", "random", 1.7, "PEFT in transformers' Trainer, rows drawn at random (its default)"),
        ("_without_dropout", "no dropout", 1.0, "the same Trainer, grouped, the frozen model without dropout"),
        ("_our_batches", "our batches", 1.0, "PEFT in our batches, plain loop, no dropout: the model's share"),
    ):
        ratio, spread = ratio_of(seconds, peer, "ours")
        figures[name + key] = figure(ratio, target, spread, plan.repeats, f"{what} / ours: {meaning}", ">=")
    return figures


def share_of_epoch(epoch: Epoch) -> Callable[[], float]:
    """Seconds of the batches that are run, and of a start that share which they are of the whole epoch."""
    too_much = 1 - BATCHES * ROWS / EPOCH

    def seconds() -> float:
        began = time.perf_counter()
        start = epoch()
        return time.perf_counter() - began - too_much * start

    return seconds


def contestants(course: Course) -> dict[str, Epoch]:
    """An epoch of each; several share a model of PEFT's, as only time is asked for."""
    rows = course.cue.rows(course.backbone, course.cue.training_examples(course.examples), with_answer=True)
    lengths = [len(row.ids) for row in rows]
    our_batches = epoch_batches(lengths, ROWS, seed=0, epoch=0)
    ours, grouped, at_random = (
        standing_for(batches, lengths, BATCHES)
        for batches in (our_batches, trainer_batches(lengths, ROWS, True), trainer_batches(lengths, ROWS, False))
    )
    kind = course.backbone.kind
    as_usual, plain = peft_model(kind, course.peer, PROMPT), peft_model(kind, dropout_free(course.peer), PROMPT)
    grouped_rows, random_rows = ([_as_trainer_row(rows[number]) for number in some] for some in (grouped, at_random))
    return {
        "ours": our_epoch(course, [course.examples[number] for number in ours]),
        "grouped": trainer_epoch(as_usual, grouped_rows, ROWS),
        "random": trainer_epoch(as_usual, random_rows, ROWS),
        "no dropout": trainer_epoch(plain, grouped_rows, ROWS),
        "our batches": plain_epoch(plain, [rows[number] for number in ours]),
    }


def our_epoch(course: Course, examples: list[Example]) -> Epoch:
    """From texts to the best numbers, with one row to validate on; its start counts in full."""
    config = TrainingConfig(epochs=1, batch_size=ROWS, optimizer="adamw")
    studied = [TaskData(course.cue, examples, examples[:1])]

    def step() -> float:
        Trainer(course.backbone, studied, config).run()
        return 0.0

    return step


def plain_epoch(model: Any, rows: Sequence[TokenizedRow]) -> Epoch:
    """PEFT's model in our batches: bucketed by length, collated as ours are."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    lengths = [len(row.ids) for row in rows]

    def step() -> float:
        model.train()
        for numbers in epoch_batches(lengths, ROWS, seed=0, epoch=0):
            batch = collate([rows[number] for number in numbers], pad_id=0)
            labels = batch.labels if batch.labels is not None else batch.target_ids.where(batch.target_mask, -100)
            optimizer.zero_grad(set_to_none=True)
            model(input_ids=batch.ids, attention_mask=batch.mask.long(), labels=labels).loss.backward()
            optimizer.step()
        return 0.0

    return step


def _as_trainer_row(row: TokenizedRow) -> dict[str, Any]:
    answer = list(row.target_ids) if row.label is None else row.label
    return {"input_ids": list(row.ids), "attention_mask": [1] * len(row.ids), "labels": answer}
