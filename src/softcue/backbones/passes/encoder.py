"""A forward pass of an encoder-only backbone."""

from __future__ import annotations

import torch
from torch import Tensor

from softcue.backbones.passes.forward_pass import ForwardPass
from softcue.errors import BackboneError


class EncoderPass(ForwardPass):
    """A pass of an encoder-only backbone: hidden states and, if the model has it, the masked-word head."""

    def _run(self) -> Tensor:
        return self.backbone.base(**self._inputs()).last_hidden_state  # type: ignore[no-any-return]

    def first_logits(self) -> Tensor:
        """Logits at the mask token, from the backbone's masked-word head. [B V]"""
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
        last = self.ids.shape[1] - 1 - is_mask.flip(1).long().argmax(dim=1)  # the template's mask is the row's last
        hidden = self.layout.text_of(self.hidden())[rows, last]
        return head(self.backbone.model, hidden).float()
