"""A forward pass of an encoder-only backbone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from softcue.backbones.passes.forward_pass import ForwardPass
from softcue.errors import BackboneError

if TYPE_CHECKING:
    pass


class EncoderPass(ForwardPass):
    """An encoder-only backbone: one pass, hidden states, optionally a masked-word head."""

    def _run(self) -> Tensor:
        return self.backbone.base(**self._inputs()).last_hidden_state  # type: ignore[no-any-return]

    def first_logits(self) -> Tensor:
        """At the mask token, through the backbone's own masked-word head."""
        head = self.backbone.word_head
        if head is None:
            raise BackboneError(
                setting="readout.name",
                got="label-words",
                expected="a backbone with a masked-word head",
                fix=f"{self.backbone.name} has none: use readout.name=classifier",
            )
        is_mask = (self.ids == self.backbone.tokenizer.mask_token_id) & self.text_mask  # [B T]
        rows = torch.arange(len(self.ids), device=self.ids.device)
        last = self.ids.shape[1] - 1 - is_mask.flip(1).long().argmax(dim=1)  # ours is the last in the row
        hidden = self.layout.text_of(self.hidden())[rows, last]
        return head(self.backbone.model, hidden).float()
