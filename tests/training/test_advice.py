"""Warnings about runs that went badly: what happened, and advice that fits the run."""

from __future__ import annotations

from pathlib import Path

import pytest
from short_runs import train
from tiny import tiny
from toy import EXAMPLES, TASK, make_model
from toy_training import trained

from softcue.evaluation import score
from softcue.run import Run
from softcue.training import TaskData, Trainer, TrainingConfig
from softcue.training.advice import describe_cut, describe_start, length_to_try, rates_to_try
from softcue.training.checkpoints import TrainingState
from softcue.types import Prediction

SOLVED = {"name": "classifier", "head_start": "solved"}
RUINOUS = {"learning_rate": 1000.0, "network_learning_rate": 1000.0}
RATES = {"learning_rate": 0.01, "network_learning_rate": 0.005}


def kept_start(num_collapsed: int = 0, best_step: int = 0) -> TrainingState:
    """The state after three evaluations, of which that before the first step was the best."""
    scores = {0: 60.3, 4: 33.3, 8: 40.0}
    history = [{"step": step, "score": value} for step, value in scores.items()]
    return TrainingState(8, history, best_score=60.3, best_step=best_step, num_collapsed=num_collapsed)


def test_a_run_that_kept_its_start_says_what_its_cue_is() -> None:
    config = TrainingConfig()
    solved = describe_start(make_model(tiny("bert"), readout=SOLVED), config, kept_start())
    assert solved == (
        "no step was better than the start (60.3 before the first step, at most 40.0 after it), so the prompt is as "
        "it began: the cue predicts much like the frozen backbone with its solved head"
    )
    random = describe_start(make_model(tiny("bert")), config, kept_start())
    assert random.endswith("like the frozen backbone with an untrained head")
    writer = describe_start(make_model(tiny("gpt2")), config, kept_start())
    assert writer.endswith("like the frozen backbone without training (zero-shot)")
    second_stage = describe_start(make_model(tiny("gpt2")), TrainingConfig(init_from="cues/nli"), kept_start())
    assert second_stage.endswith("like the cue of training.init_from")
    adapter = describe_start(make_model(tiny("bert"), "adapter", readout=SOLVED), config, kept_start())
    assert "all that the method trains is as it began" in adapter


def test_a_run_that_kept_a_step_or_took_none_does_not_speak_of_its_start() -> None:
    model = make_model(tiny("bert"))
    assert describe_start(model, TrainingConfig(), kept_start(best_step=4)) == ""
    only_start = TrainingState(0, [{"step": 0, "score": 50.0}], best_score=50.0)
    assert describe_start(model, TrainingConfig(), only_start) == ""
    assert describe_start(model, TrainingConfig(), TrainingState()) == ""


def test_a_kept_start_does_not_hide_that_training_collapsed() -> None:
    model, config = make_model(tiny("bert")), TrainingConfig()
    assert "same label" not in describe_start(model, config, kept_start())
    once = describe_start(model, config, kept_start(num_collapsed=1))
    assert once.endswith("; in the last evaluation all validation rows got the same label")
    with_start = describe_start(model, config, kept_start(num_collapsed=3))
    assert with_start.endswith("; in each of the last 2 evaluations all validation rows got the same label")


def test_ruined_training_keeps_its_start_and_warns() -> None:
    result, _, _ = trained(SOLVED, steps=4, **RUINOUS)
    assert result.state.best_step == 0
    [warning] = [text for text in result.warnings if "no step was better" in text]
    assert "the frozen backbone with its solved head" in warning
    assert "Try one of: training.learning_rate=3.3e+02, more training.steps (now 4)" in warning


def test_evaluations_that_predict_one_label_are_counted_until_one_does_not() -> None:
    trainer = Trainer(tiny("bert"), [TaskData(make_model(tiny("bert")), EXAMPLES, EXAMPLES)], TrainingConfig(steps=1))
    one_label = score(TASK, [Prediction("a")] * len(EXAMPLES), EXAMPLES)
    several = score(TASK, [Prediction(str(example.target)) for example in EXAMPLES], EXAMPLES)
    counts = []
    for evaluation in (one_label, one_label, several, one_label):
        trainer._evaluate([evaluation])
        counts.append(trainer.state.num_collapsed)
    assert counts == [1, 2, 0, 1]


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({"learning_rate": 50.0}, ["training.learning_rate=0.01 as in the recipe (now 50)"]),
        ({"learning_rate": 0.0001}, ["training.learning_rate=0.01 as in the recipe (now 0.0001)"]),
        ({"learning_rate": 0.03}, ["training.learning_rate=0.01 or 0.09"]),
        ({"learning_rate": 0.0}, ["training.learning_rate above 0"]),
        (
            {"learning_rate": 0.03, "network_learning_rate": 5.0},
            ["training.network_learning_rate=0.005 as in the recipe (now 5)"],
        ),
    ],
)
def test_a_learning_rate_far_from_the_recipe_is_advised_the_recipes(
    settings: dict[str, float], advice: list[str]
) -> None:
    config = TrainingConfig.model_validate({**RATES, **settings})
    assert rates_to_try(make_model(tiny("bert")), config, RATES) == advice


