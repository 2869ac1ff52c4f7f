"""Answers that stand in the text: one span of it (extractive questions), or a label for every word (NER).

Both are a linear head on the encoder's states at the text's tokens, and both answer in characters of the text as it
was given. Texts longer than the backbone takes are read in windows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from softcue.backbones import Backbone, ForwardPass
from softcue.errors import BackboneError
from softcue.inputs.collate import NO_LABEL, NOWHERE
from softcue.inputs.formatter import InputFormatter
from softcue.randomness import uniform_like
from softcue.readouts.heads import make_head
from softcue.readouts.readout import Loss, Readout, ReadoutConfig
from softcue.tasks import Task
from softcue.types import Batch, Example, Prediction, Span, TokenizedRow

LONGEST_ANSWER = 30  # tokens, as in the public BERT code for SQuAD
OVERLAP = 0.5  # of two windows, so that an answer at an edge is whole in one of them
GOES_ON = "goes on"  # in place of a label, from `predict` to `merge`: the window begins inside a span
STARTS, ENDS = 1, 2  # marks of a token in training; their sum for an answer of one token


class TokenHead(Readout):
    """A linear head on every token's state."""

    def __init__(self, task: Task, config: ReadoutConfig, backbone: Backbone, num_outputs: int) -> None:
        super().__init__(task, config, backbone)
        if backbone.kind != "encoder":
            raise BackboneError(
                setting="readout.name",
                got=config.name,
                expected="an encoder, which sees a token's whole text",
                fix=f"use readout.name=generation with {backbone.name}",
            )
        self.head = make_head(config.head, backbone.hidden_width, num_outputs, 0.0, config.head_init)

    def outputs(self, forward_pass: ForwardPass) -> Tensor:
        """The head's outputs at the text's tokens. [B T C]"""
        states = forward_pass.text()  # [B T D]
        if self.training and self.config.dropout > 0:
            # The same features for all tokens of a row: noise per token would depend on how far a row is padded.
            kept = uniform_like(states[:, 0]) >= self.config.dropout  # [B D]
            states = states * kept.unsqueeze(1) / (1 - self.config.dropout)
        return self.head(states)  # type: ignore[no-any-return]


class SpanHead(TokenHead):
    """Start and end of the answer, each a softmax over the last text's tokens (Devlin et al. 2019, section 4.2).

    A window without the answer points at the row's first token; that is never predicted, but it takes likelihood
    away from windows in which the answer is not.
    """

    offset_unit = "token"

    def __init__(self, task: Task, config: ReadoutConfig, backbone: Backbone) -> None:
        super().__init__(task, config, backbone, num_outputs=2)

    def split(self, example: Example, formatter: InputFormatter) -> list[Example]:
        """Overlapping windows of the last text."""
        return formatter.windows(example, OVERLAP)

    def merge(self, example: Example, answers: Sequence[Prediction]) -> Prediction:
        """The likeliest span of all windows, with its text."""
        best = max(answers, key=lambda answer: answer.strength)
        assert best.spans is not None
        text = example.texts[-1]
        return replace(
            best, label=" ".join(text[span.start - example.offset : span.end - example.offset] for span in best.spans)
        )

    def with_target(self, tokens: TokenizedRow, example: Example) -> TokenizedRow:
        """With marks where the first answer that the row still has starts and ends."""
        assert tokens.offsets is not None
        marks = [NO_LABEL if place == NOWHERE else 0 for place in tokens.offsets]
        for span in example.spans:
            start, end = span.start + example.offset, span.end + example.offset
            inside = [index for index, place in enumerate(tokens.offsets) if place[0] < end and place[1] > start]
            # An answer that is cut off by an edge of the window would teach a wrong place.
            if inside and tokens.offsets[inside[0]][0] <= start and tokens.offsets[inside[-1]][1] >= end:
                marks[0] = 0
                marks[inside[0]] += STARTS
                marks[inside[-1]] += ENDS
                return replace(tokens, token_labels=tuple(marks))
        marks[0] = STARTS + ENDS
        return replace(tokens, token_labels=tuple(marks))

    def loss(self, forward_pass: ForwardPass, batch: Batch) -> Loss:
        """Cross-entropy of start and end, averaged."""
        marks = batch.token_labels
        assert marks is not None
        logits = self.outputs(forward_pass).masked_fill((marks == NO_LABEL).unsqueeze(2), -torch.inf)  # [B T 2]
        wanted = torch.stack([(marks == STARTS) | (marks == STARTS + ENDS), marks >= ENDS], dim=2)  # [B T 2]
        return Loss(functional.cross_entropy(logits, wanted.long().argmax(dim=1), reduction="sum") / 2, batch.size)

    def predict(self, forward_pass: ForwardPass) -> list[Prediction]:
        """The likeliest start and end, in that order and not too far apart."""
        assert forward_pass.offsets is not None
        offsets = forward_pass.offsets
        is_place = offsets[:, :, 0] >= 0  # [B T]
        is_counted = is_place.clone()
        is_counted[:, 0] = True  # what says that the answer is not here
        logits = self.outputs(forward_pass).masked_fill(~is_counted.unsqueeze(2), -torch.inf)
        scores = logits.log_softmax(dim=1).masked_fill(~is_place.unsqueeze(2), -torch.inf)  # [B T 2]
        starts, ends = scores.unbind(dim=2)  # [B T]
        best = starts.new_full((len(starts),), -torch.inf)
        where = torch.zeros(len(starts), 2, dtype=torch.long, device=starts.device)
        for length in range(min(LONGEST_ANSWER, starts.shape[1])):
            together = starts[:, : starts.shape[1] - length] + ends[:, length:]  # [B T-length]
            value, place = together.max(dim=1)
            is_better = value > best
            best = torch.where(is_better, value, best)
            where = torch.where(is_better.unsqueeze(1), torch.stack([place, place + length], dim=1), where)
        rows = torch.arange(len(starts), device=starts.device)
        spans = torch.stack([offsets[rows, where[:, 0], 0], offsets[rows, where[:, 1], 1]], dim=1)  # [B 2]
        return [
            Prediction("", spans=(Span(start, end),) if strength > -torch.inf else (), strength=strength)
            for (start, end), strength in zip(spans.tolist(), best.tolist(), strict=True)
        ]


