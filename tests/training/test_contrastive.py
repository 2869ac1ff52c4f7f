"""The supervised contrastive term."""

from __future__ import annotations

import math

import pytest
import torch
from tolerance import REORDERED_FLOAT32, REORDERED_STEPS
from toy_training import trained

from softcue.training.contrastive import supervised_contrastive


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


def test_text_writers_have_no_contrastive_term() -> None:
    plain, contrastive = (trained({"name": "auto"}, family="t5", contrastive=weight)[2] for weight in (0.0, 1.0))
    assert plain == contrastive
