"""Text-to-text (Lester et al. 2021): the backbone generates the target as text, and the loss is on its tokens.

`rank` scores every label string of a closed set and takes the likeliest, so the prediction is always a label. `greedy`
and `beam` generate any text, as the paper's models do. `sample` draws each token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from softcue.backbones import Backbone, Decoding, ForwardPass
from softcue.errors import BackboneError, ConfigurationError
from softcue.inputs.formatter import pad_punctuation, target_tokens
from softcue.readouts.readout import Readout, ReadoutConfig, label_prediction
from softcue.readouts.sentinel import find_sentinels
from softcue.readouts.spans_and_tags import find_answer, find_padded_answer, parse_spans, spans_as_text
from softcue.tasks import Task
from softcue.types import Batch, Example, Prediction, TokenizedRow

DETERMINERS = frozenset(
    (
        "a",
        "an",
        "few",
        "her",
        "his",
        "each",
        "every",
        "many",
        "much",
        "my",
        "our",
        "some",
        "that",
        "the",
        "their",
        "these",
        "this",
        "those",
        "which",
        "whose",
        "your",
    )
)


class Generation(Readout):
    """Token cross-entropy in training; ranking, greedy or beam decoding afterwards."""

    use_answer_prefix = True
    needs_target = True

    def __init__(self, task: Task, config: ReadoutConfig, backbone: Backbone) -> None:
        super().__init__(task, config, backbone)
        if backbone.kind == "encoder":
            raise BackboneError(
                setting="readout.name",
                got="generation",
                expected="a backbone that writes text (encoder-decoder or decoder-only)",
                fix=f"use readout.name=classifier with {backbone.name}",
            )
        self.tokenizer, self.kind = backbone.tokenizer, backbone.kind
        self.pads_punctuation = config.pad_punctuation and task.pads_punctuation
        self.sentinels = find_sentinels(backbone) if config.sentinel else None
        self.is_ranking = config.decoding == "rank"
        self.choices = _target_texts(task)
        if self.is_ranking and not self.choices:
            raise ConfigurationError(
                setting="readout.decoding",
                got="rank",
                expected="a task with a closed set of labels",
                fix="use greedy or beam",
            )
        self.shared_computation = (
            "ranking" if self.is_ranking else "hidden" if backbone.kind == "encoder-decoder" else None
        )
        self.candidates = [torch.tensor(self._target_ids(text)) for text in self.choices]
        if not self.is_ranking:
            self.decoding = Decoding(config.num_beams if config.decoding == "beam" else 1, self._max_new_tokens)
            if config.decoding == "sample":
                self.decoding = replace(
                    self.decoding, temperature=config.temperature, top_p=config.top_p, seed=config.draw_seed
                )

    @property
    def max_target_length(self) -> int:
        """The length of the longest label, or the limit for generated text."""
        longest = max((len(candidate) for candidate in self.candidates), default=0)
        return longest if self.is_ranking else max(longest, self._max_new_tokens)

    @property
    def _max_new_tokens(self) -> int:
        """The limit for generated text, and the sentinel in front of it."""
        return self.config.max_new_tokens + (self.sentinels is not None)

    def answer_tokens(self, ids: Sequence[int], is_complete: bool = True) -> Sequence[int]:
        """Return the ids behind the sentinel, if targets have one."""
        return ids if self.sentinels is None else self.sentinels.answer(ids, is_complete)

    def training_examples(self, example: Example) -> list[Example]:
        """Return one example per right answer if a row has options; only true candidates of referent tasks."""
        if self.task.kind == "referent":
            return [example] if example.target == self.task.positive else []
        if example.options:  # as T5's preprocessing of ReCoRD
            return [replace(example, target=answer) for answer in example.answers]
        return [example]

    def merge(self, example: Example, predictions: Sequence[Prediction]) -> Prediction:
        """Turn generated text into the task's prediction, with its spans in the input if the task has spans."""
        prediction = predictions[0]
        text = (prediction.label_text or "").strip()
        if self.task.kind == "referent":
            is_same = same_referent(text, example.texts[-1])
            label = next(name for name in self.task.labels if (name == self.task.positive) == is_same)
            return Prediction(label, is_illegal=not _name_words(text))
        if self.task.kind == "tags":
            spans, is_legal = parse_spans(self.task, example, text)
            return replace(prediction, spans=spans, is_illegal=not is_legal)
        if self.task.kind == "span":
            if not self.pads_punctuation:
                span = find_answer(example.texts[-1], text)
                return replace(prediction, spans=() if span is None else (span,))
            span = find_padded_answer(example.texts[-1], text)
            if span is None:
                return replace(prediction, spans=())
            return replace(prediction, label=example.texts[-1][span.start : span.end], spans=(span,))
        return prediction

    def with_target(self, row: TokenizedRow, example: Example) -> TokenizedRow:
        """Add the tokens of the target text, cut to the longest target."""
        ids = self._target_ids(self.target_text(example))
        if len(ids) <= self.max_target_length:
            return replace(row, target_ids=ids)
        # The end token stays: a model trained without it would never stop.
        return replace(row, target_ids=(*ids[: self.max_target_length - 1], ids[-1]), is_truncated=True)

    def num_losses(self, rows: Sequence[TokenizedRow]) -> float:
        """Return the number of target tokens."""
        return sum(len(row.target_ids) for row in rows)

    def losses(self, forward_pass: ForwardPass, batch: Batch) -> Tensor:
        """Return the cross-entropies of the target tokens, with t5x's z-loss if its weight is set. [B]"""
        logits = forward_pass.target_logits(batch.target_ids).flatten(0, 1)  # [B*U V]
        targets = batch.target_ids.where(batch.target_mask, -100).flatten()  # -100: ignored
        losses = functional.cross_entropy(logits, targets, reduction="none", ignore_index=-100)  # [B*U]
        if self.config.z_loss > 0:
            losses = losses + self.config.z_loss * logits.logsumexp(dim=-1).square().where(targets >= 0, 0.0)
        return losses.view(batch.target_ids.shape).sum(dim=1)

    def predict(self, forward_pass: ForwardPass) -> list[Prediction]:
        """Predict the best-ranked label or the generated text of each row."""
        if self.decoding is None:
            return self.predict_from(forward_pass.rank(self.candidates))
        return self._generate(forward_pass, self.decoding)

    def predict_from(self, results: Tensor) -> list[Prediction]:
        """Predict the likeliest label per row from the log-likelihoods of all labels. [B C]"""
        return [self._likeliest(row) for row in results.softmax(dim=-1).tolist()]

    def _likeliest(self, probabilities: Sequence[float]) -> Prediction:
        if self.task.has_classes:
            return label_prediction(self.task, probabilities)
        score = max(zip(probabilities, self.choices, strict=True))[1]
        return Prediction(None, value=float(score))

    def _generate(self, forward_pass: ForwardPass, decoding: Decoding) -> list[Prediction]:
        texts = [
            self.tokenizer.decode(self.answer_tokens(ids), skip_special_tokens=True).strip()
            for ids in forward_pass.generate(decoding)
        ]
        if self.config.stop:
            texts = [text.partition(self.config.stop)[0].strip() for text in texts]
        if self.task.kind == "regression":
            return [_parse_score(text) for text in texts]
        return [Prediction(self.choices.get(text, text)) for text in texts]

    def target_text(self, example: Example) -> str:
        """Return the text that the backbone should generate for an example."""
        task = self.task
        if task.kind == "referent":
            return example.texts[-1]
        if task.kind == "tags":
            return spans_as_text(task, example, example.spans)
        if task.kind == "regression":
            assert example.target is not None and task.scale is not None
            low, _, step = task.scale
            return _score_text(low, round((float(example.target) - low) / step), step)
        if task.labels and isinstance(example.target, float):
            raise ConfigurationError(
                setting="readout.name",
                got="generation",
                expected="classifier or label-words, because the targets are probabilities",
                fix="set readout.name=label-words",
            )
        if task.labels:
            return task.labels[str(example.target)].words
        return pad_punctuation(str(example.target)) if self.pads_punctuation else str(example.target)

    def _target_ids(self, text: str) -> tuple[int, ...]:
        ids = target_tokens(self.tokenizer, self.kind, text)
        return ids if self.sentinels is None else (self.sentinels.first, *ids)


