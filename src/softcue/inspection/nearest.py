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
from softcue.types import WordVectors

ROUNDING = 1e-6  # between two ways to compute one cosine
AT_START = "these vectors are as they began, so the words say nothing about training: no step was better than the start"
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
def nearest_ids(table: WordVectors, vectors: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """The ids of the words nearest to each vector [n D] and their cosines, each [n top]; nearest first.

    The vocabulary is compared in chunks.

    Example:
        >>> ids, cosines = nearest_ids(torch.eye(4), torch.tensor([[0.0, 3.0, 1.0, 0.0]]), top=2)
        >>> ids.tolist()
        [[1, 2]]
    """
    vectors = functional.normalize(vectors.float(), dim=1)
    values, ids = vectors.new_zeros(len(vectors), 0), vectors.new_zeros(len(vectors), 0, dtype=torch.long)
    for numbers in torch.arange(len(table), device=vectors.device).split(WORDS_AT_ONCE):
        cosines = vectors @ functional.normalize(table[numbers].to(vectors), dim=1).T  # [n v]
        best = cosines.topk(min(top, len(numbers)), dim=1)
        values, ids = torch.cat([values, best.values], 1), torch.cat([ids, numbers[best.indices]], 1)
        values, order = values.topk(min(top, values.shape[1]), dim=1)  # [n top]
        ids = ids.gather(1, order)
    return ids, values


def neighbours(backbone: Backbone, vectors: Tensor, top: int) -> list[list[Neighbour]]:
    """The words nearest to each vector [n D] by cosine.

    Example:
        neighbours(backbone, backbone.embed(torch.tensor([7])), top=3)[0][0].cosine     # 1.0: the word itself
    """
    ids, cosines = nearest_ids(backbone.word_input_states, vectors, top)
    rows = zip(ids.tolist(), cosines.tolist(), strict=True)
    return [[Neighbour(word_of(backbone, token), cosine) for token, cosine in zip(*row, strict=True)] for row in rows]


def word_of(backbone: Backbone, token: int) -> str:
    """A token of the vocabulary as text.

    Example:
        word_of(backbone, 7)     # "invoice"
    """
    tokenizer = backbone.tokenizer
    return tokenizer.decode([token]).strip() or repr(tokenizer.convert_ids_to_tokens(token))


def near_labels(
    backbone: Backbone, task: Task, vectors: Tensor, nearest: Sequence[Sequence[Neighbour]]
) -> dict[str, list[int]]:
    """For each label, the vectors [n D] that are as near to it as to one of their nearest words.

    A label of several word pieces is no word of the vocabulary. It is compared as the mean of its pieces, which is
    also how prompts are initialised from labels (Lester et al. 2021, section 3.2).

    Example:
        near_labels(backbone, task, prompts, neighbours(backbone, prompts, top=5))["billing"]
    """
    table, tokenizer = backbone.word_input_states, backbone.tokenizer
    least_cosines = vectors.new_tensor([row[-1].cosine for row in nearest], dtype=torch.float32)  # [n]
    places = {}
    for name, label in task.labels.items():
        is_near = torch.tensor([any(neighbour.word == label.words for neighbour in row) for row in nearest])
        # Both with and without a space in front, which are different pieces in many vocabularies.
        for text in (label.words, f" {label.words}"):
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            if not ids:
                continue
            vector = table[torch.tensor(ids, device=vectors.device)].float().mean(dim=0).to(vectors.device)  # [D]
            cosines = functional.cosine_similarity(vectors.float(), vector, dim=1)  # [n]
            is_near |= (cosines >= least_cosines - ROUNDING).cpu()
        places[name] = is_near.nonzero()[:, 0].tolist()
    return places


def prompt_vectors(cue: Cue) -> Tensor:
    """The prompt vectors of a cue among the word embeddings, which are the same for every input. [P D]

    Example:
        prompt_vectors(softcue.load("cues/tickets")).norm(dim=1)
    """
    encoder = cue.model.method.prompt_encoder()
    prompts = None if encoder is None else encoder.static_vectors()
    if prompts is None:
        raise CueError(
            setting="cue",
            got=cue.name,
            expected="a method with prompt vectors among the word embeddings",
            fix=f"{cue.cue_file.method['name']} with these settings has none to look at",
        )
    return prompts.detach()


@torch.no_grad()
def nearest_words(cue: Cue, top: int = 5) -> NearestWords:
    """The top words by cosine for each prompt vector of a cue.

    Example:
        nearest_words(softcue.load("cues/tickets")).vectors[0].neighbours[0].word
    """
    view = cue.model.method.view_of(cue.backbone)
    prompts = prompt_vectors(cue)  # [P D]
    nearest = neighbours(view, prompts, top)
    vectors = [
        VectorNeighbours(position, float(prompt.norm()), words)
        for position, (prompt, words) in enumerate(zip(prompts, nearest, strict=True))
    ]
    nearest_counts = Counter(vector.neighbours[0].word for vector in vectors)
    return NearestWords(
        len(vectors),
        vectors,
        [name for name, places in near_labels(view, cue.task, prompts, nearest).items() if places],
        [word for word, count in nearest_counts.items() if count > 1],
    )
