"""Text-to-text (Lester et al. 2021): the backbone writes the answer; the loss is on its tokens.

With a closed set of labels, `rank` scores every label string and takes the likeliest, so an illegal answer
cannot come out; `greedy` and `beam` write freely, as the paper's models do. `sample` draws each token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.nn import functional

from softcue.backbones import Backbone, Decoding, ForwardPass
from softcue.errors import BackboneError, ConfigurationError
from softcue.inputs.formatter import TOKENS_AT_ONCE, answer_tokens
from softcue.readouts.readout import Loss, Readout, ReadoutConfig, label_prediction
from softcue.readouts.spans_and_tags import located, place_of, written
from softcue.tasks import Task
from softcue.types import Batch, Example, Prediction, TokenizedRow

RANKED_AT_ONCE = 256  # candidate strings scored in one decoder pass
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

    writes_answer = True
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
        self.ranks = config.decoding == "rank"
        self.choices = _choices(task)
        if self.ranks and not self.choices:
            raise ConfigurationError(
                setting="readout.decoding",
                got="rank",
                expected="a task with a closed set of labels",
                fix="use greedy or beam",
            )
        self.shared_pass = "answers" if self.ranks else "hidden" if backbone.kind == "encoder-decoder" else None
        self.candidates = [torch.tensor(self._answer(words)) for words in self.choices]
        if not self.ranks:
            self.decoding = Decoding(config.num_beams if config.decoding == "beam" else 1, config.max_new_tokens)
            if config.decoding == "sample":
                self.decoding = replace(
                    self.decoding, temperature=config.temperature, top_p=config.top_p, seed=config.draw_seed
                )

    @property
    def max_target_length(self) -> int:
        """The longest label, or what may be generated."""
        longest = max((len(candidate) for candidate in self.candidates), default=0)
        return longest if self.ranks else max(longest, self.config.max_new_tokens)

    def training_examples(self, example: Example) -> list[Example]:
        """One per right answer where a row names its options; only what is true of referents."""
        if self.task.kind == "referent":
            return [example] if example.target == self.task.positive else []
        if example.options:  # as T5's preprocessing of ReCoRD
            return [replace(example, target=answer) for answer in example.answers]
        return [example]

    def merge(self, example: Example, answers: Sequence[Prediction]) -> Prediction:
        """What was written, as the task's answer; places in the text where it has any."""
        answer = answers[0]
        text = (answer.label or "").strip()
        if self.task.kind == "referent":
            is_same = same_referent(text, example.texts[-1])
            label = next(name for name in self.task.labels if (name == self.task.positive) == is_same)
            return Prediction(label, is_illegal=not _named(text))
        if self.task.kind == "tags":
            spans, is_usable = located(self.task, example, text)
            return replace(answer, spans=spans, is_illegal=not is_usable)
        if self.task.kind == "span":
            place = place_of(example.texts[-1], text)
            return replace(answer, spans=() if place is None else (place,))
        return answer

    def with_target(self, tokens: TokenizedRow, example: Example) -> TokenizedRow:
        """With the tokens of what is to be written, cut to the room there is."""
        ids = self._answer(self._wanted(example))
        if len(ids) <= self.max_target_length:
            return replace(tokens, target_ids=ids)
        # The end token stays: a model trained without it would never stop.
        return replace(tokens, target_ids=(*ids[: self.max_target_length - 1], ids[-1]), is_truncated=True)

    def num_losses(self, rows: Sequence[TokenizedRow]) -> float:
        """Target tokens."""
        return sum(len(row.target_ids) for row in rows)

    def loss(self, forward_pass: ForwardPass, batch: Batch) -> Loss:
        """Cross-entropy of the target tokens, and t5x's z-loss if asked for."""
        logits = forward_pass.target_logits(batch.target_ids).flatten(0, 1)  # [B*U V]
        wanted = batch.target_ids.where(batch.target_mask, -100).flatten()  # -100: not counted
        total = functional.cross_entropy(logits, wanted, reduction="sum", ignore_index=-100)
        if self.config.z_loss > 0:
            total = total + self.config.z_loss * logits.logsumexp(dim=-1)[wanted >= 0].square().sum()
        return Loss(total, float(batch.target_mask.sum()))

    def predict(self, forward_pass: ForwardPass) -> list[Prediction]:
        """A ranked label or a written text per row."""
        return self._ranked(forward_pass) if self.decoding is None else self._written(forward_pass, self.decoding)

    def _ranked(self, forward_pass: ForwardPass) -> list[Prediction]:
        # each candidate has its own copy of the source's keys and values, or states
        width = forward_pass.layout.mask.shape[1] + self.max_target_length
        step = max(1, min(RANKED_AT_ONCE, TOKENS_AT_ONCE // width) // len(self.candidates))
        found = []
        for rows in torch.arange(len(forward_pass.ids), device=forward_pass.ids.device).split(step):
            probabilities = forward_pass.rows(rows).rank(self.candidates).softmax(dim=-1)  # [B C]
            found += [self._chosen(row) for row in probabilities.tolist()]
        return found

    def _chosen(self, probabilities: Sequence[float]) -> Prediction:
        if self.task.has_classes:
            return label_prediction(self.task, probabilities)
        words = max(zip(probabilities, self.choices, strict=True))[1]
        return Prediction(None, value=float(words))

    def _written(self, forward_pass: ForwardPass, decoding: Decoding) -> list[Prediction]:
        texts = [
            self.tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in forward_pass.generate(decoding)
        ]
        if self.task.kind == "regression":
            return [_number(text) for text in texts]
        return [Prediction(self.choices.get(text, text)) for text in texts]

    def _wanted(self, example: Example) -> str:
        """What the backbone is to write for an example."""
        task = self.task
        if task.kind == "referent":
            return example.texts[-1]
        if task.kind == "tags":
            return written(task, example, example.spans)
        if task.kind == "regression":
            assert example.target is not None and task.scale is not None
            low, _, step = task.scale
            return _score_text(low, round((float(example.target) - low) / step), step)
        return task.labels[str(example.target)].words if task.labels else str(example.target)

    def _answer(self, words: str) -> tuple[int, ...]:
        return answer_tokens(self.tokenizer, self.kind, words)


def _choices(task: Task) -> dict[str, str]:
    """What may be written -> what it stands for; empty where any text may. No two labels have the same words."""
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
    found: dict[str, str] = {}
    for name, label in task.labels.items():
        words = label.words.strip()
        if not words or words in found:
            trouble = "empty" if not words else f"also the words of '{found[words]}'"
            raise ConfigurationError(
                setting=f"label words of '{name}'",
                got=f"{label.words} ({trouble})",
                expected="words of its own per label",
                fix=f"set task.label_words.{name}=...",
            )
        found[words] = name
    return found


def _score_text(low: float, number: int, step: float) -> str:
    """A score as T5 writes those of STS-B: the nearest step, with one decimal."""
    return f"{low + number * step:.1f}"


def _number(text: str) -> Prediction:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    return Prediction(None, value=value) if math.isfinite(value) else Prediction(text, is_illegal=True)


def same_referent(written: str, candidate: str) -> bool:
    """Whether a written name is the candidate's, by T5's rule for WSC: one's words contain the other's.

    Determiners do not count; a name with a possessive is not the same as one without.

    Example:
        >>> same_referent("the old dog", "dog"), same_referent("the cat", "dog"), same_referent("Ann's", "Ann")
        (True, False, False)
    """
    words, wanted = _named(written), _named(candidate)
    if not words or not wanted or ("'" in written) != ("'" in candidate):
        return False
    return words <= wanted or wanted <= words


def _named(text: str) -> set[str]:
    """The words of a name that tell it from others."""
    return {word for word in text.lower().split() if word not in DETERMINERS}
