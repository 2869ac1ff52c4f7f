"""What an adapted model writes on held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from softcue.adaptation.rows import AdaptationRow
from softcue.backbones import Backbone
from softcue.training.batches import stream_seed

TOP_SHARE = 0.9  # nucleus sampling: the likeliest tokens with this share of the probability


@dataclass(frozen=True)
class WrittenSample:
    """A source, what the model wrote for it, and what the text has there."""

    source: str
    written: str
    target: str


def write_samples(backbone: Backbone, rows: Sequence[AdaptationRow], max_tokens: int, seed: int) -> list[WrittenSample]:
    """Sample a text for each row. The same weights and seed give the same texts."""
    samples = []
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for number, row in enumerate(rows):
            torch.manual_seed(stream_seed(seed, "sample", number))
            ids = row.source.unsqueeze(0).to(backbone.device)
            written = backbone.model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_tokens,
                do_sample=True,
                top_p=TOP_SHARE,
                top_k=0,
            )[0]
            samples.append(
                WrittenSample(*(_decode(backbone, tokens.tolist()) for tokens in (row.source, written, row.target)))
            )
    return samples


def _decode(backbone: Backbone, ids: Sequence[int]) -> str:
    """Text with sentinels, but without marks of begin, end and padding."""
    tokenizer = backbone.tokenizer
    marks = {tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id}
    return str(tokenizer.decode([token_id for token_id in ids if token_id not in marks])).strip()
