"""Reading with a decoder-only backbone: prompt, text and, in training, target are one sequence.

**Shared prefix.** In a causal model the keys and values of a prompt that is the same for every row, and stands in front
of the text, do not depend on the text. They are computed once, as a batch of one, and every row attends to them;
gradients flow back through that. Same loss and gradient as laying the prompt out in every row, for P + B·T positions
instead of B·(P + T).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from softcue.backbones.reading import Decoding, Reading, likelihood, stacked
from softcue.types import Batch, Prompt

KeysValues = list[tuple[Tensor, Tensor]]  # per layer [B heads S K/heads]


class Prefix(NamedTuple):
    """What the leading positions of every row have in common."""

    hidden: Tensor  # [1 N D] last-layer states
    cache: KeysValues  # of one row


def shared_length(batch: Batch, prompt: Prompt | None) -> int:
    """How many leading positions are the same in every row: what stands before the prompt, and the prompt; 0 if none.

    Example:
        >>> from softcue.tokens import collate
        >>> from softcue.types import Tokens
        >>> batch = collate([Tokens((1, 7, 8), None, insert_at=1), Tokens((1, 9), None, insert_at=1)], pad_id=0)
        >>> prompt = Prompt(torch.zeros(2, 5, 4), torch.ones(2, 5, dtype=torch.bool), torch.zeros(()), is_shared=True)
        >>> shared_length(batch, prompt)
        6
    """
    if prompt is None or not prompt.is_shared or not prompt.tokens.shape[1]:
        return 0
    before = int(batch.insert_at[0])
    first = batch.ids[:, :before]
    is_alike = bool((batch.insert_at == before).all()) and bool(
        (first == first[:1]).all() & batch.mask[:, :before].all()
    )
    has_more = bool((batch.mask.sum(dim=1) > before).all())
    return before + prompt.tokens.shape[1] if is_alike and has_more else 0


@dataclass
class DecoderReading(Reading):
    """A causal backbone."""

    num_shared: int = 0  # N, leading positions that are the same in every row and run once
    _cache: KeysValues | None = None
    _last_logits: Tensor | None = None  # [B V]
    _prefix: Prefix | None = None

    @property
    def _source_mask(self) -> Tensor:
        """Which columns of the keys are real: the shared positions, then the others as they are laid out. [B S]"""
        if not self.num_shared:
            return self.layout.mask
        columns = torch.arange(self.layout.mask.shape[1], device=self.layout.mask.device)
        # A row's own copy of the shared positions stands behind its padding, partly among the columns that remain.
        is_own = self.layout.mask & (columns >= self._starts + self.num_shared)  # [B S]
        return torch.cat([is_own.new_ones(len(is_own), self.num_shared), is_own[:, self.num_shared :]], dim=1)

    @property
    def _starts(self) -> Tensor:
        """The first real column of each row. [B 1]"""
        return self.layout.mask.long().argmax(dim=1, keepdim=True)

    def _shared(self) -> Prefix:
        """One pass over what every row begins with."""
        if self._prefix is None:
            start = int(self._starts[0])
            own = slice(start, start + self.num_shared)
            first = self.layout.rows(torch.zeros(1, dtype=torch.long, device=self.ids.device))
            nothing = first.text_slots[:, :0]
            layout = replace(first, index=first.index[:, own], mask=first.mask[:, own], text_slots=nothing,
                             text_mask=nothing.bool())  # fmt: skip
            alone = replace(self, layout=layout, embeds=self.embeds[:1, own], num_shared=0)
            with alone._injected():
                output = self.backbone.base(**alone._inputs(), use_cache=True)
            cache = [(layer.keys, layer.values) for layer in output.past_key_values.layers]
            self._prefix = Prefix(output.last_hidden_state, cache)
        return self._prefix

    def _run_model(self, model: Any, **more: Any) -> Any:
        """A pass over the rows; what they share comes as keys and values."""
        if not self.num_shared:
            with self._injected():
                return model(**self._inputs(), **more)
        from transformers import DynamicCache

        num_rows = len(self.ids)
        shared = [(k.expand(num_rows, -1, -1, -1), v.expand(num_rows, -1, -1, -1)) for k, v in self._shared().cache]
        inputs = self._inputs()
        for name in inputs.keys() - {"attention_mask"}:
            inputs[name] = inputs[name][:, self.num_shared :]
        inputs["attention_mask"] = self._source_mask.long()
        with self._writing():
            return model(**inputs, past_key_values=DynamicCache(shared), **more | {"use_cache": True})

    def _run(self) -> Tensor:
        found: Tensor = self._run_model(self.backbone.base, use_cache=False).last_hidden_state
        if not self.num_shared:
            return found
        both = torch.cat([self._shared().hidden.expand(len(found), -1, -1), found], dim=1)  # [B S D]
        columns = torch.arange(both.shape[1], device=both.device)
        own = columns - self._starts  # [B S] place in the row
        where = torch.where(own < self.num_shared, own.clamp(min=0), columns)
        return both.gather(1, where.unsqueeze(2).expand_as(both))

    def first_logits(self) -> Tensor:
        """At the last token of the source, which is the prompt's if it stands behind the text."""
        is_source = self.layout.is_text | self.layout.is_prompt  # [B S]
        columns = torch.arange(is_source.shape[1], device=is_source.device)
        return self._logits_at((columns * is_source).max(dim=1, keepdim=True).values)[:, 0]

    def target_logits(self, target_ids: Tensor) -> Tensor:
        """The token before each target token predicts it."""
        return self._logits_at(self.layout.target_slots - 1)

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
            source_mask = self._source_mask.long().repeat_interleave(num_candidates, dim=0)  # [B*C S]
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
        output = self._run_model(self.backbone.model, use_cache=True, logits_to_keep=1)
        self._last_logits = output.logits[:, -1].float()
        self._cache = [(layer.keys, layer.values) for layer in output.past_key_values.layers]

    def _logits_at(self, slots: Tensor) -> Tensor:
        """Logits at some positions [B U] -> [B U V]; the head runs only on columns some row asks for."""
        slots = (slots - self.num_shared).clamp(min=0)  # slots of padding stand nowhere
        is_alike = bool((slots == slots[:1]).all())  # left padding and targets of one length: no picking by row
        columns, where = (slots[0], None) if is_alike else slots.unique(return_inverse=True)
        output = self._run_model(self.backbone.model, use_cache=False, logits_to_keep=columns)
        logits: Tensor = output.logits.float()  # [B columns V]
        return logits if where is None else logits.gather(1, where.unsqueeze(2).expand(-1, -1, logits.shape[2]))
