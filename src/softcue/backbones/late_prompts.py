"""Late prompts: a backbone whose prompts enter at layer k. This goes beyond the papers.

The layers below k run on the text alone. Their output depends on the frozen model and the text only, so it is computed
once, without gradient, and kept (state_cache.py). A training step runs the layers from k on, and its backward pass
ends there. If the backbone's weights are trained too, its twin computes these states in every step, with gradient.

`LateBackbone` is the model from layer k on: a copy of the structure that shares all weights. Where other backbones take
word embeddings, it takes the hidden states that enter layer k.
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
from softcue.backbones.injection import ReachedLayer, device_of, inject
from softcue.backbones.loading.fingerprint import Fingerprint
from softcue.backbones.passes.decoder import DecoderPass, KeyValueCache, keys_values_of, take_rows
from softcue.backbones.prompt_gradients import keep_prompt_gradients
from softcue.backbones.state_cache import StateCache
from softcue.backbones.tracing import (
    LARGEST_DIFFERENCE,
    ROUGH_DIFFERENCE,
    relative_difference,
    set_structure,
    structure_of,
)
from softcue.errors import BackboneError
from softcue.types import Batch

WORDS_AT_ONCE = 256
# In DeBERTa a convolution over the word embeddings, beside the list of layers, follows the first layer: a model without
# its first layer must not run it.
AFTER_FIRST_LAYER = "conv"
LAYER_INDICES = ("layer_idx", "layer_id")  # attributes with a layer's index in a cache of keys and values


class LateBackbone(Backbone):
    """The layers of a frozen model from layer k on. Their input is the output of the layers below."""

    def __init__(self, whole: Backbone, first_layer: int) -> None:
        if not 0 < first_layer < whole.num_layers:
            raise BackboneError(
                setting="method.insert_layer",
                got=first_layer,
                expected=f"0 to {whole.num_layers - 1}, layers of {whole.name}",
                fix="0 puts the prompt among the word embeddings",
            )
        if whole.structure.source.list_path is None:
            raise BackboneError(
                setting="method.insert_layer",
                got=first_layer,
                expected=f"0 with {whole.model.config.model_type}",
                fix="set method.insert_layer=0: its layers share weights, so none can be left out",
            )
        self._whole = whole
        self.first_layer = first_layer
        model = _copy_upper_layers(whole.model, first_layer)
        trainable = [weight for weight in whole.model.parameters() if weight.requires_grad]
        super().__init__(model, whole.tokenizer, whole.name, whole.folder, trainable)
        self.layout_side, self.limits, self.prefix_bytes = whole.layout_side, whole.limits, whole.prefix_bytes
        if self.kind == "decoder":
            self._pass_class = LateDecoderPass
        self.state_cache = StateCache(*whole.state_cache_bytes)
        # The batch whose states were computed last, and these states: of the text, then of the target.
        self._last_states: tuple[weakref.ref[Batch], Tensor] | None = None
        if whole.checkpoints_layers:
            self.checkpoint_layers()
        assert self.structure.source.list_path is not None
        embedding_module = _find_embedding_module(self.base, self.structure.source.list_path)
        _enter_at_first_layer(embedding_module, self.layers[0], whole.width, self.run_below_on_tokens)
        if self.has_constant_text:
            layer = self.structure.source.layers[0]
            projections = [projection for projection in (layer.queries, layer.keys, layer.values) if projection]
            keep_prompt_gradients(self.layers[0], [projection.module for projection in projections], id(self.base))
        self._check_states()

    @torch.no_grad()
    def _check_states(self) -> None:
        """Check on a few tokens that both parts together compute what the whole model computes."""
        table = self.word_table
        if table.is_meta:
            return
        ids = (torch.arange(1, 6, device=table.device) * 41 % len(table)).unsqueeze(0)
        batch = _batch_of_texts(ids, torch.ones_like(ids).bool())
        expected = self.whole.read(batch, None, self.whole.embed(ids)).text()
        below, _ = self._compute_states(batch, with_target=False)
        states = self.read(batch, None, below.float()).text()
        bound = LARGEST_DIFFERENCE.get(self.dtype, ROUGH_DIFFERENCE)
        if relative_difference(states[0], expected[0]) > bound:
            raise BackboneError(
                setting="method.insert_layer",
                got=self.first_layer,
                expected=f"0 with {self.model.config.model_type}",
                fix="set method.insert_layer=0: without its first layers this model computes other states",
            )

    @property
    def has_constant_text(self) -> bool:
        """They are those of the frozen layers below."""
        return self.is_frozen

    @property
    def whole(self) -> Backbone:
        """The model with all its layers."""
        return self._whole

    @property
    def width(self) -> int:
        """D of prompt vectors: that of hidden states."""
        return self.hidden_width

    @cached_property
    def max_length(self) -> int:
        """The limit of the whole model. Late prompts have no position embeddings, but softcue counts them."""
        return self.whole.max_length

    @property
    def fingerprint(self) -> Fingerprint:
        """The digests of the whole model."""
        return self.whole.fingerprint

    @property
    def with_dropout(self) -> Backbone:
        """The whole model with dropout on."""
        return self.whole.with_dropout

    @property
    def word_input_states(self) -> WordStates:
        """The states of single words that enter layer k."""
        return WordStates(self)

    def input_states(self, batch: Batch) -> Tensor:
        """Return the states of the text that enter layer k, in float32. [B T D]"""
        return self._states(batch)[:, : batch.ids.shape[1]]

    def target_input_states(self, batch: Batch) -> Tensor:
        """Return the states of a decoder's target tokens that enter layer k; they depend on the text. [B U D]"""
        return self._states(batch)[:, batch.ids.shape[1] :]

    def from_layer(self, first_layer: int) -> Backbone:
        """Return the view of the whole model from a layer on; layers are counted in the whole model."""
        return self.whole.from_layer(first_layer)

    def with_weights(self, weights: Any = None) -> Backbone:
        """Return the whole model with other weights."""
        return self.whole.with_weights(weights)

    @torch.no_grad()
    def run_below(self, **inputs: Any) -> Tensor:
        """Run the layers below k and return the input of layer k; the given cache then holds their keys. [B S D]"""
        try:
            with inject(self.whole.base, (), stops_at=self.first_layer):
                self.whole.base(**inputs, use_cache=True)
        except ReachedLayer as reached:
            return reached.hidden
        raise AssertionError(f"{self.name} never ran layer {self.first_layer}")

    def run_below_on_tokens(self, ids: Tensor, mask: Tensor, lower: LowerLayersCache) -> Tensor:
        """Run the layers below k on tokens that follow a text, and add them to its cache. [N U] -> [N U D]"""
        positions = lower.mask.sum(dim=1, keepdim=True) + torch.arange(ids.shape[1], device=ids.device)  # [N U]
        lower.mask = torch.cat([lower.mask, mask.long()], dim=1)
        inputs = {"input_ids": ids, "attention_mask": lower.mask, **self.position_inputs(positions)}
        return self.run_below(**inputs, past_key_values=lower.cache)

    def _states(self, batch: Batch) -> Tensor:
        """The states of the text, then (on decoders) of the target, each padded as in the batch. [B T+U D]"""
        with_target = self.kind == "decoder" and batch.target_ids.shape[1] > 0
        # Of weights that are trained: with gradient, and never from before the last step. A graph has no cache.
        if not self.is_frozen or torch.compiler.is_exporting():
            states, mask = self._compute_states(batch, with_target)
            return states.float().masked_fill(~mask.unsqueeze(2), 0.0)
        last = self._last_states
        if last is not None and last[0]() is batch:
            return last[1]
        with torch.no_grad():
            states = self._kept_states(batch, with_target)
        self._last_states = (weakref.ref(batch), states)
        return states

    def _compute_states(self, batch: Batch, with_target: bool) -> tuple[Tensor, Tensor]:
        """Run the layers below on a batch. Which states are real comes second. [B T+U D], [B T+U]"""
        forward_pass = self.whole.read(batch, None, self.whole.embed(batch.ids), with_target)
        return forward_pass.input_states(self.first_layer, with_target)

    def _kept_states(self, batch: Batch, with_target: bool) -> Tensor:
        """The states of a batch; those of rows that were read before come from the cache. [B T+U D]"""
        keys = _cache_keys(batch, with_target)
        row_states = self.state_cache.get(keys)
        missing = [row for row, states in enumerate(row_states) if states is None]
        if missing:
            missing_rows = batch.rows(torch.tensor(missing, device=batch.ids.device))
            new_states, mask = self._compute_states(missing_rows, with_target)
            for number, row in enumerate(missing):
                row_states[row] = new_states[number, mask[number]]
            self.state_cache.put({keys[row]: states for row in missing if (states := row_states[row]) is not None})
        width = batch.ids.shape[1] + (batch.target_ids.shape[1] if with_target else 0)
        mask = torch.cat([batch.mask, batch.target_mask], dim=1)[:, :width]
        padded = torch.zeros(batch.size, width, self.hidden_width, device=batch.ids.device)
        padded[mask] = torch.cat([states.to(padded) for states in row_states if states is not None])
        return padded


