"""Late prompts: a backbone whose prompts enter at layer k, beyond the papers.

Layers below k read the text alone: what they give depends on the frozen model and the text, so it is computed once,
without gradient, and kept (kept_states.py). A step then runs the layers from k on, and the backward pass ends there.

`LateBackbone` is the model from layer k on, a copy of its structure that shares every weight. What other backbones
call word embeddings are here the states that enter layer k.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import weakref
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from softcue.backbones.backbone import Backbone
from softcue.backbones.families import family_of
from softcue.backbones.injection import ReachedLayer, injected
from softcue.backbones.loading.fingerprint import Fingerprint
from softcue.backbones.passes.decoder import DecoderPass
from softcue.backbones.passes.shared_prefix import KeysValues
from softcue.backbones.state_cache import StateCache
from softcue.errors import BackboneError
from softcue.types import Batch

WORDS_AT_ONCE = 256


class LateBackbone(Backbone):
    """A frozen model from one of its layers on, reading what the layers below made of the text."""

    def __init__(self, whole: Backbone, first_layer: int) -> None:
        if not 0 < first_layer < whole.num_layers:
            raise BackboneError(
                setting="method.insert_layer",
                got=first_layer,
                expected=f"0 to {whole.num_layers - 1}, layers of {whole.name}",
                fix="0 puts the prompt among the word embeddings",
            )
        self.whole = whole
        self.first_layer = first_layer
        super().__init__(_upper(whole.model, first_layer), whole.tokenizer, whole.name, whole.folder)
        self.layout_side = whole.layout_side
        if self.kind == "decoder":
            self._reading = LateDecoderPass
        self.kept = StateCache(*whole.state_cache_bytes)
        self._last: tuple[weakref.ref[Batch], Tensor] | None = None  # of the batch asked for last: text, then target
        if whole.checkpoints_layers:
            self.checkpoint_layers()
        _enter_at_first_layer(_taking_embeddings(self.base), self.layers[0], whole.width, self.written)

    @property
    def width(self) -> int:
        """D of prompt vectors: they stand among hidden states."""
        return self.hidden_width

    @cached_property
    def max_length(self) -> int:
        """As the whole model's: the prompt has no position embeddings, but the rest of softcue counts it."""
        return self.whole.max_length

    @property
    def fingerprint(self) -> Fingerprint:
        """A cue belongs to the whole model."""
        return self.whole.fingerprint

    @property
    def with_dropout(self) -> Backbone:
        """What is read with dropout on is read by the whole model."""
        return self.whole.with_dropout

    @property
    def word_input_states(self) -> WordStates:
        """What layer k would read of single words."""
        return WordStates(self)

    def input_states(self, batch: Batch) -> Tensor:
        """The states of the text that enter layer k, in float32. [B T D]"""
        return self._states(batch)[:, : batch.ids.shape[1]]

    def following(self, batch: Batch) -> Tensor:
        """The states of a decoder's target tokens, which have read the text. [B U D]"""
        return self._states(batch)[:, batch.ids.shape[1] :]

    def late(self, first_layer: int) -> Backbone:
        """Counted from the whole model's first layer."""
        return self.whole.late(first_layer)

    def twin(self, weights: Any = None) -> Backbone:
        """Of the whole model."""
        return self.whole.twin(weights)

    @torch.no_grad()
    def run_below(self, **inputs: Any) -> Tensor:
        """What a pass of the whole model gives layer k; its cache then holds the layers below. [B S D]"""
        try:
            with injected(self.whole.layers, (), stops_at=self.first_layer):
                self.whole.base(**inputs, use_cache=True)
        except ReachedLayer as reached:
            return reached.hidden
        raise AssertionError(f"{self.name} never ran layer {self.first_layer}")

    def written(self, ids: Tensor, mask: Tensor, below: WritingCache) -> Tensor:
        """States of tokens behind a text, which from now on belongs to it. [N U] -> [N U D]"""
        first = below.mask.sum(dim=1, keepdim=True) + (self.first_position or 0)  # [N 1]
        below.mask = torch.cat([below.mask, mask.long()], dim=1)
        positions = first + torch.arange(ids.shape[1], device=ids.device)
        return self.run_below(
            input_ids=ids, attention_mask=below.mask, position_ids=positions, past_key_values=below.below
        )

    @torch.no_grad()
    def _states(self, batch: Batch) -> Tensor:
        """Text, then (on decoders) target, each padded as in the batch. [B T+U D]"""
        last = self._last
        if last is not None and last[0]() is batch:
            return last[1]
        with_target = self.kind == "decoder" and batch.target_ids.shape[1] > 0
        width = batch.ids.shape[1] + (batch.target_ids.shape[1] if with_target else 0)
        keys = _keys(batch, with_target)
        known = self.kept.get(keys)
        missing = [row for row, states in enumerate(known) if states is None]
        if missing:
            rows = batch.rows(torch.tensor(missing, device=batch.ids.device))
            forward_pass = self.whole.read(rows, None, self.whole.embed(rows.ids), with_target)
            states, mask = forward_pass.input_states(self.first_layer, with_target)  # [b T+U D], [b T+U]
            for number, row in enumerate(missing):
                known[row] = states[number, mask[number]]
            self.kept.put({keys[row]: own for row in missing if (own := known[row]) is not None})
        mask = torch.cat([batch.mask, batch.target_mask], dim=1)[:, :width]
        found = torch.zeros(batch.size, width, self.hidden_width, device=batch.ids.device)
        found[mask] = torch.cat([own.to(found) for own in known if own is not None])
        self._last = (weakref.ref(batch), found)
        return found


