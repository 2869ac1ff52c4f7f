"""`python -m benchmarks models NAMES`: prompt tuning on real weights against PEFT, and many cues against one."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from benchmarks.measuring import Step, interleave_seconds, make_figure, median_ratio, peak_bytes
from benchmarks.peft_models import (
    copy_prompt,
    fastest,
    freeze_in_evaluation_mode,
    make_peft_model,
    make_peft_prediction,
    make_peft_step,
)
from benchmarks.plan import Figures, Plan, report_seconds
from benchmarks.prediction_speed import make_prediction
from benchmarks.random_models import vary_cue
from benchmarks.texts import real_splits
from benchmarks.training_steps import PAPER_PROMPT_LENGTH, prompt_settings
from softcue.backbones import Backbone, load_backbone
from softcue.configuration import method_config
from softcue.inference import TaskModel, make_task_model
from softcue.inputs.formatter import TOKENS_AT_ONCE
from softcue.methods import METHODS
from softcue.readouts import ReadoutConfig
from softcue.tasks.splits import Splits
from softcue.training import TaskData, Trainer, TrainingConfig
from softcue.types import TokenizedRow

NUM_ROWS, NUM_TEXTS, NUM_CUES = 8, 32, 8  # of a training step, of a prediction turn, of a mixture


def model_figures(plan: Plan, name: str) -> Figures:
    """Measure every figure of `python -m benchmarks models` for one backbone, by name or folder.

    Example:
        model_figures(Plan(repeats=7), "smollm2")["smollm2_score_vs_peft"]["ratio"]
    """
    with report_seconds(f"{name} loaded"):
        backbone = load_backbone(name)
        splits = real_splits(plan.data)
    model_key = re.sub(r"\W+", "_", Path(name).name.lower())
    figures: Figures = {}
    for part in (step_figures, prediction_figures, *(() if backbone.kind == "encoder" else (ranking_figures,))):
        with report_seconds(f"{name}: {part.__name__}"):
            figures |= {f"{model_key}_{key}": figure for key, figure in part(plan, backbone, splits).items()}
    return figures


def step_figures(plan: Plan, backbone: Backbone, splits: Splits) -> Figures:
    """An optimizer step with the usual loss: of a head on encoders, of the label's words elsewhere."""
    cue = make_cue(backbone, splits, ReadoutConfig())
    examples = splits.train[:NUM_ROWS]
    training = TrainingConfig(batch_size=NUM_ROWS, optimizer="adamw")
    ours: Step = Trainer(backbone, [TaskData(cue, examples, examples[:1])], training)._step
    rows = cue.rows(backbone, cue.training_examples(examples), with_target=True)
    peft = peft_step(peft_twin(backbone, cue), backbone, rows)
    ratio, spread = median_ratio(interleave_seconds({"ours": ours, "peft": peft}, plan.repeats), "peft", "ours")
    meaning = f"step of {NUM_ROWS} rows of {splits.task.name}, {PAPER_PROMPT_LENGTH} vectors, {backbone.kind}"
    return {
        "train_vs_peft": make_figure(
            ratio, 1.0, spread, plan.repeats, f"PEFT's prompt tuning / ours, {meaning}, time", ">="
        ),
        "train_memory_vs_peft": make_figure(
            peak_bytes(ours) / peak_bytes(peft), 1.0, 0.0, 1, f"ours / PEFT's, {meaning}, peak memory"
        ),
    }


def prediction_figures(plan: Plan, backbone: Backbone, splits: Splits) -> Figures:
    """Label scores of texts (of a head on encoders, of words elsewhere), with one cue and with several."""
    cue = make_cue(backbone, splits, one_pass_readout(backbone))
    examples = splits.train[:NUM_TEXTS]
    single = [(cue, example) for example in examples]
    cues = vary_cue(cue, NUM_CUES)
    mixed = [(cues[number % NUM_CUES], example) for number, example in enumerate(examples)]
    twin = peft_twin(backbone, cue).eval()
    steps: dict[str, Step] = {
        "ours": make_prediction(backbone, single),
        "mixed": make_prediction(backbone, mixed),
        **{
            name: make_peft_prediction(twin, backbone, cue, examples, NUM_TEXTS, size)
            for name, size in (("small passes", backbone.tokens_at_once), ("large passes", TOKENS_AT_ONCE))
        },
    }
    seconds = interleave_seconds(steps, plan.repeats, warmup=1)
    meaning = f"{NUM_TEXTS} texts of {splits.task.name}, {PAPER_PROMPT_LENGTH} vectors, {backbone.kind}"
    peft = fastest(seconds, "small passes", "large passes")
    ratio, spread = median_ratio(seconds, peft, "ours")
    mixed_ratio, mixed_spread = median_ratio(seconds, "ours", "mixed")
    return {
        "score_vs_peft": make_figure(ratio, 1.0, spread, plan.repeats, f"PEFT ({peft}) / ours: {meaning}, time", ">="),
        f"mixed{NUM_CUES}_vs_single": make_figure(
            mixed_ratio,
            0.95,
            mixed_spread,
            plan.repeats,
            f"rows a second: of {NUM_CUES} cues / of one, {meaning}",
            ">=",
        ),
    }