class WordStates:
    """The states of single words that enter layer k, computed on demand.

    Each word is the only word of a text, between the special tokens of the tokenizer. Without them it would be the
    first position, whose states are nearly the same for every word (MiniLM's layer 3: the cosine between words is
    1.0000 at the first position and 0.27 within [CLS] and [SEP]).
    """

    def __init__(self, backbone: LateBackbone) -> None:
        self._backbone = backbone

    def __len__(self) -> int:
        return len(self._backbone.word_table)

    def __getitem__(self, ids: Tensor) -> Tensor:
        """[n] -> [n D]"""
        whole = self._backbone.whole
        before, after = _special_tokens_around(whole)
        all_states = []
        with torch.no_grad():
            for words in ids.to(whole.device).split(WORDS_AT_ONCE) if len(ids) else ():
                text = torch.cat(
                    [
                        words.new_tensor(before).expand(len(words), -1),
                        words.unsqueeze(1),
                        words.new_tensor(after).expand(len(words), -1),
                    ],
                    dim=1,
                )
                batch = _batch_of_texts(text, torch.ones_like(text).bool())
                forward_pass = whole.read(batch, None, whole.embed(batch.ids))
                states, _ = forward_pass.input_states(self._backbone.first_layer)
                all_states.append(states[:, len(before)].float().cpu())
        return torch.cat(all_states) if all_states else torch.zeros(0, self._backbone.width)


