"""Prompt tuning on models with real weights, against PEFT: a step, its memory, answers; and many cues against one."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from softcue.backbones import Backbone, load_backbone
from softcue.benchmarks import peers
from softcue.benchmarks.contestants import cues_alike
from softcue.benchmarks.measuring import Step, figure, interleaved_seconds, peak_bytes, ratio_of
from softcue.benchmarks.parts import Figures, Plan, told
from softcue.benchmarks.peers import faster, peft_answering, peft_model, with_prompt_of, without_dropout
from softcue.benchmarks.predicting import answering
from softcue.benchmarks.steps import PAPER_PROMPT, prompt_of
from softcue.benchmarks.texts import real_rows
from softcue.configuration import method_config
from softcue.inference import TaskModel, make_task_model
from softcue.inputs.formatter import TOKENS_AT_ONCE
from softcue.methods import METHODS
from softcue.readouts import ReadoutConfig
from softcue.tasks.splits import Splits
from softcue.training import TaskData, Trainer, TrainingConfig
from softcue.types import TokenizedRow

ROWS, TEXTS, CUES = 8, 32, 8  # of a training step, of a turn of answers, of a mixture


def model_figures(plan: Plan, name: str) -> Figures:
    """Every figure of `softcue bench models` for one backbone, by name or folder.

    Example:
        model_figures(Plan(repeats=7), "smollm2")["smollm2_score_vs_peft"]["ratio"]
    """
    with told(f"{name} loaded"):
        backbone = load_backbone(name)
        rows = real_rows(plan.data)
    key = re.sub(r"\W+", "_", Path(name).name.lower())
    figures: Figures = {}
    for part in (step_figures, answer_figures):
        with told(f"{name}: {part.__name__}"):
            figures |= {f"{key}_{what}": one for what, one in part(plan, backbone, rows).items()}
    return figures


def step_figures(plan: Plan, backbone: Backbone, rows: Splits) -> Figures:
    """An optimizer step, each with its usual loss: a head on encoders, the label's words elsewhere."""
    cue = new_cue(backbone, rows, ReadoutConfig())
    examples = rows.train[:ROWS]
    training = TrainingConfig(batch_size=ROWS, optimizer="adamw")
    ours: Step = Trainer(backbone, [TaskData(cue, examples, examples[:1])], training)._step
    theirs = peft_step(
        peft_twin(backbone, cue), backbone, cue.rows(backbone, cue.training_examples(examples), with_answer=True)
    )
    ratio, spread = ratio_of(interleaved_seconds({"ours": ours, "peft": theirs}, plan.repeats), "peft", "ours")
    meaning = f"step of {ROWS} rows of {rows.task.name}, {PAPER_PROMPT} vectors, {backbone.kind}"
    return {
        "train_vs_peft": figure(
            ratio, 1.0, spread, plan.repeats, f"PEFT's prompt tuning / ours, {meaning}, time", ">="
        ),
        "train_memory_vs_peft": figure(
            peak_bytes(ours) / peak_bytes(theirs), 1.0, 0.0, 1, f"ours / PEFT's, {meaning}, peak memory"
        ),
    }


def answer_figures(plan: Plan, backbone: Backbone, rows: Splits) -> Figures:
    """Texts to scores of the labels (a head's on encoders, words' elsewhere); then with several cues."""
    cue = new_cue(backbone, rows, scoring(backbone))
    examples = rows.train[:TEXTS]
    alone = [(cue, example) for example in examples]
    cues = cues_alike(cue, CUES)
    mixed = [(cues[number % CUES], example) for number, example in enumerate(examples)]
    twin = peft_twin(backbone, cue).eval()
    steps: dict[str, Step] = {
        "ours": answering(backbone, alone),
        "mixed": answering(backbone, mixed),
        **{
            name: peft_answering(twin, backbone, cue, examples, TEXTS, size)
            for name, size in (("small passes", backbone.tokens_at_once), ("large passes", TOKENS_AT_ONCE))
        },
    }
    seconds = interleaved_seconds(steps, plan.repeats, warmup=1)
    meaning = f"{TEXTS} texts of {rows.task.name}, {PAPER_PROMPT} vectors, {backbone.kind}"
    peft = faster(seconds, "small passes", "large passes")
    score, score_spread = ratio_of(seconds, peft, "ours")
    several, several_spread = ratio_of(seconds, "ours", "mixed")
    return {
        "score_vs_peft": figure(score, 1.0, score_spread, plan.repeats, f"PEFT ({peft}) / ours: {meaning}, time", ">="),
        f"mixed{CUES}_vs_single": figure(
            several, 0.95, several_spread, plan.repeats, f"rows a second: of {CUES} cues / of one, {meaning}", ">="
        ),
    }


def scoring(backbone: Backbone) -> ReadoutConfig:
    """How labels are scored in one pass."""
    return ReadoutConfig(name="classifier" if backbone.kind == "encoder" else "label-words")


def new_cue(backbone: Backbone, rows: Splits, readout: ReadoutConfig) -> TaskModel:
    """Prompt tuning of the paper's length."""
    config = method_config({"name": "prompt-tuning", **prompt_of(PAPER_PROMPT)})
    generator = torch.Generator().manual_seed(0)
    return make_task_model(rows.task, (METHODS["prompt-tuning"], config), readout, backbone, generator)


# --- PEFT ---


def peft_twin(backbone: Backbone, cue: TaskModel) -> Any:
    """The backbone once more, under PEFT's prompt tuning with the cue's numbers."""
    if backbone.kind == "encoder":
        from transformers import AutoModelForSequenceClassification

        config = copy.deepcopy(backbone.model.config)
        config.num_labels = len(cue.task.label_names)
        bare = AutoModelForSequenceClassification.from_config(config).to(backbone.dtype)
        bare.base_model.load_state_dict(backbone.base.state_dict(), strict=False)  # poolers may differ
    else:
        bare = copy.deepcopy(backbone.model)
        for module in bare.modules():  # without what we look in by
            module._forward_hooks.clear()
            module._forward_pre_hooks.clear()
    model = with_prompt_of(peft_model(backbone.kind, bare, cue.method.prompt_length), cue)
    without_dropout(model)
    model.base_model.config.use_cache = False
    return model


def peft_step(model: Any, backbone: Backbone, rows: Sequence[TokenizedRow]) -> Step:
    """A step of PEFT on these rows, padded."""
    is_decoder = backbone.kind == "decoder"
    texts = [torch.tensor([*row.ids, *(row.target_ids if is_decoder else ())]) for row in rows]
    ids = pad_sequence(texts, batch_first=True, padding_value=backbone.tokenizer.pad_token_id)  # [B T]
    mask = pad_sequence([torch.ones_like(text) for text in texts], batch_first=True)  # [B T]
    if backbone.kind == "encoder":
        labels = torch.tensor([row.label for row in rows])  # [B]
    else:
        answers = [torch.tensor([*([-100] * len(row.ids) if is_decoder else ()), *row.target_ids]) for row in rows]
        labels = pad_sequence(answers, batch_first=True, padding_value=-100)  # [B T] or [B U]

    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    return peers.peft_step(model, lambda: batch)
