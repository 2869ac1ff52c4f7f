"""How similar the prompts of several cues are.

Prompt vectors have no order that carries over from one prompt to another (Lester et al. 2021, section 7), and prompts
may have different lengths. So the measure is the **best match**: for each vector of one prompt the highest cosine with
a vector of the other, averaged, then the mean of both directions. It is 1 for a prompt and any rearrangement of it.
Two measures of SPoT (Vu et al. 2022) stand beside it: the cosine of the mean vectors, and the mean cosine of all pairs
of vectors. The first is high for any two prompts if all word vectors lean in one direction, the second is below 1 for
a prompt and itself.

The best match of unrelated vectors grows with their number, so it is also measured with one of the two prompts
replaced by random vectors from the embedding space. Prompts that began at the same words resemble each other before
any training.

Prompts in layers are compared where they are: the cosine of two positions is the mean over their layers, keys and
values. A prompt that reads the input is compared as its mean over given rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from softcue.cue.cue import Cue
from softcue.errors import CueError
from softcue.inputs.collate import batch_by_length, collate
from softcue.inspection.clusters import random_vectors
from softcue.types import Example, LayerPrompt, LayerPrompts, WordVectors

WORDS = "word embeddings"  # the place of prompts that are among them
Matrix = list[list[float | None]]


@dataclass(frozen=True)
class PlacedPrompt:
    """The vectors of a cue's prompt, by the place they go to."""

    backbone: str
    space: str  # prompts are compared with others of the same space: same backbone, same places
    vectors: Mapping[str, Tensor]  # place -> [P X]
    table: WordVectors | None  # the word vectors, if the prompt is among the word embeddings
    first_layer: int = 0  # late prompts enter here, among the states of words

    @property
    def place(self) -> str:
        """Where the vectors are, in words."""
        if set(self.vectors) == {WORDS}:
            return f"input of layer {self.first_layer}" if self.first_layer else WORDS
        return f"{len(self.vectors)} places in layers"


@dataclass(frozen=True)
class PromptSimilarity:
    """The similarity of the prompts of all pairs of cues; None where two cannot be compared."""

    names: list[str]
    best_match: Matrix
    mean_vector: Matrix  # cosine of the mean vectors (SPoT)
    all_pairs: Matrix  # mean cosine of all pairs of vectors (SPoT)
    random: Matrix  # the best match if one of the two prompts is random vectors
    notes: list[str]  # which cues are not compared, and why

    @property
    def is_empty(self) -> bool:
        """Whether no two cues could be compared."""
        rows = range(len(self.names))
        return all(self.best_match[row][column] is None for row in rows for column in rows if row != column)


class _VectorSums:
    """Sums over rows of the last vectors that go to each place."""

    def __init__(self, length: int) -> None:
        self.length = length  # 0 for prompts without positions: all of their vectors
        self.totals: dict[str, Tensor] = {}  # place -> [P X]

    def add(self, place: str, vectors: Tensor | None) -> None:
        """Add the vectors of a batch. [B P X]"""
        if vectors is not None:
            total = vectors[:, -self.length :].float().sum(dim=0).cpu()
            self.totals[place] = self.totals[place] + total if place in self.totals else total

    def recorder(self, make_layer_prompt: LayerPrompts) -> LayerPrompts:
        """The same prompts of layers; whatever a layer takes is added."""

        def record(layer: int, hidden: Tensor, mask: Tensor) -> LayerPrompt | None:
            layer_prompt = make_layer_prompt(layer, hidden, mask)
            for name in ("states", "keys", "values", "parallel_keys", "parallel_values"):
                self.add(f"{name.replace('_', ' ')} of layer {layer}", getattr(layer_prompt, name, None))
            return layer_prompt

        return record


@torch.no_grad()
def placed_prompt(cue: Cue, examples: Sequence[Example] | None = None, batch_size: int = 64) -> PlacedPrompt:
    """The prompt of a cue; for methods whose prompts depend on the input, the mean over the given examples.

    Example:
        placed_prompt(softcue.load("cues/tickets")).vectors["word embeddings"].shape     # [P D]
    """
    model, method = cue.model, cue.model.method
    encoder = method.prompt_encoder()
    if encoder is None:
        raise CueError(
            setting="cue",
            got=f"{cue.name} ({method.config.name})",
            expected="a method with a prompt",
            fix="its parameters are not in a prompt",
        )
    if method.reads_input and not examples:
        raise CueError(
            setting="cue",
            got=f"{cue.name} ({method.config.name})",
            expected="a prompt that is the same for every input",
            fix="its prompt depends on the input: pass rows over which it is averaged, with --data FILE",
        )
    if not method.reads_input:
        examples = [Example(tuple("text" for _ in cue.task.text))]  # any text will do
    assert examples is not None
    static = encoder.static_vectors()
    length = encoder.prompt_length if static is None else len(static)  # VIP's frozen words in front are left out
    view = method.view_of(cue.backbone)
    rows = model.rows(cue.backbone, [part for example in examples for part in model.split(example)])
    sums = _VectorSums(length)
    for numbers in batch_by_length([len(row.ids) for row in rows], batch_size, cue.backbone.tokens_at_once):
        batch = collate([rows[number] for number in numbers], cue.backbone.tokenizer.pad_token_id)
        batch = batch.to(cue.backbone.device)
        embeds = view.input_states(batch)
        prompt = model.prompt(view, batch, embeds)
        assert prompt is not None
        sums.add(WORDS, prompt.tokens)
        if prompt.layer_prompts is not None:
            recorder = sums.recorder(prompt.layer_prompts)
            view.read(batch, replace(prompt, layer_prompts=recorder, shared_by=None), embeds).hidden()
    # Prompts that are in layers only leave zeros among the word embeddings.
    vectors = {place: total / len(rows) for place, total in sums.totals.items() if place != WORDS or bool(total.any())}
    first_layer = getattr(method.config, "insert_layer", 0)
    places = ", ".join(f"{place} {tuple(values.shape[1:])}" for place, values in sorted(vectors.items()))
    return PlacedPrompt(
        backbone=cue.cue_file.backbone.name,
        space=f"{sorted(cue.cue_file.backbone.fingerprint.items())} from layer {first_layer}: {places}",
        vectors=vectors,
        table=view.word_input_states if set(vectors) == {WORDS} else None,
        first_layer=first_layer,
    )