def test_without_a_recipe_a_third_and_three_times_the_rate_are_advised() -> None:
    model, config = make_model(tiny("bert")), TrainingConfig(learning_rate=0.3)
    assert rates_to_try(model, config, {}) == ["training.learning_rate=0.1 or 0.9"]
    assert rates_to_try(model, config, {}, only_lower=True) == ["training.learning_rate=0.1"]


def test_a_longer_run_is_advised_by_the_setting_that_decides_its_length() -> None:
    def advice(steps_per_epoch: int = 5, **settings: int) -> str:
        return length_to_try(TrainingConfig.model_validate(settings), steps_per_epoch, TrainingState(step=7))

    assert advice(steps=3, min_steps=100) == "more training.steps (now 3)"
    assert advice(epochs=10, min_steps=100) == "more training.min_steps (now 100)"
    assert advice(epochs=10, min_steps=100, steps_per_epoch=10) == "more training.epochs (now 10)"
    stopped = length_to_try(TrainingConfig(patience=2), 5, TrainingState(step=7, is_over=True))
    assert stopped == "a higher training.patience (now 2, it stopped at step 7)"


@pytest.mark.parametrize(
    ("family", "method", "names"),
    [
        ("bert", "p-tuning-v2", {"learning_rate"}),
        ("bert", "adapter", {"network_learning_rate"}),
        ("gpt2", "prompt-tuning", {"learning_rate"}),  # in units of the backbone's words
    ],
)
def test_a_run_knows_the_rates_of_its_recipe_whatever_the_user_sets(
    family: str, method: str, names: set[str], tmp_path: Path
) -> None:
    rows = [{"text": row.texts[0], "label": row.target} for row in EXAMPLES]

    def trainer(**training: float) -> Trainer:
        settings = {"method": {"name": method}, "task": {"text": "text", "label": "label"}, "training": training}
        run = Run(tmp_path, settings, backbone=tiny(family), tables={"train": rows, "validation": rows})
        return run.make_trainer()

    plain = trainer().config
    changed = trainer(learning_rate=50.0, network_learning_rate=7.0)
    assert changed.recipe_rates == {name: getattr(plain, name) for name in names}
    assert changed.config.learning_rate == 50.0


def test_what_is_cut_is_said_without_parts_that_the_model_has_not() -> None:
    probe = make_model(tiny("bert"), "linear-probe")
    assert describe_cut(probe) == f"texts to {probe.max_length} tokens"
    prompted = make_model(tiny("bert"))
    limit = prompted.formatter.limit
    assert describe_cut(prompted) == f"texts to {limit} tokens ({prompted.max_length} less prompt)"
    writer = make_model(tiny("gpt2"))
    length, num_answer = writer.max_length, writer.readout.max_target_length
    assert describe_cut(writer) == (
        f"texts to {writer.formatter.limit} tokens ({length} less prompt and answer), answers to {num_answer}"
    )
    translator = make_model(tiny("t5"))
    assert "less prompt)" in describe_cut(translator)
    assert describe_cut(translator).endswith(f", answers to {translator.readout.max_target_length}")


def test_the_table_of_scores_says_that_a_cue_kept_its_start(tmp_path: Path) -> None:
    from softcue.cue.score_table import score_table

    cue = train(tmp_path / "cue")
    kept = cue.cue_file.model_copy(update={"training": {**cue.cue_file.training, "best_step": 0}})
    assert not cue.cue_file.has_kept_start and kept.has_kept_start
    assert not any("as it began" in note for note in score_table(cue.cue_file).notes)
    assert "p-tuning-v2 is as it began: no step of its training was better than the start" in score_table(kept).notes
