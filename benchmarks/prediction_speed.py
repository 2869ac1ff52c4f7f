"""`python -m benchmarks predict`: one cue against PEFT, many cues against one, an ensemble against its members."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any, TypeVar

import torch

from benchmarks.measuring import Step, interleave_seconds, make_figure, median_ratio
from benchmarks.peft_models import copy_prompt, fastest, make_peft_model, make_peft_prediction
from benchmarks.plan import Figures, Plan, measure_parts
from benchmarks.random_models import random_backbone, random_cue, random_examples, random_model, vary_cue
from benchmarks.texts import real_lengths
from benchmarks.training_steps import PAPER_PROMPT_LENGTH, PROMPT_LENGTH, prompt_settings
from softcue.backbones import Backbone
from softcue.inference import TaskModel, predict
from softcue.inputs.formatter import TOKENS_AT_ONCE
from softcue.readouts import ReadoutConfig
from softcue.types import Example

BATCH_SIZE = 64
NUM_TEXTS = 1000  # also the number of cues in the largest mixture
LONG_TEXT_LENGTH = 108  # tokens
NUM_REQUESTS = 8  # of one text each, in a turn of an ensemble
Item = TypeVar("Item")


def prediction_figures(plan: Plan) -> Figures:
    """Measure every figure of `python -m benchmarks predict`."""
    return measure_parts(PARTS, plan)


def decoder_figures(plan: Plan) -> Figures:
    """Short texts through a decoder with one cue."""
    examples = random_examples(real_lengths(plan.data, NUM_TEXTS))
    backbone, cue = decoder_cue()
    model = peft_twin(cue)
    parts = split_into_turns(examples, plan)
    ours = [make_prediction(backbone, [(cue, example) for example in part]) for part in parts]
    steps = {"ours": take_turns(ours)} | {
        name: take_turns([make_peft_prediction(model, backbone, cue, part, BATCH_SIZE, size) for part in parts])
        for name, size in (("small passes", backbone.tokens_at_once), ("large passes", TOKENS_AT_ONCE))
    }
    seconds = interleave_seconds(steps, plan.repeats, warmup=1)
    peft = fastest(seconds, "small passes", "large passes")
    ratio, spread = median_ratio(seconds, peft, "ours")
    sizes = f"{NUM_TEXTS} texts, {PAPER_PROMPT_LENGTH} vectors"
    meaning = f"PEFT ({peft}, which is faster) / ours: {sizes}, decoder, time"
    return {"decoder_score_vs_peft": make_figure(ratio, 3.0, spread, plan.repeats, meaning, ">=")}


def mixed_cue_figures(plan: Plan) -> Figures:
    """Rows of many cues in shared forward passes against rows of one cue."""
    backbone = random_backbone("encoder")
    cues = vary_cue(random_cue(backbone, "prompt-tuning", prompt_settings(PROMPT_LENGTH)), NUM_TEXTS)
    examples = random_examples(real_lengths(plan.data, NUM_TEXTS))
    figures: Figures = {}
    for num_cues, target in ((8, 0.95), (NUM_TEXTS, 0.90)):
        requests = [(cues[number % num_cues], example) for number, example in enumerate(examples)]
        parts = split_into_turns(requests, plan)
        mixed = [make_prediction(backbone, part) for part in parts]
        single = [make_prediction(backbone, [(cues[0], example) for _, example in part]) for part in parts]
        steps = {"mixed": take_turns(mixed), "single": take_turns(single)}
        ratio, spread = median_ratio(interleave_seconds(steps, plan.repeats, warmup=1), "single", "mixed")
        meaning = f"rows a second: {NUM_TEXTS} rows of {num_cues} cues / of one cue, encoder, batches of {BATCH_SIZE}"
        figures[f"mixed{num_cues}_vs_single"] = make_figure(ratio, target, spread, plan.repeats, meaning, ">=")
    return figures


def ensemble_figures(plan: Plan) -> Figures:
    """Five cues of one task: one text at a time, as requests reach a server, and many rows at once."""
    backbone = random_backbone("encoder")
    cues = vary_cue(random_cue(backbone, "prompt-tuning", prompt_settings(PROMPT_LENGTH)), 5)
    examples = random_examples(real_lengths(plan.data, BATCH_SIZE))
    figures: Figures = {}
    for key, groups, description in (
        ("", [[example] for example in examples[:NUM_REQUESTS]], f"{NUM_REQUESTS} requests of one text"),
        (f"_{BATCH_SIZE}_rows", [examples], f"one request of {BATCH_SIZE} texts"),
    ):
        together = [
            make_prediction(backbone, [(cue, example) for cue in cues for example in group]) for group in groups
        ]
        apart = [make_prediction(backbone, [(cue, example) for example in group]) for group in groups for cue in cues]
        steps = {"together": run_all(together), "apart": run_all(apart)}
        ratio, spread = median_ratio(interleave_seconds(steps, plan.repeats, warmup=1), "together", "apart")
        meaning = f"five cues in shared passes / in five, {description}, encoder, time"
        figures[f"ensemble5_vs_five_passes{key}"] = make_figure(ratio, 0.7, spread, plan.repeats, meaning)
    return figures


def pass_size_figures(plan: Plan) -> Figures:
    """Forward passes that fit the processor's caches against all rows in one pass."""
    figures: Figures = {}
    for kind in ("encoder", "encoder-decoder"):
        backbone = random_backbone(kind)
        cue = random_cue(backbone, "prompt-tuning", prompt_settings(PROMPT_LENGTH))
        one_pass_cue = copy.copy(cue)
        one_pass_cue.tokens_at_once = TOKENS_AT_ONCE
        examples = random_examples([LONG_TEXT_LENGTH] * BATCH_SIZE)
        steps = {
            "small": make_prediction(backbone, [(cue, example) for example in examples]),
            "whole": make_prediction(backbone, [(one_pass_cue, example) for example in examples]),
        }
        ratio, spread = median_ratio(interleave_seconds(steps, plan.repeats, warmup=1), "small", "whole")
        meaning = (
            f"{BATCH_SIZE} rows of {LONG_TEXT_LENGTH} tokens and {PROMPT_LENGTH} vectors in passes of"
            f" {cue.tokens_at_once} tokens / in one, {kind}, time"
        )
        key = f"small_passes_vs_one_{kind.replace('-', '_')}"
        figures[key] = make_figure(ratio, 1.0, spread, plan.repeats, meaning)
    return figures