def ranking_figures(plan: Plan, backbone: Backbone, splits: Splits) -> Figures:
    """Labels of several tokens that are ranked, the default of backbones that write text: with one cue and several."""
    cue = make_cue(backbone, splits, ReadoutConfig(name="generation", decoding="rank"))
    cues = vary_cue(cue, NUM_CUES)
    examples = splits.train[:NUM_TEXTS]
    steps = {
        "single": make_prediction(backbone, [(cue, example) for example in examples]),
        "mixed": make_prediction(
            backbone, [(cues[number % NUM_CUES], example) for number, example in enumerate(examples)]
        ),
        # Three quarters of the rows are of one cue.
        "dominated": make_prediction(
            backbone,
            [(cues[number % NUM_CUES if number % 4 == 0 else 0], example) for number, example in enumerate(examples)],
        ),
    }
    seconds = interleave_seconds(steps, plan.repeats, warmup=1)
    meaning = f"{NUM_TEXTS} texts of {splits.task.name}, {PAPER_PROMPT_LENGTH} vectors, {backbone.kind}, labels ranked"
    figures: Figures = {}
    for name, key in (("mixed", f"mixed{NUM_CUES}_rank_vs_single"), ("dominated", "one_of_8_rank_vs_single")):
        ratio, spread = median_ratio(seconds, "single", name)
        cues_of = f"of {NUM_CUES} cues" if name == "mixed" else f"of {NUM_CUES} cues, most of them of one"
        figures[key] = make_figure(
            ratio, 0.95, spread, plan.repeats, f"rows a second: {cues_of} / of one, {meaning}", ">="
        )
    return figures


def one_pass_readout(backbone: Backbone) -> ReadoutConfig:
    """The readout that scores labels in one forward pass."""
    return ReadoutConfig(name="classifier" if backbone.kind == "encoder" else "label-words")


def make_cue(backbone: Backbone, splits: Splits, readout: ReadoutConfig) -> TaskModel:
    """A prompt-tuning cue of the paper's length."""
    config = method_config({"name": "prompt-tuning", **prompt_settings(PAPER_PROMPT_LENGTH)})
    generator = torch.Generator().manual_seed(0)
    return make_task_model(splits.task, (METHODS["prompt-tuning"], config), readout, backbone, generator)


# --- PEFT ---


def peft_twin(backbone: Backbone, cue: TaskModel) -> Any:
    """A second copy of the backbone, under PEFT's prompt tuning with the cue's prompt."""
    if backbone.kind == "encoder":
        from transformers import AutoModelForSequenceClassification

        config = copy.deepcopy(backbone.model.config)
        config.num_labels = len(cue.task.label_names)
        bare = AutoModelForSequenceClassification.from_config(config).to(backbone.dtype)
        bare.base_model.load_state_dict(backbone.base.state_dict(), strict=False)  # poolers may differ
    else:
        bare = copy.deepcopy(backbone.model)
        for module in bare.modules():  # without the backbone's hooks
            module._forward_hooks.clear()
            module._forward_pre_hooks.clear()
    model = copy_prompt(cue, make_peft_model(backbone.kind, bare, cue.method.prompt_length))
    freeze_in_evaluation_mode(model)
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
        targets = [torch.tensor([*([-100] * len(row.ids) if is_decoder else ()), *row.target_ids]) for row in rows]
        labels = pad_sequence(targets, batch_first=True, padding_value=-100)  # [B T] or [B U]
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    return make_peft_step(model, lambda: batch)
