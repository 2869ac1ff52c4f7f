"""The records that travel between packages, and the shape letters. No logic lives here.

Shape letters, the same everywhere:
    B batch · T text tokens · P prompt length · U target tokens · S laid-out length · D width
    L layers · V vocabulary · C classes or candidates · K codes, or width of keys · R width of a sentence vector
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

BackboneKind = Literal["encoder", "encoder-decoder", "decoder"]
LabelValue = str | bool | int | float  # a label as the user's table holds it; inside softcue it is text
# The target of a row for a head: class number, score or probability; of a set of labels, 1 for each label it has.
RowLabel = int | float | tuple[float, ...]
ConstantPrediction = str | float | tuple[str, ...] | None  # the label, number or set of labels that all rows get
NO_LABELS = "(none)"  # how people read an empty set of labels


@dataclass(frozen=True, order=True)
class Span:
    """A character span of a text, from `start` to `end` (exclusive); `label` is its class where spans have classes."""

    start: int
    end: int
    label: str = ""


@dataclass(frozen=True)
class Example:
    """One row of a task before tokenization: the texts to read and, where it is given, the target.

    Most tasks need only texts and target. The other fields serve extractive tasks, targets with several correct
    texts, and rows that are scored together.
    """

    texts: tuple[str, ...]
    target: str | float | None = None
    answers: tuple[str, ...] = ()  # all correct texts, for tasks with several of them (SQuAD)
    spans: tuple[Span, ...] = ()  # in the last text: the answers (SQuAD) or the entities (NER)
    group: str = ""  # rows of one group are scored together (the answers to one question of MultiRC)
    options: tuple[str, ...] = ()  # the only texts a prediction may be (the entities of ReCoRD)
    offset: int = 0  # first character of the last text in the full text, if it is a window
    labels: tuple[str, ...] = ()  # of a multi-label task: the set of labels, in the task's order
    weight: float = field(default=1.0, repr=False)  # of its loss in training, above 0; 2 counts as two equal rows


@dataclass(frozen=True)
class TokenizedRow:
    """One row after tokenization, before batching."""

    ids: tuple[int, ...]
    segments: tuple[int, ...] | None
    insert_at: int  # index into `ids` before which the prompt goes, or the first part of it
    target_ids: tuple[int, ...] = ()
    label: RowLabel | None = None
    is_truncated: bool = False
    parts: tuple[int, ...] | None = None  # per token: 0 first text, 1 second text, -1 neither
    offsets: tuple[tuple[int, int], ...] | None = None  # per token: its character span in the last text, or (-1, -1)
    token_labels: tuple[int, ...] | None = None  # per token, for readouts that label tokens; -100: no label
    representation: Tensor | None = field(default=None, compare=False)  # [R] sentence vector M(x), if it is read
    plain: TokenizedRow | None = None  # the input of M(x), where each step computes it again
    places: tuple[int, ...] | None = None  # of a prompt in several parts: the `insert_at` of each prompt vector
    weight: float = 1.0  # of its loss in training


@dataclass(frozen=True)
class Batch:
    """Rows of one task as tensors, padded to the longest row."""

    ids: Tensor  # [B T] long
    mask: Tensor  # [B T] bool, source tokens only
    segments: Tensor | None  # [B T] long, for backbones that tell two sentences apart
    insert_at: Tensor  # [B] long, index into the tokens of the row, without padding
    target_ids: Tensor  # [B U] long, U may be 0
    target_mask: Tensor  # [B U] bool
    labels: Tensor | None = None  # [B] long (class) or float (score); [B C] float (1 for each label of a set)
    parts: Tensor | None = None  # [B T] 0 first text, 1 second text, -1 neither; for rows with two texts
    offsets: Tensor | None = None  # [B T 2] character span of a token in the last text, -1 if none
    token_labels: Tensor | None = None  # [B T] -100 where a token has no label
    representation: Tensor | None = None  # [B R] sentence vectors M(x), if all rows have one
    plain: Batch | None = None  # the input of M(x), where each step computes it again
    places: Tensor | None = None  # [B P] the `insert_at` of each prompt vector, if a row has a prompt in several parts
    host: Batch | None = None  # the same rows where they were made, if they were sent to another device

    @property
    def on_host(self) -> Batch:
        """The rows where they were made: the host reads lengths and places there without waiting for a device."""
        return self if self.host is None else self.host

    @property
    def size(self) -> int:
        """Number of rows."""
        return self.ids.shape[0]

    def rows(self, index: Tensor | slice) -> Batch:
        """The rows at these indices; a slice copies nothing."""
        tensors = {name: value[index] for name, value in self._tensors().items()}
        plain = None if self.plain is None else self.plain.rows(index)
        host = None if self.host is None else self.host.rows(_index_on(index, self.host.ids.device))
        return replace(self, plain=plain, host=host, **tensors)

    def to(self, device: torch.device) -> Batch:
        """The batch on another device, without waiting for it."""
        if self.ids.device == device:
            return self
        from softcue.devices import send  # imports torch, which a list of tasks does not need

        moved = {name: send(value, device) for name, value in self._tensors().items()}
        return replace(self, plain=None if self.plain is None else self.plain.to(device), host=self.on_host, **moved)

    def _tensors(self) -> dict[str, Tensor]:
        values = {name: value for name, value in vars(self).items() if name not in ("plain", "host")}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Instance:
    """The part of a batch that a prompt encoder may read. It never holds the target."""

    embeds: Tensor  # [B T D] frozen word embeddings of the source text
    mask: Tensor  # [B T]   source tokens only
    representation: Tensor | None = None  # [B R]   sentence vectors M(x), only for encoders that read them


class WordVectors(Protocol):
    """A table of word vectors, indexed by word id."""

    def __len__(self) -> int:
        """The number of words, V."""
        ...

    def __getitem__(self, ids: Tensor) -> Tensor:
        """The vectors of these ids: [n] -> [n D]."""
        ...


@dataclass(frozen=True)
class LayerPrompt:
    """The values one layer takes at the prompt's positions, or beside them. A field that is None changes nothing."""

    states: Tensor | None = None  # [B P D] for the input states of the layer
    adds: Tensor | None = None  # [B] bool: rows where `states` are added; in other rows they replace. None: add in all
    keys: Tensor | None = None  # [B P K] replace the output of the key projection
    values: Tensor | None = None  # [B P K] replace the output of the value projection
    sets: Tensor | None = None  # [B] bool: rows that take `keys` and `values`; None: all
    joined: Tensor | None = None  # [B P] bool: `keys` and `values` that join the layer's own, without positions
    parallel_keys: Tensor | None = None  # [B P Q] of an attention beside the layer's, whose output is added to it
    parallel_values: Tensor | None = None  # [B P Q]
    parallel_mask: Tensor | None = None  # [B P] bool; None: all vectors of all rows

    def rows(self, index: Tensor | slice) -> LayerPrompt:
        """The prompt of some of the rows."""
        tensors = {name: value for name, value in vars(self).items() if value is not None}
        return LayerPrompt(**{name: value[_index_on(index, value.device)] for name, value in tensors.items()})

    def on(self, device: torch.device) -> LayerPrompt:
        """The prompt on a device: that of its layer."""
        if all(value is None or value.device == device for value in vars(self).values()):
            return self
        return LayerPrompt(**{name: None if value is None else value.to(device) for name, value in vars(self).items()})

    @property
    def lasting_part(self) -> LayerPrompt | None:
        """The part without positions, if there is one: attended to beside the text, or joined to the layer's keys.

        No cache holds it, so it acts in decoding steps too.
        """
        names = ["parallel_keys", "parallel_values", "parallel_mask"]
        if self.joined is not None:
            names += ["keys", "values", "joined"]
        part = LayerPrompt(**{name: getattr(self, name) for name in names})
        return None if part.joined is None and part.parallel_keys is None else part