def _batch_of_texts(ids: Tensor, mask: Tensor) -> Batch:
    """Make a batch of texts without targets. [B T], [B T]"""
    no_target = ids[:, :0]
    return Batch(ids, mask, None, ids.new_zeros(len(ids)), no_target, no_target.bool())


def _special_tokens_around(backbone: Backbone) -> tuple[list[int], list[int]]:
    """Return the special tokens before and after every text; for a decoder without any, the end token before it."""
    tokenizer = backbone.tokenizer
    ids, special = list(tokenizer("a")["input_ids"]), set(tokenizer.all_special_ids)
    before = list(itertools.takewhile(lambda token: token in special, ids))
    after = list(itertools.takewhile(lambda token: token in special, reversed(ids[len(before) :])))
    if backbone.kind == "decoder" and not before:
        before = [tokenizer.eos_token_id]
    return before, after[::-1]


class LowerLayersCache:
    """Keys and values of texts in the layers below k, during generation or ranking with the layers above.

    Beam search reorders the cache of the layers above; `attach_to` makes this cache follow.
    """

    def __init__(self, keys_values: KeyValueCache, mask: Tensor, rows: Tensor) -> None:
        from transformers import DynamicCache

        self.cache = DynamicCache(take_rows(keys_values, rows))
        self.mask = mask.long()[rows]  # [N S]

    def attach_to(self, upper_keys_values: KeyValueCache) -> Any:
        """Make a cache for the layers above that carries this one."""
        from transformers import DynamicCache

        cache = DynamicCache(upper_keys_values)
        reorder_upper = cache.reorder_cache

        def reorder_all(beams: Tensor) -> None:  # beams of one row have the same mask
            reorder_upper(beams)
            self.cache.reorder_cache(beams)

        cache.reorder_cache = reorder_all
        cache.softcue_lower = self
        return cache


class LateDecoderPass(DecoderPass):
    """A pass of a causal backbone from layer k on. Each new token runs through the layers below first."""

    backbone: LateBackbone

    @cached_property
    def _lower_keys_values(self) -> tuple[KeyValueCache, Tensor]:
        """Keys and values of the text in the layers below, and which of their columns are real. [B S]"""
        from transformers import DynamicCache

        text = _batch_of_texts(self.ids, self.text_mask)
        forward_pass = self.backbone.whole.read(text, None, self.backbone.whole.input_states(text))
        cache = DynamicCache()
        self.backbone.run_below(**forward_pass._inputs(), past_key_values=cache)
        return keys_values_of(cache), forward_pass.layout.mask

    def _embed_continuations(self, rows: Tensor, target_ids: Tensor, target_mask: Tensor) -> Tensor:
        lower = LowerLayersCache(*self._lower_keys_values, rows)
        return self.backbone.run_below_on_tokens(target_ids, target_mask, lower)

    def _make_generation_cache(self, keys_values: KeyValueCache, num_beams: int) -> Any:
        return LowerLayersCache(*self._lower_keys_values, self._repeated_rows(num_beams)).attach_to(keys_values)


