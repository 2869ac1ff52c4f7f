"""`python -m benchmarks train`: training steps against the bare frozen backbone, against PEFT, and against each other.

Shapes are those of real models (MiniLM, T5 v1.1 small, a GPT-2 of width 512) with random weights, which do not matter
for speed. The bare step runs the same number of tokens through the same layers and the same logits, forward and
backward, without placing prompts, collating rows or updating anything.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from benchmarks.measuring import interleave_seconds, make_figure, median_ratio, peak_bytes, process_seconds
from benchmarks.plan import Figures, Plan, choose_parts, measure_parts
from benchmarks.training_epochs import default_epoch_figures, random_epoch_figures, real_epoch_figures
from benchmarks.training_steps import (
    NUM_ROWS,
    PAPER_PROMPT_LENGTH,
    PROMPT_LENGTH,
    TEXT_LENGTH,
    bare_step,
    make_contest,
    our_step,
    peft_step,
    peft_twin,
    prompt_settings,
)

KINDS = ("encoder", "encoder-decoder", "decoder")


def training_figures(plan: Plan, names: Sequence[str] = ()) -> Figures:
    """Measure every figure of `python -m benchmarks train`, or those of some parts by name.

    Example:
        training_figures(Plan(repeats=7), ["late-prompt"])
    """
    return measure_parts(choose_parts(PARTS, names), plan)


def bare_backbone_figures(plan: Plan) -> Figures:
    """Our step: time against the bare backbone, memory against PEFT."""
    figures: Figures = {}
    slowest = (0.0, 0.0, "")
    largest = (0.0, "")
    for kind in KINDS:
        contest = make_contest(kind)
        seconds = interleave_seconds({"ours": our_step(contest), "bare": bare_step(contest)}, plan.repeats)
        ratio, spread = median_ratio(seconds, "ours", "bare")
        slowest = max(slowest, (ratio, spread, kind))
        memory = peak_bytes(our_step(contest)) / peak_bytes(peft_step(contest, peft_twin(contest)))
        largest = max(largest, (memory, kind))
        key = kind.replace("-", "_")
        figures[f"step_vs_bare_{key}"] = make_figure(
            ratio, 1.05, spread, plan.repeats, f"prompt-tuning step / bare {kind} forward and backward, time"
        )
        figures[f"memory_vs_peft_{key}"] = make_figure(
            memory, 1.0, 0.0, 1, f"peak memory of a step / PEFT prompt tuning's, {kind}"
        )
    figures["step_vs_bare_backbone"] = make_figure(
        slowest[0], 1.05, slowest[1], plan.repeats, f"the worst of the three kinds ({slowest[2]})"
    )
    figures["memory_vs_peft"] = make_figure(largest[0], 1.0, 0.0, 1, f"the worst of the three kinds ({largest[1]})")
    return figures


def start_figures(plan: Plan) -> Figures:
    """Seconds to import the package and to print the help."""
    figures: Figures = {}
    for name, arguments, limit in (
        ("import_seconds", ["-c", "import softcue"], 1.5),
        ("help_seconds", ["-m", "softcue", "--help"], 1.0),
    ):
        median, spread = process_seconds(arguments, plan.repeats)
        meaning = f"seconds of: python {' '.join(arguments)}"
        figures[name] = make_figure(median, limit, spread, plan.repeats, meaning)
    return figures


def shared_prefix_figures(plan: Plan) -> Figures:
    """A static prompt of the paper's length on a decoder: softcue runs it once per step, PEFT in every row."""
    contest = make_contest("decoder", settings=prompt_settings(PAPER_PROMPT_LENGTH))
    ours, peft = our_step(contest), peft_step(contest, peft_twin(contest))
    ratio, spread = median_ratio(interleave_seconds({"ours": ours, "peft": peft}, plan.repeats), "peft", "ours")
    sizes = f"{PAPER_PROMPT_LENGTH} vectors, {TEXT_LENGTH} text tokens, {NUM_ROWS} rows"
    meaning = f"prompt tuning on a decoder, {sizes}"
    return {
        "decoder_train_vs_peft": make_figure(
            ratio, 5.0, spread, plan.repeats, f"PEFT's step / ours, {meaning}, time", ">="
        ),
        "decoder_train_memory_vs_peft": make_figure(
            peak_bytes(ours) / peak_bytes(peft), 0.5, 0.0, 1, f"our step / PEFT's, {meaning}, peak memory"
        ),
    }


def other_prompt_figures(plan: Plan) -> Figures:
    """PEFT's prefix tuning and P-tuning against the nearest method of softcue. The target is the same speed.

    P-tuning's network only makes the prompt and is dropped after training; softcue trains the prompt itself.
    """
    figures: Figures = {}
    for kind in ("encoder", "decoder"):
        for method, config, settings, peft_method in (
            ("prefix-tuning", "PrefixTuningConfig", {}, "prefix tuning"),
            ("prompt-tuning", "PromptEncoderConfig", {"encoder_hidden_size": 128}, "P-tuning"),
        ):
            contest = make_contest(kind, method, prompt_settings(PROMPT_LENGTH))
            steps = {"ours": our_step(contest), "peft": peft_step(contest, peft_twin(contest, config, **settings))}
            ratio, spread = median_ratio(interleave_seconds(steps, plan.repeats), "peft", "ours")
            key = f"{peft_method.lower().replace(' ', '_').replace('-', '_')}_vs_peft_{kind}"
            meaning = f"PEFT's {peft_method} step / our {method} step, {PROMPT_LENGTH} vectors, {kind}, time"
            figures[key] = make_figure(ratio, 1.0, spread, plan.repeats, meaning, ">=")
    return figures


