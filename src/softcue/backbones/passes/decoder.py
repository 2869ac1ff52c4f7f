"""A forward pass of a decoder-only backbone: prompt, text and, in training, target are one sequence.

**Shared prefix.** In a causal model the keys and values of a prompt do not depend on the text behind it. If all rows
have the same prompt in front of the text, it runs once, as a batch of one, and every row attends to its keys and
values. Gradients flow back through them. Loss and gradient are those of a prompt in every row, at the cost of
P + B·T positions instead of B·(P + T). Without gradients the keys and values are kept from batch to batch, unless the
backbone's weights are trained too. In a batch of several cues the rows of each cue share their own prefix, and all
prefixes that are not kept run in one padded pass.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from softcue.backbones.passes.decoding import Decoding
from softcue.backbones.passes.forward_pass import ForwardPass, RankedRows, sum_log_probabilities
from softcue.devices import send
from softcue.inputs.collate import PaddingSide
from softcue.inputs.formatter import TOKENS_AT_ONCE
from softcue.prompts.mixed import first_row, join_prompts
from softcue.types import Batch, LayerPrompt, Prompt

KeyValueCache = list[tuple[Tensor, Tensor]]  # keys and values per layer, each [B heads S K/heads]


class SharedPrefix(NamedTuple):
    """Rows that begin with the same positions."""

    rows: Tensor  # [b] indices into the batch
    length: int  # N positions: the tokens before the prompt, and the prompt
    tokens_before: tuple[int, ...]  # ids of the tokens before the prompt
    prompt: Prompt


@dataclass(frozen=True)
class PrefixStates:
    """The results of a pass over the positions of a shared prefix, for one row."""

    hidden: Tensor  # [1 N D] last-layer states
    cache: KeyValueCache

    @cached_property
    def by_position(self) -> list[Tensor]:
        """Keys and values of each layer in turn, position by position. [N heads K/heads] each"""
        return [tensor[0].transpose(0, 1) for pair in self.cache for tensor in pair]

    @cached_property
    def num_bytes(self) -> int:
        """The memory that they take."""
        return sum(keys.nbytes + values.nbytes for keys, values in self.cache) + self.hidden.nbytes


def find_shared_prefixes(batch: Batch, prompt: Prompt | None, side: PaddingSide) -> list[SharedPrefix]:
    """Find the rows of each prompt that begin alike; none if a prompt depends on the text or is not in front of it.

    Example:
        >>> from softcue.inputs.collate import collate
        >>> from softcue.types import TokenizedRow
        >>> rows = [TokenizedRow((1, 7, 8), None, insert_at=1), TokenizedRow((1, 9), None, insert_at=1)]
        >>> batch = collate(rows, pad_id=0)
        >>> mask = torch.ones(2, 5, dtype=torch.bool)
        >>> prompt = Prompt(torch.zeros(2, 5, 4), mask, torch.zeros(()), shared_by=nn.Identity())
        >>> find_shared_prefixes(batch, prompt, "left")[0].length
        6
    """
    if prompt is None or prompt.is_parallel:
        return []
    host = batch.on_host
    all_rows = torch.arange(batch.size, device=host.ids.device)
    parts = prompt.parts or ((all_rows, prompt),)
    if any(cue_prompt.tokens.shape[1] and cue_prompt.shared_by is None for _, cue_prompt in parts):
        return []
    insert_at, lengths = host.insert_at.tolist(), host.mask.sum(dim=1).tolist()
    most_before = max(insert_at, default=0)
    ids, mask = host.ids[:, :most_before].tolist(), host.mask[:, :most_before].tolist()
    prefixes, first = [], 0
    for rows, cue_prompt in parts:  # one part's rows follow the other's
        members = range(first, first := first + len(rows))
        prompt_length = cue_prompt.tokens.shape[1]
        num_before = insert_at[members[0]] if prompt_length else 0
        before = ids[members[0]][:num_before]
        if prompt_length and any(insert_at[row] != num_before for row in members):
            return []
        if any(lengths[row] <= num_before or ids[row][:num_before] != before for row in members):
            return []
        if not all(all(mask[row][:num_before]) for row in members):
            return []
        prefixes.append(
            SharedPrefix(send(rows, batch.ids.device), num_before + prompt_length, tuple(before), cue_prompt)
        )
    prefix_lengths = {prefix.length for prefix in prefixes}
    return [] if prefix_lengths == {0} or (side == "right" and len(prefix_lengths) > 1) else prefixes


class PrefixCache:
    """Prefix states of prompts whose parameters have not changed. The least recently used are dropped first."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes  # of hidden states, keys and values
        self.num_bytes = 0
        self._entries: WeakKeyDictionary[nn.Module, tuple[list[Tensor], tuple[int, ...], PrefixStates]] = (
            WeakKeyDictionary()
        )
        self._lock = threading.Lock()

    def get(self, prefix: SharedPrefix) -> PrefixStates | None:
        """Return the states kept for a prefix, if a pass would still compute the same."""
        encoder = prefix.prompt.shared_by
        assert encoder is not None
        with self._lock:
            entry = self._entries.pop(encoder, None)
            if entry is not None:
                self._entries[encoder] = entry  # now the most recently used
        if entry is None:
            return None
        kept_tensors, tokens_before, states = entry
        tensors = _tensors_of(encoder)
        is_same = tokens_before == prefix.tokens_before and len(kept_tensors) == len(tensors)
        return states if is_same and all(map(torch.equal, kept_tensors, tensors)) else None

    def put(self, prefix: SharedPrefix, states: PrefixStates) -> None:
        """Keep the states of a prefix, and drop the least recently used ones if there are too many bytes."""
        encoder = prefix.prompt.shared_by
        assert encoder is not None
        tensors = [value.clone() for value in _tensors_of(encoder)]
        with self._lock:
            self._entries.pop(encoder, None)
            self._entries[encoder] = (tensors, prefix.tokens_before, states)
            # Counted anew, because the states of a cue that is gone leave by themselves.
            self.num_bytes = sum(kept.num_bytes for _, _, kept in self._entries.values())
            for module in list(self._entries):
                if self.num_bytes <= self.max_bytes:
                    break
                self.num_bytes -= self._entries.pop(module)[2].num_bytes

    def forget(self) -> None:
        """Drop all states."""
        with self._lock:
            self._entries.clear()
            self.num_bytes = 0