class WordStates:
    """States that enter layer k where a text is one word, computed for the words that are asked for.

    The word stands among the special tokens of a text: the first position of a model has nearly the same states
    whatever word stands there (MiniLM's layer 3: cosine 1.0000 between words; 0.27 within [CLS] and [SEP]).
    """

    def __init__(self, backbone: LateBackbone) -> None:
        self._backbone = backbone

    def __len__(self) -> int:
        return len(self._backbone.word_table)

    def __getitem__(self, ids: Tensor) -> Tensor:
        """[n] -> [n D]"""
        whole = self._backbone.whole
        before, after = _around_texts(whole)
        found = []
        with torch.no_grad():
            for some in ids.to(whole.device).split(WORDS_AT_ONCE) if len(ids) else ():
                text = torch.cat(
                    [
                        some.new_tensor(before).expand(len(some), -1),
                        some.unsqueeze(1),
                        some.new_tensor(after).expand(len(some), -1),
                    ],
                    dim=1,
                )
                nothing = text[:, :0]
                batch = Batch(
                    text, torch.ones_like(text).bool(), None, text.new_zeros(len(text)), nothing, nothing.bool()
                )
                forward_pass = whole.read(batch, None, whole.embed(batch.ids))
                found.append(forward_pass.input_states(self._backbone.first_layer)[0][:, len(before)].float().cpu())
        return torch.cat(found) if found else torch.zeros(0, self._backbone.width)


def _around_texts(backbone: Backbone) -> tuple[list[int], list[int]]:
    """Special tokens before and after every text; a decoder that has none in front begins where a text has ended."""
    tokenizer = backbone.tokenizer
    ids, special = list(tokenizer("a")["input_ids"]), set(tokenizer.all_special_ids)
    before = list(itertools.takewhile(lambda token: token in special, ids))
    after = list(itertools.takewhile(lambda token: token in special, reversed(ids[len(before) :])))
    if backbone.kind == "decoder" and not before:
        before = [tokenizer.eos_token_id]
    return before, after[::-1]


class WritingCache:
    """Keys and values of a text in the layers below, which follow those of the layers above through beam search."""

    def __init__(self, known: KeysValues, mask: Tensor, repeats: int) -> None:
        from transformers import DynamicCache

        self.below = DynamicCache(
            [(k.repeat_interleave(repeats, 0), v.repeat_interleave(repeats, 0)) for k, v in known]
        )
        self.mask = mask.long().repeat_interleave(repeats, dim=0)  # [N S]

    def carried_by(self, above: KeysValues) -> Any:
        """A cache for the layers above that takes this one along."""
        from transformers import DynamicCache

        cache = DynamicCache(above)
        reorder = cache.reorder_cache

        def reorder_both(beams: Tensor) -> None:  # beams of a row, whose mask is the same
            reorder(beams)
            self.below.reorder_cache(beams)

        cache.reorder_cache = reorder_both
        cache.softcue_below = self
        return cache


