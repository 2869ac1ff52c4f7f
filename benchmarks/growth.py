"""`python -m benchmarks growth`: time and memory of a decoder step by P, T and B, and time to predict by cues.

**Theory.** A position costs 2·12·D²·L operations in the layers. A position with logits costs 2·V·D in the word head.
A pair of positions in attention costs 4·D·L. A backward pass that changes no weight costs as much again. Softcue runs
P + B·T positions and P² + B·T·(P + T) pairs, with logits only for the targets. PEFT runs B·(P + T) positions and
B·(P + T)² pairs, with logits for all positions. T includes the target's tokens.
"""

from __future__ import annotations

import gc
import statistics
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.measuring import Step, interleave_seconds, peak_bytes
from benchmarks.plan import Plan, report_seconds
from benchmarks.random_models import SHAPES, random_backbone, random_cue, random_examples, vary_cue
from benchmarks.training_steps import (
    PAPER_PROMPT_LENGTH,
    TEXT_LENGTH,
    make_contest,
    our_step,
    peft_step,
    peft_twin,
    prompt_settings,
)
from softcue.inference import predict
from softcue.inputs.formatter import TOKENS_AT_ONCE

AXES: dict[str, tuple[int, ...]] = {
    "prompt": (1, 10, 20, 50, 100, 150),
    "text": (16, 32, 64, 128, 256, 512),
    "rows": (1, 2, 4, 8, 16, 32, 64),
}
CUE_COUNTS = (1, 10, 100, 1000)
MIXED_ROWS, MIXED_TEXT_LENGTH, MIXED_PROMPT_LENGTH = 1000, 8, 8  # short enough for one pass (TOKENS_AT_ONCE)


@dataclass(frozen=True)
class StepSize:
    """P, T and B of a step. The defaults hold for the sizes that an axis does not vary."""

    prompt: int = PAPER_PROMPT_LENGTH
    text: int = TEXT_LENGTH
    rows: int = 8


def measure_growth(plan: Plan) -> dict[str, list[dict[str, Any]]]:
    """Measure the points of each curve, by the size that varies."""
    curves: dict[str, list[dict[str, Any]]] = {}
    for axis, values in AXES.items():
        with report_seconds(f"growth with {axis}"):
            curves[axis] = [
                {axis: value, **measure_step(replace(StepSize(), **{axis: value}), plan)} for value in values
            ]
    with report_seconds("growth with cues"):
        curves["cues"] = measure_cues(plan)
    return curves


def measure_step(size: StepSize, plan: Plan) -> dict[str, Any]:
    """Seconds, bytes and expected operations of a step of one size, for softcue and PEFT."""
    settings = prompt_settings(size.prompt)
    contest = make_contest("decoder", settings=settings, num_rows=size.rows, text_length=size.text)
    steps: dict[str, Step] = {"ours": our_step(contest), "peft": peft_step(contest, peft_twin(contest))}
    memory = {name: peak_bytes(step) for name, step in steps.items()}  # this also warms up
    seconds = interleave_seconds(steps, plan.repeats, warmup=0)
    target_length = contest.target_ids.shape[1]
    del contest, steps
    gc.collect()  # models and their activations take gigabytes at the largest sizes
    return {
        "seconds": {name: statistics.median(values) for name, values in seconds.items()},
        "bytes": memory,
        **expected_costs(size, target_length),
    }


def expected_costs(size: StepSize, target_length: int) -> dict[str, dict[str, int]]:
    """Operations of a step, positions that run through the layers, and positions with logits.

    Example:
        >>> expected_costs(StepSize(prompt=100, text=30, rows=16), target_length=2)["positions"]
        {'ours': 612, 'peft': 2112}
    """
    prompt, text, rows = size.prompt, size.text + target_length, size.rows
    positions = {"ours": prompt + rows * text, "peft": rows * (prompt + text)}
    pairs = {"ours": prompt**2 + rows * text * (prompt + text), "peft": rows * (prompt + text) ** 2}
    words = {"ours": rows * target_length, "peft": positions["peft"]}
    width, layers, vocabulary = (int(SHAPES["decoder"][name]) for name in ("n_embd", "n_layer", "vocab_size"))
    operations = {
        name: 2
        * (
            2 * 12 * width**2 * layers * positions[name]
            + 4 * width * layers * pairs[name]
            + 2 * vocabulary * width * words[name]
        )
        for name in positions
    }
    return {"operations": operations, "positions": positions, "words": words}


def measure_cues(plan: Plan) -> list[dict[str, Any]]:
    """Seconds to predict a thousand rows in one batch, by the number of cues. In theory they do not differ."""
    backbone = random_backbone("encoder")
    cue = random_cue(backbone, "prompt-tuning", prompt_settings(MIXED_PROMPT_LENGTH))
    cue.tokens_at_once = TOKENS_AT_ONCE  # one pass, though smaller ones are faster on a processor
    cues = vary_cue(cue, max(CUE_COUNTS))
    examples = random_examples([MIXED_TEXT_LENGTH] * MIXED_ROWS)

    def make_step(num_cues: int) -> Step:
        requests = [(cues[number % num_cues], example) for number, example in enumerate(examples)]
        return lambda: predict(backbone, requests, batch_size=MIXED_ROWS)

    seconds = interleave_seconds({num_cues: make_step(num_cues) for num_cues in CUE_COUNTS}, plan.repeats, warmup=1)
    return [{"cues": num_cues, "seconds": {"ours": statistics.median(values)}} for num_cues, values in seconds.items()]
