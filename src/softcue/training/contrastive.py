"""The supervised contrastive term (Khosla et al. 2020): rows of one class are drawn together, others apart."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def supervised_contrastive(
    features: Tensor, labels: Tensor, temperature: float, weights: Tensor | None = None
) -> Tensor:
    """Return the mean over rows of the loss L_out, equation 2, for features [N R] and class numbers [N].

    `weights` [N] multiply the losses of the anchors; a row is another one's positive or negative whatever its weight.

    Features are centred first: those of a language model share a large common part, which would hide the classes. Rows
    without another one of their class are no anchors; without anchors the loss is 0.

    Example:
        >>> apart = torch.tensor([[1.0, 0.0], [0.9, 0.1], [-1.0, 0.0], [-0.9, 0.1]])
        >>> labels = torch.tensor([0, 0, 1, 1])
        >>> mixed = torch.tensor([0, 1, 0, 1])
        >>> bool(supervised_contrastive(apart, labels, 0.1) < supervised_contrastive(apart, mixed, 0.1))
        True
        >>> float(supervised_contrastive(apart[:2], torch.tensor([0, 1]), 0.1))
        0.0
    """
    if len(labels) < 2:
        return features.sum() * 0.0
    vectors = functional.normalize(features - features.mean(dim=0), dim=1)  # [N R]
    is_self = torch.eye(len(labels), dtype=torch.bool, device=features.device)
    similarities = (vectors @ vectors.T / temperature).masked_fill(is_self, float("-inf"))  # [N N]
    log_shares = similarities - similarities.logsumexp(dim=1, keepdim=True)  # [N N]
    is_positive = (labels[:, None] == labels[None, :]) & ~is_self
    num_positives = is_positive.sum(dim=1)  # [N]
    losses = -log_shares.masked_fill(~is_positive, 0.0).sum(dim=1) / num_positives.clamp(min=1)
    if weights is not None:
        losses = losses * weights
    return losses.sum() / (num_positives > 0).sum().clamp(min=1)  # rows that are no anchors have a loss of 0
