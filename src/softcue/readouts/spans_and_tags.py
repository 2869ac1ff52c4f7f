"""Predictions inside the text: one span of it (extractive questions), or a label for every word (NER).

Both are a linear head on the encoder's hidden states of the text's tokens, and both predict character spans of the
original text. A text that is too long for the backbone is split into windows.
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
from softcue.inputs.collate import NO_LABEL, NO_SPAN
from softcue.inputs.formatter import InputFormatter, pad_punctuation
from softcue.randomness import uniform_like
from softcue.readouts.heads import make_head
from softcue.readouts.readout import Readout, ReadoutConfig
from softcue.tasks import Task
from softcue.types import Batch, Example, Prediction, Span, TokenizedRow

LONGEST_ANSWER = 30  # tokens, as in the public BERT code for SQuAD
OVERLAP = 0.5  # share of a window: an answer at the edge of one window is complete in the next
CONTINUES = "continues"  # instead of a label, from `predict` to `merge`: the window begins inside a span
START, END = 1, 2  # token labels in training; their sum for an answer of one token


class TokenHead(Readout):
    """A linear head on the hidden state of every token."""

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
        """Return the head's outputs at the text's tokens. [B T C]"""
        states = forward_pass.text()  # [B T D]
        if self.training and self.config.dropout > 0:
            # One draw per row, for all its tokens: noise per token would depend on the padding.
            kept = uniform_like(states[:, 0]) >= self.config.dropout  # [B D]
            states = states * kept.unsqueeze(1) / (1 - self.config.dropout)
        return self.head(states)  # type: ignore[no-any-return]


class SpanHead(TokenHead):
    """Start and end of the answer, each a softmax over the last text's tokens (Devlin et al. 2019, section 4.2).

    In a window without the answer, start and end are the row's first token. It is never predicted, but it lowers the
    scores of spans in such windows.
    """

    offset_unit = "token"

    def __init__(self, task: Task, config: ReadoutConfig, backbone: Backbone) -> None:
        super().__init__(task, config, backbone, num_outputs=2)

    def split(self, example: Example, formatter: InputFormatter) -> list[Example]:
        """Return overlapping windows of the last text."""
        return formatter.windows(example, OVERLAP)

    def merge(self, example: Example, predictions: Sequence[Prediction]) -> Prediction:
        """Return the likeliest span of all windows, with its text."""
        best = max(predictions, key=lambda prediction: prediction.strength)
        assert best.spans is not None
        text = example.texts[-1]
        return replace(
            best, label=" ".join(text[span.start - example.offset : span.end - example.offset] for span in best.spans)
        )

    def with_target(self, row: TokenizedRow, example: Example) -> TokenizedRow:
        """Add token labels at start and end of the first answer that is complete in the row."""
        assert row.offsets is not None
        token_labels = [NO_LABEL if characters == NO_SPAN else 0 for characters in row.offsets]
        for span in example.spans:
            start, end = span.start + example.offset, span.end + example.offset
            inside = [index for index, (first, last) in enumerate(row.offsets) if first < end and last > start]
            # An answer that is cut off at the edge of the window is no target.
            if inside and row.offsets[inside[0]][0] <= start and row.offsets[inside[-1]][1] >= end:
                token_labels[0] = 0
                token_labels[inside[0]] += START
                token_labels[inside[-1]] += END
                return replace(row, token_labels=tuple(token_labels))
        token_labels[0] = START + END
        return replace(row, token_labels=tuple(token_labels))

    def losses(self, forward_pass: ForwardPass, batch: Batch) -> Tensor:
        """Return the means of the cross-entropies of start and end. [B]"""
        labels = batch.token_labels
        assert labels is not None
        logits = self.outputs(forward_pass).masked_fill((labels == NO_LABEL).unsqueeze(2), -torch.inf)  # [B T 2]
        is_target = torch.stack([(labels == START) | (labels == START + END), labels >= END], dim=2)  # [B T 2]
        return functional.cross_entropy(logits, is_target.long().argmax(dim=1), reduction="none").sum(dim=1) / 2

    def predict(self, forward_pass: ForwardPass) -> list[Prediction]:
        """Predict the likeliest pair of start and end: the end is not before the start, nor too far behind it."""
        assert forward_pass.offsets is not None
        offsets = forward_pass.offsets
        is_text = offsets[:, :, 0] >= 0  # [B T]
        is_candidate = is_text.clone()
        is_candidate[:, 0] = True  # the first token: no answer in this window
        logits = self.outputs(forward_pass).masked_fill(~is_candidate.unsqueeze(2), -torch.inf)
        scores = logits.log_softmax(dim=1).masked_fill(~is_text.unsqueeze(2), -torch.inf)  # [B T 2]
        starts, ends = scores.unbind(dim=2)  # [B T]
        best = starts.new_full((len(starts),), -torch.inf)
        best_tokens = torch.zeros(len(starts), 2, dtype=torch.long, device=starts.device)
        for length in range(min(LONGEST_ANSWER, starts.shape[1])):
            sums = starts[:, : starts.shape[1] - length] + ends[:, length:]  # [B T-length]
            score, start = sums.max(dim=1)
            is_better = score > best
            best = torch.where(is_better, score, best)
            tokens = torch.stack([start, start + length], dim=1)  # [B 2]
            best_tokens = torch.where(is_better.unsqueeze(1), tokens, best_tokens)
        rows = torch.arange(len(starts), device=starts.device)
        spans = torch.stack([offsets[rows, best_tokens[:, 0], 0], offsets[rows, best_tokens[:, 1], 1]], dim=1)  # [B 2]
        return [
            Prediction("", spans=(Span(start, end),) if strength > -torch.inf else (), strength=strength)
            for (start, end), strength in zip(spans.tolist(), best.tolist(), strict=True)
        ]


class TagHead(TokenHead):
    """A label for every word, at its first token: outside, or the beginning or inside of a span of a label.

    Words are separated by spaces, as in the training rows. Text whose punctuation is set apart, like CoNLL's, works
    best.
    """

    offset_unit = "word"

    def __init__(self, task: Task, config: ReadoutConfig, backbone: Backbone) -> None:
        # outside, then beginning and inside of each label
        super().__init__(task, config, backbone, num_outputs=1 + 2 * len(task.labels))

    def split(self, example: Example, formatter: InputFormatter) -> list[Example]:
        """Return windows of the last text that do not overlap."""
        return formatter.windows(example)

    def merge(self, example: Example, predictions: Sequence[Prediction]) -> Prediction:
        """Return the spans of all windows, and as label the text that a text-to-text backbone generates for them.

        A span that ends with one window and continues at the start of the next is one span.
        """
        text, spans = example.texts[-1], list(predictions[0].spans or ())
        for prediction in predictions[1:]:
            first, *others = prediction.spans or (None,)
            is_adjacent = first and spans and not text[spans[-1].end : first.start].strip()
            if first and is_adjacent and prediction.label == CONTINUES and spans[-1].label == first.label:
                spans[-1] = replace(spans[-1], end=first.end)
            elif first:
                spans.append(first)
            spans += others
        return Prediction(spans_as_text(self.task, example, spans), spans=tuple(spans))

    def with_target(self, row: TokenizedRow, example: Example) -> TokenizedRow:
        """Add the index of the label at every word."""
        assert row.offsets is not None
        names = self.task.label_names
        token_labels = []
        for characters in row.offsets:
            start, end = characters[0] - example.offset, characters[1] - example.offset
            spans = [span for span in example.spans if span.start < end and span.end > start]
            if characters == NO_SPAN:
                token_labels.append(NO_LABEL)
            elif not spans:
                token_labels.append(0)
            else:
                token_labels.append(1 + 2 * names.index(spans[0].label) + (spans[0].start < start))
        return replace(row, token_labels=tuple(token_labels))

    def num_losses(self, rows: Sequence[TokenizedRow]) -> float:
        """Return the number of words."""
        return sum(label != NO_LABEL for row in rows for label in row.token_labels or ())

    def losses(self, forward_pass: ForwardPass, batch: Batch) -> Tensor:
        """Return the sums of the cross-entropies at every word. [B]"""
        labels = batch.token_labels
        assert labels is not None
        logits = self.outputs(forward_pass)  # [B T C]
        losses = functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=NO_LABEL
        )  # [B*T]
        return losses.view(labels.shape).sum(dim=1)

    def predict(self, forward_pass: ForwardPass) -> list[Prediction]:
        """Predict the spans of each row."""
        assert forward_pass.offsets is not None
        labels = self.outputs(forward_pass).argmax(dim=2).tolist()  # [B T]
        predictions = []
        for row_labels, offsets in zip(labels, forward_pass.offsets.tolist(), strict=True):
            first = next((label for label, (start, _) in zip(row_labels, offsets, strict=True) if start >= 0), 0)
            is_inside = first > 0 and first % 2 == 0
            predictions.append(Prediction(CONTINUES if is_inside else "", spans=self._spans(row_labels, offsets)))
        return predictions

    def _spans(self, token_labels: Sequence[int], offsets: Sequence[Sequence[int]]) -> tuple[Span, ...]:
        """Return runs of one label. An inside without a beginning starts a span, as in CoNLL's own scorer."""
        spans: list[Span] = []
        is_in_span = False
        for token_label, (start, end) in zip(token_labels, offsets, strict=True):
            if start < 0:
                continue
            if token_label == 0:
                is_in_span = False
                continue
            label_index, is_inside = divmod(token_label - 1, 2)
            label = self.task.label_names[label_index]
            if is_inside and is_in_span and spans[-1].label == label:
                spans[-1] = replace(spans[-1], end=end)
            else:
                spans.append(Span(start, end, label))
            is_in_span = True
        return tuple(spans)


