"""One vector for a text: pooling of hidden states over the text's own tokens, never prompt or padding."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Pooling = Literal["cls", "mean", "last"]


def pooled(hidden: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """[B T D] and [B T] -> [B D]. `cls` is the first real token, which under left padding is not column 0.

    Example:
        >>> hidden = torch.tensor([[[9.0], [1.0], [3.0]]])
        >>> mask = torch.tensor([[False, True, True]])
        >>> [pooled(hidden, mask, how).item() for how in ("cls", "mean", "last")]
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
