"""A prompt-tuning step against the bare frozen backbone, its memory against PEFT's, PEFT's other prompts, and steps of
IDPG and VIP against those of static prompts; on random weights.

Shapes are those of real models (MiniLM, T5 v1.1 small, a GPT-2 of width 512); the weights do not matter for
speed. The bare step runs the same number of tokens through the same layers and the same logits, forward and
backward, without placing prompts, collating rows or updating anything.
"""

from __future__ import annotations

from softcue.benchmarks.epochs import real_epoch_figures, shape_epoch_figures
from softcue.benchmarks.measuring import figure, interleaved_seconds, peak_bytes, ratio_of, start_seconds
from softcue.benchmarks.parts import Figures, Plan, measured
from softcue.benchmarks.steps import (
    PAPER_PROMPT,
    PROMPT,
    ROWS,
    TEXT,
    bare_step,
    make_contest,
    our_step,
    peft_step,
    peft_twin,
    prompt_of,
)

KINDS = ("encoder", "encoder-decoder", "decoder")


def training_figures(plan: Plan) -> Figures:
    """Every figure of `softcue bench train`."""
    return measured(PARTS, plan)


def bare_figures(plan: Plan) -> Figures:
    """Our step beside the bare backbone's time, and beside PEFT's memory."""
    figures: Figures = {}
    worst = (0.0, 0.0, "")
    heaviest = (0.0, "")
    for kind in KINDS:
        contest = make_contest(kind)
        seconds = interleaved_seconds({"ours": our_step(contest), "bare": bare_step(contest)}, plan.repeats)
        ratio, spread = ratio_of(seconds, "ours", "bare")
        worst = max(worst, (ratio, spread, kind))
        memory = peak_bytes(our_step(contest)) / peak_bytes(peft_step(contest, peft_twin(contest)))
        heaviest = max(heaviest, (memory, kind))
        key = kind.replace("-", "_")
        figures[f"step_vs_bare_{key}"] = figure(
            ratio, 1.05, spread, plan.repeats, f"prompt-tuning step / bare {kind} forward and backward, time"
        )
        figures[f"memory_vs_peft_{key}"] = figure(
            memory, 1.0, 0.0, 1, f"peak memory of a step / PEFT prompt tuning's, {kind}"
        )
    figures["step_vs_bare_backbone"] = figure(
        worst[0], 1.05, worst[1], plan.repeats, f"the worst of the three kinds ({worst[2]})"
    )
    figures["memory_vs_peft"] = figure(heaviest[0], 1.0, 0.0, 1, f"the worst of the three kinds ({heaviest[1]})")
    return figures


def start_figures(plan: Plan) -> Figures:
    """What every command waits for."""
    figures: Figures = {}
    for name, words, limit in (
        ("import_seconds", ["-c", "import softcue"], 1.5),
        ("help_seconds", ["-m", "softcue", "--help"], 1.0),
    ):
        median, spread = start_seconds(words, plan.repeats)
        figures[name] = figure(median, limit, spread, plan.repeats, f"seconds of: python {' '.join(words)}")
    return figures


def shared_prefix_figures(plan: Plan) -> Figures:
    """A static prompt of the paper's length on a decoder, which we run once per step and PEFT in every row."""
    contest = make_contest("decoder", settings=prompt_of(PAPER_PROMPT))
    ours, theirs = our_step(contest), peft_step(contest, peft_twin(contest))
    ratio, spread = ratio_of(interleaved_seconds({"ours": ours, "peft": theirs}, plan.repeats), "peft", "ours")
    meaning = f"prompt tuning on a decoder, {PAPER_PROMPT} vectors, {TEXT} text tokens, {ROWS} rows"
    return {
        "decoder_train_vs_peft": figure(ratio, 5.0, spread, plan.repeats, f"PEFT's step / ours, {meaning}, time", ">="),
        "decoder_train_memory_vs_peft": figure(
            peak_bytes(ours) / peak_bytes(theirs), 0.5, 0.0, 1, f"our step / PEFT's, {meaning}, peak memory"
        ),
    }


def other_prompt_figures(plan: Plan) -> Figures:
    """PEFT's prefix tuning and P-tuning beside what we have for them; no figure was asked for, so parity is wanted.

    P-tuning's network only makes the prompt, and is dropped after training; ours trains the prompt itself.
    """
    figures: Figures = {}
    for kind in ("encoder", "decoder"):
        for method, config, settings, theirs in (
            ("prefix-tuning", "PrefixTuningConfig", {}, "prefix tuning"),
            ("prompt-tuning", "PromptEncoderConfig", {"encoder_hidden_size": 128}, "P-tuning"),
        ):
            contest = make_contest(kind, method, prompt_of(PROMPT))
            steps = {"ours": our_step(contest), "peft": peft_step(contest, peft_twin(contest, config, **settings))}
            ratio, spread = ratio_of(interleaved_seconds(steps, plan.repeats), "peft", "ours")
            key = f"{theirs.lower().replace(' ', '_').replace('-', '_')}_vs_peft_{kind}"
            meaning = f"PEFT's {theirs} step / our {method} step, {PROMPT} vectors, {kind}, time"
            figures[key] = figure(ratio, 1.0, spread, plan.repeats, meaning, ">=")
    return figures


