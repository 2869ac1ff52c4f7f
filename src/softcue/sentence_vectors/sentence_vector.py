"""Sentence vectors M(x) (Wu et al. 2022, section 3.1): one vector for a text, from the backbone or from word vectors.

A sentence vector depends only on the text, not on task, method or seed. Vectors that need a forward pass of the
backbone are therefore stored on disk, by backbone and text, and shared by all runs. If a method trains the backbone's
weights too, M(x) changes with them: then each pass computes it, and nothing is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from softcue.backbones import Backbone, Summary, pool
from softcue.errors import ConfigurationError
from softcue.inputs.collate import batch_by_equal_length, batch_by_length, collate
from softcue.inputs.formatter import InputFormatter
from softcue.inputs.packed_rows import collect_rows
from softcue.inputs.special_tokens import count_special_tokens
from softcue.sentence_vectors.glove import load_glove
from softcue.sentence_vectors.store import key_of, open_store
from softcue.tasks import Task
from softcue.types import Batch, Example, TokenizedRow


@dataclass(frozen=True)
class SentenceVector:
    """The kind of sentence vector: its source and its pooling."""

    source: Literal["backbone", "words", "glove"] = "backbone"
    summary: Summary = "mean"
    dropout: bool = False  # use the backbone's dropout in training, as the authors' code does; then nothing is stored
    glove: str = ""  # the source of word vectors, as `load_glove` takes it
    glove_width: int = 0
    glove_digest: str = ""  # of the word vectors used in training; empty: not checked
    prompt: str = ""  # words in front of every text, as some sentence encoders were trained with

    @property
    def reads_weights(self) -> bool:
        """Whether M(x) depends on the backbone's weights."""
        return self.source != "glove"

    def width(self, backbone: Backbone) -> int:
        """Return the width R."""
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
    """Return M(x) of each example, from disk where it is stored. [N R]

    Texts are cut to `limit` tokens (unset: the backbone's own limit). A vector that may be stored does not depend on
    the other examples: runs have the same vectors whichever of them was first. Without the disk, as in serving, texts
    of different lengths share a pass, which is faster for a few of them.

    Example:
        sentence_vectors_of(SentenceVector("backbone", "mean"), backbone, task, [Example(("Hello.",))])
    """
    if representation.source == "glove":
        return _glove_vectors(representation, examples)
    # A table look-up is cheaper than the disk. What a trained model computes is wrong after its next step.
    if representation.source == "words" or not backbone.may_store_vectors:
        return _compute(representation, backbone, task, examples, limit, batch_size, is_padded=True)
    # Keys are of texts with the prompt: vectors with different prompts are never mixed.
    prompted = add_prompt(examples, representation.prompt)
    keys = [_key(representation, backbone, task, example, limit) for example in prompted]
    # If layers are divided over processes, all of them must compute the same vectors, whatever their disks hold.
    store = open_store(use_disk_cache and not backbone.is_sharded)
    vectors = store.get(list(dict.fromkeys(keys)))
    missing = {key: example for key, example in zip(keys, examples, strict=True) if key not in vectors}
    if missing:
        computed = _compute(
            representation, backbone, task, list(missing.values()), limit, batch_size, is_padded=not use_disk_cache
        )
        new = dict(zip(missing, computed, strict=True))
        store.put(new)
        vectors |= new
    return torch.stack([vectors[key] for key in keys])


def sentence_vectors_of_batch(
    representation: SentenceVector, backbone: Backbone, batch: Batch, with_dropout: bool = False
) -> Tensor:
    """Compute M(x) of a batch of plain texts (`plain_rows`), with gradient where weights are trained. [B R]

    `with_dropout` runs the pass with the backbone's own dropout.
    """
    with torch.set_grad_enabled(torch.is_grad_enabled() and not backbone.is_frozen):
        embeds = backbone.embed(batch.ids)  # [B T D]
        if representation.source == "words":
            assert representation.summary != "compared" and representation.summary != "mask"
            return pool(embeds, batch.mask, representation.summary)
        model = backbone.with_dropout if with_dropout else backbone
        return model.read(batch, None, embeds).features(representation.summary)


def plain_rows(
    backbone: Backbone, task: Task, examples: Sequence[Example], limit: int | None = None, prompt: str = ""
) -> Sequence[TokenizedRow]:
    """Return the tokenized texts for M(x): without prompt vectors, target marker or mask token.

    `prompt` are words in front of each text.
    """
    formatter = InputFormatter(task, backbone.tokenizer, backbone.kind, limit or backbone.max_length)
    prompted = add_prompt(examples, prompt)
    return collect_rows(formatter.iterate_sources(prompted), len(prompted))


def add_prompt(examples: Sequence[Example], prompt: str) -> Sequence[Example]:
    """Put words in front of the first text of each example.

    Example:
        >>> add_prompt([Example(("Where is it?",))], "query: ")[0].texts
        ('query: Where is it?',)
    """
    if not prompt:
        return examples
    return [replace(example, texts=(prompt + example.texts[0], *example.texts[1:])) for example in examples]


# A part of a key that says how a vector was computed. Vectors without it came from padded batches, whose rounding
# depended on the other texts.
_PASSES = "no padding"


def _key(representation: SentenceVector, backbone: Backbone, task: Task, example: Example, limit: int | None) -> str:
    """Return the key of a stored vector: backbone and input text, but not the task's name, labels or prompt."""
    texts = example.texts if backbone.kind == "encoder" else (task.source(example.texts),)
    fingerprint = backbone.fingerprint
    # Vectors of texts with special tokens that were read as such are not used any more.
    reading = ", special tokens as text" if count_special_tokens(backbone.tokenizer, *texts) else ""
    quantized = "" if backbone.quantization == "none" else f", {backbone.quantization}"
    return key_of(
        fingerprint.config,
        fingerprint.weights,
        fingerprint.tokenizer,
        f"{backbone.numbers}, {_PASSES}{reading}{quantized}",
        representation.summary,
        str(limit or backbone.max_length),
        *texts,
    )


def _compute(
    representation: SentenceVector,
    backbone: Backbone,
    task: Task,
    examples: Sequence[Example],
    limit: int | None,
    batch_size: int,
    is_padded: bool,
) -> Tensor:
    rows = plain_rows(backbone, task, examples, limit, representation.prompt)
    vectors = torch.zeros(len(rows), representation.width(backbone))
    make_batches = batch_by_length if is_padded else batch_by_equal_length
    for indices in make_batches([len(row.ids) for row in rows], batch_size, backbone.tokens_at_once):
        batch = collate([rows[index] for index in indices], backbone.tokenizer.pad_token_id).to(backbone.device)
        vectors[indices] = sentence_vectors_of_batch(representation, backbone, batch).cpu()
    return vectors


def _glove_vectors(representation: SentenceVector, examples: Sequence[Example]) -> Tensor:
    glove = load_glove(representation.glove)
    if glove.width != representation.glove_width:
        raise ConfigurationError(
            setting="method.glove_width",
            got=representation.glove_width,
            expected=f"{glove.width}, as in {representation.glove}",
            fix=f"set method.glove=FILE to word vectors of width {representation.glove_width} (IDPG's are "
            f"glove.6B.300d.txt), or method.glove_width={glove.width}",
        )
    if representation.glove_digest not in ("", glove.digest):
        raise ConfigurationError(
            setting="method.glove",
            got=representation.glove,
            expected="the word vectors the cue was trained with",
            fix=f"their digest is {representation.glove_digest}, this file's is {glove.digest}",
        )
    return glove.vectors([example.texts for example in examples])