def _tensors_of(module: nn.Module) -> list[Tensor]:
    # Compared by value: a version counter does not notice changes through `.data`.
    return [value.detach() for value in (*module.parameters(), *module.buffers())]


def make_cache(keys_values: KeyValueCache) -> Any:
    """Make a cache of transformers that begins with these keys and values and never crops them to a sliding window."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    cache = DynamicCache()
    for keys, values in keys_values:
        layer = DynamicLayer()
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values  # an update of an empty layer would copy expanded tensors
        cache.layers.append(layer)
    return cache


def take_rows(keys_values: KeyValueCache, rows: Tensor) -> KeyValueCache:
    """Copy keys and values of some rows [N], which may repeat, for beams or candidates. [B ...] -> [N ...]"""
    return [
        (keys.index_select(0, rows.to(keys.device)), values.index_select(0, rows.to(values.device)))
        for keys, values in keys_values
    ]


def make_rerunnable_cache(keys_values: KeyValueCache, num_layers: int) -> Any:
    """Make a cache of transformers for one pass whose layers may run again in the backward pass.

    A layer that runs again gets what it got the first time: its keys behind these ones, and not behind its own.
    """
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    class RerunnableLayer(DynamicLayer):  # type: ignore[misc]  # transformers has no types here
        """One layer's keys and values. Those of the pass itself are kept only if there were none before."""

        def __init__(self, before: tuple[Tensor, Tensor] | None) -> None:
            super().__init__()
            self.before = before
            if before is not None:
                self.lazy_initialization(*before)
                self.keys, self.values = before

        def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
            if self.before is None:
                if not self.is_initialized:
                    self.lazy_initialization(key_states, value_states)
                    self.keys, self.values = key_states, value_states
                return key_states, value_states
            keys, values = self.before
            return torch.cat([keys, key_states], dim=-2), torch.cat([values, value_states], dim=-2)

    cache = DynamicCache()
    cache.layers.extend(RerunnableLayer(keys_values[layer] if keys_values else None) for layer in range(num_layers))
    return cache


def keys_values_of(cache: Any) -> KeyValueCache:
    """Take the keys and values of each layer from a cache of transformers."""
    return [(layer.keys, layer.values) for layer in cache.layers]


