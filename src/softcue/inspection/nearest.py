"""Nearest words of prompt vectors (Lester et al. 2021, section 7): cosine with every word of the vocabulary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from softcue.backbones import Backbone
from softcue.cue.cue import Cue
from softcue.errors import CueError
from softcue.tasks import Task

ROUNDING = 1e-6  # between two ways to compute one cosine
WORDS_AT_ONCE = 16384  # words compared at once: a copy of a large vocabulary would not fit into memory


@dataclass(frozen=True)
class Neighbour:
    """A word near a prompt vector."""

    word: str
    cosine: float


@dataclass(frozen=True)
class VectorNeighbours:
    """One prompt vector."""

    position: int
    norm: float
    neighbours: list[Neighbour]


@dataclass(frozen=True)
class NearestWords:
    """The nearest words of all prompt vectors of a cue."""

    num_vectors: int
    vectors: list[VectorNeighbours]
    labels_kept: list[str]  # labels that are as near to a vector as one of its neighbours
    repeated: list[str]  # words nearest to more than one vector


@torch.no_grad()
def neighbours(backbone: Backbone, vectors: Tensor, top: int) -> list[list[Neighbour]]:
    """The words nearest to each vector [n D] by cosine; the vocabulary is compared in chunks.

    Example:
        neighbours(backbone, backbone.embed(torch.tensor([7])), top=3)[0][0].cosine     # 1.0: the word itself
    """
    table, tokenizer = backbone.word_input_states, backbone.tokenizer
    vectors = functional.normalize(vectors.float(), dim=1)
    values, ids = vectors.new_zeros(len(vectors), 0), vectors.new_zeros(len(vectors), 0, dtype=torch.long)
    for numbers in torch.arange(len(table), device=vectors.device).split(WORDS_AT_ONCE):
        cosines = vectors @ functional.normalize(table[numbers].to(vectors), dim=1).T  # [n v]
        best = cosines.topk(min(top, len(numbers)), dim=1)
        values, ids = torch.cat([values, best.values], 1), torch.cat([ids, numbers[best.indices]], 1)
        values, order = values.topk(min(top, values.shape[1]), dim=1)  # [n top]
        ids = ids.gather(1, order)

    def word(token: int) -> str:
        return tokenizer.decode([token]).strip() or repr(tokenizer.convert_ids_to_tokens(token))

    rows = zip(ids.tolist(), values.tolist(), strict=True)
    return [[Neighbour(word(token), cosine) for token, cosine in zip(*row, strict=True)] for row in rows]


def _find_labels(backbone: Backbone, task: Task, prompts: Tensor, nearest: Sequence[Sequence[Neighbour]]) -> list[str]:
    """The labels that a prompt vector is near to, as it is to its neighbours.

    A label of several word pieces is no word of the vocabulary. It is compared as the mean of its pieces, which is
    also how prompts are initialised from labels (Lester et al. 2021, section 3.2).
    """
    words = {neighbour.word for neighbours_of_vector in nearest for neighbour in neighbours_of_vector}
    table, tokenizer = backbone.word_input_states, backbone.tokenizer
    least_cosines = prompts.new_tensor([row[-1].cosine for row in nearest], dtype=torch.float32)  # [P]
    kept = []
    for name, label in task.labels.items():
        # Both with and without a space in front, which are different pieces in many vocabularies.
        spellings = [
            tokenizer(text, add_special_tokens=False)["input_ids"] for text in (label.words, f" {label.words}")
        ]
        vectors = [table[torch.tensor(ids, device=prompts.device)].float().mean(dim=0) for ids in spellings if ids]
        cosines = [
            functional.cosine_similarity(prompts.float(), vector.to(prompts.device), dim=1) for vector in vectors
        ]
        is_near = any(bool((cosine >= least_cosines - ROUNDING).any()) for cosine in cosines)
        if is_near or label.words in words:
            kept.append(name)
    return kept


@torch.no_grad()
def nearest_words(cue: Cue, top: int = 5) -> NearestWords:
    """The top words by cosine for each prompt vector of a cue.

    Example:
        nearest_words(softcue.load("cues/tickets")).vectors[0].neighbours[0].word
    """
    view = cue.model.method.view_of(cue.backbone)
    encoder = cue.model.method.prompt_encoder()
    prompts = None if encoder is None else encoder.static_vectors()  # [P D]
    if prompts is None:
        raise CueError(
            setting="cue",
            got=cue.name,
            expected="a method with prompt vectors among the word embeddings",
            fix=f"{cue.cue_file.method['name']} with these settings has none to look at",
        )
    nearest = neighbours(view, prompts, top)
    vectors = [
        VectorNeighbours(position, float(prompt.norm()), words)
        for position, (prompt, words) in enumerate(zip(prompts, nearest, strict=True))
    ]
    nearest_counts = Counter(vector.neighbours[0].word for vector in vectors)
    return NearestWords(
        len(vectors),
        vectors,
        _find_labels(view, cue.task, prompts, nearest),
        [word for word, count in nearest_counts.items() if count > 1],
    )
