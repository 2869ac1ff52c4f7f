"""Answers per second: one cue against PEFT, many cues against one, an ensemble against its members one by one."""

from __future__ import annotations

from typing import Any

import torch

from softcue.backbones import Backbone
from softcue.benchmarks.contestants import random_backbone, random_cue, random_examples, random_model
from softcue.benchmarks.measuring import Step, figure, interleaved_seconds, ratio_of
from softcue.errors import MissingExtraError
from softcue.evaluation import predict
from softcue.methods import TaskModel
from softcue.readouts import ReadoutConfig
from softcue.types import Example

PROMPT, PAPER_PROMPT, SHORT, BATCH = 20, 100, 16, 64
MANY_ROWS = 1000


def predicting_figures(repeats: int) -> dict[str, dict[str, Any]]:
    """Every figure of `softcue bench predict`."""
    return {**decoder_figure(repeats), **mixed_figures(repeats), **ensemble_figure(repeats)}


def decoder_figure(repeats: int) -> dict[str, dict[str, Any]]:
    """Short texts through a decoder with one cue; PEFT gets its texts as ready tensors."""
    backbone = random_backbone("decoder")
    settings = {"prompt_length": PAPER_PROMPT, "init": "uniform"}
    cue = random_cue(backbone, "prompt-tuning", settings, ReadoutConfig(name="label-words"))
    examples = random_examples(MANY_ROWS, SHORT)
    steps = {"ours": _answering(backbone, [(cue, example) for example in examples]),
             "peft": _peft_answering(cue, backbone, examples)}  # fmt: skip
    ratio, spread = ratio_of(interleaved_seconds(steps, repeats, warmup=1), "peft", "ours")
    meaning = f"PEFT / ours: {MANY_ROWS} texts of {SHORT} tokens, {PAPER_PROMPT} vectors, decoder, batches of {BATCH}"
    return {"decoder_score_vs_peft": figure(ratio, 3.0, spread, repeats, meaning, ">=")}


def mixed_figures(repeats: int) -> dict[str, dict[str, Any]]:
    """Rows of many cues in shared passes against rows of one."""
    backbone = random_backbone("encoder")
    cues = [random_cue(backbone, "prompt-tuning", {"prompt_length": PROMPT, "init": "uniform"}, seed=seed)
            for seed in range(MANY_ROWS)]  # fmt: skip
    figures = {}
    for num_cues, num_rows, target in ((8, 256, 0.95), (MANY_ROWS, MANY_ROWS, 0.90)):
        examples = random_examples(num_rows, SHORT)
        mixed = [(cues[number % num_cues], example) for number, example in enumerate(examples)]
        single = [(cues[0], example) for example in examples]
        steps = {"mixed": _answering(backbone, mixed), "single": _answering(backbone, single)}
        ratio, spread = ratio_of(interleaved_seconds(steps, repeats, warmup=1), "single", "mixed")
        meaning = f"throughput of {num_rows} rows of {num_cues} cues / of one cue, encoder"
        figures[f"mixed{num_cues}_vs_single"] = figure(ratio, target, spread, repeats, meaning, ">=")
    return figures


def ensemble_figure(repeats: int) -> dict[str, dict[str, Any]]:
    """Five cues of one task on the same rows, in shared passes and one cue after the other."""
    backbone = random_backbone("encoder")
    cues = [random_cue(backbone, "prompt-tuning", {"prompt_length": PROMPT, "init": "uniform"}, seed=seed)
            for seed in range(5)]  # fmt: skip
    examples = random_examples(64, SHORT)
    each = [_answering(backbone, [(cue, example) for example in examples]) for cue in cues]
    together = _answering(backbone, [(cue, example) for cue in cues for example in examples])
    steps: dict[str, Step] = {"together": together, "one by one": lambda: [step() for step in each]}
    ratio, spread = ratio_of(interleaved_seconds(steps, repeats, warmup=1), "together", "one by one")
    meaning = "five cues on 64 rows in shared passes / five passes, encoder"
    return {"ensemble5_vs_five_passes": figure(ratio, 0.7, spread, repeats, meaning)}


def _answering(backbone: Backbone, requests: list[tuple[TaskModel, Example]]) -> Step:
    return lambda: predict(backbone, requests, BATCH)


def _peft_answering(cue: TaskModel, backbone: Backbone, examples: list[Example]) -> Step:
    """PEFT's prompt tuning: the logits of the two label words behind each text."""
    try:
        import peft
    except ImportError as error:
        raise MissingExtraError("peft", "bench") from error
    torch.manual_seed(0)
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=PAPER_PROMPT)
    model = peft.get_peft_model(random_model("decoder"), config).eval()
    words = cue.readout.word_ids
    rows = cue.rows(backbone, examples)  # the very tokens that we read
    batches = [torch.tensor([row.ids for row in rows[start : start + BATCH]]) for start in range(0, len(rows), BATCH)]

    @torch.no_grad()
    def step() -> list[list[float]]:
        found = []
        for ids in batches:
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[:, -1]
            found += logits[:, words].softmax(dim=-1).tolist()
        return found

    return step
