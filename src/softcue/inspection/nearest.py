"""Nearest words of prompt vectors (Lester et al. 2021, section 7): cosine against every vocabulary row."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from torch.nn import functional

from softcue.cue import Cue
from softcue.errors import CueError


@dataclass(frozen=True)
class Neighbour:
    """A word near a prompt vector."""

    word: str
    cosine: float


@dataclass(frozen=True)
class Vector:
    """One prompt vector."""

    position: int
    norm: float
    neighbours: list[Neighbour]


@dataclass(frozen=True)
class NearestWords:
    """What a prompt is near to."""

    num_vectors: int
    vectors: list[Vector]
    labels_kept: list[str]  # labels whose words are among the neighbours of some vector
    repeated: list[str]  # words nearest to more than one vector


@torch.no_grad()
def nearest_words(cue: Cue, top: int = 5) -> NearestWords:
    """The top words by cosine for each prompt vector of a cue.

    Example:
        nearest_words(softcue.load("cues/tickets")).vectors[0].neighbours[0].word
    """
    words = cue.model.method.on(cue.backbone).entering_words
    table = words[torch.arange(len(words))].float()  # [V D]
    tokenizer = cue.backbone.tokenizer
    encoder = cue.model.method.prompt_encoder()
    prompts = None if encoder is None else encoder.embedded()  # [P D]
    if prompts is None:
        raise CueError("cue", cue.name, "a method with prompt vectors among the word embeddings",
                       f"{cue.record.method['name']} with these settings has none to look at")  # fmt: skip
    cosines = functional.normalize(prompts, dim=1) @ functional.normalize(table, dim=1).T  # [P V]
    values, ids = cosines.topk(top, dim=1)  # [P top]
    vectors = []
    for position, (row_values, row_ids) in enumerate(zip(values.tolist(), ids.tolist(), strict=True)):
        neighbours = [
            Neighbour(tokenizer.decode([token]).strip() or repr(tokenizer.convert_ids_to_tokens(token)), cosine)
            for token, cosine in zip(row_ids, row_values, strict=True)
        ]
        vectors.append(Vector(position, float(prompts[position].norm()), neighbours))
    near = {neighbour.word for vector in vectors for neighbour in vector.neighbours}
    first = Counter(vector.neighbours[0].word for vector in vectors)
    return NearestWords(
        len(vectors),
        vectors,
        [name for name, label in cue.task.labels.items() if label.words in near],
        [word for word, count in first.items() if count > 1],
    )
