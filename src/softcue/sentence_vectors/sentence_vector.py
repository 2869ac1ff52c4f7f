"""M(x) (Wu et al. 2022, section 3.1): one vector for a text, from the frozen backbone or from word vectors.

It depends on the text alone, not on task, method or seed. What costs a pass of the backbone is therefore kept
on disk, by backbone and text, and shared by all runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from softcue.backbones import Backbone, Summary, pool
from softcue.errors import ConfigurationError
from softcue.inputs.collate import by_length, collate
from softcue.inputs.formatter import InputFormatter
from softcue.sentence_vectors.glove import load_glove
from softcue.sentence_vectors.store import key_of, open_store
from softcue.tasks import Task
from softcue.types import Batch, Example, TokenizedRow


@dataclass(frozen=True)
class SentenceVector:
    """Which M(x)."""

    source: Literal["backbone", "words", "glove"] = "backbone"
    summary: Summary = "mean"
    dropout: bool = False  # the backbone's dropout in training, as the authors' code has it; then nothing is kept
    glove: str = ""  # where word vectors come from
    glove_width: int = 0
    glove_digest: str = ""  # of the vectors it was trained with; empty does not check

    def width(self, backbone: Backbone) -> int:
        """R."""
        if self.source == "glove":
            return self.glove_width
        width = backbone.width if self.source == "words" else backbone.hidden_width
        return width * (2 if self.summary == "compared" else 1)


@torch.no_grad()
def sentence_vectors_of(
    representation: SentenceVector,
    backbone: Backbone,
    task: Task,
    examples: Sequence[Example],
    limit: int | None = None,
    batch_size: int = 64,
    use_disk_cache: bool = True,
) -> Tensor:
    """M(x) of each example, cut to `limit` tokens (else to the backbone's own limit); known ones from disk. [N R]

    Example:
        represented(Representation("backbone", "mean"), backbone, task, [Example(("Hello.",))])
    """
    if representation.source == "glove":
        return _glove_vectors(representation, examples)
    if representation.source == "words":  # a table look-up: cheaper than the disk
        return _computed(representation, backbone, task, examples, limit, batch_size)
    keys = [_key(representation, backbone, task, example, limit) for example in examples]
    store = open_store(use_disk_cache)
    known = store.get(list(dict.fromkeys(keys)))
    missing = {key: example for key, example in zip(keys, examples, strict=True) if key not in known}
    if missing:
        found = _computed(representation, backbone, task, list(missing.values()), limit, batch_size)
        new = dict(zip(missing, found, strict=True))
        store.put(new)
        known |= new
    return torch.stack([known[key] for key in keys])


@torch.no_grad()
def sentence_vectors_with_dropout(representation: SentenceVector, backbone: Backbone, batch: Batch) -> Tensor:
    """M(x) of a batch of plain texts (`plain_rows`) anew, with the backbone's dropout on. [B R]"""
    forward_pass = backbone.with_dropout.read(batch, None, backbone.embed(batch.ids))
    return forward_pass.features(representation.summary)


def plain_rows(
    backbone: Backbone, task: Task, examples: Sequence[Example], limit: int | None = None
) -> list[TokenizedRow]:
    """The texts as M(x) reads them: without prompt, answer cue or mask."""
    formatter = InputFormatter(task, backbone.tokenizer, backbone.kind, limit or backbone.max_length)
    return [formatter.source(example) for example in examples]


def _key(representation: SentenceVector, backbone: Backbone, task: Task, example: Example, limit: int | None) -> str:
    """Backbone and text, as the tokenizer gets it: a task's name, labels or prompt have no part in it."""
    texts = example.texts if backbone.kind == "encoder" else (task.source(example.texts),)
    fingerprint = backbone.fingerprint
    return key_of(
        fingerprint.config,
        fingerprint.weights,
        fingerprint.tokenizer,
        str(backbone.dtype),
        representation.summary,
        str(limit or backbone.max_length),
        *texts,
    )


def _computed(
    representation: SentenceVector,
    backbone: Backbone,
    task: Task,
    examples: Sequence[Example],
    limit: int | None,
    batch_size: int,
) -> Tensor:
    rows = plain_rows(backbone, task, examples, limit)
    found = torch.zeros(len(rows), representation.width(backbone))
    for numbers in by_length([len(row.ids) for row in rows], batch_size, backbone.tokens_at_once):
        batch = collate([rows[number] for number in numbers], backbone.tokenizer.pad_token_id).to(backbone.device)
        embeds = backbone.embed(batch.ids)
        if representation.source == "words":
            assert representation.summary != "compared"
            found[numbers] = pool(embeds, batch.mask, representation.summary).cpu()
        else:
            found[numbers] = backbone.read(batch, None, embeds).features(representation.summary).cpu()
    return found


def _glove_vectors(representation: SentenceVector, examples: Sequence[Example]) -> Tensor:
    glove = load_glove(representation.glove)
    if glove.width != representation.glove_width:
        raise ConfigurationError(
            setting="method.glove_width",
            got=representation.glove_width,
            expected=f"{glove.width}, as in {representation.glove}",
            fix="set it to that",
        )
    if representation.glove_digest not in ("", glove.digest):
        raise ConfigurationError(
            setting="method.glove",
            got=representation.glove,
            expected="the word vectors the cue was trained with",
            fix=f"their digest is {representation.glove_digest}, this is {glove.digest}",
        )
    return glove.vectors([example.texts for example in examples])
