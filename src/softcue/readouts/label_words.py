"""Label words: each class has one word, and the backbone's own language-model head scores these words.

This readout has no trainable parameters. The words are scored at a mask token on encoders, after the text on decoders,
and at the decoder's first step on encoder-decoders.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from softcue.backbones import Backbone, ForwardPass
from softcue.devices import send
from softcue.errors import BackboneError, ConfigurationError
from softcue.inputs.formatter import target_tokens
from softcue.readouts.readout import (
    Readout,
    ReadoutConfig,
    class_label,
    class_losses,
    label_predictions,
    mask_suffix,
)
from softcue.readouts.sentinel import find_sentinels
from softcue.tasks import Task
from softcue.types import Batch, Example, Prediction, TokenizedRow


class LabelWords(Readout):
    """Softmax over the label words only, so that only labels can be predicted."""

    use_answer_prefix = True

    def __init__(self, task: Task, config: ReadoutConfig, backbone: Backbone) -> None:
        super().__init__(task, config, backbone)
        if backbone.kind == "encoder" and backbone.word_head is None:
            raise BackboneError(
                setting="readout.name",
                got="label-words",
                expected="a backbone with a masked-word head",
                fix=f"{backbone.name} has none: use readout.name=classifier",
            )
        self.sentinels = find_sentinels(backbone) if config.sentinel else None
        self.word_ids = label_word_ids(task, backbone)  # [C]
        is_encoder = backbone.kind == "encoder"
        self.shared_computation = "hidden" if is_encoder else "next word"
        self.words_before = () if self.sentinels is None else (self.sentinels.first,)
        self._suffix = mask_suffix(config, backbone) if is_encoder else ""

    @property
    def suffix(self) -> str:
        """The phrase with the mask token, on encoders."""
        return self._suffix

    def with_target(self, row: TokenizedRow, example: Example) -> TokenizedRow:
        """Add the class index."""
        return replace(row, label=class_label(self.task, example.target))

    def logits(self, forward_pass: ForwardPass) -> Tensor:
        """Return the scores of the label words. [B C]"""
        return forward_pass.word_logits(self.words_before, self.word_ids)

    def losses(self, forward_pass: ForwardPass, batch: Batch) -> Tensor:
        """Return the cross-entropies over the label words. [B]"""
        assert batch.labels is not None
        return class_losses(self.logits(forward_pass), batch.labels)

    def predict(self, forward_pass: ForwardPass) -> list[Prediction]:
        """Predict a label per row."""
        return self._predictions(self.logits(forward_pass))

    def predict_from(self, results: Tensor) -> list[Prediction]:
        """Predict a label per row from the logits of all words. [B V]"""
        return self._predictions(results[:, send(self.word_ids, results.device)])

    def _predictions(self, logits: Tensor) -> list[Prediction]:
        """Predict a label per row from the logits of the label words. [B C]"""
        return label_predictions(self.task, logits.softmax(dim=-1).tolist())


def label_word_ids(task: Task, backbone: Backbone) -> Tensor:
    """Return the token id of each label's word. Two labels with the same token are an error. [C]"""
    names_by_id: dict[int, str] = {}
    for name, label in task.labels.items():
        if backbone.kind == "encoder":
            ids = backbone.tokenizer(f" {label.words}", add_special_tokens=False)["input_ids"]
        else:
            special = set(backbone.tokenizer.all_special_ids)
            target_ids = target_tokens(backbone.tokenizer, backbone.kind, label.words)
            ids = [token_id for token_id in target_ids if token_id not in special][:1]
        if len(ids) != 1 or ids[0] in names_by_id:
            problem = "several tokens" if len(ids) != 1 else f"the same first token as '{names_by_id[ids[0]]}'"
            raise ConfigurationError(
                setting=f"label word of '{name}'",
                got=f"{label.words} ({problem})",
                expected="a word of its own per label",
                fix="set task.label_words, or use readout.name=generation or classifier",
            )
        names_by_id[ids[0]] = name
    return torch.tensor(list(names_by_id))