def spans_as_text(task: Task, example: Example, spans: Sequence[Span]) -> str:
    """Return labelled spans as one text, `entity ! label words ; ...` (Qin and Joty 2022), or `end` for none.

    Example:
        >>> from softcue.tasks import Label
        >>> task = Task(name="ner", kind="tags", labels={"LOC": Label(words="location")})
        >>> spans_as_text(task, Example(("Rain in Oslo",)), [Span(8, 12, "LOC")])
        'Oslo ! location'
    """
    text = example.texts[-1]
    entities = [
        f"{text[span.start - example.offset : span.end - example.offset]} ! {task.labels[span.label].words}"
        for span in spans
    ]
    return " ; ".join(entities) or "end"


def parse_spans(task: Task, example: Example, generated: str) -> tuple[tuple[Span, ...], bool]:
    """Return the spans that a generated text names, and whether the whole text could be used.

    An entity is looked up in the input, at its first occurrence outside the other spans.

    Example:
        >>> from softcue.tasks import Label
        >>> task = Task(name="ner", kind="tags", labels={"LOC": Label(words="location")})
        >>> parse_spans(task, Example(("Rain in Oslo",)), "Oslo ! location ; Rome ! location")
        ((Span(start=8, end=12, label='LOC'),), False)
    """
    text = example.texts[-1]
    names = {label.words: name for name, label in task.labels.items()}
    spans: list[Span] = []
    is_legal = True
    for item in () if generated.strip() in ("end", "") else generated.split(";"):
        entity, _, words = (part.strip() for part in item.rpartition("!"))
        span = find_answer(text, entity, spans) if words in names else None
        if span is None or not _is_whole_words(text, span):
            is_legal = False
        else:
            spans.append(replace(span, label=names[words]))
    shifted = (replace(span, start=span.start + example.offset, end=span.end + example.offset) for span in spans)
    return tuple(sorted(shifted)), is_legal and bool(generated.strip())


