"""Labels that persist in a prompt (Lester et al. 2021, section 7): which vectors are near to which label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from softcue.cue.cue import Cue
from softcue.inspection.clusters import random_vectors
from softcue.inspection.nearest import near_labels, neighbours, prompt_vectors
from softcue.methods.prompt_tuning import initial_words


@dataclass(frozen=True)
class LabelPlace:
    """Where a label is in a prompt."""

    label: str
    vectors: list[int]  # prompt vectors that are as near to it as to one of their nearest words
    began_at: int | None  # the vector that was initialised to it, if there is one
    num_random: int  # of as many random vectors, those that are near to it: what chance does

    @property
    def persists(self) -> bool | None:
        """Whether the vector that began at the label is still near to it; None if none began there."""
        return None if self.began_at is None else self.began_at in self.vectors


@torch.no_grad()
def label_places(cue: Cue, top: int = 5, seed: int = 0) -> list[LabelPlace]:
    """The places of all labels of a cue's task among its prompt vectors; empty for a task without labels.

    Example:
        [place.label for place in label_places(softcue.load("cues/tickets")) if place.persists]
    """
    if not cue.task.labels:
        return []
    view = cue.model.method.view_of(cue.backbone)
    prompts = prompt_vectors(cue).float()  # [P D]
    random = random_vectors(view.word_input_states, len(prompts), prompts.norm(dim=1), seed)
    nearest = neighbours(view, torch.cat([prompts, random]), top)
    places = near_labels(view, cue.task, prompts, nearest[: len(prompts)])
    by_chance = near_labels(view, cue.task, random, nearest[len(prompts) :])
    # A cue that starts from another cue, or a joint one with the labels of all its tasks, began elsewhere.
    is_other_start = bool(cue.cue_file.training.get("init_from")) or "together_with" in cue.cue_file.training
    began_at = {} if is_other_start else _initial_places(cue, len(prompts))
    return [
        LabelPlace(name, places[name], began_at.get(label.words), len(by_chance[name]))
        for name, label in cue.task.labels.items()
    ]


def _initial_places(cue: Cue, length: int) -> dict[str, int]:
    """The vector that was initialised to each word, for cues whose method starts from labels."""
    words = initial_words(cue.model.method.config, cue.task)
    return {word: position for position, word in enumerate(words[:length])}


def label_rows_of(places: Sequence[LabelPlace]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of a table of labels and the vectors near to them.

    Example:
        >>> label_rows_of([LabelPlace("billing", [0, 7], began_at=0, num_random=0)])[1]
        [['billing', '0', 'yes', '0, 7', '0']]
    """
    columns = ["label", "began at vector", "still there", "near to vectors", "near to random vectors"]
    words = {None: "-", True: "yes", False: "no"}
    rows = [
        [
            place.label,
            "-" if place.began_at is None else str(place.began_at),
            words[place.persists],
            ", ".join(map(str, place.vectors)) or "none",
            str(place.num_random),
        ]
        for place in places
    ]
    return columns, rows


def summarise_labels(places: Sequence[LabelPlace]) -> str:
    """How many labels are near to a vector, and how many are where they began, in one sentence.

    Example:
        >>> print(summarise_labels([LabelPlace("billing", [0], 0, 0), LabelPlace("bug", [], 1, 1)]))
        near to a vector: 1 of 2 labels (of random vectors: 1); still at the vector that began there: 1 of 2
    """
    num_near = sum(bool(place.vectors) for place in places)
    num_random = sum(place.num_random > 0 for place in places)
    text = f"near to a vector: {num_near} of {len(places)} labels (of random vectors: {num_random})"
    began = [place for place in places if place.began_at is not None]
    if not began:
        return f"{text}; no vector is known to have begun at a label"
    return (
        f"{text}; still at the vector that began there: {sum(bool(place.persists) for place in began)} of {len(began)}"
    )