def _target_texts(task: Task) -> dict[str, str]:
    """Return target text -> label for a closed set, else nothing. Two labels with the same words are an error."""
    if task.kind == "regression":
        if task.scale is None:
            raise ConfigurationError(
                setting="readout.name",
                got="generation",
                expected="a task whose scores are on a scale",
                fix="use readout.name=regression",
            )
        low, high, step = task.scale
        scores = [_score_text(low, number, step) for number in range(round((high - low) / step) + 1)]
        return dict(zip(scores, scores, strict=True))
    if task.kind != "classification":
        return {}
    labels_by_words: dict[str, str] = {}
    for name, label in task.labels.items():
        words = label.words.strip()
        if not words or words in labels_by_words:
            problem = "empty" if not words else f"also the words of '{labels_by_words[words]}'"
            raise ConfigurationError(
                setting=f"label words of '{name}'",
                got=f"{label.words} ({problem})",
                expected="words of its own per label",
                fix=f"set task.label_words.{name}=...",
            )
        labels_by_words[words] = name
    return labels_by_words


def _score_text(low: float, number: int, step: float) -> str:
    """Return a score as T5 writes those of STS-B: the nearest step, with one decimal."""
    return f"{low + number * step:.1f}"


def _parse_score(text: str) -> Prediction:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    return Prediction(None, value=value) if math.isfinite(value) else Prediction(text, is_illegal=True)


def same_referent(generated: str, candidate: str) -> bool:
    """Tell whether a generated name means the candidate, by T5's rule for WSC: the words of one contain the other's.

    Determiners do not count. A name with a possessive differs from one without.

    Example:
        >>> same_referent("the old dog", "dog"), same_referent("the cat", "dog"), same_referent("Ann's", "Ann")
        (True, False, False)
    """
    words, candidate_words = _name_words(generated), _name_words(candidate)
    if not words or not candidate_words or ("'" in generated) != ("'" in candidate):
        return False
    return words <= candidate_words or candidate_words <= words


def _name_words(text: str) -> set[str]:
    """Return the words of a name without determiners."""
    return {word for word in text.lower().split() if word not in DETERMINERS}