def split_into_turns(items: Sequence[Item], plan: Plan) -> list[Sequence[Item]]:
    """One part of the items for each timed run: all of them in every run would take minutes."""
    size = -(-len(items) // plan.repeats)
    return [items[start : start + size] for start in range(0, len(items), size)]


def make_prediction(backbone: Backbone, requests: Sequence[tuple[TaskModel, Example]]) -> Step:
    """A step from texts to predictions, tokenizing included."""
    return lambda: predict(backbone, requests, BATCH_SIZE).predictions


def run_all(steps: Sequence[Step]) -> Step:
    """A step that runs all steps, one after the other."""
    return lambda: [step() for step in steps]


def take_turns(steps: Sequence[Step]) -> Step:
    """A step that runs the next of the steps at each call."""
    remaining = itertools.cycle(steps)
    return lambda: next(remaining)()


def decoder_cue() -> tuple[Backbone, TaskModel]:
    """A cue of the paper's length that scores its label words behind the text."""
    backbone = random_backbone("decoder")
    readout = ReadoutConfig(name="label-words")
    return backbone, random_cue(backbone, "prompt-tuning", prompt_settings(PAPER_PROMPT_LENGTH), readout)


def peft_twin(cue: TaskModel) -> Any:
    """A second copy of the decoder, under PEFT with the cue's prompt."""
    torch.manual_seed(0)
    model = make_peft_model("decoder", random_model("decoder"), cue.method.prompt_length)
    return copy_prompt(cue, model).eval()


# To measure something else, add its function here.
PARTS = (decoder_figures, mixed_cue_figures, ensemble_figures, pass_size_figures)
