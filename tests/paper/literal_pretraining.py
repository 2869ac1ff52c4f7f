"""T5's objectives, written from Lester et al. (2021), section 2.2, and Raffel et al. (2020). Nothing of softcue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Token = TypeVar("Token")


def concatenate_and_split(documents: Sequence[Sequence[Token]], length: int) -> list[list[Token]]:
    """Raffel et al., section 3.1: texts one after another, cut into chunks of one length; the rest is left out."""
    chunks: list[list[Token]] = []
    chunk: list[Token] = []
    for document in documents:
        for token in document:
            chunk.append(token)
            if len(chunk) == length:
                chunks.append(chunk)
                chunk = []
    return chunks


def prefix_lm(chunk: Sequence[Token], point: int) -> tuple[list[Token], list[Token]]:
    """Section 2.2, LM adaptation: a natural text prefix as input, its natural continuation as target."""
    assert 0 < point < len(chunk)
    return [*chunk[:point]], [*chunk[point:]]


def span_corruption(
    tokens: Sequence[Token], is_masked: Sequence[bool], sentinels: Sequence[Token], final_sentinel: bool
) -> tuple[list[Token], list[Token]]:
    """Section 2.2: masked spans marked with unique sentinels; the target is the masked content separated by them.

    The text says that the target ends with a final sentinel; T5's data has none behind a span that ends the text.

    Example:
        >>> text = "Thank you for inviting me to your party last week".split()
        >>> masked = [word in ("for", "inviting", "last") for word in text]
        >>> source, target = span_corruption(text, masked, ["<X>", "<Y>", "<Z>"], final_sentinel=True)
        >>> " ".join(source)
        'Thank you <X> me to your party <Y> week'
        >>> " ".join(target)
        '<X> for inviting <Y> last <Z>'
    """
    source: list[Token] = []
    target: list[Token] = []
    num_spans = 0
    for place, token in enumerate(tokens):
        if not is_masked[place]:
            source.append(token)
            continue
        if place == 0 or not is_masked[place - 1]:
            source.append(sentinels[num_spans])
            target.append(sentinels[num_spans])
            num_spans += 1
        target.append(token)
    if final_sentinel:
        target.append(sentinels[num_spans])
    return source, target


def num_masked(length: int, share: float = 0.15, mean_span: float = 3.0) -> tuple[int, int]:
    """Raffel et al., section 3.3.4: 15 % of the tokens are masked, in spans of three on average: tokens and spans."""
    tokens = min(max(round(length * share), 1), length - 1)
    return tokens, min(max(round(tokens / mean_span), 1), length - tokens)
