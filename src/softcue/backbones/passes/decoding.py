"""How free text is written: the likeliest token, beams or draws, and who hears it meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Hears all tokens written for its row so far, after each of them; whether that is enough.
Listener = Callable[[Sequence[int]], bool]


@dataclass(frozen=True)
class Decoding:
    """How free text is generated."""

    num_beams: int = 1
    max_new_tokens: int = 16
    temperature: float = 0.0  # 0: the likeliest token; otherwise tokens are drawn
    top_p: float = 1.0  # drawn among the likeliest tokens that together have this share
    seed: int = 0  # of the draws


def drawn_scores(decoding: Decoding, streams: Sequence[torch.Generator], _: Tensor, scores: Tensor) -> Tensor:
    """Logits [B V] with noise under which the largest is a draw from their softmax, one stream for each row.

    Example:
        >>> streams = [torch.Generator().manual_seed(seed) for seed in range(400)]
        >>> found = drawn_scores(Decoding(temperature=1.0), streams, torch.zeros(()), torch.tensor([[0.0, 1.0]] * 400))
        >>> bool(abs(found.argmax(dim=1).float().mean() - torch.tensor(1.0).sigmoid()) < 0.07)
        True
    """
    scaled = scores.float() / decoding.temperature
    if decoding.top_p < 1:
        ordered, order = scaled.sort(dim=1, descending=True)
        shares = ordered.softmax(dim=1)
        is_out = shares.cumsum(dim=1) - shares >= decoding.top_p  # the likeliest always stays
        scaled = scaled.masked_fill(torch.zeros_like(is_out).scatter(1, order, is_out), -torch.inf)
    uniform = torch.stack([torch.rand(scores.shape[1], generator=stream) for stream in streams]).to(scaled)
    return scaled - torch.log(-torch.log(uniform.clamp(min=1e-20)))  # -log(-log U) is Gumbel's


def telling(listeners: Sequence[Listener | None]) -> Callable[..., Tensor]:
    """A stopping criterion of transformers: which rows have enough, from all that is written. [B U] -> [B]"""

    def enough(written: Tensor, scores: Tensor, **_: Any) -> Tensor:
        rows = zip(listeners, written.tolist(), strict=True)
        return torch.tensor([listener is not None and listener(ids) for listener, ids in rows], device=written.device)

    return enough
