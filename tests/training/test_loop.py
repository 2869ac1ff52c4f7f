from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import ONE_OF_EACH_KIND, tiny
from tolerance import REORDERED_FLOAT32, REORDERED_STEPS
from toy import EXAMPLES, TASK, make_model

from softcue.backbones import Backbone
from softcue.errors import ConfigurationError, TrainingError
from softcue.evaluation import score
from softcue.inference import TaskModel
from softcue.training import TaskData, Trainer, TrainingConfig
from softcue.training.loop import TrainingResult
from softcue.types import Example, Prediction

SETTINGS = {"steps": 6, "batch_size": 4, "learning_rate": 0.1, "network_learning_rate": 0.05, "evaluate_every": 2}


def trained(
    family: str, method: str = "prompt-tuning", readout: str = "auto", **settings: object
) -> tuple[TrainingResult, dict[str, torch.Tensor], list[float]]:
    backbone = tiny(family)
    model = make_model(backbone, method, readout={"dropout": 0.0, "name": readout})
    losses: list[float] = []

    def listen(kind: str, values: dict[str, float]) -> None:
        if kind == "step":
            losses.append(values["loss"])

    config = TrainingConfig.model_validate({**SETTINGS, **settings})
    result = Trainer(backbone, [TaskData(model, EXAMPLES * 2, EXAMPLES)], config, listener=listen).run()
    return result, model.state_dict(), losses


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
@pytest.mark.parametrize("method", ["prompt-tuning", "toy-add"])
def test_gradient_accumulation_equals_the_whole_batch(family: str, method: str) -> None:
    _, whole, losses = trained(family, method, steps=2)
    _, pieces, accumulated = trained(family, method, steps=2, micro_batch_size=1)
    assert accumulated == REORDERED_FLOAT32.approx(losses)
    for name, value in whole.items():
        REORDERED_STEPS.assert_close(pieces[name], value, name)


def test_dropout_is_the_same_in_pieces_as_in_the_whole_batch() -> None:
    def losses(micro_batch_size: int) -> list[float]:
        result: list[float] = []
        backbone = tiny("bert")
        model = make_model(backbone, readout={"dropout": 0.5})
        config = TrainingConfig.model_validate({**SETTINGS, "micro_batch_size": micro_batch_size})

        def listener(kind: str, values: dict[str, Any]) -> None:
            if kind == "step":
                result.append(values["loss"])

        Trainer(backbone, [TaskData(model, EXAMPLES * 2, EXAMPLES)], config, listener=listener).run()
        return result

    assert losses(1) == REORDERED_FLOAT32.approx(losses(0))
    assert losses(3) == REORDERED_FLOAT32.approx(losses(0))


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
def test_the_same_seed_gives_the_same_numbers_and_another_seed_others(family: str) -> None:
    _, first, losses = trained(family)
    _, second, again = trained(family)
    assert losses == again
    assert all(torch.equal(first[name], second[name]) for name in first)
    _, third, _ = trained(family, seed=1)
    assert not all(torch.equal(first[name], third[name]) for name in first)


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
def test_a_tiny_backbone_learns_its_training_rows(family: str, optimizer: str) -> None:
    result, _, losses = trained(family, readout="classifier", optimizer=optimizer, steps=60, evaluate_every=20)
    assert losses[-1] < 0.5 * losses[0]
    assert result.evaluations[0].main == 100.0


def test_a_prompt_alone_lowers_the_loss_of_a_decoder() -> None:
    _, _, losses = trained("gpt2", steps=60, evaluate_every=20)
    assert losses[-1] < 0.8 * losses[0]


def test_the_model_ends_with_the_numbers_of_its_best_evaluation() -> None:
    result, numbers, _ = trained("bert", steps=12, learning_rate=3.0, network_learning_rate=3.0)
    best = max(entry["score"] for entry in result.state.history)
    assert result.state.best_score == best
    assert result.evaluations[0].main == pytest.approx(best)
    assert numbers


def test_early_stopping_waits_for_its_patience() -> None:
    result, _, _ = trained("bert", steps=50, evaluate_every=1, patience=3, learning_rate=0.0, network_learning_rate=0.0)
    assert result.state.step == 4  # the first evaluation is the best, then three no better


def test_clipping_scales_the_whole_gradient() -> None:
    backbone = tiny("bert")
    trainer = Trainer(
        backbone, [TaskData(make_model(backbone), EXAMPLES, EXAMPLES)], TrainingConfig(clip_norm=0.001, batch_size=5)
    )
    trainer._step()
    norms = [float(p.grad.norm()) for p in trainer.model.parameters() if p.grad is not None]
    assert sum(norm**2 for norm in norms) ** 0.5 == pytest.approx(0.001, rel=1e-3)


def test_a_collapsed_run_says_so_and_what_to_try() -> None:
    backbone = tiny("bert")
    model = make_model(backbone)
    for parameter in model.readout.parameters():
        parameter.data.zero_()
    config = TrainingConfig(steps=1, learning_rate=0.0, network_learning_rate=0.0)
    result = Trainer(backbone, [TaskData(model, EXAMPLES, EXAMPLES)], config).run()
    [warning] = result.warnings
    assert "each of the 5 validation rows is predicted as" in warning
    assert "training.learning_rate above 0, more training.steps (now 1)" in warning