def find_answer(text: str, answer: str, occupied: Sequence[Span] = ()) -> Span | None:
    """Return the first occurrence of an answer outside the occupied spans; whole words are preferred.

    Any white space in the text matches a space of the answer.

    Example:
        >>> find_answer("The party had  art.", "art"), find_answer("had  art", "had art"), find_answer("a party", "art")
        (Span(start=15, end=18, label=''), Span(start=0, end=8, label=''), Span(start=3, end=6, label=''))
    """
    return _find_pattern(text, r"\s+".join(map(re.escape, answer.split())), occupied)


def find_padded_answer(text: str, answer: str) -> Span | None:
    """Return the first occurrence of an answer that has spaces around its punctuation, in a text that may have none.

    Example:
        >>> find_padded_answer("He paid $3.50, they say.", "$ 3 . 50")
        Span(start=8, end=13, label='')
    """
    pattern, is_after_word = "", False
    for word in pad_punctuation(answer).split():
        is_word = len(word) > 1 or pad_punctuation(f"a{word}") == f"a{word}"
        gap = r"\s+" if is_word and is_after_word else r"\s*" if pattern else ""
        pattern, is_after_word = pattern + gap + re.escape(word), is_word
    return _find_pattern(text, pattern, ())


def _find_pattern(text: str, words: str, occupied: Sequence[Span]) -> Span | None:
    """Return the first match of a pattern outside the occupied spans; whole words are preferred."""
    for pattern in (rf"(?<!\w){words}(?!\w)", words) if words else ():
        for match in re.finditer(pattern, text):
            if not any(span.start < match.end() and span.end > match.start() for span in occupied):
                return Span(*match.span())
    return None


def _is_whole_words(text: str, span: Span) -> bool:
    """Tell whether a span begins and ends at word boundaries."""
    return re.search(r"\w\Z", text[: span.start]) is None and re.match(r"\w", text[span.end :]) is None
