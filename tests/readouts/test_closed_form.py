"""Linear probes in closed form, compared by cross-validation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import cross_val_score

from softcue.readouts import closed_form
from softcue.readouts.closed_form import FOLDS, STRENGTHS, probe_scores, solve_linear


def draw_rows(num_classes: int, seed: int = 0) -> tuple[torch.Tensor, list[int]]:
    """Features that say a little about the class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(40) % num_classes
    return torch.randn(40, 6, generator=generator) + labels[:, None] * 0.5, labels.tolist()


@pytest.mark.parametrize("num_classes", [1, 2, 4])
def test_scores_are_those_of_cross_val_score_with_the_best_strength(num_classes: int) -> None:
    features, labels = draw_rows(max(2, num_classes))
    targets: list[Any] = [label + 0.25 for label in labels] if num_classes == 1 else labels
    scaled = ((features - features.mean(dim=0)) / features.std(dim=0, unbiased=False)).numpy()
    expected = []
    for strength in STRENGTHS:
        estimator = Ridge(1 / strength) if num_classes == 1 else LogisticRegression(C=strength, max_iter=2000)
        expected.append(torch.tensor(cross_val_score(estimator, scaled, targets, cv=FOLDS)))
    best = max(expected, key=lambda folds: float(folds.mean()))
    assert probe_scores(features, targets, num_classes).tolist() == pytest.approx(best.tolist(), abs=1e-6)


@pytest.mark.parametrize("size", [1e-32, 1e-9, 0.0])
def test_dead_features_have_no_weight(size: float) -> None:
    features, labels = draw_rows(2)
    dead = size * torch.randn(40, 1, generator=torch.Generator().manual_seed(1))
    with_dead, without = torch.nn.Linear(7, 2), torch.nn.Linear(6, 2)
    solve_linear(with_dead, torch.cat([features, dead], dim=1), labels, strength=1.0)
    solve_linear(without, features, labels, strength=1.0)
    assert with_dead.weight[:, 6].tolist() == [0.0, 0.0]
    torch.testing.assert_close(with_dead.weight[:, :6], without.weight)
    assert probe_scores(torch.cat([features, dead], dim=1), labels, 2).tolist() == pytest.approx(
        probe_scores(features, labels, 2).tolist()
    )


def test_features_that_are_all_constant_give_no_weights() -> None:
    layer = torch.nn.Linear(3, 2)
    solve_linear(layer, torch.full((6, 3), 0.1), [0, 1, 1] * 2, strength=1.0)
    assert layer.weight.abs().max() == 0 and layer.bias[1] > layer.bias[0]


def test_the_same_vectors_and_labels_are_solved_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    strengths: list[float] = []
    make_estimator = closed_form._make_estimator

    def count(num_outputs: int, strength: float) -> Any:
        strengths.append(strength)
        return make_estimator(num_outputs, strength)

    monkeypatch.setattr(closed_form, "_scores_by_digest", {})
    monkeypatch.setattr(closed_form, "_make_estimator", count)
    features, labels = draw_rows(2)
    first = probe_scores(features, labels, 2)
    expected = first.clone()
    first.zero_()  # what the caller does with them is not kept
    assert torch.equal(probe_scores(features, labels, 2), expected)
    assert strengths == list(STRENGTHS)
    probe_scores(features, labels[::-1], 2)
    probe_scores(draw_rows(2, seed=1)[0], labels, 2)
    assert strengths == [*STRENGTHS] * 3
