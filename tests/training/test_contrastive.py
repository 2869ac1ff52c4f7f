"""The supervised contrastive term, the evaluation before the first step, and heads that are solved again."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tiny import tiny
from tolerance import REORDERED_FLOAT32, REORDERED_STEPS
from toy import EXAMPLES, make_model

from softcue.inference import TaskModel
from softcue.training import TaskData, Trainer, TrainingConfig
from softcue.training.contrastive import supervised_contrastive
from softcue.training.loop import TrainingResult

SETTINGS = {"steps": 4, "batch_size": 6, "learning_rate": 0.1, "network_learning_rate": 0.05, "evaluate_every": 2}


def literal_loss(features: torch.Tensor, labels: list[int], temperature: float) -> float:
    """Equation 2 of Khosla et al. 2020, row by row, on centred unit vectors."""
    mean = features.mean(dim=0)
    vectors = [(row - mean) / (row - mean).norm() for row in features]
    losses = []
    for anchor, vector in enumerate(vectors):
        rest = [number for number in range(len(vectors)) if number != anchor]
        positives = [number for number in rest if labels[number] == labels[anchor]]
        if positives:
            total = sum(math.exp(float(vector @ vectors[number]) / temperature) for number in rest)
            shares = [math.exp(float(vector @ vectors[number]) / temperature) / total for number in positives]
            losses.append(-sum(math.log(share) for share in shares) / len(positives))
    return sum(losses) / len(losses)


def test_loss_equals_the_equation_row_by_row() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(9, 5, generator=generator)
    labels = [0, 1, 2, 0, 1, 0, 3, 2, 2]  # 3 has no other row: no anchor
    loss = supervised_contrastive(features, torch.tensor(labels), 0.3)
    assert float(loss) == pytest.approx(literal_loss(features, labels, 0.3), rel=1e-5)


def test_a_common_part_of_all_features_changes_nothing() -> None:
    features = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 0, 1, 0, 1])
    moved = supervised_contrastive(features + 3.0, labels, 0.1)
    assert float(moved) == REORDERED_FLOAT32.approx(float(supervised_contrastive(features, labels, 0.1)))


def trained(
    readout: dict[str, Any] | None = None, family: str = "bert", **settings: object
) -> tuple[TrainingResult, TaskModel, list[float]]:
    backbone = tiny(family)
    model = make_model(backbone, readout={"dropout": 0.0, "name": "classifier", **(readout or {})})
    losses: list[float] = []

    def listen(kind: str, values: dict[str, Any]) -> None:
        if kind == "step":
            losses.append(values["loss"])

    config = TrainingConfig.model_validate({**SETTINGS, **settings})
    result = Trainer(backbone, [TaskData(model, EXAMPLES * 2, EXAMPLES)], config, listener=listen).run()
    return result, model, losses


def test_term_is_added_with_its_weight() -> None:
    plain = trained(steps=1)[2][0]
    single, double = (trained(steps=1, contrastive=weight)[2][0] for weight in (1.0, 2.0))
    assert single > plain
    assert double - plain == pytest.approx(2 * (single - plain), rel=1e-4)


def test_pieces_of_a_batch_give_the_gradient_of_the_whole() -> None:
    _, whole, losses = trained(contrastive=1.0, steps=2)
    _, pieces, accumulated = trained(contrastive=1.0, steps=2, micro_batch_size=1)
    assert accumulated == REORDERED_FLOAT32.approx(losses)
    for name, value in whole.state_dict().items():
        REORDERED_STEPS.assert_close(pieces.state_dict()[name], value, name)


def test_start_is_evaluated_and_kept_if_training_makes_it_worse() -> None:
    result, _, _ = trained(evaluate_start=True, learning_rate=0.0, network_learning_rate=0.0)
    assert [entry["step"] for entry in result.state.history] == [0, 2, 4]
    assert result.state.best_step == 4  # equal scores: the later one
    ruined, _, _ = trained(
        {"head_start": "random"}, evaluate_start=True, learning_rate=1000.0, network_learning_rate=1000.0
    )
    scores = {entry["step"]: entry["score"] for entry in ruined.state.history}
    assert scores[ruined.state.best_step] == max(scores.values())
    assert ruined.evaluations[0].main == max(scores.values())


def test_head_is_solved_again_and_kept_only_if_it_scores_higher() -> None:
    plain, before, _ = trained(learning_rate=0.0, network_learning_rate=0.0)
    refitted, after, _ = trained({"refit": True}, learning_rate=0.0, network_learning_rate=0.0)
    health = refitted.state.health
    assert health["refit_score"] >= plain.evaluations[0].main
    assert refitted.evaluations[0].main == max(health["refit_score"], plain.evaluations[0].main)
    is_same_head = torch.equal(
        before.readout.state_dict()["head.1.weight"], after.readout.state_dict()["head.1.weight"]
    )
    assert is_same_head != bool(health["refit_kept"])


def test_worse_refit_leaves_the_head_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    from softcue.readouts.heads import PooledHead

    def ruin(self: PooledHead, features: torch.Tensor, labels: Any, strength: Any = None) -> None:
        assert self.linear is not None and features.shape == (len(EXAMPLES) * 2, self.feature_width)
        self.linear.weight.data.zero_()
        self.linear.bias.data.copy_(-torch.arange(self.linear.out_features, dtype=torch.float32))

    _, plain, _ = trained(steps=40)
    monkeypatch.setattr(PooledHead, "solve", ruin)
    result, model, _ = trained({"refit": True}, steps=40)
    assert result.state.health["refit_kept"] == 0.0
    for name, value in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)


def test_text_writers_have_no_contrastive_term() -> None:
    plain, contrastive = (trained({"name": "auto"}, family="t5", contrastive=weight)[2] for weight in (0.0, 1.0))
    assert plain == contrastive
