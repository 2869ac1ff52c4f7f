"""How text is generated: greedily, with beams or by drawing, and who is told of each token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softcue.randomness import hashed_uniform, step_keys

# Called after each token with all tokens generated for its row so far; returns whether the row is finished.
TokenListener = Callable[[Sequence[int]], bool]


@dataclass(frozen=True)
class Decoding:
    """Settings of text generation."""

    num_beams: int = 1
    max_new_tokens: int = 16
    temperature: float = 0.0  # 0: the likeliest token; otherwise tokens are drawn
    top_p: float = 1.0  # draw among the likeliest tokens that together have this share
    seed: int = 0  # of the draws


def add_gumbel_noise(decoding: Decoding, keys: Tensor, generated: Tensor, scores: Tensor) -> Tensor:
    """Add noise to logits [B V], so that the largest is a draw from their softmax.

    The noise is a hash of the row's key [B], the number of its generated tokens [B U] and the word.

    Example:
        >>> keys, nothing = torch.arange(400, dtype=torch.int32), torch.zeros(400, 0)
        >>> logits = torch.tensor([[0.0, 1.0]] * 400)
        >>> drawn = add_gumbel_noise(Decoding(temperature=1.0), keys, nothing, logits).argmax(dim=1)
        >>> bool(abs(drawn.float().mean() - torch.tensor(1.0).sigmoid()) < 0.07)
        True
    """
    scaled = scores.float() / decoding.temperature
    if decoding.top_p < 1:
        ordered, order = scaled.sort(dim=1, descending=True)
        shares = ordered.softmax(dim=1)
        is_out = shares.cumsum(dim=1) - shares >= decoding.top_p  # the likeliest always stays
        scaled = scaled.masked_fill(torch.zeros_like(is_out).scatter(1, order, is_out), -torch.inf)
    uniform = hashed_uniform(step_keys(keys.to(scores.device), generated.shape[1]), scores.shape[1])  # [B V]
    return scaled - torch.log(-torch.log(uniform.clamp(min=1e-20)))  # -log(-log U) is Gumbel noise


def cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """The text up to the first stop word.

    Example:
        >>> cut_at_stop("My title. And more", (".", "And"))
        'My title'
    """
    ends = [place for word in stop if (place := text.find(word)) >= 0]
    return text[: min(ends)].rstrip() if ends else text


def make_stopping_criterion(listeners: Sequence[TokenListener | None]) -> Callable[..., Tensor]:
    """Make a stopping criterion of transformers that asks each row's listener. [B U] -> [B]"""

    def is_finished(generated: Tensor, scores: Tensor, **_: Any) -> Tensor:
        rows = zip(listeners, generated.tolist(), strict=True)
        return torch.tensor([listener is not None and listener(ids) for listener, ids in rows], device=generated.device)

    return is_finished
