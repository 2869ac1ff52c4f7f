"""A linear head in closed form: regularised logistic or ridge regression on precomputed features.

A head for sets of labels is a logistic regression for each label against all rows without it (one versus rest).
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from softcue.types import RowLabel

STRENGTHS = (100.0, 10.0, 1.0, 0.1, 0.01)  # inverse regularisation; of equal scores the last wins: it regularises most
FOLDS = 5
# The smallest standard deviation of a feature that counts, as a share of the root mean square of all. Models may have
# dead features: two of MiniLM's have values of 1e-32, one of 1e-7. Divided by their deviation, rounding errors would be
# features, with weights of up to 1e30.
SMALLEST_DEVIATION = 1e-4
_scores_by_digest: dict[bytes, Tensor] = {}  # of features and labels: methods that are compared read the same ones


def solve_linear(
    layer: nn.Linear,
    features: Tensor,
    labels: Sequence[RowLabel],
    strength: float,
    weights: Sequence[float] | None = None,
) -> None:
    """Set a linear layer to the solution for features [N R] and class indices, standardised scores or sets of labels.

    A row of weight 2 counts as two equal rows; without `weights` all are 1.

    Example:
        >>> layer = nn.Linear(1, 2)
        >>> solve_linear(layer, torch.tensor([[0.0], [1.0]]), [0, 1], strength=1.0)
        >>> layer(torch.tensor([[0.0], [1.0]])).argmax(dim=1).tolist()
        [0, 1]
    """
    features = features.double()  # in float32 the solver stops too early
    row_weights = torch.tensor(weights or [1.0] * len(labels), dtype=torch.float64)  # [N]
    shares = row_weights / row_weights.sum()
    mean = shares @ features  # [R]
    scale = _deviations(features, mean, shares)  # [R]
    weight, bias = _solve(((features - mean) / scale).numpy(), labels, strength, layer.out_features, row_weights)
    # The solution is for standardised features, the layer for raw ones: W (x - mean)/scale + b.
    layer.weight.data.copy_(weight / scale)
    layer.bias.data.copy_(bias - (weight / scale) @ mean)


def _deviations(features: Tensor, mean: Tensor, shares: Tensor) -> Tensor:
    """The standard deviations of features [N R] of rows with shares [N]; infinite for features that say nothing. [R]"""
    deviations = (shares @ (features - mean).square()).sqrt()
    # Of a constant feature, rounding may leave a deviation that is almost zero.
    smallest = torch.maximum(1e-12 * mean.abs(), SMALLEST_DEVIATION * deviations.square().mean().sqrt())
    return torch.where(deviations <= smallest, math.inf, deviations)


def probe_scores(features: Tensor, labels: Sequence[RowLabel], num_outputs: int) -> Tensor:
    """Return the cross-validation scores of the best strength, one for each fold; none for too few rows. [F]

    Example:
        >>> probe_scores(torch.tensor([[0.0], [9.0]] * 10), [0, 1] * 10, num_outputs=2).tolist()
        [1.0, 1.0, 1.0, 1.0, 1.0]
        >>> len(probe_scores(torch.tensor([[0.0], [1.0]]), [0, 1], num_outputs=2))
        0
    """
    are_sets = _are_sets(labels)
    num_rarest = len(labels) if num_outputs == 1 or are_sets else min(Counter(labels).values())
    if num_rarest < FOLDS or len(set(labels)) < 2:
        return torch.zeros(0)
    digest = hashlib.sha256(features.numpy().tobytes())
    digest.update(repr((features.shape, features.dtype, num_outputs, list(labels))).encode())
    if digest.digest() not in _scores_by_digest:
        mean, shares = features.mean(dim=0), features.new_full((len(features),), 1 / len(features))
        scaled = ((features - mean) / _deviations(features, mean, shares)).numpy()
        cross_validate = _cross_validate_sets if are_sets else _cross_validate
        with _quick_estimators():
            scores = [cross_validate(scaled, labels, num_outputs, strength) for strength in STRENGTHS]
        _scores_by_digest[digest.digest()] = max(scores, key=lambda folds: float(folds.mean()))
    return _scores_by_digest[digest.digest()].clone()


@contextmanager
def _quick_estimators() -> Iterator[None]:
    """Let scikit-learn solve without warnings, and without checks that take longer than a small solution."""
    from sklearn import config_context

    with warnings.catch_warnings(), config_context(skip_parameter_validation=True, assume_finite=True):
        warnings.simplefilter("ignore")  # a solution that has not converged can still be scored
        yield


def _make_estimator(num_outputs: int, strength: float) -> Any:
    from sklearn.linear_model import LogisticRegression, Ridge

    return Ridge(alpha=1.0 / strength) if num_outputs == 1 else LogisticRegression(C=strength, max_iter=2000)


def _are_sets(labels: Sequence[RowLabel]) -> bool:
    return any(isinstance(label, tuple) for label in labels)


def _solve_each_label(
    features: Any, labels: Sequence[RowLabel], strength: float, row_weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Return weights [C R] and biases [C] of the log-odds of each label, for rows with weights [N].

    A label that no row has, or every row, gets its smoothed frequency: nothing tells rows with it from the others.
    """
    weights, biases = [], []
    for column in torch.tensor(labels, dtype=torch.float64).T:  # [N]
        num_rows, num_with = float(row_weights.sum()), float(column @ row_weights)
        if column.min() == column.max():
            weights.append(torch.zeros(features.shape[1], dtype=torch.float64))
            biases.append(math.log((num_with + 0.5) / (num_rows - num_with + 0.5)))
        else:
            solution = _make_estimator(2, strength).fit(features, column.numpy(), row_weights.numpy())
            weights.append(torch.tensor(solution.coef_[0], dtype=torch.float64))
            biases.append(float(solution.intercept_[0]))
    return torch.stack(weights), torch.tensor(biases, dtype=torch.float64)