class LateDecoderPass(DecoderPass):
    """A causal backbone from layer k on: every token it writes has to pass the layers below first."""

    backbone: LateBackbone

    def _below(self, repeats: int) -> WritingCache:
        """The text's keys and values in the layers below."""
        from transformers import DynamicCache

        nothing = self.ids[:, :0]
        text = Batch(self.ids, self.text_mask, None, self.ids.new_zeros(len(self.ids)), nothing, nothing.bool())
        forward_pass = self.backbone.whole.read(text, None, self.backbone.whole.input_states(text))
        cache = DynamicCache()
        self.backbone.run_below(**forward_pass._inputs(), past_key_values=cache)
        return WritingCache([(layer.keys, layer.values) for layer in cache.layers], forward_pass.layout.mask, repeats)

    def _following(self, target_ids: Tensor, target_mask: Tensor) -> Tensor:
        return self.backbone.written(target_ids, target_mask, self._below(len(target_ids) // len(self.ids)))

    def _written_to(self, known: KeysValues, num_beams: int) -> Any:
        return self._below(num_beams).carried_by(known)


def _keys(batch: Batch, with_target: bool) -> list[bytes]:
    """What a row's states depend on: its real tokens, their sentences, and the target's."""
    found = []
    segments = batch.segments if batch.segments is not None else [None] * batch.size
    for ids, mask, own, target_ids, target_mask in zip(
        batch.ids, batch.mask, segments, batch.target_ids, batch.target_mask, strict=True
    ):
        key = ids[mask].cpu().numpy().tobytes()
        if own is not None:
            key += b"s" + own[mask].cpu().numpy().tobytes()
        if with_target:
            key += b"t" + target_ids[target_mask].cpu().numpy().tobytes()
        found.append(key)
    return found


def _upper(model: Any, first_layer: int) -> Any:
    """The model without its first reading layers, sharing all weights."""
    upper = copy.deepcopy(model, memo={id(value): value for value in model.parameters()})
    architecture = family_of(upper.config.model_type)
    path, _, name = architecture.reader.layers.rpartition(".")
    parent: Any = upper.base_model.get_submodule(path)
    layers: Sequence[nn.Module] = list(getattr(parent, name))
    for layer in layers:
        vars(layer).pop("forward", None)  # a checkpointed layer's, which would run the first model's
        for module in layer.modules():
            if isinstance(getattr(module, "layer_idx", None), int):  # its place among cached keys and values
                module.layer_idx -= first_layer  # type: ignore[operator, assignment]
    for path, module in layers[0].named_modules():
        if getattr(module, "has_relative_attention_bias", False):  # T5's first layer has the bias for all of them
            heir: Any = layers[first_layer].get_submodule(path)
            heir.relative_attention_bias, heir.has_relative_attention_bias = module.relative_attention_bias, True
    if getattr(parent, "conv", None) is not None:  # DeBERTa's, which follows its first layer
        parent.conv = None
    setattr(parent, name, nn.ModuleList(layers[first_layer:]))
    if architecture.kind == "decoder":
        upper.config.num_hidden_layers = len(layers) - first_layer
        if kinds := getattr(upper.config, "layer_types", None):
            upper.config.layer_types = kinds[first_layer:]
    return upper


def _taking_embeddings(base: Any) -> nn.Module:
    """The module around the layers that takes `inputs_embeds`."""
    path = family_of(base.config.model_type).reader.layers
    while path:
        path = path.rpartition(".")[0]
        module: nn.Module = base.get_submodule(path)
        if "inputs_embeds" in inspect.signature(module.forward).parameters:
            return module
    raise AssertionError(f"{type(base).__name__} takes no word embeddings")


def _enter_at_first_layer(
    reader: nn.Module, first: nn.Module, width: int, written: Callable[[Tensor, Tensor, WritingCache], Tensor]
) -> None:
    """Make a model take states for its first layer where it takes word embeddings, and make states of what it writes.

    Its embedding stage still runs, on nothing: position embeddings and norms are in what the states come from.
    """
    states: ContextVar[Tensor | None] = ContextVar("softcue_states", default=None)

    def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given, ids = kwargs.get("inputs_embeds"), args[0] if args else kwargs.get("input_ids")
        below = getattr(kwargs.get("past_key_values"), "softcue_below", None)
        if given is None and ids is not None and below is not None:
            given = written(ids, torch.ones_like(ids), below)
        states.set(given)
        if given is None:
            return None
        nothing = given.new_zeros(*given.shape[:2], width)
        args, kwargs = (None, *args[1:]) if args else args, {**kwargs, "inputs_embeds": nothing}
        return args, kwargs if args else {**kwargs, "input_ids": None}

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = states.get()
        if given is None:
            return None
        states.set(None)
        return ((given, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": given})

    reader.register_forward_pre_hook(keep, with_kwargs=True)
    first.register_forward_pre_hook(enter, with_kwargs=True, prepend=True)  # before a prompt's own part goes in
