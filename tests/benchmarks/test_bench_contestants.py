"""Ratios are meaningful only if both contestants compute the same. Speed itself is never tested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny
from tolerance import REORDERED_FLOAT32, REORDERED_PROBABILITIES
from toy import EXAMPLES, TASK

from benchmarks import (
    few_shot_speed,
    growth,
    prediction_speed,
    random_models,
    real_model_speed,
    texts,
    training_epochs,
    training_speed,
    training_steps,
)
from benchmarks.few_shot_speed import FewShotRun
from benchmarks.measuring import interleave_seconds, make_figure, median_ratio
from benchmarks.peft_models import copy_prompt, copy_without_dropout, make_peft_prediction, trainer_batches
from benchmarks.plan import Plan, measure_parts
from softcue.errors import ConfigurationError, MissingExtraError
from softcue.inputs.collate import collate
from softcue.readouts import ReadoutConfig
from softcue.tasks.splits import Splits
from softcue.training import Trainer
from softcue.types import Example

pytest.importorskip("peft")  # of the extra `bench`

PEERS = ("", "_random_batches", "_without_dropout", "_our_batches")
FIELDS = {"ratio", "target", "comparison", "met", "spread", "runs", "meaning"}
PLAN = Plan(repeats=2)


@pytest.fixture(autouse=True)
def _tiny_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = {
        "vocab_size": 1000,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    encoder_decoder = {
        "vocab_size": 1000,
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 32,
        "num_layers": 2,
        "num_heads": 2,
        "feed_forward_proj": "gated-gelu",
        "decoder_start_token_id": 0,
    }
    decoder = {"vocab_size": 1000, "n_embd": 16, "n_layer": 2, "n_head": 2, "eos_token_id": 1, "bos_token_id": 1}
    tiny = {"encoder": encoder, "encoder-decoder": encoder_decoder, "decoder": decoder}
    monkeypatch.setattr(random_models, "SHAPES", tiny)
    monkeypatch.setattr(growth, "SHAPES", tiny)


def check_figures(figures: dict[str, dict[str, Any]], *names: str) -> None:
    assert set(figures) == set(names)
    for figure in figures.values():
        assert set(figure) == FIELDS
        assert figure["ratio"] > 0


# --- both compute the same thing ---


def test_peft_scores_label_words_as_we_do() -> None:
    backbone, cue = prediction_speed.decoder_cue()
    examples = random_models.random_examples([3, 9, 5, 7])
    predictions = prediction_speed.make_prediction(backbone, [(cue, example) for example in examples])()
    peft_scores = make_peft_prediction(prediction_speed.peft_twin(cue), backbone, cue, examples, 3, 100)()
    scores = torch.tensor([list(prediction.scores.values()) for prediction in predictions])
    REORDERED_PROBABILITIES.assert_close(torch.tensor(peft_scores), scores)
    assert scores.std(dim=0).max() > 10 * REORDERED_PROBABILITIES.absolute  # rows differ, so their order is tested


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
def test_pefts_first_step_has_our_loss(kind: str) -> None:
    contest = training_steps.make_contest(kind, settings=training_steps.prompt_settings(4), num_rows=3, text_length=5)
    model = copy_prompt(contest.trainer.models[0], training_steps.peft_twin(contest))
    losses: list[float] = []
    contest.trainer.listener = lambda kind, values: losses.append(values["loss"])
    peft_loss = training_steps.peft_step(contest, model)()
    contest.trainer._step()
    assert losses == [REORDERED_FLOAT32.approx(peft_loss)]


def test_a_steps_contestants_read_as_many_rows_and_tokens() -> None:
    contest = training_steps.make_contest("encoder", num_rows=3, text_length=5)
    assert contest.ids.shape == (3, 5)
    assert contest.prompt_length == training_steps.PROMPT_LENGTH
    peft = training_steps.peft_twin(contest)
    assert peft.peft_config["default"].num_virtual_tokens == training_steps.PROMPT_LENGTH
    assert not peft.base_model.training
    assert peft.training


@pytest.mark.parametrize("kind", ["encoder", "encoder-decoder"])
def test_an_epoch_shows_every_contestant_each_row_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [3, 12, 4, 4, 8, 9, 9, 3]
    contest = training_epochs.random_epoch_contest(kind, lengths)
    monkeypatch.setattr(training_epochs, "NUM_ROWS", 4)
    seen: list[tuple[int, int]] = []  # rows and width of each batch that reaches PEFT's model

    def note(model: object, words: object, inputs: dict[str, Any]) -> None:
        seen.append(
            (inputs["inputs_embeds"].shape[0], inputs["inputs_embeds"].shape[1] - training_epochs.PROMPT_LENGTH)
        )

    monkeypatch.setattr(training_epochs, "copy_without_dropout", lambda model: model)
    epochs = training_epochs.make_epochs(contest, num_batches=2)
    contest.peer.register_forward_pre_hook(note, with_kwargs=True)
    for name in ("grouped", "random", "no dropout", "our batches"):
        seen.clear()
        epochs[name]()
        assert [rows for rows, _ in seen] == [4, 4], name
        # The Trainer's sampler groups no rows where there are fewer than four batches.
        assert name != "our batches" or sorted(width for _, width in seen) == [4, 12]
    counted: list[int] = []
    monkeypatch.setattr(Trainer, "_after_step", _counting(counted, Trainer._after_step))
    epochs["ours"]()
    assert counted == [1, 2]


def _counting(counted: list[int], plain: Any) -> Any:
    def after_step(trainer: Trainer) -> None:
        counted.append(trainer.state.step)
        plain(trainer)

    return after_step


@pytest.mark.parametrize("kind", ["encoder", "encoder-decoder"])
def test_a_model_without_dropout_has_none_in_training(kind: str) -> None:
    model = copy_without_dropout(random_models.random_model(kind, with_head=True)).train()
    inputs = {"input_ids": torch.arange(10, 20)[None], "labels": torch.zeros(1, 1, dtype=torch.long)}
    with torch.no_grad():
        first, second = (float(model(**inputs).loss) for _ in range(2))
    assert first == second


def test_varied_cues_have_different_prompts() -> None:
    backbone = random_models.random_backbone("encoder")
    cues = random_models.vary_cue(
        random_models.random_cue(backbone, "prompt-tuning", training_steps.prompt_settings(2)), 3
    )
    prompts = [cue.method.prompt_parameters()[0] for cue in cues]
    assert len({tuple(prompt.flatten().tolist()) for prompt in prompts}) == 3


# --- texts ---


@pytest.mark.parametrize("is_grouped", [True, False])
def test_a_few_batches_are_as_wide_as_those_of_the_whole_epoch(is_grouped: bool) -> None:
    lengths = texts.real_lengths(None, 1600)
    batches = trainer_batches(lengths, 16, is_grouped)
    chosen = texts.representative_rows(batches, lengths, 4)
    chosen_widths = [max(lengths[row] for row in chosen[start : start + 16]) for start in range(0, 64, 16)]
    all_widths = [max(lengths[row] for row in batch) for batch in batches]
    assert len(set(chosen)) == 64
    assert sum(chosen_widths) / len(chosen_widths) == pytest.approx(sum(all_widths) / len(all_widths), rel=0.06)


# --- figures ---


def test_prediction_figures_have_all_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction_speed, "NUM_TEXTS", 24)
    monkeypatch.setattr(prediction_speed, "NUM_REQUESTS", 2)
    figures = prediction_speed.prediction_figures(PLAN)
    check_figures(
        figures,
        "decoder_score_vs_peft",
        "mixed8_vs_single",
        "mixed24_vs_single",
        "ensemble5_vs_five_passes",
        "ensemble5_vs_five_passes_64_rows",
        "small_passes_vs_one_encoder",
        "small_passes_vs_one_encoder_decoder",
    )


def test_every_row_has_a_turn() -> None:
    rows = list(range(10))
    assert [row for part in prediction_speed.split_into_turns(rows, PLAN) for row in part] == rows
    assert len(prediction_speed.split_into_turns(rows, PLAN)) == 2


def test_epoch_figures_separate_sampling_and_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_epochs, "NUM_BATCHES", 1)
    monkeypatch.setattr(training_epochs, "EPOCH_ROWS", 64)
    monkeypatch.setattr(training_epochs, "FIGURE_NAMES", {"encoder": "name"})
    check_figures(training_epochs.random_epoch_figures(PLAN), *(f"name{peer}" for peer in PEERS))


def test_other_prompts_of_peft_are_measured_on_encoder_and_decoder() -> None:
    names = [f"{method}_vs_peft_{kind}" for kind in ("encoder", "decoder") for method in ("prefix_tuning", "p_tuning")]
    check_figures(training_speed.other_prompt_figures(PLAN), *names)


def test_training_measures_all_promised_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_speed, "peak_bytes", lambda step: 1)  # torch's profiler takes its time
    monkeypatch.setattr(training_speed, "PAPER_PROMPT_LENGTH", 10)
    monkeypatch.setattr(training_epochs, "NUM_BATCHES", 1)
    monkeypatch.setattr(training_epochs, "DEFAULT_BATCHES", 1)
    monkeypatch.setattr(training_epochs, "EPOCH_ROWS", 64)
    parts = [
        part
        for part in training_speed.PARTS
        if part not in (training_speed.start_figures, training_speed.real_epoch_figures)
    ]
    figures = measure_parts(parts, PLAN)
    promised = {
        "decoder_train_vs_peft": (5.0, ">="),
        "decoder_train_memory_vs_peft": (0.5, "<="),
        "encoder_train_vs_peft": (1.0, ">="),
        "t5_train_vs_peft": (1.0, ">="),
        "encoder_train_vs_peft_defaults": (3.0, ">="),
        "t5_train_vs_peft_defaults": (3.0, ">="),
        "step_vs_bare_backbone": (1.05, "<="),
        "m_idpg_vs_p_tuning_v2_encoder": (1.15, "<="),
        "m_idpg_vs_p_tuning_v2_encoder_decoder": (1.15, "<="),
        "m_idpg_vs_p_tuning_v2_decoder": (1.15, "<="),
        "m_idpg_vs_p_tuning_v2_added_states_decoder": (1.15, "<="),
        "vip_vs_prompt_tuning": (1.10, "<="),
        "late_vs_prompt_tuning": (0.5, "<="),
        "kv_step_vs_positions": (0.7, "<="),
    }
    assert {name: (figures[name]["target"], figures[name]["comparison"]) for name in promised} == promised


def test_parts_of_the_training_benchmark_are_measured_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def first_figures(plan: Plan) -> dict[str, Any]:
        return {"first": plan.repeats}

    def second_part_figures(plan: Plan) -> dict[str, Any]:
        return {"second": plan.repeats}

    monkeypatch.setattr(training_speed, "PARTS", (first_figures, second_part_figures))
    assert set(training_speed.training_figures(PLAN)) == {"first", "second"}
    assert set(training_speed.training_figures(PLAN, ["second-part"])) == {"second"}
    with pytest.raises(ConfigurationError, match="some of first, second-part"):
        training_speed.training_figures(PLAN, ["third"])


def test_a_figure_states_whether_its_target_is_met() -> None:
    assert make_figure(0.6, 0.7, 0.0, 7, "x")["met"]
    assert not make_figure(0.6, 0.7, 0.0, 7, "x", ">=")["met"]


def test_a_ratio_is_the_median_of_turns() -> None:
    seconds = {"a": [1.0, 2.0, 9.0], "b": [1.0, 1.0, 1.0]}
    assert median_ratio(seconds, "a", "b")[0] == 2.0
    calls: list[str] = []
    interleave_seconds({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=2, warmup=1)
    assert calls == ["a", "b", "a", "b", "b", "a"]


# --- growth ---


def test_growth_has_a_point_for_every_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "AXES", {"prompt": (1, 3)})
    monkeypatch.setattr(growth, "peak_bytes", lambda step: 1)  # torch's profiler takes its time
    monkeypatch.setattr(growth, "CUE_COUNTS", (1, 4))
    monkeypatch.setattr(growth, "MIXED_ROWS", 8)
    curves = growth.measure_growth(PLAN)
    assert [point["prompt"] for point in curves["prompt"]] == [1, 3]
    assert set(curves["prompt"][0]) == {"prompt", "seconds", "bytes", "operations", "positions", "words"}
    assert [point["cues"] for point in curves["cues"]] == [1, 4]


# --- few-shot ---


def few_rows() -> Splits:
    good, bad = ("works well today", "all is fine again"), ("it broke again", "nothing works now")
    rows = [Example((text,), label) for label, texts in (("one", good), ("two", bad)) for text in texts]
    task = random_models.random_cue(random_models.random_backbone("encoder"), "no-prompt", {}).task
    return Splits(task, rows, rows, rows)


def test_the_clock_stops_while_a_contestant_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 2.0, 5.0, 6.0, 9.0])
    monkeypatch.setattr(few_shot_speed.time, "process_time", lambda: next(now))
    run = FewShotRun(target_score=80.0, _since=next(now))
    run.count_time()  # two seconds of work
    run.add_score(70.0)  # three of scoring
    run.count_time()  # one of work
    run.add_score(80.0)
    assert (run.seconds, run.seconds_to_score, run.validation_score) == (3.0, 3.0, 80.0)


def test_few_shot_compares_contestants_on_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = few_rows()
    monkeypatch.setattr(few_shot_speed, "load_backbone", lambda name: random_models.random_backbone("encoder"))
    monkeypatch.setattr(few_shot_speed, "read_task", lambda name, data, **sampling: rows)

    def train_peer(backbone: object, given: Splits, target_score: float) -> FewShotRun:
        assert given is rows
        return FewShotRun(target_score, seconds=3.0, seconds_to_score=2.0, validation_score=60.0)

    ours = few_shot_speed.CONTESTANTS
    probe, deep = few_shot_speed.PROBE, few_shot_speed.OURS
    contestants = {probe: ours[probe], deep: ours[deep], "SetFit": train_peer}
    monkeypatch.setattr(few_shot_speed, "CONTESTANTS", contestants)
    measurements = few_shot_speed.few_shot_figures(PLAN, ["tickets", "reply-form"])
    assert set(measurements["figures"]) == {"few_shot_vs_setfit_tickets", "few_shot_vs_setfit_reply_form"}
    assert all(set(figure) == FIELDS for figure in measurements["figures"].values())
    values = {name: measurements["contestants"][f"tickets: {name}"] for name in contestants}
    assert values["SetFit"]["seconds_to_score"] == [2.0] * 2
    assert values[deep]["wanted"] == values["SetFit"]["wanted"] == [values[probe]["validation"] + 4] * 2


def test_few_shot_takes_published_tasks_only_where_their_files_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(few_shot_speed, "load_backbone", lambda name: None)
    monkeypatch.setattr(few_shot_speed, "train_all", lambda backbone, task, plan: asked.append(task) or {})
    monkeypatch.setattr(few_shot_speed, "_compare", lambda runs, task: {})
    few_shot_speed.few_shot_figures(PLAN)
    assert asked == ["reply-form", "tickets", "urgency"]
    few_shot_speed.few_shot_figures(Plan(1, tmp_path))
    assert asked[3:] == ["reply-form", "tickets", "urgency", "subj", "mr", "sst2"]


@pytest.mark.parametrize(
    ("ours", "setfit", "ratio"),
    [
        ([None, 4.0], [40.0, 40.0], 0.0),  # a score that ours misses counts as zero
        ([4.0, 2.0], [40.0, 40.0], 10.0),  # the worst sample counts
        ([5.0], [None], 20.0),  # SetFit missed it: all its seconds
    ],
)
def test_the_worst_few_shot_sample_counts(ours: list[float | None], setfit: list[float | None], ratio: float) -> None:
    def runs(seconds: list[float | None]) -> list[FewShotRun]:
        return [FewShotRun(90.0, seconds=100.0, seconds_to_score=value) for value in seconds]

    figures = few_shot_speed._compare({few_shot_speed.OURS: runs(ours), "SetFit": runs(setfit)}, "tickets")
    assert figures["few_shot_vs_setfit_tickets"]["ratio"] == ratio


def test_a_missing_peer_is_named() -> None:
    with pytest.raises(MissingExtraError, match="not_there"):
        few_shot_speed.import_peer("not_there")


# --- models with real weights, here tiny ones ---


TOY = Splits(TASK, EXAMPLES, EXAMPLES, EXAMPLES)


@pytest.mark.parametrize("family", ["t5", "gpt2", "llama"])
def test_pefts_twin_of_a_loaded_model_computes_the_same(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_model_speed, "PAPER_PROMPT_LENGTH", 3)
    backbone = tiny(family)
    cue = real_model_speed.make_cue(backbone, TOY, real_model_speed.one_pass_readout(backbone))
    peft_scores = make_peft_prediction(
        real_model_speed.peft_twin(backbone, cue).eval(), backbone, cue, EXAMPLES, 3, 100
    )()
    predictions = prediction_speed.make_prediction(backbone, [(cue, example) for example in EXAMPLES])()
    scores = torch.tensor([list(prediction.scores.values()) for prediction in predictions])
    REORDERED_PROBABILITIES.assert_close(torch.tensor(peft_scores), scores)
    cue = real_model_speed.make_cue(backbone, TOY, ReadoutConfig())
    rows = cue.rows(backbone, cue.training_examples(EXAMPLES), with_target=True)
    losses = cue(backbone, collate(rows, backbone.tokenizer.pad_token_id)).losses
    peft_loss = real_model_speed.peft_step(real_model_speed.peft_twin(backbone, cue), backbone, rows)()
    assert peft_loss == REORDERED_FLOAT32.approx(float(losses.sum().detach()) / cue.readout.num_losses(rows))


def test_pefts_twin_of_an_encoder_has_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_model_speed, "PAPER_PROMPT_LENGTH", 3)
    backbone = tiny("bert")
    twin = real_model_speed.peft_twin(
        backbone, real_model_speed.make_cue(backbone, TOY, real_model_speed.one_pass_readout(backbone))
    )
    ours, theirs = backbone.base.state_dict(), twin.base_model.base_model.state_dict()
    alike = [name for name, value in ours.items() if name in theirs and torch.equal(value, theirs[name])]
    assert len(alike) > 20 and all(name in alike for name in ours if "layer" in name)


@pytest.mark.parametrize("family", ["bert", "t5", "gpt2"])
def test_figures_of_a_model_are_under_its_name(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PAPER_PROMPT_LENGTH", 3), ("NUM_ROWS", 2), ("NUM_TEXTS", 4), ("NUM_CUES", 2)):
        monkeypatch.setattr(real_model_speed, name, value)
    monkeypatch.setattr(real_model_speed, "load_backbone", lambda _: tiny(family))
    monkeypatch.setattr(real_model_speed, "real_splits", lambda _: TOY)
    figures = real_model_speed.model_figures(PLAN, "models/My-Model")
    check_figures(
        figures,
        "my_model_train_vs_peft",
        "my_model_train_memory_vs_peft",
        "my_model_score_vs_peft",
        "my_model_mixed2_vs_single",
        *(("my_model_mixed2_rank_vs_single", "my_model_one_of_8_rank_vs_single") if family != "bert" else ()),
    )