@dataclass
class DecoderPass(ForwardPass):
    """A pass of a causal backbone."""

    shared: Sequence[SharedPrefix] = ()  # prefixes that run once for several rows
    _source_cache: KeyValueCache | None = None  # of prompt and text
    _source_cache_mask: Tensor | None = None  # [B S] which of its columns are real
    _last_logits: Tensor | None = None  # [B V]
    _lasting: dict[int, LayerPrompt] = field(default_factory=dict)  # what acts behind the source too, by layer
    _prefix_states: list[PrefixStates] | None = None

    @cached_property
    def _starts(self) -> Tensor:
        """The first real column of each row. [B 1]"""
        return self.layout.mask.long().argmax(dim=1, keepdim=True)

    @cached_property
    def _prefix_lengths(self) -> Tensor:
        """The number of shared positions of each row. [B 1]"""
        if not self.shared:
            return torch.zeros(len(self.ids), 1, dtype=torch.long, device=self.ids.device)
        lengths = send(torch.tensor([[prefix.length] for prefix in self.shared]), self.ids.device)
        return lengths[self._prefix_numbers]

    @cached_property
    def _prefix_numbers(self) -> Tensor:
        """The shared prefix of each row. [B]"""
        numbers = torch.arange(len(self.shared), device=self.ids.device)
        sizes = send(torch.tensor([len(prefix.rows) for prefix in self.shared]), self.ids.device)
        rows = torch.cat([prefix.rows for prefix in self.shared])
        return torch.empty_like(rows).index_copy(0, rows, numbers.repeat_interleave(sizes, output_size=len(rows)))

    @property
    def _longest_prefix(self) -> int:
        """N of the longest shared prefix."""
        return max(prefix.length for prefix in self.shared)

    @cached_property
    def _first_column(self) -> int:
        """The first column that at least one row does not share."""
        mask = self.layout.on_host.mask
        if len(self.shared) == 1:  # all rows share it
            return mask.shape[1] - int(mask.sum(dim=1).max()) + self.shared[0].length
        num_unshared = mask.sum(dim=1, keepdim=True) - self._prefix_lengths.to(mask.device)  # [B 1]
        return mask.shape[1] - int(num_unshared.max())

    @cached_property
    def _source_mask(self) -> Tensor:
        """Which columns of the keys are real: shared positions, at the end of their block, then the others. [B S]"""
        if not self.shared:
            return self.layout.mask
        columns = torch.arange(self.layout.mask.shape[1], device=self.ids.device)
        # A row's laid-out copy of the shared positions follows its padding, partly in the columns that remain.
        is_unshared = self.layout.mask & (columns >= self._starts + self._prefix_lengths)  # [B S]
        longest = self._longest_prefix
        is_shared = columns[:longest] >= longest - self._prefix_lengths  # [B N]
        return torch.cat([is_shared, is_unshared[:, self._first_column :]], dim=1)

    def _run_prefixes(self) -> list[PrefixStates]:
        """Run each shared prefix once. Without gradients a frozen backbone keeps its states for the next batch."""
        if self._prefix_states is None:
            use_cache = self.backbone.is_frozen and not torch.is_grad_enabled()
            store = self.backbone.prefixes
            kept = [store.get(prefix) if use_cache and prefix.length else None for prefix in self.shared]
            missing = [
                prefix for prefix, states in zip(self.shared, kept, strict=True) if states is None and prefix.length
            ]
            size = max(1, TOKENS_AT_ONCE // self._longest_prefix)
            computed: list[PrefixStates] = []
            while len(computed) < len(missing):
                computed += self._compute_prefixes(missing[len(computed) : len(computed) + size])
            in_order = iter(computed)
            nothing = PrefixStates(self.embeds[:1, :0], [])
            self._prefix_states = []
            for prefix, states in zip(self.shared, kept, strict=True):
                if states is None:
                    states = next(in_order) if prefix.length else nothing
                    if use_cache and prefix.length:
                        store.put(prefix, states)
                self._prefix_states.append(states)
        return self._prefix_states

    def _compute_prefixes(self, prefixes: Sequence[SharedPrefix]) -> list[PrefixStates]:
        """Run the positions of several prefixes in one pass; shorter ones are padded in front."""
        longest = max(prefix.length for prefix in prefixes)
        rows = torch.cat([prefix.rows[:1] for prefix in prefixes])  # [n] a row of each prefix
        lengths = send(torch.tensor([[prefix.length] for prefix in prefixes]), rows.device)  # [n 1]
        places = torch.arange(longest, device=rows.device) - (longest - lengths)  # [n N] position within the row
        columns = (self._starts[rows] + places).clamp(min=0)
        is_real = places >= 0
        no_text = self.layout.text_slots[rows, :0]
        layout = replace(
            replace(self.layout, host=None).rows(rows),  # nothing is read from the device
            index=self.layout.index[rows].gather(1, columns).where(is_real, self.layout.pool_size),
            mask=is_real,
            text_slots=no_text,
            text_mask=no_text.bool(),
            host=None,
        )
        prompt = join_prompts([first_row(prefix.prompt) for prefix in prefixes])
        embeds = self.embeds[rows.unsqueeze(1), columns]  # [n N D]
        prefix_pass = replace(self, layout=layout, embeds=embeds, prompt=prompt, shared=())
        with prefix_pass._with_prompts():
            cache = self._make_cache([])
            output = self.backbone.base(**prefix_pass._inputs(), use_cache=True, past_key_values=cache)
        hidden = output.last_hidden_state.to(self.embeds.device)
        keys_values = keys_values_of(output.past_key_values)
        if len(prefixes) == 1:
            return [PrefixStates(hidden, keys_values)]
        # Copied, so that none keeps the others and their padding in memory.
        return [
            PrefixStates(
                hidden[[number], longest - prefix.length :],
                [
                    (keys[[number], :, longest - prefix.length :], values[[number], :, longest - prefix.length :])
                    for keys, values in keys_values
                ],
            )
            for number, prefix in enumerate(prefixes)
        ]

    def _make_cache(self, keys_values: KeyValueCache) -> Any:
        """Make a cache for a pass that begins with these keys and values."""
        if self.backbone.checkpoints_layers and torch.is_grad_enabled():
            return make_rerunnable_cache(keys_values, self.backbone.num_layers)
        return make_cache(keys_values)

    @property
    def prefix_keys_values(self) -> KeyValueCache | None:
        """Keys and values, per layer, of the positions that all rows share, as attention reads them; None if none."""
        return self._run_prefixes()[0].cache if len(self.shared) == 1 else None

    def _run_model(self, model: Any, **options: Any) -> Any:
        """Run a model on the rows. Shared prefixes are passed as keys and values."""
        if not self.shared:
            if options.get("use_cache"):
                options["past_key_values"] = make_cache([])
            with self._with_prompts() as active:
                output = model(**self._inputs(), **options)
                if active is not None:
                    parts = {layer: part.lasting_part for layer, part in active.layer_prompts.items()}
                    self._lasting = {layer: part for layer, part in parts.items() if part is not None}
            return output
        inputs = self._inputs()
        for name in inputs.keys() - {"attention_mask"}:
            inputs[name] = inputs[name][:, self._first_column :]
        inputs["attention_mask"] = self._source_mask.long()
        cache = self._make_cache(self._join_prefix_caches())
        with self._without_prompts():
            return model(**inputs, past_key_values=cache, **options | {"use_cache": True})

    def _join_prefix_caches(self) -> KeyValueCache:
        """Return the shared keys and values for all rows: one expanded copy for one prefix, else a padded block."""
        all_states, num_rows = self._run_prefixes(), len(self.ids)
        if len(all_states) == 1:
            return [
                (keys.expand(num_rows, -1, -1, -1), values.expand(num_rows, -1, -1, -1))
                for keys, values in all_states[0].cache
            ]
        example = next(states.by_position for states in all_states if states.cache)
        empty = [tensor[:0] for tensor in example]  # of rows without a prefix
        by_prefix = [states.by_position or empty for states in all_states]
        blocks = []
        for tensors in zip(*by_prefix, strict=True):  # one layer's keys or values
            padded = pad_sequence(list(tensors), batch_first=True, padding_side="left")  # [n N heads K/heads]
            blocks.append(
                padded.index_select(0, self._prefix_numbers.to(padded.device)).transpose(1, 2)
            )  # [B heads N K/heads]
        return list(zip(blocks[::2], blocks[1::2], strict=True))

    def _run(self) -> Tensor:
        hidden: Tensor = self._run_model(self.backbone.base, use_cache=False).last_hidden_state.to(self.embeds.device)
        if not self.shared:
            return hidden
        longest = self._longest_prefix
        all_states = self._run_prefixes()
        like = next(states.hidden[0] for states in all_states if states.cache)
        prefix_states = [states.hidden[0] if states.cache else like[:0] for states in all_states]  # [N D] each
        padded = pad_sequence(prefix_states, batch_first=True, padding_side="left")  # [n N D]
        block = padded.index_select(0, self._prefix_numbers)  # [B N D]
        columns = torch.arange(self.layout.mask.shape[1], device=hidden.device)
        places = columns - self._starts  # [B S] position within the row
        shared_columns = longest - self._prefix_lengths + places
        unshared_columns = longest + columns - self._first_column
        index = torch.where(places < self._prefix_lengths, shared_columns, unshared_columns)  # [B S]
        index = index.clamp(min=0).unsqueeze(2).expand(-1, -1, hidden.shape[2])
        return torch.cat([block, hidden], dim=1).gather(1, index)

    def first_logits(self) -> Tensor:
        """Logits at the last token of the source, which belongs to the prompt if that is behind the text. [B V]"""
        layout = self.layout.on_host
        is_source = layout.is_text | layout.is_prompt  # [B S]
        columns = torch.arange(is_source.shape[1], device=is_source.device)
        return self._logits_at((columns * is_source).max(dim=1, keepdim=True).values)[:, 0]

    def target_logits(self, target_ids: Tensor) -> Tensor:
        """Logits at the token before each target token. [B U V]"""
        layout = self.layout.on_host
        slots = layout.target_slots - 1  # [B U]
        return self._logits_at(slots.where(layout.target_mask, slots.max()))  # padding adds no column

    def rank_together(self, groups: Sequence[RankedRows]) -> list[Tensor]:
        """Log-likelihood of each group's candidates for each of its rows: [b C] per group."""
        longest = max(len(candidate) for _, candidates in groups for candidate in candidates)
        if self._leaves_window(longest):
            return self._in_every_row().rank_together(groups)
        return super().rank_together(groups)

    def _score(self, rows: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        """Log-likelihood of targets [N U]; those of one row [N] read the same keys and values of the source. [N]"""
        assert self._source_cache is not None and self._source_cache_mask is not None and self._last_logits is not None
        scores = self._last_logits.log_softmax(dim=-1)[rows, ids[:, 0]]  # [N]
        if ids.shape[1] == 1:
            return scores
        before, before_mask = ids[:, :-1], mask[:, :-1]  # [N U-1]
        embeds = self._embed_continuations(rows, before, before_mask)  # [N U-1 D]
        positions = self.layout.num_positions[rows] + torch.arange(before.shape[1], device=ids.device)  # [N U-1]
        lasting = {layer: part.rows(rows) for layer, part in self._lasting.items()}
        with self._without_prompts(lasting=lasting):
            output = self.backbone.model(
                inputs_embeds=embeds.to(self.backbone.dtype),
                attention_mask=torch.cat([self._source_cache_mask[rows], before_mask], dim=1).long(),
                past_key_values=make_cache(take_rows(self._source_cache, rows)),
                use_cache=True,
                **self.backbone.position_inputs(positions),
            )
        logits = output.logits.to(scores.device).float()  # [N U-1 V]
        return scores + sum_log_probabilities(logits, ids[:, 1:], mask[:, 1:])

    def _embed_continuations(self, rows: Tensor, target_ids: Tensor, target_mask: Tensor) -> Tensor:
        """Return the input states of tokens [N U] behind the text of a row [N]. [N U D]"""
        return self.backbone.embed(target_ids)

    def _generate(self, decoding: Decoding) -> list[list[int]]:
        """Generate. The prompt enters in the first step; later steps use its keys and values."""
        joined = self.layout.joined is not None  # then columns are not positions
        if self._leaves_window(decoding.max_new_tokens):
            return self._in_every_row()._generate(decoding)
        num_beams = decoding.num_beams
        if not self.shared:
            with self._with_prompts():
                generated = self.backbone.generate(
                    decoding,
                    self.listeners,
                    self._draw_keys(decoding),
                    inputs_embeds=self.embeds,
                    attention_mask=self.layout.mask.long(),
                    past_key_values=self._make_generation_cache([], num_beams),
                    **(self.backbone.position_inputs(self.layout.positions) if joined else {}),
                )
            return generated.tolist()
        mask, unshared = self._source_mask, self.embeds[:, self._first_column :]
        # transformers skips one input for each cached key, and repeats all inputs except the cache for its beams.
        skipped = unshared.new_zeros(len(unshared), mask.shape[1] - unshared.shape[1], unshared.shape[2])
        cache = take_rows(self._join_prefix_caches(), self._repeated_rows(num_beams))
        with self._without_prompts():
            generated = self.backbone.generate(
                decoding,
                self.listeners,
                self._draw_keys(decoding),
                inputs_embeds=torch.cat([skipped, unshared], dim=1),
                attention_mask=mask.long(),
                past_key_values=self._make_generation_cache(cache, num_beams),
            )
        return generated.tolist()

    def _repeated_rows(self, num_beams: int) -> Tensor:
        """The row of each beam. [B*beams]"""
        return torch.arange(len(self.ids), device=self.ids.device).repeat_interleave(num_beams)

    def _make_generation_cache(self, keys_values: KeyValueCache, num_beams: int) -> Any:
        """Make the cache that generation begins with; `keys_values` have a row for each beam."""
        return make_cache(keys_values)

    def _leaves_window(self, num_new_tokens: int) -> bool:
        """Whether new tokens would be too far from shared positions or joined keys for a layer with a sliding window.

        Such a layer counts columns. Shorter rows have padding between the shared positions and the others, and joined
        keys have no columns.
        """
        window = self.backbone.window
        if window is None:
            return False
        num_joined = int(self.layout.num_positions.max()) if self.layout.joined is not None else 0
        num_shared = self._source_mask.shape[1] if self.shared else 0
        num_columns = max(num_joined, num_shared)
        return num_columns > 0 and num_columns + num_new_tokens > window

    def _in_every_row(self) -> DecoderPass:
        """The same rows, each with its own copy of the prompt, at positions."""
        return replace(
            self.with_positions,
            shared=(),
            read_with_positions=None,
            _prefix_states=None,
            _source_cache=None,
            _source_cache_mask=None,
            _last_logits=None,
            _hidden=None,
        )

    def rows(self, index: Tensor) -> ForwardPass:
        """The same pass for some of the rows, with their keys, values and logits."""
        narrowed = super().rows(index)
        if narrowed is self:
            return self
        assert isinstance(narrowed, DecoderPass)
        if self.shared:
            members: dict[int, list[int]] = {}  # prefix -> its rows among the chosen ones
            for row, number in enumerate(self._prefix_numbers[index].tolist()):
                members.setdefault(number, []).append(row)
            numbers = sorted(members)
            narrowed.shared = [
                self.shared[number]._replace(rows=torch.tensor(members[number], device=index.device))
                for number in numbers
            ]
            states = self._prefix_states
            narrowed._prefix_states = None if states is None else [states[number] for number in numbers]
        narrowed._lasting = {layer: part.rows(index) for layer, part in self._lasting.items()}
        if self._source_cache is not None and self._source_cache_mask is not None and self._last_logits is not None:
            narrowed._source_cache_mask = self._source_cache_mask[index]
            narrowed._source_cache = [
                (keys[index.to(keys.device)], values[index.to(values.device)]) for keys, values in self._source_cache
            ]
            narrowed._last_logits = self._last_logits[index]
        return narrowed

    def _run_for_ranking(self) -> None:
        """Run once over prompt and text and keep keys and values. The text must end in the last column."""
        if self._source_cache is not None:
            return
        last_column = {"logits_to_keep": 1} if self.backbone.structure.takes_logits_to_keep else {}
        output = self._run_model(self.backbone.model, use_cache=True, **last_column)
        self._last_logits = output.logits[:, -1].to(self.embeds.device).float()
        self._source_cache, self._source_cache_mask = keys_values_of(output.past_key_values), self._source_mask

    def _logits_at(self, slots: Tensor) -> Tensor:
        """Logits at positions that the host gives [B U] -> [B U V]; the head runs only on columns that a row needs."""
        slots = (slots - (self._first_column if self.shared else 0)).clamp(min=0)  # padding may have no column
        is_alike = bool((slots == slots[:1]).all())  # left padding, targets of one length: the same for all rows
        columns, index = (slots[0], None) if is_alike else slots.unique(return_inverse=True)
        columns, index = send(columns, self.ids.device), None if index is None else send(index, self.ids.device)
        if self.backbone.structure.takes_logits_to_keep:
            logits: Tensor = self._run_model(self.backbone.model, use_cache=False, logits_to_keep=columns).logits
        else:
            logits = self._run_model(self.backbone.model, use_cache=False).logits[:, columns]
        logits = logits.to(self.embeds.device).float()  # [B columns V]
        return logits if index is None else logits.gather(1, index.unsqueeze(2).expand(-1, -1, logits.shape[2]))
