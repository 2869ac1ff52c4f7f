"""A forward pass of an encoder-decoder backbone."""

from __future__ import annotations

import torch
from torch import Tensor

from softcue.backbones.passes.decoding import Decoding
from softcue.backbones.passes.forward_pass import ForwardPass, sum_log_probabilities


class EncoderDecoderPass(ForwardPass):
    """A pass of an encoder-decoder: the encoder runs once on prompt and text, the decoder runs without prompts.

    The decoder reads the encoder's states at the prompt's positions too. So a prompt that is joined to keys takes its
    positions as soon as the decoder runs.
    """

    def _run(self) -> Tensor:
        inputs = self._inputs()
        hidden: Tensor = self.backbone.model.get_encoder()(**inputs).last_hidden_state
        return hidden.to(self.embeds.device)

    def first_logits(self) -> Tensor:
        """Logits of the decoder's first step, after the target's prefix (such as BART's `<s>`). [B V]"""
        prefix = torch.tensor([self.backbone.target_prefix], device=self.ids.device, dtype=torch.long)
        ids = torch.cat([self._start(len(self.ids)), prefix.expand(len(self.ids), -1)], dim=1)
        return self._decode(ids)[:, -1]

    def target_logits(self, target_ids: Tensor) -> Tensor:
        """Logits of the decoder, whose input is the target shifted by one. [B U V]"""
        return self._decode(self._shift(target_ids))

    def _run_for_ranking(self) -> None:
        self.with_positions.hidden()

    def _score(self, rows: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        """Log-likelihood of targets [N U]; those of one row [N] read the same encoder states. [N]"""
        return sum_log_probabilities(self._decode(self._shift(ids), rows), ids, mask)

    def _generate(self, decoding: Decoding) -> list[list[int]]:
        from transformers.modeling_outputs import BaseModelOutput

        source = self.with_positions
        states = BaseModelOutput(last_hidden_state=source.hidden())
        with self._without_prompts():
            generated = self.backbone.generate(
                decoding,
                self.listeners,
                self._draw_keys(decoding),
                encoder_outputs=states,
                attention_mask=source.layout.mask.long(),
            )
        return generated[:, 1:].tolist()  # without the start token

    def _decode(self, decoder_ids: Tensor, rows: Tensor | None = None) -> Tensor:
        """Logits of the decoder for tokens [N U] behind the source of a row [N]; None: one for each row. [N U V]"""
        from transformers.modeling_outputs import BaseModelOutput

        source = self.with_positions
        hidden, mask = source.hidden(), source.layout.mask.long()
        if rows is not None:
            hidden, mask = hidden[rows], mask[rows]
        noise = None
        if self.dropout is not None:
            assert rows is None, "candidates are ranked without dropout"
            numbers = torch.arange(decoder_ids.shape[1], device=decoder_ids.device)
            noise = self.dropout.of_tokens(numbers.expand(len(decoder_ids), -1))
        with self._without_prompts(noise):
            output = self.backbone.model(
                encoder_outputs=BaseModelOutput(last_hidden_state=hidden),
                attention_mask=mask,
                decoder_input_ids=decoder_ids,
                use_cache=False,
            )
        return output.logits.to(hidden.device).float()  # type: ignore[no-any-return]

    def _shift(self, target_ids: Tensor) -> Tensor:
        return torch.cat([self._start(len(target_ids)), target_ids[:, :-1]], dim=1)

    def _start(self, num_rows: int) -> Tensor:
        return torch.full((num_rows, 1), self.backbone.start_id, device=self.ids.device)