def collapse_warning(model: TaskModel, backbone: Backbone, config: TrainingConfig) -> str:
    """The warning of a run whose head and learning rates keep every prediction the same."""
    trainer = Trainer(backbone, [TaskData(model, EXAMPLES, EXAMPLES)], config)
    [warning] = trainer._task_warnings(model, trainer.rows, score(TASK, [Prediction("a")] * len(EXAMPLES), EXAMPLES))
    return warning


def test_a_collapsed_run_is_not_advised_what_is_set_already() -> None:
    backbone = tiny("bert")
    config = TrainingConfig(epochs=3, learning_rate=0.3)
    model = make_model(backbone, init="vocabulary", readout={"pooling": "cls"})
    warning = collapse_warning(model, backbone, config)
    assert warning.endswith(
        "Try one of: training.learning_rate=0.1 or 0.9, more training.epochs (now 3), method.init=labels, "
        "readout.pooling=mean"
    )
    model = make_model(backbone, init="labels", readout={"pooling": "mean"})
    warning = collapse_warning(model, backbone, config)
    assert warning.endswith("Try one of: training.learning_rate=0.1 or 0.9, more training.epochs (now 3)")


def test_the_advice_after_a_collapse_fits_method_and_readout() -> None:
    config = TrainingConfig(epochs=3, network_learning_rate=0.3)
    bert, gpt2 = tiny("bert"), tiny("gpt2")
    adapter = collapse_warning(make_model(bert, "adapter"), bert, config)
    assert "training.network_learning_rate=0.1 or 0.9" in adapter
    assert "method.init" not in adapter
    writer = collapse_warning(make_model(gpt2, "prompt-tuning"), gpt2, config)
    assert "pooling" not in writer
    probe = collapse_warning(make_model(bert, "linear-probe"), bert, config)
    assert "Try" not in probe


def test_a_loss_that_is_no_number_stops_the_run() -> None:
    with pytest.raises(TrainingError, match=r"training\.learning_rate"):
        trained("bert", learning_rate=1e30, network_learning_rate=1e30, steps=20)


def run_with_losses(changed: dict[int, float], **settings: object) -> tuple[TrainingResult, Trainer, list[int]]:
    """A run in which the losses of some steps, counted from 0, are replaced; also the steps that were reported."""
    backbone, reported = tiny("bert"), []
    config = TrainingConfig.model_validate({**SETTINGS, "steps": 12, **settings})

    def listen(kind: str, values: dict[str, Any]) -> None:
        if kind == "step":
            reported.append(values["step"])

    task = TaskData(make_model(backbone), EXAMPLES * 2, EXAMPLES)
    trainer = Trainer(backbone, [task], config, listener=listen)
    plain = trainer._backward

    def backward(rows: Any) -> Any:
        loss, statistics = plain(rows)
        return torch.tensor(changed.get(trainer.state.step, float(loss))), statistics

    trainer._backward = backward  # type: ignore[method-assign]
    return trainer.run(), trainer, reported


def test_a_single_loss_that_is_not_finite_is_skipped() -> None:
    result, trainer, reported = run_with_losses({3: float("nan"), 4: float("inf")})
    assert trainer.state.step == 12
    assert reported == [1, 2, 3, *range(6, 13)]
    [warning] = [warning for warning in result.warnings if "not finite" in warning]
    assert warning.startswith("2 of 12 steps changed nothing")
    moments = [state["step"] for state in trainer.optimizer.state.values()]
    assert {int(step) for step in moments} == {10}  # the two steps changed nothing


def test_losses_that_stay_not_finite_end_the_run_with_the_best_parameters() -> None:
    result, trainer, _ = run_with_losses({step: float("nan") for step in range(5, 12)})
    assert trainer.state.step == 10
    assert [entry["step"] for entry in result.state.history] == [2, 4]  # nothing is scored while losses are not finite
    assert result.state.best_step in (2, 4)
    [warning] = [warning for warning in result.warnings if "not finite" in warning]
    assert warning.startswith("the loss was not finite in the last 5 of 10 steps")
    assert f"the parameters of step {result.state.best_step}: lower training.learning_rate (now 0.1)" in warning


def test_a_model_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="something to train"):
        trained("gpt2", "no-prompt")


def test_truncated_training_texts_are_counted() -> None:
    backbone = tiny("bert")
    model = make_model(backbone)
    rows = [Example(("word " * 200,), "a"), *EXAMPLES]
    result = Trainer(backbone, [TaskData(model, rows, EXAMPLES)], TrainingConfig(steps=1)).run()
    assert result.num_truncated == 1
    assert any("1 of 6 training rows were cut: texts to 92 tokens" in warning for warning in result.warnings)


def test_training_leaves_the_callers_random_state_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    backbone = tiny("bert")
    state = torch.random.get_rng_state()
    model = make_model(backbone)
    torch.random.set_rng_state(state)
    Trainer(backbone, [TaskData(model, EXAMPLES, EXAMPLES)], TrainingConfig(steps=1)).run()
    assert torch.equal(torch.rand(3), expected)


def test_one_true_class_answered_rightly_is_no_collapse() -> None:
    rows = [Example(("x",), "a")] * 3
    assert not score(TASK, [Prediction("a")] * 3, rows).has_collapsed
    assert score(TASK, [Prediction("a")] * 3, [*rows[:2], Example(("y",), "b")]).has_collapsed
