"""Reading with a decoder-only backbone: prompt, text and, in training, target are one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from softcue.backbones.reading import Decoding, Reading, likelihood, stacked


@dataclass
class DecoderReading(Reading):
    """A causal backbone: prompt, text and (in training) target are one sequence."""

    _cache: list[tuple[Tensor, Tensor]] | None = None  # per layer: keys, values [B heads S D/heads]
    _last_logits: Tensor | None = None  # [B V]

    def _run(self) -> Tensor:
        return self.backbone.base(**self._inputs(), use_cache=False).last_hidden_state  # type: ignore[no-any-return]

    def first_logits(self) -> Tensor:
        """At the last token of the source, which is the prompt's if it stands behind the text."""
        is_source = self.layout.is_text | self.layout.is_prompt  # [B S]
        columns = torch.arange(is_source.shape[1], device=is_source.device)
        return self._logits_at((columns * is_source).max(dim=1, keepdim=True).values)[:, 0]

    def target_logits(self, target_ids: Tensor) -> Tensor:
        """The token before each target token predicts it."""
        return self._logits_at((self.layout.target_slots - 1).clamp(min=0))

    def rank(self, candidates: Sequence[Tensor]) -> Tensor:
        """The source is read once; its keys and values serve all candidates."""
        from transformers import DynamicCache

        ids, mask = stacked(candidates, self.ids.device)  # [C U]
        num_rows, num_candidates = len(self.ids), len(ids)
        self.read_for_answers()
        assert self._cache is not None and self._last_logits is not None
        logits = self._last_logits.repeat_interleave(num_candidates, dim=0).unsqueeze(1)  # [B*C 1 V]
        every, every_mask = ids.repeat(num_rows, 1), mask.repeat(num_rows, 1)  # [B*C U]
        if ids.shape[1] > 1:
            source_mask = self.layout.mask.long().repeat_interleave(num_candidates, dim=0)  # [B*C S]
            with self._writing():
                output = self.backbone.model(
                    input_ids=every[:, :-1],
                    attention_mask=torch.cat([source_mask, every_mask[:, :-1].long()], dim=1),
                    position_ids=source_mask.sum(dim=1, keepdim=True)
                    + torch.arange(every.shape[1] - 1, device=every.device)
                    + (self.backbone.first_position or 0),
                    past_key_values=DynamicCache(
                        [(k.repeat_interleave(num_candidates, 0), v.repeat_interleave(num_candidates, 0))
                         for k, v in self._cache]
                    ),
                    use_cache=True,
                )  # fmt: skip
            logits = torch.cat([logits, output.logits.float()], dim=1)  # [B*C U V]
        return likelihood(logits, every, every_mask).view(num_rows, num_candidates)

    def generate(self, decoding: Decoding) -> list[list[int]]:
        """The prompt goes in on the first step only; later steps use its keys and values."""
        with self._injected():
            written = self.backbone.generate(
                decoding, inputs_embeds=self.embeds, attention_mask=self.layout.mask.long()
            )
        return written.tolist()

    def rows(self, index: Tensor) -> Reading:
        """Keys, values and logits of some rows."""
        narrowed = super().rows(index)
        if narrowed is not self and self._cache is not None and self._last_logits is not None:
            assert isinstance(narrowed, DecoderReading)
            narrowed._cache = [(k[index], v[index]) for k, v in self._cache]
            narrowed._last_logits = self._last_logits[index]
        return narrowed

    def read_for_answers(self) -> None:
        """One pass over prompt and text that keeps keys and values; needs the text's end in the last column."""
        if self._cache is not None:
            return
        with self._injected():
            output = self.backbone.model(**self._inputs(), use_cache=True, logits_to_keep=1)
        self._last_logits = output.logits[:, -1].float()
        self._cache = [(layer.keys, layer.values) for layer in output.past_key_values.layers]

    def _logits_at(self, slots: Tensor) -> Tensor:
        """Logits at some positions [B U] -> [B U V]; the head runs only on columns some row asks for."""
        is_alike = bool((slots == slots[:1]).all())  # left padding and targets of one length: no picking by row
        columns, where = (slots[0], None) if is_alike else slots.unique(return_inverse=True)
        with self._injected():
            output = self.backbone.model(**self._inputs(), use_cache=False, logits_to_keep=columns)
        logits: Tensor = output.logits.float()  # [B columns V]
        return logits if where is None else logits.gather(1, where.unsqueeze(2).expand(-1, -1, logits.shape[2]))