class TagHead(TokenHead):
    """A label for every word, at its first piece: outside, or the beginning or inside of a span of some label.

    Words are what stands between spaces, as in the training rows: text with punctuation of its own set apart (as
    CoNLL's is) is marked best.
    """

    offset_unit = "word"

    def __init__(self, task: Task, config: ReadoutConfig, backbone: Backbone) -> None:
        # outside, then beginning and inside of each label
        super().__init__(task, config, backbone, num_outputs=1 + 2 * len(task.labels))

    def split(self, example: Example, formatter: InputFormatter) -> list[Example]:
        """Windows one after the other."""
        return formatter.windows(example)

    def merge(self, example: Example, answers: Sequence[Prediction]) -> Prediction:
        """The spans of all windows; their texts and labels, written as text-to-text backbones write them.

        A span that goes on from the end of one window at the start of the next is one: it was cut there.
        """
        text, spans = example.texts[-1], list(answers[0].spans or ())
        for answer in answers[1:]:
            first, *others = answer.spans or (None,)
            is_adjacent = first and spans and not text[spans[-1].end : first.start].strip()
            if first and is_adjacent and answer.label == GOES_ON and spans[-1].label == first.label:
                spans[-1] = replace(spans[-1], end=first.end)
            elif first:
                spans.append(first)
            spans += others
        return Prediction(written(self.task, example, spans), spans=tuple(spans))

    def with_target(self, tokens: TokenizedRow, example: Example) -> TokenizedRow:
        """With the number of the label at every word."""
        assert tokens.offsets is not None
        names = self.task.label_names
        marks = []
        for place in tokens.offsets:
            start, end = place[0] - example.offset, place[1] - example.offset
            around = [span for span in example.spans if span.start < end and span.end > start]
            if place == NOWHERE:
                marks.append(NO_LABEL)
            elif not around:
                marks.append(0)
            else:
                marks.append(1 + 2 * names.index(around[0].label) + (around[0].start < start))
        return replace(tokens, token_labels=tuple(marks))

    def num_losses(self, rows: Sequence[TokenizedRow]) -> float:
        """Words."""
        return sum(mark != NO_LABEL for row in rows for mark in row.token_labels or ())

    def loss(self, forward_pass: ForwardPass, batch: Batch) -> Loss:
        """Cross-entropy at every word."""
        marks = batch.token_labels
        assert marks is not None
        logits = self.outputs(forward_pass)  # [B T C]
        total = functional.cross_entropy(logits.flatten(0, 1), marks.flatten(), reduction="sum", ignore_index=NO_LABEL)
        return Loss(total, float((marks != NO_LABEL).sum()))

    def predict(self, forward_pass: ForwardPass) -> list[Prediction]:
        """The spans of each row."""
        assert forward_pass.offsets is not None
        marks = self.outputs(forward_pass).argmax(dim=2).tolist()  # [B T]
        found = []
        for row, places in zip(marks, forward_pass.offsets.tolist(), strict=True):
            first = next((mark for mark, (start, _) in zip(row, places, strict=True) if start >= 0), 0)
            is_inside = first > 0 and first % 2 == 0
            found.append(Prediction(GOES_ON if is_inside else "", spans=self._spans(row, places)))
        return found

    def _spans(self, marks: Sequence[int], places: Sequence[Sequence[int]]) -> tuple[Span, ...]:
        """Runs of one label; an inside without its beginning begins a span, as in CoNLL's own scorer."""
        found: list[Span] = []
        goes_on = False
        for mark, (start, end) in zip(marks, places, strict=True):
            if start < 0:
                continue
            if mark == 0:
                goes_on = False
                continue
            number, is_inside = divmod(mark - 1, 2)
            label = self.task.label_names[number]
            if is_inside and goes_on and found[-1].label == label:
                found[-1] = replace(found[-1], end=end)
            else:
                found.append(Span(start, end, label))
            goes_on = True
        return tuple(found)


