"""The records that travel between packages, and the shape letters. No logic lives here.

Shape letters, the same everywhere:
    B batch · T text tokens · P prompt length · U target tokens · S laid-out length · D width
    L layers · V vocabulary · C classes or candidates · K codes, or width of keys · R representation width
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


@dataclass(frozen=True, order=True)
class Span:
    """A piece of a text: characters `start` to `end` (exclusive), and what it is, where pieces have kinds."""

    start: int
    end: int
    label: str = ""


@dataclass(frozen=True)
class Example:
    """One row of a task, before tokens: the text to read and, when known, the answer.

    Most tasks need no more than texts and target; the rest is for answers that stand in the text, answers of which
    several are right, and rows that are scored together.
    """

    texts: tuple[str, ...]
    target: str | float | None = None
    answers: tuple[str, ...] = ()  # every text that counts as right, where there may be several (SQuAD)
    spans: tuple[Span, ...] = ()  # in the last text: where the answers stand, or what is to be marked (NER)
    group: str = ""  # rows of one group are scored together (MultiRC's questions)
    options: tuple[str, ...] = ()  # the only answers this row allows (ReCoRD's entities)
    offset: int = 0  # where the last text begins in the whole one, if it is a window of it


@dataclass(frozen=True)
class TokenizedRow:
    """One row after the tokenizer, before batching."""

    ids: tuple[int, ...]
    segments: tuple[int, ...] | None
    insert_at: int  # index into `ids` before which the prompt goes
    target_ids: tuple[int, ...] = ()
    label: int | float | None = None
    is_truncated: bool = False
    parts: tuple[int, ...] | None = None  # per token: 0 first text, 1 second text, -1 neither
    offsets: tuple[tuple[int, int], ...] | None = None  # per token: its characters in the last text, -1 if none
    token_labels: tuple[int, ...] | None = None  # per token, for readouts that answer at every token; -100: no answer
    representation: Tensor | None = field(default=None, compare=False)  # [R] M(x), for those who ask for it
    plain: TokenizedRow | None = None  # what M(x) reads, for those who compute it anew in every step


@dataclass(frozen=True)
class Batch:
    """Rows of one task as tensors, padded to the longest row and no further."""

    ids: Tensor  # [B T] long
    mask: Tensor  # [B T] bool, source tokens only
    segments: Tensor | None  # [B T] long, for backbones that tell two sentences apart
    insert_at: Tensor  # [B] long, index into the row's own tokens
    target_ids: Tensor  # [B U] long, U may be 0
    target_mask: Tensor  # [B U] bool
    labels: Tensor | None = None  # [B] long (class) or float (score)
    parts: Tensor | None = None  # [B T] 0 first text, 1 second text, -1 neither; where rows have two texts
    offsets: Tensor | None = None  # [B T 2] characters of the last text a token stands for, -1 if none
    token_labels: Tensor | None = None  # [B T] -100 where a token has no answer
    representation: Tensor | None = None  # [B R] M(x), where every row has one
    plain: Batch | None = None  # what M(x) reads, where it is computed anew in every step

    @property
    def size(self) -> int:
        """Number of rows."""
        return self.ids.shape[0]

    def rows(self, index: Tensor) -> Batch:
        """Some of the rows."""
        own = {name: value[index] for name, value in vars(self).items() if value is not None and name != "plain"}
        return replace(self, plain=None if self.plain is None else self.plain.rows(index), **own)

    def to(self, device: torch.device) -> Batch:
        """The batch on another device."""
        moved = {name: value.to(device) for name, value in vars(self).items() if value is not None}
        return replace(self, **moved)


@dataclass(frozen=True)
class Instance:
    """What a prompt may read of its input. Never the target."""

    embeds: Tensor  # [B T D] frozen word embeddings of the source text
    mask: Tensor  # [B T]   source tokens only
    representation: Tensor | None = None  # [B R]   M(x), only for encoders that ask for it


class Words(Protocol):
    """Vectors of words by their numbers."""

    def __len__(self) -> int:
        """V."""
        ...

    def __getitem__(self, ids: Tensor) -> Tensor:
        """[n] -> [n D]"""
        ...


@dataclass(frozen=True)
class LayerPrompt:
    """What one layer takes at the prompt's positions; whatever is None stays as it is."""

    states: Tensor | None = None  # [B P D] for the hidden states that enter the layer
    adds: Tensor | None = None  # [B] bool: rows where `states` are added, elsewhere they replace; None adds everywhere
    keys: Tensor | None = None  # [B P K] in place of the layer's own keys, as its key projection gives them
    values: Tensor | None = None  # [B P K] in place of its values
    sets: Tensor | None = None  # [B] bool: rows that take `keys` and `values`; None: all


# (layer, hidden [B T D], mask [B T]) -> what it takes; `hidden` are states of the source text entering the layer
LayerPrompts = Callable[[int, "Tensor", "Tensor"], LayerPrompt | None]


@dataclass(frozen=True)
class Prompt:
    """What a prompt encoder returns, and all that the injection needs to know of a method."""

    tokens: Tensor  # [B P D]
    mask: Tensor  # [B P]   lets unlike lengths share a batch
    aux_loss: Tensor  # []      commitment, noise resilience, ...: a mean over rows
    layer_prompts: LayerPrompts | None = None  # asked once per layer, from the first to the last
    statistics: Mapping[str, Tensor] = field(default_factory=dict)  # in training: sums over rows, for `update_state`
    shared_by: nn.Module | None = None  # its encoder, if all rows have this same prompt, `layer_prompts` included
    parts: tuple[tuple[Tensor, Prompt], ...] = ()  # of several cues' prompts in one: rows [b], and their own prompt


@dataclass(frozen=True)
class Prediction:
    """One answer. `label` is a class name or generated text; `value` is set for regression."""

    label: str | None
    value: float | None = None
    scores: Mapping[str, float] | None = None  # a probability per label, where the readout has them
    spans: tuple[Span, ...] | None = None  # in the last text as it was given, for answers that stand in it
    strength: float = 0.0  # log-likelihood of a span, by which windows of one text are compared
    is_illegal: bool = False  # written text that is no answer: no label, no number, nothing that stands in the text

    def as_dict(self) -> dict[str, object]:
        """The fields that are set, for JSON.

        Example:
            >>> Prediction("billing", scores={"billing": 1.0}).as_dict()
            {'label': 'billing', 'scores': {'billing': 1.0}}
        """
        found: dict[str, object] = {}
        if self.label is not None:
            found["label"] = self.label
        if self.value is not None:
            found["value"] = self.value
        if self.scores is not None:
            found["scores"] = dict(self.scores)
        if self.is_illegal:
            found["illegal"] = True
        if self.spans is not None:
            found["spans"] = [
                {"start": span.start, "end": span.end} | ({"label": span.label} if span.label else {})
                for span in self.spans
            ]
        return found


@dataclass(frozen=True)
class Counts:
    """How many numbers a method adds, told apart by who changes them."""

    gradient: int  # trained by the optimizer
    ema: int  # moved by a running average, such as a codebook
    stored: int  # in the cue file, without the head
    head: int  # trained numbers of the readout, reported apart as the papers do