# (layer, hidden [B T D], mask [B T]) -> the prompt of that layer; `hidden` are the input states of the source text
LayerPrompts = Callable[[int, "Tensor", "Tensor"], LayerPrompt | None]


@dataclass(frozen=True)
class Prompt:
    """The output of a prompt encoder. The injection needs nothing else of a method."""

    tokens: Tensor  # [B P D]
    mask: Tensor  # [B P]   lets prompts of different lengths share a batch
    aux_loss: Tensor  # []      commitment, ...: mean over rows
    layer_prompts: LayerPrompts | None = None  # called once per layer, from the first to the last
    statistics: Mapping[str, Tensor] = field(default_factory=dict)  # in training: sums over rows for `update_state`
    compared: Tensor | None = None  # [B ...] in training: the vectors that `batch_loss` compares between rows
    shared_by: nn.Module | None = None  # the encoder, if all rows have the same prompt and layer prompts
    parts: tuple[tuple[Tensor, Prompt], ...] = ()  # in a batch of several cues: rows [b] and prompt of each cue
    is_parallel: bool = False  # some rows attend to the prompt beside the text, at every position and in every step
    needs_positions: bool = True  # False: it is keys and values of every layer, and nothing reads its own states
    reads_states: bool = False  # `layer_prompts` reads the states it is given, and not only how many rows they have
    is_full: bool = False  # every row has all P vectors, so nobody needs to read the mask


def _index_on(index: Tensor | slice, device: torch.device) -> Tensor | slice:
    """Indices on the device of what they are taken from."""
    return index if isinstance(index, slice) else index.to(device)


def label_text(label: LabelValue) -> str:
    """A label as text: its name inside softcue, in csv cells and in the keys of JSON objects.

    Example:
        >>> [label_text(label) for label in ("billing", 3, True, 1.0, 0.5)]
        ['billing', '3', 'true', '1', '0.5']
    """
    if isinstance(label, str):
        return label
    if isinstance(label, bool):
        return str(label).lower()
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def labels_text(labels: Iterable[LabelValue]) -> str:
    """A set of labels as people read it.

    Example:
        >>> labels_text(["billing", "shipping"]), labels_text([])
        ('billing, shipping', '(none)')
    """
    return ", ".join(map(label_text, labels)) or NO_LABELS