def _cache_keys(batch: Batch, with_target: bool) -> list[bytes]:
    """Make a key for each row from all that its states depend on: its real tokens, their segments, and the target."""
    keys = []
    all_segments = batch.segments if batch.segments is not None else [None] * batch.size
    for ids, mask, segments, target_ids, target_mask in zip(
        batch.ids, batch.mask, all_segments, batch.target_ids, batch.target_mask, strict=True
    ):
        key = ids[mask].cpu().numpy().tobytes()
        if segments is not None:
            key += b"s" + segments[mask].cpu().numpy().tobytes()
        if with_target:
            key += b"t" + target_ids[target_mask].cpu().numpy().tobytes()
        keys.append(key)
    return keys


def _copy_upper_layers(model: Any, first_layer: int) -> Any:
    """Copy a model without its first source layers; the copy shares all weights."""
    upper = copy.deepcopy(model, memo={id(value): value for value in model.parameters()})
    structure = structure_of(model)
    assert structure.source.list_path is not None
    path, _, list_name = structure.source.list_path.rpartition(".")
    parent: Any = upper.base_model.get_submodule(path)
    layers: Sequence[nn.Module] = list(getattr(parent, list_name))
    for layer in layers:
        vars(layer).pop("forward", None)  # of a checkpointed layer: it would run the layer of the first model
        for module in layer.modules():
            for attribute in LAYER_INDICES:
                if isinstance(index := getattr(module, attribute, None), int):
                    setattr(module, attribute, index - first_layer)
    _pass_on_position_bias(layers[0], layers[first_layer])
    if getattr(parent, AFTER_FIRST_LAYER, None) is not None:
        setattr(parent, AFTER_FIRST_LAYER, None)
    setattr(parent, list_name, nn.ModuleList(layers[first_layer:]))
    set_structure(upper, structure.from_layer(first_layer))
    if structure.kind == "decoder":
        upper.config.num_hidden_layers = len(layers) - first_layer
        if layer_types := getattr(upper.config, "layer_types", None):
            upper.config.layer_types = layer_types[first_layer:]
    return upper


def _pass_on_position_bias(first_layer: nn.Module, new_first_layer: nn.Module) -> None:
    """In T5 the first layer's attention computes the relative position bias of all layers: give it to another one."""
    heirs: dict[str, Any] = dict(new_first_layer.named_modules())
    for path, module in first_layer.named_modules():
        has_bias = getattr(module, "has_relative_attention_bias", False)
        if has_bias and not heirs[path].has_relative_attention_bias:
            bias: Any = module.relative_attention_bias
            device = device_of(heirs[path], bias.weight.device)
            # On another device the heir needs a copy of its own.
            heirs[path].relative_attention_bias = (
                bias if bias.weight.device == device else copy.deepcopy(bias).to(device)
            )
            heirs[path].has_relative_attention_bias = True


def _find_embedding_module(base: Any, path: str) -> nn.Module:
    """Find the innermost module around the source layers, whose path is given, that takes `inputs_embeds`."""
    while path:
        path = path.rpartition(".")[0]
        module: nn.Module = base.get_submodule(path)
        if "inputs_embeds" in inspect.signature(module.forward).parameters:
            return module
    raise AssertionError(f"{type(base).__name__} takes no word embeddings")


def _enter_at_first_layer(
    embedding_module: nn.Module,
    first_layer: nn.Module,
    embedding_width: int,
    run_below_on_tokens: Callable[[Tensor, Tensor, LowerLayersCache], Tensor],
) -> None:
    """Make a model take states of its first layer as `inputs_embeds`, and compute them for the tokens it generates.

    The embedding stage still runs, on zeros, and its output is dropped: the states include position embeddings and
    norms already.
    """
    pending: ContextVar[Tensor | None] = ContextVar("softcue_states", default=None)

    def replace_by_zeros(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        states, ids = kwargs.get("inputs_embeds"), args[0] if args else kwargs.get("input_ids")
        lower = getattr(kwargs.get("past_key_values"), "softcue_lower", None)
        if states is None and ids is not None and lower is not None:
            states = run_below_on_tokens(ids, torch.ones_like(ids), lower)
        pending.set(states)
        if states is None:
            return None
        zeros = states.new_zeros(*states.shape[:2], embedding_width)
        args, kwargs = (None, *args[1:]) if args else args, {**kwargs, "inputs_embeds": zeros}
        return args, kwargs if args else {**kwargs, "input_ids": None}

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        states = pending.get()
        if states is None:
            return None
        pending.set(None)
        return ((states, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": states})

    embedding_module.register_forward_pre_hook(replace_by_zeros, with_kwargs=True)
    # Prepended, so that it runs before the hook that puts the prompt's part into the layer.
    first_layer.register_forward_pre_hook(enter, with_kwargs=True, prepend=True)
