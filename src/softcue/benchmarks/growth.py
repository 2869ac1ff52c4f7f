"""How a step's time and memory grow with P, T and B on a decoder, ours and PEFT's, beside what theory says; and how the
time of answering grows with the number of cues in a batch.

**Theory.** A position costs 2·12·D²·L operations in the layers, a kept position 2·V·D in the word head, a pair of
positions that attention relates 4·D·L; a backward pass that changes no weight costs as much again. We run P + B·T
positions and relate P² + B·T·(P + T) pairs, with words only for the answers; PEFT runs B·(P + T) positions, relates
B·(P + T)² pairs and makes words for all of them. T counts the answer's tokens, too.
"""

from __future__ import annotations

import gc
import statistics
from dataclasses import dataclass, replace
from typing import Any

from softcue.benchmarks.contestants import SHAPES, cues_alike, random_backbone, random_cue, random_examples
from softcue.benchmarks.measuring import interleaved_seconds, peak_bytes
from softcue.benchmarks.parts import Plan, told
from softcue.benchmarks.steps import PAPER_PROMPT, TEXT, make_contest, our_step, peft_step, peft_twin, prompt_of
from softcue.inference import predict
from softcue.inputs.formatter import TOKENS_AT_ONCE

AXES: dict[str, tuple[int, ...]] = {
    "prompt": (1, 10, 20, 50, 100, 150),
    "text": (16, 32, 64, 128, 256, 512),
    "rows": (1, 2, 4, 8, 16, 32, 64),
}
CUES = (1, 10, 100, 1000)
MIXED_ROWS, MIXED_TEXT, MIXED_PROMPT = 1000, 8, 8  # short enough for one pass (TOKENS_AT_ONCE)


@dataclass(frozen=True)
class Point:
    """P, T and B of a step; those that do not vary stand at these."""

    prompt: int = PAPER_PROMPT
    text: int = TEXT
    rows: int = 8


def growth(plan: Plan) -> dict[str, list[dict[str, Any]]]:
    """The points of each curve, by what varies."""
    found: dict[str, list[dict[str, Any]]] = {}
    for axis, values in AXES.items():
        with told(f"growth with {axis}"):
            found[axis] = [{axis: value, **step_point(replace(Point(), **{axis: value}), plan)} for value in values]
    with told("growth with cues"):
        found["cues"] = cue_points(plan)
    return found


def step_point(point: Point, plan: Plan) -> dict[str, Any]:
    """Seconds, bytes and theory's operations of a step at one point, ours and PEFT's."""
    contest = make_contest("decoder", settings=prompt_of(point.prompt), rows=point.rows, text=point.text)
    steps = {"ours": our_step(contest), "peft": peft_step(contest, peft_twin(contest))}
    memory = {name: peak_bytes(step) for name, step in steps.items()}  # which warms up, too
    seconds = interleaved_seconds(steps, plan.repeats, warmup=0)
    answer = contest.target_ids.shape[1]
    del contest, steps
    gc.collect()  # models and their activations are gigabytes at the largest points
    return {
        "seconds": {name: statistics.median(found) for name, found in seconds.items()},
        "bytes": memory,
        **theory(point, answer),
    }


def theory(point: Point, answer: int) -> dict[str, dict[str, int]]:
    """Operations of a step, positions that run through the layers, and positions that get words.

    Example:
        >>> found = theory(Point(prompt=100, text=30, rows=16), answer=2)
        >>> found["positions"]
        {'ours': 612, 'peft': 2112}
    """
    prompt, text, rows = point.prompt, point.text + answer, point.rows
    positions = {"ours": prompt + rows * text, "peft": rows * (prompt + text)}
    pairs = {"ours": prompt**2 + rows * text * (prompt + text), "peft": rows * (prompt + text) ** 2}
    words = {"ours": rows * answer, "peft": positions["peft"]}
    width, layers, vocabulary = (int(SHAPES["decoder"][name]) for name in ("n_embd", "n_layer", "vocab_size"))
    operations = {
        who: 2
        * (
            2 * 12 * width**2 * layers * positions[who]
            + 4 * width * layers * pairs[who]
            + 2 * vocabulary * width * words[who]
        )
        for who in positions
    }
    return {"operations": operations, "positions": positions, "words": words}


def cue_points(plan: Plan) -> list[dict[str, Any]]:
    """Seconds to answer a thousand rows in one batch, by the number of cues they belong to; theory: no difference."""
    backbone = random_backbone("encoder")
    cue = random_cue(backbone, "prompt-tuning", prompt_of(MIXED_PROMPT))
    cue.tokens_at_once = TOKENS_AT_ONCE  # one pass, though a processor likes smaller ones
    cues = cues_alike(cue, max(CUES))
    examples = random_examples([MIXED_TEXT] * MIXED_ROWS)

    def answering(num_cues: int) -> Any:
        requests = [(cues[number % num_cues], example) for number, example in enumerate(examples)]
        return lambda: predict(backbone, requests, batch_size=MIXED_ROWS)

    seconds = interleaved_seconds({str(number): answering(number) for number in CUES}, plan.repeats, warmup=1)
    return [{"cues": number, "seconds": {"ours": statistics.median(seconds[str(number)])}} for number in CUES]