def cosines_between(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> Tensor:
    """The cosine of each vector of one prompt with each of the other, averaged over their places. [P Q]

    A place where one of the two has only zeros is left out, such as the values of a prompt that no step has changed.

    Example:
        >>> cosines_between({"words": torch.eye(2)}, {"words": torch.tensor([[0.0, 2.0]])}).tolist()
        [[0.0], [1.0]]
    """
    cosines = [
        functional.normalize(first[place], dim=1) @ functional.normalize(second[place], dim=1).T
        for place in first
        if bool(first[place].any()) and bool(second[place].any())
    ]
    return torch.stack(cosines).mean(dim=0)


def best_match(cosines: Tensor) -> float:
    """The mean of each vector's highest cosine with a vector of the other prompt, over both directions. [P Q]

    Example:
        >>> best_match(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
        1.0
    """
    return float(cosines.amax(dim=1).mean() + cosines.amax(dim=0).mean()) / 2


def prompt_similarity(prompts: Mapping[str, PlacedPrompt | str], seed: int = 0) -> PromptSimilarity:
    """Compare the prompts of cues, by name. A text in place of a prompt says why there is none.

    The seed draws the random vectors of the control.

    Example:
        tickets, urgency = softcue.load("cues/tickets"), softcue.load("cues/urgency")
        prompt_similarity({"tickets": placed_prompt(tickets), "urgency": placed_prompt(urgency)}).best_match
    """
    names = list(prompts)
    placed = {name: prompt for name, prompt in prompts.items() if isinstance(prompt, PlacedPrompt)}
    controls = {name: _random_like(prompt, seed + number) for number, (name, prompt) in enumerate(placed.items())}
    empty = [_empty_matrix(len(names)) for _ in range(4)]
    similarity = PromptSimilarity(names, empty[0], empty[1], empty[2], empty[3], notes=[])
    for name, first in placed.items():
        for other, second in placed.items():
            if first.space != second.space:
                continue
            row, column = names.index(name), names.index(other)
            cosines = cosines_between(first.vectors, second.vectors)
            similarity.best_match[row][column] = best_match(cosines)
            similarity.all_pairs[row][column] = float(cosines.mean())
            similarity.mean_vector[row][column] = float(cosines_between(_means(first.vectors), _means(second.vectors)))
            if (first_control := controls[name]) is not None and (second_control := controls[other]) is not None:
                similarity.random[row][column] = (
                    best_match(cosines_between(first.vectors, second_control))
                    + best_match(cosines_between(first_control, second.vectors))
                ) / 2
    reasons = [f"{name} is not compared: {reason}" for name, reason in prompts.items() if isinstance(reason, str)]
    return replace(similarity, notes=[*reasons, *_space_notes(placed)])


def _empty_matrix(size: int) -> Matrix:
    return [[None] * size for _ in range(size)]


def _means(vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The mean vector of each place. [P X] -> [1 X]"""
    return {place: values.mean(dim=0, keepdim=True) for place, values in vectors.items()}


def _random_like(prompt: PlacedPrompt, seed: int) -> dict[str, Tensor] | None:
    """As many random vectors as the prompt has; None for prompts in layers, where there are no words."""
    if prompt.table is None:
        return None
    vectors = prompt.vectors[WORDS]
    return {WORDS: random_vectors(prompt.table, len(vectors), vectors.norm(dim=1), seed)}


def _space_notes(prompts: Mapping[str, PlacedPrompt]) -> list[str]:
    """Which groups of cues are not compared with each other."""
    groups: dict[str, list[str]] = {}
    for name, prompt in prompts.items():
        groups.setdefault(prompt.space, []).append(name)
    if len(groups) < 2:
        return []
    described = [
        f"{', '.join(names)} ({prompts[names[0]].backbone}, {prompts[names[0]].place})" for names in groups.values()
    ]
    return [f"prompts of different backbones or in different places are not compared: {'; '.join(described)}"]