@dataclass(frozen=True, repr=False)
class Prediction:
    """The prediction for one row. Fields that do not fit the kind of task are None.

    `label` is the class, in the type of the training labels, or the generated text. `scores` has a probability per
    label. `value` is the number of a regression. `spans` are places in the text. It prints only what it has.

    A multi-label prediction has `labels`, the tuple of chosen labels, which may be empty. `scores` then has the
    probability of each label by itself: they do not sum to 1. It has no single label, so `label` and `score` are None.

    Example:
        >>> prediction = Prediction("billing", scores={"billing": 0.93, "hardware": 0.07})
        >>> prediction
        Prediction('billing', 0.93)
        >>> prediction.label, prediction.scores["hardware"]
        ('billing', 0.07)
        >>> Prediction(None, value=3.2)
        Prediction(value=3.2)
        >>> Prediction("Ada Lovelace", spans=(Span(4, 16),))
        Prediction('Ada Lovelace', spans=[(4, 16)])
        >>> Prediction(None, scores={"billing": 0.93, "shipping": 0.71, "account": 0.2}, labels=("billing", "shipping"))
        Prediction(labels=['billing', 'shipping'])
    """

    label: LabelValue | None
    value: float | None = None
    scores: Mapping[Any, float] | None = None  # label -> probability, if the readout has them
    spans: tuple[Span, ...] | None = None  # in the full last text, for extractive tasks
    strength: float = 0.0  # log-likelihood of a span, to compare the windows of one text
    is_illegal: bool = False  # generated text that is no label, no number or no span of the text
    labels: tuple[LabelValue, ...] | None = None  # of a multi-label task: those whose score reaches the threshold
    threshold: float = 0.5  # of these scores; an ensemble needs it

    def __repr__(self) -> str:
        """The fields that are set: label and its score, labels, value, spans, and whether it is illegal."""
        parts = [] if self.label is None else [repr(self.label)]
        if self.labels is not None:
            parts.append(f"labels={list(self.labels)}")
        if self.score is not None:
            parts.append(f"{self.score:.2f}")
        if self.value is not None:
            parts.append(f"value={self.value:.4g}")
        if self.spans is not None:
            places = [
                (span.start, span.end, span.label) if span.label else (span.start, span.end) for span in self.spans
            ]
            parts.append(f"spans={places}")
        if self.is_illegal:
            parts.append("is_illegal=True")
        return f"Prediction({', '.join(parts)})"

    @property
    def score(self) -> float | None:
        """The probability of the label; None if the readout gives no probabilities, or chooses a set of labels.

        Example:
            >>> Prediction("billing", scores={"billing": 0.9, "shipping": 0.1}).score
            0.9
        """
        return None if self.scores is None or self.label is None else self.scores.get(self.label)

    @property
    def margin(self) -> float | None:
        """How far the scores are from another answer: the distance of the best two, or of any from the threshold.

        None if the readout gives no probabilities.

        Example:
            >>> Prediction("billing", scores={"billing": 0.75, "shipping": 0.25}).margin
            0.5
        """
        if not self.scores:
            return None
        if self.labels is not None:
            return min(abs(score - self.threshold) for score in self.scores.values())
        best, *others = sorted(self.scores.values(), reverse=True)
        return best - others[0] if others else best

    @property
    def label_text(self) -> str | None:
        """The label as text, whatever its type; None if there is none.

        Example:
            >>> Prediction(True).label_text
            'true'
        """
        return None if self.label is None else label_text(self.label)

    def as_dict(self) -> dict[str, object]:
        """The fields that are set, for JSON: the label has its type, the keys of `scores` are text.

        Example:
            >>> Prediction("billing", scores={"billing": 1.0}).as_dict()
            {'label': 'billing', 'scores': {'billing': 1.0}}
            >>> Prediction(1, scores={0: 0.25, 1: 0.75}).as_dict()
            {'label': 1, 'scores': {'0': 0.25, '1': 0.75}}
            >>> Prediction(None, labels=(1, 3)).as_dict()
            {'labels': [1, 3]}
        """
        fields: dict[str, object] = {}
        if self.label is not None:
            fields["label"] = self.label
        if self.labels is not None:
            fields["labels"] = list(self.labels)
        if self.value is not None:
            fields["value"] = self.value
        if self.scores is not None:
            fields["scores"] = {label_text(label): score for label, score in self.scores.items()}
        if self.is_illegal:
            fields["illegal"] = True
        if self.spans is not None:
            fields["spans"] = [
                {"start": span.start, "end": span.end} | ({"label": span.label} if span.label else {})
                for span in self.spans
            ]
        return fields


@dataclass(frozen=True)
class Counts:
    """The number of parameters that a method adds, by the way they are trained."""

    gradient: int  # trainable parameters, without the head
    ema: int  # updated by a running average, such as a codebook
    stored: int  # parameters in the cue file, without the head
    head: int  # trainable parameters of the readout, reported separately as in the papers
