"""A forward pass of an encoder-decoder backbone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from softcue.backbones.passes.decoding import Decoding
from softcue.backbones.passes.forward_pass import ForwardPass, likelihood, stacked

if TYPE_CHECKING:
    pass


class EncoderDecoderPass(ForwardPass):
    """The encoder reads prompt and text once; the decoder, unprompted, writes."""

    def _run(self) -> Tensor:
        inputs = self._inputs()
        return self.backbone.model.get_encoder()(**inputs).last_hidden_state  # type: ignore[no-any-return]

    def first_logits(self) -> Tensor:
        """At the decoder's first step, after what its tokenizer puts in front of every answer (BART's `<s>`)."""
        prefix = torch.tensor([self.backbone.answer_prefix], device=self.ids.device, dtype=torch.long)
        ids = torch.cat([self._start(len(self.ids)), prefix.expand(len(self.ids), -1)], dim=1)
        return self._decode(ids, repeats=1)[:, -1]

    def target_logits(self, target_ids: Tensor) -> Tensor:
        """The decoder reads the target shifted by one."""
        return self._decode(self._shifted(target_ids), repeats=1)

    def rank(self, candidates: Sequence[Tensor]) -> Tensor:
        """The encoder's states serve all candidates."""
        ids, mask = stacked(candidates, self.ids.device)  # [C U]
        num_rows, num_candidates = len(self.ids), len(ids)
        every = ids.repeat(num_rows, 1)  # [B*C U]
        logits = self._decode(self._shifted(every), repeats=num_candidates)
        return likelihood(logits, every, mask.repeat(num_rows, 1)).view(num_rows, num_candidates)

    def _generate(self, decoding: Decoding) -> list[list[int]]:
        """The decoder writes, from the encoder's states."""
        from transformers.modeling_outputs import BaseModelOutput

        states = BaseModelOutput(last_hidden_state=self.hidden())
        with self._writing():
            written = self.backbone.generate(
                decoding,
                self.listeners,
                self._streams(decoding),
                encoder_outputs=states,
                attention_mask=self.layout.mask.long(),
            )
        return written[:, 1:].tolist()  # without the start token

    def _decode(self, decoder_ids: Tensor, repeats: int) -> Tensor:
        hidden, mask = self.hidden(), self.layout.mask.long()
        if repeats > 1:
            hidden, mask = hidden.repeat_interleave(repeats, dim=0), mask.repeat_interleave(repeats, dim=0)
        with self._writing():
            output = self.backbone.model(
                encoder_outputs=(hidden,), attention_mask=mask, decoder_input_ids=decoder_ids, use_cache=False
            )
        return output.logits.float()  # type: ignore[no-any-return]

    def _shifted(self, target_ids: Tensor) -> Tensor:
        return torch.cat([self._start(len(target_ids)), target_ids[:, :-1]], dim=1)

    def _start(self, num_rows: int) -> Tensor:
        return torch.full((num_rows, 1), self.backbone.start_id, device=self.ids.device)