def deep_prompt_figures(plan: Plan) -> Figures:
    """The cost of generating a prompt per input: IDPG with M(x) cached, against P-tuning v2, on all three kinds.

    `auto` is the rule of the presets. `add` is the paper's; on decoders such a prompt runs once per step if it is the
    same for every row, which generated ones are not.
    """
    figures: Figures = {}
    for rule, kind in itertools.product(("auto", "add"), KINDS):
        settings = {"prompt_length": PROMPT_LENGTH, "rule": rule}
        generated = our_step(make_contest(kind, "m-idpg-phm", settings))
        static = our_step(make_contest(kind, "p-tuning-v2", settings))
        seconds = interleave_seconds({"generated": generated, "static": static}, plan.repeats)
        ratio, spread = median_ratio(seconds, "generated", "static")
        ending = ("_added_states" if rule == "add" else "") + f"_{kind.replace('-', '_')}"
        meaning = f"m-idpg-phm step with M(x) cached / p-tuning-v2 step, {PROMPT_LENGTH} vectors, rule={rule}, {kind}"
        figures[f"m_idpg_vs_p_tuning_v2{ending}"] = make_figure(ratio, 1.15, spread, plan.repeats, f"{meaning}, time")
        memory = peak_bytes(generated) / peak_bytes(static)
        figures[f"m_idpg_memory_vs_p_tuning_v2{ending}"] = make_figure(memory, 1.1, 0.0, 1, f"{meaning}, peak memory")
    return figures


def joined_key_figures(plan: Plan) -> Figures:
    """Prompts that are keys and values on an encoder: joined to those of each layer, against the same at positions."""
    figures: Figures = {}
    slowest = (0.0, 0.0, "")
    for method in ("p-tuning-v2", "m-idpg-phm"):
        settings = {"prompt_length": PROMPT_LENGTH, "rule": "kv"}
        joined, positions = (make_contest("encoder", method, settings) for _ in range(2))
        positions.backbone.limits["joined keys"] = "measured at positions"
        steps = {"joined": our_step(joined), "positions": our_step(positions)}
        ratio, spread = median_ratio(interleave_seconds(steps, plan.repeats), "joined", "positions")
        slowest = max(slowest, (ratio, spread, method))
        meaning = f"{method} step with rule=kv, keys joined / at {PROMPT_LENGTH} positions, encoder, time"
        key = f"kv_step_vs_positions_{method.replace('-', '_')}"
        figures[key] = make_figure(ratio, 0.7, spread, plan.repeats, meaning)
    figures["kv_step_vs_positions"] = make_figure(
        slowest[0], 0.7, slowest[1], plan.repeats, f"the slower of the two methods ({slowest[2]})"
    )
    return figures


def vip_figures(plan: Plan) -> Figures:
    """The cost of a prompt that depends on the input: VIP against prompt tuning, at the paper's length."""
    settings = prompt_settings(PAPER_PROMPT_LENGTH)
    vip = our_step(make_contest("encoder-decoder", "vip", settings))
    static = our_step(make_contest("encoder-decoder", "prompt-tuning", settings))
    seconds = interleave_seconds({"vip": vip, "static": static}, plan.repeats)
    ratio, spread = median_ratio(seconds, "vip", "static")
    memory = peak_bytes(vip) / peak_bytes(static)
    sizes = f"{PAPER_PROMPT_LENGTH} vectors, {10 * PAPER_PROMPT_LENGTH} codes"
    meaning = f"vip / prompt-tuning step, T5 v1.1 small shape, {sizes}"
    return {
        "vip_vs_prompt_tuning": make_figure(ratio, 1.10, spread, plan.repeats, f"{meaning}, time"),
        "vip_memory_vs_prompt_tuning": make_figure(memory, 1.15, 0.0, 1, f"{meaning}, peak memory"),
    }


def late_prompt_figures(plan: Plan) -> Figures:
    """Prompts that enter at half depth, with the states below cached, against prompts among the word embeddings.

    The encoder has the main figure. An encoder-decoder's decoder and a decoder's word head cost the same in both.
    """
    figures: Figures = {}
    for kind in KINDS:
        whole = make_contest(kind)
        half = whole.backbone.num_layers // 2
        late = make_contest(kind, settings=prompt_settings(PROMPT_LENGTH) | {"insert_layer": half})
        steps = {"late": our_step(late), "whole": our_step(whole)}
        ratio, spread = median_ratio(interleave_seconds(steps, plan.repeats), "late", "whole")
        key = "late_vs_prompt_tuning" + ("" if kind == "encoder" else f"_{kind.replace('-', '_')}")
        meaning = f"prompt-tuning step with insert_layer={half} / with 0, texts known, {kind}, time"
        figures[key] = make_figure(ratio, 0.5, spread, plan.repeats, meaning)
    return figures


# To measure something else (a step of a new method, say), add its function here.
PARTS = (
    bare_backbone_figures,
    start_figures,
    shared_prefix_figures,
    other_prompt_figures,
    deep_prompt_figures,
    joined_key_figures,
    vip_figures,
    late_prompt_figures,
    random_epoch_figures,
    default_epoch_figures,
    real_epoch_figures,
)