def written(task: Task, example: Example, spans: Sequence[Span]) -> str:
    """Marked spans as one text, `entity ! label words ; ...` (Qin and Joty 2022); `end` where there is none.

    Example:
        >>> from softcue.tasks import Label
        >>> task = Task(name="ner", kind="tags", labels={"LOC": Label(words="location")})
        >>> written(task, Example(("Rain in Oslo",)), [Span(8, 12, "LOC")])
        'Oslo ! location'
    """
    text = example.texts[-1]
    pieces = [
        f"{text[span.start - example.offset : span.end - example.offset]} ! {task.labels[span.label].words}"
        for span in spans
    ]
    return " ; ".join(pieces) or "end"


def located(task: Task, example: Example, answer: str) -> tuple[tuple[Span, ...], bool]:
    """The spans that a written answer names, each at its first place not yet taken, and whether all of it is usable.

    Example:
        >>> from softcue.tasks import Label
        >>> task = Task(name="ner", kind="tags", labels={"LOC": Label(words="location")})
        >>> located(task, Example(("Rain in Oslo",)), "Oslo ! location ; Rome ! location")
        ((Span(start=8, end=12, label='LOC'),), False)
    """
    text = example.texts[-1]
    names = {label.words: name for name, label in task.labels.items()}
    found: list[Span] = []
    is_usable = True
    for piece in () if answer.strip() in ("end", "") else answer.split(";"):
        entity, _, words = (part.strip() for part in piece.rpartition("!"))
        place = place_of(text, entity, found) if words in names else None
        if place is None or not _is_whole(text, place):
            is_usable = False
        else:
            found.append(replace(place, label=names[words]))
    shifted = (replace(span, start=span.start + example.offset, end=span.end + example.offset) for span in found)
    return tuple(sorted(shifted)), is_usable and bool(answer.strip())


def place_of(text: str, answer: str, taken: Sequence[Span] = ()) -> Span | None:
    """Where an answer stands outside what is taken: as whole words if it does, its spaces as the text has them.

    Example:
        >>> place_of("The party had  art.", "art"), place_of("had  art", "had art"), place_of("a party", "art")
        (Span(start=15, end=18, label=''), Span(start=0, end=8, label=''), Span(start=3, end=6, label=''))
    """
    words = r"\s+".join(map(re.escape, answer.split()))
    for pattern in (rf"(?<!\w){words}(?!\w)", words) if words else ():
        for found in re.finditer(pattern, text):
            if not any(span.start < found.end() and span.end > found.start() for span in taken):
                return Span(*found.span())
    return None


def _is_whole(text: str, place: Span) -> bool:
    """Whether a place holds whole words."""
    return re.search(r"\w\Z", text[: place.start]) is None and re.match(r"\w", text[place.end :]) is None
