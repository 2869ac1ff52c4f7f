"""One vector for a text: pooling of hidden states over the tokens of the text, without prompt and padding."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Pooling = Literal["cls", "mean", "last"]
Summary = Literal["cls", "mean", "last", "compared"]  # compared: features of the similarity of two texts


def pool(hidden: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """Pool hidden states over real tokens. [B T D], [B T] -> [B D]

    `cls` is the first real token, which under left padding is not column 0.

    Example:
        >>> hidden = torch.tensor([[[9.0], [1.0], [3.0]]])
        >>> mask = torch.tensor([[False, True, True]])
        >>> [pool(hidden, mask, pooling).item() for pooling in ("cls", "mean", "last")]
        [1.0, 2.0, 3.0]
    """
    rows = torch.arange(len(hidden), device=hidden.device)
    if pooling == "mean":
        weights = mask.unsqueeze(2).to(hidden.dtype)  # [B T 1]
        return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)
    if pooling == "cls":
        return hidden[rows, mask.long().argmax(dim=1)]
    last = hidden.shape[1] - 1 - mask.flip(1).long().argmax(dim=1)  # [B]
    return hidden[rows, last]


def compare_texts(hidden: Tensor, parts: Tensor) -> Tensor:
    """Compute features of the similarity of two texts of one sequence: |u - v| and u * v. [B T D], [B T] -> [B 2D]

    u and v are the mean vectors of the texts, scaled to the length sqrt(D), so that features have a size near 1.

    Example:
        >>> hidden = torch.tensor([[[3.0, 4.0], [3.0, 4.0]]])
        >>> compare_texts(hidden, torch.tensor([[0, 1]])).tolist()[0][:2]
        [0.0, 0.0]
    """
    length = hidden.shape[2] ** 0.5
    first, second = (functional.normalize(pool(hidden, parts == part, "mean"), dim=1) * length for part in (0, 1))
    return torch.cat([(first - second).abs(), first * second], dim=1)
