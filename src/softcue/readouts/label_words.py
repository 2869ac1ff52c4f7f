"""Label words: each class has one word; the backbone's own word head scores them where the answer stands.

No numbers are trained here. On encoders the answer stands at a mask token, on decoders after the text, on
encoder-decoders at the decoder's first step.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from softcue.backbones import Backbone, ForwardPass
from softcue.errors import BackboneError, ConfigurationError
from softcue.inputs.formatter import answer_tokens
from softcue.readouts.readout import Loss, Readout, ReadoutConfig, label_prediction
from softcue.tasks import Task
from softcue.types import Batch, Example, Prediction, TokenizedRow


class LabelWords(Readout):
    """Softmax over the labels' words only, so an answer outside the labels is impossible."""

    writes_answer = True

    def __init__(self, task: Task, config: ReadoutConfig, backbone: Backbone) -> None:
        super().__init__(task, config, backbone)
        if backbone.kind == "encoder" and backbone.word_head is None:
            raise BackboneError(
                setting="readout.name",
                got="label-words",
                expected="a backbone with a masked-word head",
                fix=f"{backbone.name} has none: use readout.name=classifier",
            )
        self.word_ids = label_word_ids(task, backbone)  # [C]
        self.shared_pass = None if backbone.kind == "decoder" else "hidden"
        is_encoder = backbone.kind == "encoder"
        self._suffix = config.mask_phrase.format(mask=backbone.tokenizer.mask_token) if is_encoder else ""

    @property
    def suffix(self) -> str:
        """The mask, on encoders."""
        return self._suffix

    def with_target(self, tokens: TokenizedRow, example: Example) -> TokenizedRow:
        """With the class number."""
        return replace(tokens, label=self.task.label_names.index(str(example.target)))

    def logits(self, forward_pass: ForwardPass) -> Tensor:
        """Scores of the label words. [B C]"""
        return forward_pass.first_logits()[:, self.word_ids.to(forward_pass.ids.device)]

    def loss(self, forward_pass: ForwardPass, batch: Batch) -> Loss:
        """Cross-entropy among the label words."""
        assert batch.labels is not None
        return Loss(functional.cross_entropy(self.logits(forward_pass), batch.labels, reduction="sum"), batch.size)

    def predict(self, forward_pass: ForwardPass) -> list[Prediction]:
        """A label per row."""
        return [label_prediction(self.task, row) for row in self.logits(forward_pass).softmax(dim=-1).tolist()]


def label_word_ids(task: Task, backbone: Backbone) -> Tensor:
    """The token number of each label's word; labels that share one are refused. [C]"""
    found: dict[int, str] = {}
    for name, label in task.labels.items():
        if backbone.kind == "encoder":
            pieces = backbone.tokenizer(f" {label.words}", add_special_tokens=False)["input_ids"]
        else:
            special = set(backbone.tokenizer.all_special_ids)
            answer = answer_tokens(backbone.tokenizer, backbone.kind, label.words)
            pieces = [piece for piece in answer if piece not in special][:1]
        if len(pieces) != 1 or pieces[0] in found:
            trouble = "several pieces" if len(pieces) != 1 else f"the same first piece as '{found[pieces[0]]}'"
            raise ConfigurationError(
                setting=f"label word of '{name}'",
                got=f"{label.words} ({trouble})",
                expected="a word of its own per label",
                fix="set task.label_words, or use readout.name=generation or classifier",
            )
        found[pieces[0]] = name
    return torch.tensor(list(found))
