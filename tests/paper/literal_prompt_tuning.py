"""Prompt tuning, written from the text of Lester et al. (2021) alone, in plain loops. It knows nothing of softcue."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

COMMON = 5000  # section 3.2: the most common tokens of the vocabulary
LOW, HIGH = -0.5, 0.5  # section 3.2: the range of random initialisation


def embed(table: Tensor, tokens: Sequence[int]) -> Tensor:
    """Section 2: the n tokens of a text as a matrix X_e. [V e] -> [n e]"""
    return torch.stack([table[token] for token in tokens])


def concatenate(prompt: Tensor, embedded: Tensor) -> Tensor:
    """Section 2: the single matrix [P_e; X_e]. [p e], [n e] -> [p+n e]"""
    rows = []
    for vector in prompt:
        rows.append(vector)
    for vector in embedded:
        rows.append(vector)
    return torch.stack(rows)


def log_likelihood(logits: Tensor, target: Sequence[int]) -> Tensor:
    """Section 2: log Pr(Y | [P; X]), the sum over the tokens of Y; logits[k] are those of its token k. [U V] -> []"""
    total = torch.zeros((), dtype=logits.dtype)
    for scores, token in zip(logits, target, strict=True):
        largest = scores.max().detach()
        total = total + scores[token] - largest - torch.log(torch.exp(scores - largest).sum())
    return total


def random_uniform(draws: Sequence[Sequence[float]]) -> list[list[float]]:
    """Section 3.2, random initialisation: uniform from [-0.5, 0.5]; `draws` are uniform from [0, 1). [p e]"""
    return [[LOW + (HIGH - LOW) * draw for draw in row] for row in draws]


def sampled_tokens(table: Tensor, prompt: Tensor) -> list[int]:
    """Section 3.2, sampled vocabulary: the common token whose embedding each prompt vector is. [V e], [p e]"""
    tokens = []
    for vector in prompt:
        equal = (table[:COMMON] == vector).all(dim=1).nonzero().flatten().tolist()
        assert len(equal) == 1, "no common token, or several, has this embedding"
        tokens += equal
    return tokens


def class_labels(table: Tensor, labels: Sequence[Sequence[int]], sampled: Tensor) -> Tensor:
    """Section 3.2, class label: one prompt vector per class, averaged over its tokens; then the sampled vocabulary.

    `labels` are the tokens of each class, `sampled` is a whole prompt of sampled vocabulary. [V e], [p e] -> [p e]
    """
    rows = []
    for place in range(len(sampled)):
        if place < len(labels):
            total = torch.zeros(table.shape[1], dtype=table.dtype)
            for token in labels[place]:
                total = total + table[token]
            rows.append(total / len(labels[place]))
        else:
            rows.append(sampled[place])
    return torch.stack(rows)


def sentinel_target(target: Sequence[int], sentinel: int) -> list[int]:
    """Section 2.2, setting 2: every downstream target is prepended with a sentinel."""
    return [sentinel, *target]


def majority(answers: Sequence[str]) -> set[str]:
    """Section 6: simple majority voting; all answers with the most votes, since ties are not defined."""
    votes = Counter(answers)
    return {answer for answer in votes if votes[answer] == max(votes.values())}


def probabilities(log_likelihoods: Sequence[Tensor]) -> list[float]:
    """The share of each class among the classes, from the likelihoods of their strings."""
    weights = [math.exp(float(value)) for value in log_likelihoods]
    return [weight / math.fsum(weights) for weight in weights]
