"""Ratios mean something only if both contestants compute the same thing. Speed itself is never tested."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import tiny
from tolerance import REORDERED_FLOAT32, REORDERED_PROBABILITIES
from toy import EXAMPLES, TASK

from softcue.benchmarks import contestants, epochs, few_shot, growth, predicting, real_models, steps, texts, training
from softcue.benchmarks.measuring import figure, interleaved_seconds, ratio_of
from softcue.benchmarks.parts import Plan, measured
from softcue.benchmarks.peers import dropout_free, peft_answering, trainer_batches, with_prompt_of
from softcue.errors import MissingExtraError
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
    monkeypatch.setattr(contestants, "SHAPES", tiny)
    monkeypatch.setattr(growth, "SHAPES", tiny)


def check_figures(found: dict[str, dict[str, Any]], *names: str) -> None:
    assert set(found) == set(names)
    for one in found.values():
        assert set(one) == FIELDS
        assert one["ratio"] > 0


# --- both compute the same thing ---


def test_peft_scores_label_words_as_we_do() -> None:
    backbone, cue = predicting.decoder_cue()
    examples = contestants.random_examples([3, 9, 5, 7])
    ours = predicting.answering(backbone, [(cue, example) for example in examples])()
    theirs = peft_answering(predicting.peft_twin(cue), backbone, cue, examples, 3, 100)()
    scores = torch.tensor([list(answer.scores.values()) for answer in ours])
    REORDERED_PROBABILITIES.assert_close(torch.tensor(theirs), scores)
    assert scores.std(dim=0).max() > 10 * REORDERED_PROBABILITIES.absolute  # rows differ, so their order is tested


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
def test_pefts_first_step_has_our_loss(kind: str) -> None:
    contest = steps.make_contest(kind, settings=steps.prompt_of(4), rows=3, text=5)
    model = with_prompt_of(steps.peft_twin(contest), contest.trainer.models[0])
    losses: list[float] = []
    contest.trainer.listener = lambda kind, values: losses.append(values["loss"])
    theirs = steps.peft_step(contest, model)()
    contest.trainer._step()
    assert losses == [REORDERED_FLOAT32.approx(theirs)]


def test_a_steps_contestants_read_as_many_rows_and_tokens() -> None:
    contest = steps.make_contest("encoder", rows=3, text=5)
    assert contest.ids.shape == (3, 5)
    assert contest.prompt_length == steps.PROMPT
    peft = steps.peft_twin(contest)
    assert peft.peft_config["default"].num_virtual_tokens == steps.PROMPT
    assert not peft.base_model.training
    assert peft.training


@pytest.mark.parametrize("kind", ["encoder", "encoder-decoder"])
def test_an_epoch_shows_every_contestant_each_row_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [3, 12, 4, 4, 8, 9, 9, 3]
    course = epochs.shape_course(kind, lengths)
    monkeypatch.setattr(epochs, "ROWS", 4)
    seen: list[tuple[int, int]] = []  # rows and width of each batch that reaches PEFT's model

    def note(model: object, words: object, inputs: dict[str, Any]) -> None:
        seen.append((inputs["inputs_embeds"].shape[0], inputs["inputs_embeds"].shape[1] - epochs.PROMPT))

    monkeypatch.setattr(epochs, "dropout_free", lambda model: model)
    found = epochs.contestants(course)
    course.peer.register_forward_pre_hook(note, with_kwargs=True)
    for name in ("grouped", "random", "no dropout", "our batches"):
        seen.clear()
        found[name]()
        assert [rows for rows, _ in seen] == [4, 4], name
        # The Trainer's sampler groups no rows where there are fewer than four batches.
        assert name != "our batches" or sorted(width for _, width in seen) == [4, 12]
    counted: list[int] = []
    monkeypatch.setattr(Trainer, "_after_step", _counting(counted, Trainer._after_step))
    found["ours"]()
    assert counted == [1, 2]


def _counting(counted: list[int], plain: Any) -> Any:
    def after_step(trainer: Trainer) -> None:
        counted.append(trainer.progress.step)
        plain(trainer)

    return after_step


@pytest.mark.parametrize("kind", ["encoder", "encoder-decoder"])
def test_a_model_without_dropout_has_none_in_training(kind: str) -> None:
    model = dropout_free(contestants.random_model(kind, with_head=True)).train()
    inputs = {"input_ids": torch.arange(10, 20)[None], "labels": torch.zeros(1, 1, dtype=torch.long)}
    with torch.no_grad():
        first, second = (float(model(**inputs).loss) for _ in range(2))
    assert first == second


def test_cues_alike_have_numbers_of_their_own() -> None:
    backbone = contestants.random_backbone("encoder")
    cues = contestants.cues_alike(contestants.random_cue(backbone, "prompt-tuning", steps.prompt_of(2)), 3)
    prompts = [cue.method.prompt_parameters()[0] for cue in cues]
    assert len({tuple(prompt.flatten().tolist()) for prompt in prompts}) == 3


# --- texts ---


@pytest.mark.parametrize("is_grouped", [True, False])
def test_a_few_batches_are_as_wide_as_those_of_the_whole_epoch(is_grouped: bool) -> None:
    lengths = texts.real_lengths(None, 1600)
    batches = trainer_batches(lengths, 16, is_grouped)
    chosen = texts.standing_for(batches, lengths, 4)
    few = [max(lengths[row] for row in chosen[start : start + 16]) for start in range(0, 64, 16)]
    every = [max(lengths[row] for row in batch) for batch in batches]
    assert len(set(chosen)) == 64
    assert sum(few) / len(few) == pytest.approx(sum(every) / len(every), rel=0.06)


# --- figures ---


def test_prediction_figures_have_all_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicting, "MANY", 24)
    monkeypatch.setattr(predicting, "SERVED", 2)
    found = predicting.predicting_figures(PLAN)
    check_figures(
        found,
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
    assert [row for some in predicting.shares(rows, PLAN) for row in some] == rows
    assert len(predicting.shares(rows, PLAN)) == 2


def test_epoch_figures_tell_sampling_and_model_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs, "BATCHES", 1)
    monkeypatch.setattr(epochs, "EPOCH", 64)
    monkeypatch.setattr(epochs, "NAMES", {"encoder": "name"})
    check_figures(epochs.shape_epoch_figures(PLAN), *(f"name{peer}" for peer in PEERS))


def test_other_prompts_of_peft_are_measured_on_encoder_and_decoder() -> None:
    names = [f"{method}_vs_peft_{kind}" for kind in ("encoder", "decoder") for method in ("prefix_tuning", "p_tuning")]
    check_figures(training.other_prompt_figures(PLAN), *names)


def test_all_figures_that_were_promised_of_training_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "peak_bytes", lambda step: 1)  # torch's profiler takes its time
    monkeypatch.setattr(training, "PAPER_PROMPT", 10)
    monkeypatch.setattr(epochs, "BATCHES", 1)
    monkeypatch.setattr(epochs, "EPOCH", 64)
    parts = [part for part in training.PARTS if part not in (training.start_figures, training.real_epoch_figures)]
    found = measured(parts, PLAN)
    promised = {
        "decoder_train_vs_peft": (5.0, ">="),
        "decoder_train_memory_vs_peft": (0.5, "<="),
        "encoder_train_vs_peft": (1.7, ">="),
        "t5_train_vs_peft": (1.7, ">="),
        "step_vs_bare_backbone": (1.05, "<="),
        "m_idpg_vs_p_tuning_v2": (1.15, "<="),
        "vip_vs_prompt_tuning": (1.10, "<="),
        "late_vs_prompt_tuning": (0.5, "<="),
    }
    assert {name: (found[name]["target"], found[name]["comparison"]) for name in promised} == promised


def test_a_figure_knows_whether_it_was_reached() -> None:
    assert figure(0.6, 0.7, 0.0, 7, "x")["met"]
    assert not figure(0.6, 0.7, 0.0, 7, "x", ">=")["met"]


def test_a_ratio_is_the_median_of_turns() -> None:
    seconds = {"a": [1.0, 2.0, 9.0], "b": [1.0, 1.0, 1.0]}
    assert ratio_of(seconds, "a", "b")[0] == 2.0
    calls: list[str] = []
    interleaved_seconds({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=2, warmup=1)
    assert calls == ["a", "b", "a", "b", "b", "a"]


# --- growth ---


def test_growth_has_a_point_for_every_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "AXES", {"prompt": (1, 3)})
    monkeypatch.setattr(growth, "peak_bytes", lambda step: 1)  # torch's profiler takes its time
    monkeypatch.setattr(growth, "CUES", (1, 4))
    monkeypatch.setattr(growth, "MIXED_ROWS", 8)
    found = growth.growth(PLAN)
    assert [point["prompt"] for point in found["prompt"]] == [1, 3]
    assert set(found["prompt"][0]) == {"prompt", "seconds", "bytes", "operations", "positions", "words"}
    assert [point["cues"] for point in found["cues"]] == [1, 4]


# --- few-shot ---


def few_rows() -> Splits:
    good, bad = ("works well today", "all is fine again"), ("it broke again", "nothing works now")
    rows = [Example((text,), label) for label, own in (("one", good), ("two", bad)) for text in own]
    task = contestants.random_cue(contestants.random_backbone("encoder"), "no-prompt", {}).task
    return Splits(task, rows, rows, rows)


def test_the_clock_stands_still_while_a_contestant_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 2.0, 5.0, 6.0, 9.0])
    monkeypatch.setattr(few_shot.time, "perf_counter", lambda: next(now))
    run = few_shot.Run(wanted=80.0, _since=next(now))
    run.worked()  # two seconds of work
    run.scored(70.0)  # three of scoring
    run.worked()  # one of work
    run.scored(80.0)
    assert (run.seconds, run.reached, run.best) == (3.0, 3.0, 80.0)


def test_few_shot_compares_contestants_on_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = few_rows()
    monkeypatch.setattr(few_shot, "load_backbone", lambda name: contestants.random_backbone("encoder"))
    monkeypatch.setattr(few_shot, "real_rows", lambda data, **sampling: rows)

    def peer(backbone: object, given: Splits, wanted: float) -> few_shot.Run:
        assert given is rows
        return few_shot.Run(wanted, seconds=3.0, reached=2.0, test=50.0, best=60.0)

    ours = few_shot.CONTESTANTS
    monkeypatch.setattr(
        few_shot,
        "CONTESTANTS",
        {
            "linear probe (softcue)": ours["linear probe (softcue)"],
            "prompt-tuning (softcue)": ours["prompt-tuning (softcue)"],
            "SetFit": peer,
        },
    )
    found = few_shot.few_shot_figures(PLAN)
    assert set(found["figures"]) == {"few_shot_vs_setfit", "few_shot_vs_linear_probe"}
    assert all(set(one) == FIELDS for one in found["figures"].values())
    assert found["contestants"]["SetFit"]["seconds_to_score"] == [2.0] * 2
    assert found["contestants"]["prompt-tuning (softcue)"]["wanted"] == found["contestants"]["SetFit"]["wanted"]


def test_a_score_that_ours_misses_counts_as_nothing() -> None:
    missed, reached = few_shot.Run(90.0, seconds=5.0), few_shot.Run(90.0, seconds=5.0, reached=4.0)
    runs = {"prompt-tuning (softcue)": [missed] * 3, "SetFit": [reached] * 3, "linear probe (softcue)": [reached] * 3}
    assert few_shot._figures(runs)["few_shot_vs_setfit"]["ratio"] == 0.0


def test_a_missing_peer_is_named() -> None:
    with pytest.raises(MissingExtraError, match="not_there"):
        few_shot._imported("not_there")


# --- models with real weights, here tiny ones ---


TOY = Splits(TASK, EXAMPLES, EXAMPLES, EXAMPLES)


@pytest.mark.parametrize("family", ["t5", "gpt2", "llama"])
def test_pefts_twin_of_a_loaded_model_computes_what_ours_does(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_models, "PAPER_PROMPT", 3)
    backbone = tiny(family)
    cue = real_models.new_cue(backbone, TOY, real_models.scoring(backbone))
    theirs = peft_answering(real_models.peft_twin(backbone, cue).eval(), backbone, cue, EXAMPLES, 3, 100)()
    ours = predicting.answering(backbone, [(cue, example) for example in EXAMPLES])()
    scores = torch.tensor([list(answer.scores.values()) for answer in ours])
    REORDERED_PROBABILITIES.assert_close(torch.tensor(theirs), scores)
    cue = real_models.new_cue(backbone, TOY, ReadoutConfig())
    training_examples = cue.rows(backbone, cue.training_examples(EXAMPLES), with_answer=True)
    found = cue(backbone, collate(training_examples, backbone.tokenizer.pad_token_id)).loss
    loss = real_models.peft_step(real_models.peft_twin(backbone, cue), backbone, training_examples)()
    assert loss == REORDERED_FLOAT32.approx(float(found.total.detach()) / found.count)


def test_pefts_twin_of_an_encoder_has_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_models, "PAPER_PROMPT", 3)
    backbone = tiny("bert")
    twin = real_models.peft_twin(backbone, real_models.new_cue(backbone, TOY, real_models.scoring(backbone)))
    ours, theirs = backbone.base.state_dict(), twin.base_model.base_model.state_dict()
    alike = [name for name, value in ours.items() if name in theirs and torch.equal(value, theirs[name])]
    assert len(alike) > 20 and all(name in alike for name in ours if "layer" in name)


@pytest.mark.parametrize("family", ["bert", "t5", "gpt2"])
def test_figures_of_a_model_are_under_its_name(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PAPER_PROMPT", 3), ("ROWS", 2), ("TEXTS", 4), ("CUES", 2)):
        monkeypatch.setattr(real_models, name, value)
    monkeypatch.setattr(real_models, "load_backbone", lambda _: tiny(family))
    monkeypatch.setattr(real_models, "real_rows", lambda _: TOY)
    found = real_models.model_figures(PLAN, "models/My-Model")
    check_figures(
        found,
        "my_model_train_vs_peft",
        "my_model_train_memory_vs_peft",
        "my_model_score_vs_peft",
        "my_model_mixed2_vs_single",
    )
