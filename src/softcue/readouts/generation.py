"""Text-to-text (Lester et al. 2021): the backbone writes the answer; the loss is on its tokens.

With a closed set of labels, `rank` scores every label string and takes the likeliest, so an illegal answer
cannot come out; `greedy` and `beam` write freely, as the paper's models do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.nn import functional

from softcue.backbones import Backbone, Decoding, Reading
from softcue.errors import BackboneError, ConfigurationError
from softcue.readouts.readout import Loss, Readout, ReadoutConfig, label_prediction
from softcue.tasks import Task
from softcue.tokens import answer_tokens
from softcue.types import Batch, Example, Prediction, Tokens

RANKED_AT_ONCE = 256  # candidate strings scored in one decoder pass


class Generation(Readout):
    """Token cross-entropy in training; ranking, greedy or beam decoding afterwards."""

    writes_answer = True
    needs_target = True

    def __init__(self, task: Task, config: ReadoutConfig, backbone: Backbone) -> None:
        super().__init__(task, config, backbone)
        if backbone.kind == "encoder":
            raise BackboneError(
                "readout.name", "generation", "a backbone that writes text (encoder-decoder or decoder-only)",
                f"use readout.name=classifier with {backbone.name}",
            )  # fmt: skip
        self.tokenizer, self.kind = backbone.tokenizer, backbone.kind
        self.ranks = config.decoding == "rank"
        if self.ranks and task.kind != "classification":
            raise ConfigurationError("readout.decoding", "rank", "a task with a closed set of labels",
                                     "use greedy or beam")  # fmt: skip
        self.shared_pass = "answers" if self.ranks else "hidden" if backbone.kind == "encoder-decoder" else None
        _check_words(task)
        self.candidates = [torch.tensor(self._answer(words)) for words in task.label_words]
        self.decoding = Decoding(config.num_beams if config.decoding == "beam" else 1, config.max_new_tokens)

    @property
    def max_target_length(self) -> int:
        """The longest label, or what may be generated."""
        longest = max((len(candidate) for candidate in self.candidates), default=0)
        return longest if self.ranks else max(longest, self.config.max_new_tokens)

    def answered(self, tokens: Tokens, example: Example) -> Tokens:
        """With the tokens of the label's words or of the target text, cut to the room there is."""
        words = self.task.labels[str(example.target)].words if self.task.labels else str(example.target)
        ids = self._answer(words)
        if len(ids) <= self.max_target_length:
            return replace(tokens, target_ids=ids)
        # The end token stays: a model trained without it would never stop.
        return replace(tokens, target_ids=(*ids[: self.max_target_length - 1], ids[-1]), is_truncated=True)

    def num_losses(self, rows: Sequence[Tokens]) -> float:
        """Target tokens."""
        return sum(len(row.target_ids) for row in rows)

    def loss(self, reading: Reading, batch: Batch) -> Loss:
        """Cross-entropy of the target tokens, and t5x's z-loss if asked for."""
        logits = reading.target_logits(batch.target_ids).flatten(0, 1)  # [B*U V]
        wanted = batch.target_ids.where(batch.target_mask, -100).flatten()  # -100: not counted
        total = functional.cross_entropy(logits, wanted, reduction="sum", ignore_index=-100)
        if self.config.z_loss > 0:
            total = total + self.config.z_loss * logits.logsumexp(dim=-1)[wanted >= 0].square().sum()
        return Loss(total, float(batch.target_mask.sum()))

    def predict(self, reading: Reading) -> list[Prediction]:
        """A ranked label or a written text per row."""
        return self._ranked(reading) if self.ranks else self._written(reading)

    def _ranked(self, reading: Reading) -> list[Prediction]:
        step = max(1, RANKED_AT_ONCE // len(self.candidates))
        found = []
        for rows in torch.arange(len(reading.ids), device=reading.ids.device).split(step):
            probabilities = reading.rows(rows).rank(self.candidates).softmax(dim=-1)  # [B C]
            found += [label_prediction(self.task, row) for row in probabilities.tolist()]
        return found

    def _written(self, reading: Reading) -> list[Prediction]:
        names = {label.words.strip(): name for name, label in self.task.labels.items()}
        texts = [
            self.tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in reading.generate(self.decoding)
        ]
        return [Prediction(names.get(text, text)) for text in texts]

    def _answer(self, words: str) -> tuple[int, ...]:
        return answer_tokens(self.tokenizer, self.kind, words)


def _check_words(task: Task) -> None:
    """Two labels with the same words could not be told apart in what is written."""
    seen: dict[str, str] = {}
    for name, label in task.labels.items():
        words = label.words.strip()
        if not words or words in seen:
            trouble = "empty" if not words else f"also the words of '{seen[words]}'"
            raise ConfigurationError(f"label words of '{name}'", f"{label.words} ({trouble})",
                                     "words of its own per label", f"set task.label_words.{name}=...")  # fmt: skip
        seen[words] = name