def _cross_validate(features: Any, labels: Sequence[RowLabel], num_outputs: int, strength: float) -> Tensor:
    """Return the accuracy of each fold, or R^2 of scores. [F]"""
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    estimator = _make_estimator(num_outputs, strength)
    if num_outputs == 1:
        return torch.tensor(cross_val_score(estimator, features, labels, cv=FOLDS))
    classes = torch.tensor(labels).numpy()  # [N]
    scores = []  # those of `cross_val_score`, which takes longer to score a few rows than to solve for them
    for rest, left_out in StratifiedKFold(FOLDS).split(features, classes):
        estimator.fit(features[rest], classes[rest])
        scores.append((estimator.predict(features[left_out]) == classes[left_out]).mean())
    return torch.tensor(scores, dtype=torch.float64)


def _cross_validate_sets(features: Any, labels: Sequence[RowLabel], num_outputs: int, strength: float) -> Tensor:
    """Return the micro-F1 of the sets of labels of each fold, predicted from the rows of the other folds. [F]"""
    targets = torch.tensor(labels) > 0  # [N C]
    folds = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0)) % FOLDS  # [N]
    scores = []
    for fold in range(FOLDS):
        is_left_out = folds == fold
        rest = [label for label, left_out in zip(labels, is_left_out.tolist(), strict=True) if not left_out]
        equal = torch.ones(len(rest), dtype=torch.float64)
        weight, bias = _solve_each_label(features[~is_left_out.numpy()], rest, strength, equal)
        left_out_features = torch.tensor(features[is_left_out.numpy()], dtype=torch.float64)
        predicted, true = left_out_features @ weight.T + bias >= 0, targets[is_left_out]
        scores.append(2.0 * float((predicted & true).sum()) / max(1.0, float(predicted.sum() + true.sum())))
    return torch.tensor(scores)


def _solve(
    features: Any, labels: Sequence[RowLabel], strength: float, num_outputs: int, row_weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Return weights [C R] and biases [C] for standardised features of rows with weights [N]."""
    if num_outputs > 1 and len(set(labels)) == 1 and isinstance(labels[0], int):  # nothing to tell apart
        weight, bias = torch.zeros(num_outputs, features.shape[1]).double(), torch.full((num_outputs,), -1e4).double()
        bias[labels[0]] = 0.0
        return weight, bias
    with _quick_estimators():
        if _are_sets(labels):
            return _solve_each_label(features, labels, strength, row_weights)
        solution = _make_estimator(num_outputs, strength).fit(features, labels, row_weights.numpy())
    if num_outputs == 1:
        return torch.tensor(solution.coef_).view(1, -1), torch.tensor([float(solution.intercept_)])
    rows, biases = torch.tensor(solution.coef_), torch.tensor(solution.intercept_)
    if len(rows) == 1:  # two classes: one row of log-odds, split between them
        rows, biases = torch.cat([-rows, rows]) / 2, torch.cat([-biases, biases]) / 2
    weight, bias = rows.new_zeros(num_outputs, rows.shape[1]), rows.new_full((num_outputs,), -1e4)
    for row, class_index in enumerate(solution.classes_):  # a class without training rows is never predicted
        weight[class_index], bias[class_index] = rows[row], biases[row]
    return weight, bias
