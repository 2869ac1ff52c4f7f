"""Answers per second: one cue against PEFT, many cues against one, an ensemble against its members one by one."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any, TypeVar

import torch

from softcue.backbones import Backbone
from softcue.benchmarks.contestants import cues_alike, random_backbone, random_cue, random_examples, random_model
from softcue.benchmarks.measuring import Step, figure, interleaved_seconds, ratio_of
from softcue.benchmarks.parts import Figures, Plan, measured
from softcue.benchmarks.peers import faster, peft_answering, peft_model, with_prompt_of
from softcue.benchmarks.steps import PAPER_PROMPT, PROMPT, prompt_of
from softcue.benchmarks.texts import real_lengths
from softcue.inference import TaskModel, predict
from softcue.inputs.formatter import TOKENS_AT_ONCE
from softcue.readouts import ReadoutConfig
from softcue.types import Example

BATCH = 64
MANY = 1000  # texts, and cues of the largest mixture
LONG_TEXT = 108  # tokens
SERVED = 8  # requests of one text each that an ensemble answers in a turn
Row = TypeVar("Row")


def predicting_figures(plan: Plan) -> Figures:
    """Every figure of `softcue bench predict`."""
    return measured(PARTS, plan)


def decoder_figures(plan: Plan) -> Figures:
    """Short texts through a decoder with one cue."""
    examples = random_examples(real_lengths(plan.data, MANY))
    backbone, cue = decoder_cue()
    model = peft_twin(cue)
    ours = [answering(backbone, [(cue, one) for one in some]) for some in shares(examples, plan)]
    steps = {"ours": next_of(ours)} | {
        name: next_of([peft_answering(model, backbone, cue, some, BATCH, size) for some in shares(examples, plan)])
        for name, size in (("small passes", backbone.tokens_at_once), ("large passes", TOKENS_AT_ONCE))
    }
    seconds = interleaved_seconds(steps, plan.repeats, warmup=1)
    peft = faster(seconds, "small passes", "large passes")
    ratio, spread = ratio_of(seconds, peft, "ours")
    meaning = f"PEFT ({peft}, which is faster) / ours: {MANY} texts, {PAPER_PROMPT} vectors, decoder, time"
    return {"decoder_score_vs_peft": figure(ratio, 3.0, spread, plan.repeats, meaning, ">=")}


def mixed_figures(plan: Plan) -> Figures:
    """Rows of many cues in shared passes against rows of one."""
    backbone = random_backbone("encoder")
    cues = cues_alike(random_cue(backbone, "prompt-tuning", prompt_of(PROMPT)), MANY)
    examples = random_examples(real_lengths(plan.data, MANY))
    figures: Figures = {}
    for num_cues, target in ((8, 0.95), (MANY, 0.90)):
        requests = [(cues[number % num_cues], example) for number, example in enumerate(examples)]
        mixed = [answering(backbone, some) for some in shares(requests, plan)]
        single = [answering(backbone, [(cues[0], one) for _, one in some]) for some in shares(requests, plan)]
        steps = {"mixed": next_of(mixed), "single": next_of(single)}
        ratio, spread = ratio_of(interleaved_seconds(steps, plan.repeats, warmup=1), "single", "mixed")
        meaning = f"rows a second: {MANY} rows of {num_cues} cues / of one cue, encoder, batches of {BATCH}"
        figures[f"mixed{num_cues}_vs_single"] = figure(ratio, target, spread, plan.repeats, meaning, ">=")
    return figures


def ensemble_figures(plan: Plan) -> Figures:
    """Five cues of one task: one text at a time, as a server is asked, and many rows at once."""
    backbone = random_backbone("encoder")
    cues = cues_alike(random_cue(backbone, "prompt-tuning", prompt_of(PROMPT)), 5)
    examples = random_examples(real_lengths(plan.data, BATCH))
    figures: Figures = {}
    for key, groups, what in (
        ("", [[example] for example in examples[:SERVED]], f"{SERVED} requests of one text"),
        (f"_{BATCH}_rows", [examples], f"one request of {BATCH} texts"),
    ):
        together = [answering(backbone, [(cue, one) for cue in cues for one in group]) for group in groups]
        apart = [answering(backbone, [(cue, one) for one in group]) for group in groups for cue in cues]
        steps = {"together": all_of(together), "one by one": all_of(apart)}
        ratio, spread = ratio_of(interleaved_seconds(steps, plan.repeats, warmup=1), "together", "one by one")
        meaning = f"five cues in shared passes / in five, {what}, encoder, time"
        figures[f"ensemble5_vs_five_passes{key}"] = figure(ratio, 0.7, spread, plan.repeats, meaning)
    return figures


def pass_size_figures(plan: Plan) -> Figures:
    """Passes as large as the processor's caches like them against all rows in one."""
    figures: Figures = {}
    for kind in ("encoder", "encoder-decoder"):
        backbone = random_backbone(kind)
        cue = random_cue(backbone, "prompt-tuning", prompt_of(PROMPT))
        whole = copy.copy(cue)
        whole.tokens_at_once = TOKENS_AT_ONCE
        examples = random_examples([LONG_TEXT] * BATCH)
        steps = {
            name: answering(backbone, [(one, example) for example in examples])
            for name, one in (("small", cue), ("one", whole))
        }
        ratio, spread = ratio_of(interleaved_seconds(steps, plan.repeats, warmup=1), "small", "one")
        meaning = (
            f"{BATCH} rows of {LONG_TEXT} tokens and {PROMPT} vectors in passes of {cue.tokens_at_once} tokens"
            f" / in one, {kind}, time"
        )
        figures[f"small_passes_vs_one_{kind.replace('-', '_')}"] = figure(ratio, 1.0, spread, plan.repeats, meaning)
    return figures


def shares(rows: Sequence[Row], plan: Plan) -> list[Sequence[Row]]:
    """All rows, a share for each turn: in one turn they would take minutes."""
    size = -(-len(rows) // plan.repeats)
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def answering(backbone: Backbone, requests: Sequence[tuple[TaskModel, Example]]) -> Step:
    """Texts to answers, tokens included."""
    return lambda: predict(backbone, requests, BATCH).predictions


def all_of(steps: Sequence[Step]) -> Step:
    """One step after the other."""
    return lambda: [step() for step in steps]


def next_of(steps: Sequence[Step]) -> Step:
    """Another of the steps each time."""
    left = itertools.cycle(steps)
    return lambda: next(left)()


def decoder_cue() -> tuple[Backbone, TaskModel]:
    """A cue of the paper's length that scores its label words behind the text."""
    backbone = random_backbone("decoder")
    return backbone, random_cue(backbone, "prompt-tuning", prompt_of(PAPER_PROMPT), ReadoutConfig(name="label-words"))


def peft_twin(cue: TaskModel) -> Any:
    """The decoder once more, under PEFT with the cue's prompt."""
    torch.manual_seed(0)
    return with_prompt_of(peft_model("decoder", random_model("decoder"), cue.method.prompt_length), cue).eval()


# Another part (a method of its own, say) is one more name here.
PARTS = (decoder_figures, mixed_figures, ensemble_figures, pass_size_figures)
