"""Answers that stand in the text: one span of it (extractive questions), or a label for every word (NER).

Both are a linear head on the encoder's states at the text's tokens, and both answer in characters of the text as it
was given. Texts longer than the backbone takes are read in windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from softcue.backbones import Backbone, Reading
from softcue.draws import drawn_like
from softcue.errors import BackboneError
from softcue.readouts.heads import make_head
from softcue.readouts.readout import Loss, Readout, ReadoutConfig
from softcue.tasks import Task
from softcue.tokens import NO_LABEL, NOWHERE, Wording
from softcue.types import Batch, Example, Prediction, Span, Tokens

LONGEST_ANSWER = 30  # tokens, as in the public BERT code for SQuAD
OVERLAP = 0.5  # of two windows, so that an answer at an edge is whole in one of them
STARTS, ENDS = 1, 2  # marks of a token in training; their sum for an answer of one token


class TokenHead(Readout):
    """A linear head on every token's state."""

    def __init__(self, task: Task, config: ReadoutConfig, backbone: Backbone, num_outputs: int) -> None:
        super().__init__(task, config, backbone)
        if backbone.kind != "encoder":
            raise BackboneError("readout.name", config.name, "an encoder, which sees a token's whole text",
                                f"use readout.name=generation with {backbone.name}")  # fmt: skip
        self.head = make_head(config.head, backbone.hidden_width, num_outputs, 0.0, config.head_init)

    def outputs(self, reading: Reading) -> Tensor:
        """The head's outputs at the text's tokens. [B T C]"""
        states = reading.text()  # [B T D]
        if self.training and self.config.dropout > 0:
            # The same features for all tokens of a row: noise per token would depend on how far a row is padded.
            kept = drawn_like(states[:, 0]) >= self.config.dropout  # [B D]
            states = states * kept.unsqueeze(1) / (1 - self.config.dropout)
        return self.head(states)  # type: ignore[no-any-return]


class SpanHead(TokenHead):
    """Start and end of the answer, each a softmax over the last text's tokens (Devlin et al. 2019, section 4.2).

    A window without the answer points at the row's first token; that is never predicted, but it takes likelihood
    away from windows in which the answer is not.
    """

    places = "pieces"

    def __init__(self, task: Task, config: ReadoutConfig, backbone: Backbone) -> None:
        super().__init__(task, config, backbone, num_outputs=2)

    def unfold(self, example: Example, wording: Wording) -> list[Example]:
        """Overlapping windows of the last text."""
        return wording.windows(example, OVERLAP)

    def fold(self, example: Example, answers: Sequence[Prediction]) -> Prediction:
        """The likeliest span of all windows, with its text."""
        best = max(answers, key=lambda answer: answer.strength)
        assert best.spans is not None
        text = example.texts[-1]
        return replace(best, label=" ".join(text[span.start - example.offset : span.end - example.offset]
                                            for span in best.spans))  # fmt: skip

    def answered(self, tokens: Tokens, example: Example) -> Tokens:
        """With marks where the first answer that the row still has starts and ends."""
        assert tokens.offsets is not None
        marks = [NO_LABEL if place == NOWHERE else 0 for place in tokens.offsets]
        for span in example.spans:
            start, end = span.start + example.offset, span.end + example.offset
            inside = [index for index, place in enumerate(tokens.offsets) if place[0] < end and place[1] > start]
            # An answer that was cut off with the end of its text would teach a wrong end.
            if inside and tokens.offsets[inside[-1]][1] >= end:
                marks[0] = 0
                marks[inside[0]] += STARTS
                marks[inside[-1]] += ENDS
                return replace(tokens, token_labels=tuple(marks))
        marks[0] = STARTS + ENDS
        return replace(tokens, token_labels=tuple(marks))

    def loss(self, reading: Reading, batch: Batch) -> Loss:
        """Cross-entropy of start and end, averaged."""
        marks = batch.token_labels
        assert marks is not None
        logits = self.outputs(reading).masked_fill((marks == NO_LABEL).unsqueeze(2), -torch.inf)  # [B T 2]
        wanted = torch.stack([(marks == STARTS) | (marks == STARTS + ENDS), marks >= ENDS], dim=2)  # [B T 2]
        return Loss(functional.cross_entropy(logits, wanted.long().argmax(dim=1), reduction="sum") / 2, batch.size)

    def predict(self, reading: Reading) -> list[Prediction]:
        """The likeliest start and end, in that order and not too far apart."""
        assert reading.offsets is not None
        offsets = reading.offsets
        is_place = offsets[:, :, 0] >= 0  # [B T]
        is_counted = is_place.clone()
        is_counted[:, 0] = True  # what says that the answer is not here
        logits = self.outputs(reading).masked_fill(~is_counted.unsqueeze(2), -torch.inf)
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

    places = "words"

    def __init__(self, task: Task, config: ReadoutConfig, backbone: Backbone) -> None:
        # outside, then beginning and inside of each label
        super().__init__(task, config, backbone, num_outputs=1 + 2 * len(task.labels))

    def unfold(self, example: Example, wording: Wording) -> list[Example]:
        """Windows one after the other."""
        return wording.windows(example)

    def fold(self, example: Example, answers: Sequence[Prediction]) -> Prediction:
        """The spans of all windows; their texts and labels, written as text-to-text backbones write them."""
        spans = tuple(span for answer in answers for span in answer.spans or ())
        return Prediction(written(self.task, example, spans), spans=spans)

    def answered(self, tokens: Tokens, example: Example) -> Tokens:
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

    def num_losses(self, rows: Sequence[Tokens]) -> float:
        """Words."""
        return sum(mark != NO_LABEL for row in rows for mark in row.token_labels or ())

    def loss(self, reading: Reading, batch: Batch) -> Loss:
        """Cross-entropy at every word."""
        marks = batch.token_labels
        assert marks is not None
        logits = self.outputs(reading)  # [B T C]
        total = functional.cross_entropy(logits.flatten(0, 1), marks.flatten(), reduction="sum", ignore_index=NO_LABEL)
        return Loss(total, float((marks != NO_LABEL).sum()))

    def predict(self, reading: Reading) -> list[Prediction]:
        """The spans of each row."""
        assert reading.offsets is not None
        marks = self.outputs(reading).argmax(dim=2).tolist()  # [B T]
        return [
            Prediction("", spans=self._spans(row, places))
            for row, places in zip(marks, reading.offsets.tolist(), strict=True)
        ]

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
    pieces = [f"{text[span.start - example.offset : span.end - example.offset]} ! {task.labels[span.label].words}"
              for span in spans]  # fmt: skip
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
        start = _free_place(text, entity, found) if entity and words in names else -1
        if start < 0:
            is_usable = False
        else:
            found.append(Span(start, start + len(entity), names[words]))
    shifted = (replace(span, start=span.start + example.offset, end=span.end + example.offset) for span in found)
    return tuple(sorted(shifted)), is_usable and bool(answer.strip())


def _free_place(text: str, entity: str, taken: Sequence[Span]) -> int:
    """Where an entity stands as whole words outside the spans taken; -1 if nowhere."""
    start = text.find(entity)
    while start >= 0:
        end = start + len(entity)
        is_whole = (start == 0 or not text[start - 1].isalnum()) and (end == len(text) or not text[end].isalnum())
        if is_whole and not any(span.start < end and span.end > start for span in taken):
            return start
        start = text.find(entity, start + 1)
    return -1
