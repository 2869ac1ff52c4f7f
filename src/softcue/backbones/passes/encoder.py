"""A forward pass of an encoder-only backbone."""

from __future__ import annotations

import torch
from torch import Tensor

from softcue.backbones.passes.forward_pass import ForwardPass
from softcue.errors import BackboneError


class EncoderPass(ForwardPass):
    """A pass of an encoder-only backbone: hidden states and, if the model has it, the masked-word head."""

    def hidden(self) -> Tensor:
        """Last-layer hidden states, from the backbone's runtime if it has one that takes this pass. [B S D]"""
        runtime = self.backbone.runtime
        is_plain = self.stops_at is None and self.dropout is None and not torch.is_grad_enabled()
        if self._hidden is None and runtime is not None and is_plain:
            self._hidden = runtime.hidden(self)
        return super().hidden()

    def _run(self) -> Tensor:
        hidden: Tensor = self.backbone.base(**self._inputs()).last_hidden_state
        return hidden.to(self.embeds.device)

    def mask_states(self) -> Tensor:
        """States at the mask token that its last layer compares with words; without a head, the hidden states. [B D]

        Of two texts, the mask is at the end of the first.
        """
        is_mask = self._is_mask() if self.parts is None else self._is_mask() & (self.parts != 1)
        hidden = self._hidden_at_last(is_mask)
        head = self.backbone.word_head
        return hidden.float() if head is None else head.states(hidden).float()

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
        hidden = self._hidden_at_last(self._is_mask())  # the template's mask is the row's last
        return head.logits(hidden).float()

    def _is_mask(self) -> Tensor:
        """Which tokens of the text are masks. [B T]"""
        is_mask: Tensor = (self.ids == self.backbone.tokenizer.mask_token_id) & self.text_mask
        return is_mask

    def _hidden_at_last(self, is_chosen: Tensor) -> Tensor:
        """Hidden states at the last chosen token of each row. [B T] -> [B D]"""
        rows = torch.arange(self.ids.shape[0], device=self.ids.device)
        last = self.ids.shape[1] - 1 - is_chosen.flip(1).long().argmax(dim=1)
        return self.layout.text_of(self.hidden())[rows, last]