def deep_prompt_figures(plan: Plan) -> Figures:
    """What generating a prompt for each input costs over having it: IDPG with M(x) known, beside P-tuning v2.

    On decoders the static prompt runs once per step, which one that reads the input cannot: told apart.
    """
    figures: Figures = {}
    repeats = plan.repeats
    worst, heaviest = (0.0, 0.0, ""), (0.0, "")
    meaning = "m-idpg-phm step with M(x) cached / p-tuning-v2 step of the same prompt length"
    for kind in KINDS:
        settings = {"prompt_length": PROMPT, "rule": "add"}
        generated = our_step(make_contest(kind, "m-idpg-phm", settings))
        trained = our_step(make_contest(kind, "p-tuning-v2", settings))
        ratio, spread = ratio_of(interleaved_seconds({"ours": generated, "static": trained}, repeats), "ours", "static")
        memory = peak_bytes(generated) / peak_bytes(trained)
        if kind == "decoder":
            figures["m_idpg_vs_p_tuning_v2_decoder"] = figure(ratio, 1.15, spread, repeats, f"{meaning}, decoder")
            figures["m_idpg_memory_vs_p_tuning_v2_decoder"] = figure(memory, 1.10, 0.0, 1, "its peak memory, decoder")
            continue
        worst = max(worst, (ratio, spread, kind))
        heaviest = max(heaviest, (memory, kind))
    figures["m_idpg_vs_p_tuning_v2"] = figure(worst[0], 1.15, worst[1], repeats, f"{meaning}; worst kind: {worst[2]}")
    figures["m_idpg_memory_vs_p_tuning_v2"] = figure(
        heaviest[0], 1.10, 0.0, 1, f"peak memory of the same steps; worst kind: {heaviest[1]}"
    )
    return figures


def vip_figures(plan: Plan) -> Figures:
    """What reading the input costs over a static prompt: VIP beside prompt tuning, at the paper's length."""
    settings = prompt_of(PAPER_PROMPT)
    forward_pass = our_step(make_contest("encoder-decoder", "vip", settings))
    static = our_step(make_contest("encoder-decoder", "prompt-tuning", settings))
    ratio, spread = ratio_of(
        interleaved_seconds({"ours": forward_pass, "static": static}, plan.repeats), "ours", "static"
    )
    memory = peak_bytes(forward_pass) / peak_bytes(static)
    meaning = f"vip / prompt-tuning step, T5 v1.1 small shape, {PAPER_PROMPT} vectors, {10 * PAPER_PROMPT} codes"
    return {
        "vip_vs_prompt_tuning": figure(ratio, 1.10, spread, plan.repeats, f"{meaning}, time"),
        "vip_memory_vs_prompt_tuning": figure(memory, 1.15, 0.0, 1, f"{meaning}, peak memory"),
    }


def late_figures(plan: Plan) -> Figures:
    """Prompts that enter at half depth, the layers below known, beside prompts among the word embeddings.

    The figure is the encoder's; an encoder-decoder's decoder and a decoder's words cost the same in both.
    """
    figures: Figures = {}
    for kind in KINDS:
        whole = make_contest(kind)
        half = whole.backbone.num_layers // 2
        late = make_contest(kind, settings=prompt_of(PROMPT) | {"insert_layer": half})
        steps = {"late": our_step(late), "whole": our_step(whole)}
        ratio, spread = ratio_of(interleaved_seconds(steps, plan.repeats), "late", "whole")
        key = "late_vs_prompt_tuning" + ("" if kind == "encoder" else f"_{kind.replace('-', '_')}")
        meaning = f"prompt-tuning step with insert_layer={half} / with 0, texts known, {kind}, time"
        figures[key] = figure(ratio, 0.5, spread, plan.repeats, meaning)
    return figures


# Another part (a step of a new method, say) is one more name here.
PARTS = (
    bare_figures,
    start_figures,
    shared_prefix_figures,
    other_prompt_figures,
    deep_prompt_figures,
    vip_figures,
    late_figures,
    shape_epoch_figures,
    real_epoch_figures,
)
