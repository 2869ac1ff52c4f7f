"""Reading with a decoder-only backbone: prompt, text and, in training, target are one sequence.

**Shared prefix.** In a causal model the keys and values of a prompt that is the same for every row, and stands in front
of the text, do not depend on the text. They are computed once, as a batch of one, and every row attends to them;
gradients flow back through that. Same loss and gradient as laying the prompt out in every row, for P + B·T positions
instead of B·(P + T). Without gradients they are kept from batch to batch. Rows of several cues share what their own cue
begins with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from softcue.backbones.passes.decoding import Decoding
from softcue.backbones.passes.forward_pass import ForwardPass, likelihood, stacked
from softcue.backbones.passes.shared_prefix import KeysValues, Prefix, Shared, cache_of


@dataclass
class DecoderPass(ForwardPass):
    """A causal backbone."""

    shared: Sequence[Shared] = ()  # what rows begin with and is run once
    _cache: KeysValues | None = None
    _cached: Tensor | None = None  # [B S] which of its columns are real
    _last_logits: Tensor | None = None  # [B V]
    _prefixes: list[Prefix] | None = None

    @cached_property
    def _starts(self) -> Tensor:
        """The first real column of each row. [B 1]"""
        return self.layout.mask.long().argmax(dim=1, keepdim=True)

    @cached_property
    def _lengths(self) -> Tensor:
        """How many positions of each row are shared. [B 1]"""
        found = torch.zeros(len(self.ids), 1, dtype=torch.long, device=self.ids.device)
        for part in self.shared:
            found[part.rows] = part.length
        return found

    @cached_property
    def _first_column(self) -> int:
        """Where the columns begin that some row does not share."""
        return self.layout.mask.shape[1] - int((self.layout.mask.sum(dim=1, keepdim=True) - self._lengths).max())

    @cached_property
    def _source_mask(self) -> Tensor:
        """Which columns of the keys are real: shared positions, at the end of their block, then the others. [B S]"""
        if not self.shared:
            return self.layout.mask
        columns = torch.arange(self.layout.mask.shape[1], device=self.ids.device)
        # A row's own copy of the shared positions stands behind its padding, partly among the columns that remain.
        is_own = self.layout.mask & (columns >= self._starts + self._lengths)  # [B S]
        widest = max(part.length for part in self.shared)
        is_shared = columns[:widest] >= widest - self._lengths  # [B N]
        return torch.cat([is_shared, is_own[:, self._first_column :]], dim=1)

    def _shared_prefixes(self) -> list[Prefix]:
        """One pass over what each group of rows begins with; kept for the next batch where nothing learns from it."""
        if self._prefixes is None:
            keeps = not torch.is_grad_enabled()
            self._prefixes = []
            for part in self.shared:
                found = self.backbone.prefixes.get(part) if keeps and part.length else None
                if found is None:
                    found = self._prefix(part) if part.length else Prefix(self.embeds[:1, :0], [])
                    if keeps and part.length:
                        self.backbone.prefixes.put(part, found)
                self._prefixes.append(found)
        return self._prefixes

    def _prefix(self, part: Shared) -> Prefix:
        row = part.rows[:1]
        start = int(self._starts[row])
        own = slice(start, start + part.length)
        first = self.layout.rows(row)
        nothing = first.text_slots[:, :0]
        layout = replace(
            first, index=first.index[:, own], mask=first.mask[:, own], text_slots=nothing, text_mask=nothing.bool()
        )
        alone = replace(self, layout=layout, embeds=self.embeds[row, own], prompt=part.prompt, shared=())
        with alone._injected():
            output = self.backbone.base(**alone._inputs(), use_cache=True, past_key_values=cache_of([]))
        return Prefix(output.last_hidden_state, _keys_values(output))

    def _run_model(self, model: Any, **more: Any) -> Any:
        """A pass over the rows; what they share comes as keys and values."""
        if not self.shared:
            if more.get("use_cache"):
                more["past_key_values"] = cache_of([])
            with self._injected():
                return model(**self._inputs(), **more)
        first = self._first_column
        inputs = self._inputs()
        for name in inputs.keys() - {"attention_mask"}:
            inputs[name] = inputs[name][:, first:]
        inputs["attention_mask"] = self._source_mask.long()
        with self._writing():
            return model(**inputs, past_key_values=cache_of(self._shared_cache()), **more | {"use_cache": True})

    def _shared_cache(self) -> KeysValues:
        """The shared keys and values of every row: one copy for all if there is one prompt, else each row's own."""
        prefixes, num_rows = self._shared_prefixes(), len(self.ids)
        if len(prefixes) == 1:
            return [(k.expand(num_rows, -1, -1, -1), v.expand(num_rows, -1, -1, -1)) for k, v in prefixes[0].cache]
        widest = max(part.length for part in self.shared)
        example = next(prefix.cache for prefix in prefixes if prefix.cache)
        found = []
        for layer, both in enumerate(example):
            block = [values.new_zeros(num_rows, values.shape[1], widest, values.shape[3]) for values in both]
            for part, prefix in zip(self.shared, prefixes, strict=True):
                for values, own in zip(block, prefix.cache[layer] if part.length else (), strict=part.length > 0):
                    values[part.rows, :, widest - part.length :] = own
            found.append((block[0], block[1]))
        return found

    def _run(self) -> Tensor:
        found: Tensor = self._run_model(self.backbone.base, use_cache=False).last_hidden_state
        if not self.shared:
            return found
        widest = max(part.length for part in self.shared)
        block = found.new_zeros(len(found), widest, found.shape[2])  # [B N D]
        for part, prefix in zip(self.shared, self._shared_prefixes(), strict=True):
            if part.length:
                block[part.rows, widest - part.length :] = prefix.hidden
        columns = torch.arange(self.layout.mask.shape[1], device=found.device)
        own = columns - self._starts  # [B S] place in the row
        where = torch.where(own < self._lengths, widest - self._lengths + own, widest + columns - self._first_column)
        where = where.clamp(min=0).unsqueeze(2).expand(-1, -1, found.shape[2])
        return torch.cat([block, found], dim=1).gather(1, where)

    def first_logits(self) -> Tensor:
        """At the last token of the source, which is the prompt's if it stands behind the text."""
        is_source = self.layout.is_text | self.layout.is_prompt  # [B S]
        columns = torch.arange(is_source.shape[1], device=is_source.device)
        return self._logits_at((columns * is_source).max(dim=1, keepdim=True).values)[:, 0]

    def target_logits(self, target_ids: Tensor) -> Tensor:
        """The token before each target token predicts it."""
        slots = self.layout.target_slots - 1  # [B U]
        return self._logits_at(slots.where(self.layout.target_mask, slots.max()))  # no column more for padding

    def rank(self, candidates: Sequence[Tensor]) -> Tensor:
        """The source is read once; its keys and values serve all candidates."""
        ids, mask = stacked(candidates, self.ids.device)  # [C U]
        if self._leaves_window(ids.shape[1]):
            return self._unshared().rank(candidates)
        num_rows, num_candidates = len(self.ids), len(ids)
        self.read_for_answers()
        assert self._cache is not None and self._cached is not None and self._last_logits is not None
        logits = self._last_logits.repeat_interleave(num_candidates, dim=0).unsqueeze(1)  # [B*C 1 V]
        every, every_mask = ids.repeat(num_rows, 1), mask.repeat(num_rows, 1)  # [B*C U]
        if ids.shape[1] > 1:
            source_mask = self._cached.long().repeat_interleave(num_candidates, dim=0)  # [B*C S]
            following = self._following(every, every_mask)[:, :-1].to(self.backbone.dtype)  # [B*C U-1 D]
            with self._writing():
                output = self.backbone.model(
                    inputs_embeds=following,
                    attention_mask=torch.cat([source_mask, every_mask[:, :-1].long()], dim=1),
                    position_ids=source_mask.sum(dim=1, keepdim=True)
                    + torch.arange(every.shape[1] - 1, device=every.device)
                    + (self.backbone.first_position or 0),
                    past_key_values=cache_of(
                        [
                            (k.repeat_interleave(num_candidates, 0), v.repeat_interleave(num_candidates, 0))
                            for k, v in self._cache
                        ]
                    ),
                    use_cache=True,
                )
            logits = torch.cat([logits, output.logits.float()], dim=1)  # [B*C U V]
        return likelihood(logits, every, every_mask).view(num_rows, num_candidates)

    def _following(self, target_ids: Tensor, target_mask: Tensor) -> Tensor:
        """What tokens after the text are for the first layer, several answers of a row one after the other. [N U D]"""
        return self.backbone.embed(target_ids)

    def _generate(self, decoding: Decoding) -> list[list[int]]:
        """The prompt goes in on the first step only; later steps use its keys and values."""
        if self._leaves_window(decoding.max_new_tokens):
            return self._unshared()._generate(decoding)
        if not self.shared:
            with self._injected():
                written = self.backbone.generate(
                    decoding,
                    self.listeners,
                    self._streams(decoding),
                    inputs_embeds=self.embeds,
                    attention_mask=self.layout.mask.long(),
                    past_key_values=self._written_to([], decoding.num_beams),
                )
            return written.tolist()
        # transformers skips as many inputs as there are keys, and repeats everything but those for its beams
        beams, mask, rest = decoding.num_beams, self._source_mask, self.embeds[:, self._first_column :]
        skipped = rest.new_zeros(len(rest), mask.shape[1] - rest.shape[1], rest.shape[2])
        cache = [(k.repeat_interleave(beams, 0), v.repeat_interleave(beams, 0)) for k, v in self._shared_cache()]
        with self._writing():
            written = self.backbone.generate(
                decoding,
                self.listeners,
                self._streams(decoding),
                inputs_embeds=torch.cat([skipped, rest], dim=1),
                attention_mask=mask.long(),
                past_key_values=self._written_to(cache, beams),
            )
        return written.tolist()

    def _written_to(self, known: KeysValues, num_beams: int) -> Any:
        """The cache that generation begins with; `known` has a row for each beam."""
        return cache_of(known)

    def _leaves_window(self, num_more: int) -> bool:
        """Whether so many more positions would lie beyond what a layer with a sliding window sees of the shared ones.

        Such a layer counts columns, and shorter rows have padding between what they share and their own.
        """
        window = self.backbone.window
        return bool(self.shared) and window is not None and self._source_mask.shape[1] + num_more > window

    def _unshared(self) -> DecoderPass:
        """The same rows, each with its own copy of the prompt."""
        return replace(self, shared=(), _prefixes=None, _cache=None, _cached=None, _last_logits=None, _hidden=None)

    def rows(self, index: Tensor) -> ForwardPass:
        """Keys, values and logits of some rows."""
        narrowed = super().rows(index)
        if narrowed is self:
            return self
        assert isinstance(narrowed, DecoderPass)
        kept = []
        for number, part in enumerate(self.shared):
            rows = torch.isin(index, part.rows).nonzero().flatten()
            if len(rows):
                kept.append((part._replace(rows=rows), self._prefixes[number] if self._prefixes else None))
        narrowed.shared = [part for part, _ in kept]
        prefixes = [prefix for _, prefix in kept if prefix is not None]
        narrowed._prefixes = prefixes if len(prefixes) == len(kept) and kept else None
        if self._cache is not None and self._cached is not None and self._last_logits is not None:
            narrowed._cached = self._cached[index]
            narrowed._cache = [(k[index], v[index]) for k, v in self._cache]
            narrowed._last_logits = self._last_logits[index]
        return narrowed

    def read_for_answers(self) -> None:
        """One pass over prompt and text that keeps keys and values; needs the text's end in the last column."""
        if self._cache is not None:
            return
        output = self._run_model(self.backbone.model, use_cache=True, logits_to_keep=1)
        self._last_logits = output.logits[:, -1].float()
        self._cache, self._cached = _keys_values(output), self._source_mask

    def _logits_at(self, slots: Tensor) -> Tensor:
        """Logits at some positions [B U] -> [B U V]; the head runs only on columns some row asks for."""
        slots = (slots - (self._first_column if self.shared else 0)).clamp(min=0)  # slots of padding stand nowhere
        is_alike = bool((slots == slots[:1]).all())  # left padding and targets of one length: no picking by row
        columns, where = (slots[0], None) if is_alike else slots.unique(return_inverse=True)
        output = self._run_model(self.backbone.model, use_cache=False, logits_to_keep=columns)
        logits: Tensor = output.logits.float()  # [B columns V]
        return logits if where is None else logits.gather(1, where.unsqueeze(2).expand(-1, -1, logits.shape[2]))


def _keys_values(output: Any) -> KeysValues:
    return [(layer.keys, layer.values) for layer in output.past_key_values.layers]
