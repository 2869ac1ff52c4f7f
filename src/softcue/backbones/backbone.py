"""A frozen language model with its tokenizer: the only part of transformers that the rest of softcue uses."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from softcue.backbones.attention import chosen_attention, is_routed
from softcue.backbones.injection import checkpoint_layers, install_hooks, install_linear_hooks
from softcue.backbones.layout import lay_out
from softcue.backbones.linears import linear_modules, query_and_value_names
from softcue.backbones.loading.autotune import TRIAL_LENGTH, pass_tokens
from softcue.backbones.loading.fingerprint import Fingerprint, compute_fingerprint, digest_weights
from softcue.backbones.loading.sentence_transformers_folder import (
    SentenceTransformersFolder,
    copy_sentence_transformers_files,
    read_sentence_transformers_folder,
)
from softcue.backbones.passes.decoder import DecoderPass, PrefixCache, SharedPrefix, find_shared_prefixes
from softcue.backbones.passes.decoding import Decoding, TokenListener, add_gumbel_noise, make_stopping_criterion
from softcue.backbones.passes.encoder import EncoderPass
from softcue.backbones.passes.encoder_decoder import EncoderDecoderPass
from softcue.backbones.passes.forward_pass import ForwardPass, Pooling
from softcue.backbones.passes.served import DecoderServer, ServedPass
from softcue.backbones.quantized_linear import num_weights, quantization_of
from softcue.backbones.runtimes import LayerRuntime, Recorder
from softcue.backbones.state_cache import DISK_BYTES, MEMORY_BYTES
from softcue.backbones.structure import layers_of, modules_of
from softcue.backbones.tracing import structure_of, token_ids_of
from softcue.backbones.word_head import WordHead, has_word_head
from softcue.errors import BackboneError, ConfigurationError
from softcue.files import TEMPORARY_SUFFIX, remove
from softcue.inputs.collate import PaddingSide
from softcue.inputs.formatter import TOKENS_AT_ONCE
from softcue.machine import GIGABYTE, read_memory
from softcue.randomness import Dropout
from softcue.types import BackboneKind, Batch, Prompt, WordVectors

# With 8,192 tokens in a pass MiniLM takes a fifth longer, a small T5 two thirds (docs/lab-notes.md).
CACHED_TOKENS = 1024
CACHED_WIDTH = 384  # MiniLM's
NUM_MEASURED_WORDS = 4096
PREFIX_SHARE = 1 / 16  # of a device's memory, for the keys and values of prompts
LEAST_PREFIX_BYTES = 1 << 28  # also where the memory of a device is not told
# Vectors stored under plain `torch.bfloat16` came from models whose rotary frequencies were rounded too, so they are
# not used any more.
_NUMBER_FORMATS = {torch.bfloat16: "torch.bfloat16, exact buffers"}
_PASS_CLASSES: dict[BackboneKind, type[ForwardPass]] = {
    "encoder": EncoderPass,
    "encoder-decoder": EncoderDecoderPass,
    "decoder": DecoderPass,
}
_making_views = threading.Lock()


class Backbone:
    """A frozen model in eval mode. It holds no task state, so threads and cues may share it.

    `trainable` are weights that stay trainable: those of a twin, which belongs to one method.

    `layout_side` is the padding side of a laid-out batch. For decoders it is the left, so that the last column ends
    every text. For the other kinds it is the right, so that absolute positions start at 0.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        name: str,
        folder: Path | None = None,
        trainable: Sequence[nn.Parameter] = (),
    ) -> None:
        self.model = model.requires_grad_(False).eval()
        for weight in trainable:
            weight.requires_grad_(True)
        # What depends on the weights may be kept from batch to batch only if they never change.
        self.is_frozen = not trainable
        self.tokenizer = tokenizer
        self.name = name
        # Bytes in memory and on disk, per entry layer, for the states that enter a layer with late prompts.
        self.state_cache_bytes = (MEMORY_BYTES, DISK_BYTES)
        self.prefix_bytes: int | None = None  # of `prefixes`; None: as many as the device has room for
        self.folder = folder
        self.structure = structure_of(model)
        # Replaced by the loader: files may have digits that the weights in memory have lost.
        self.digest_weights: Callable[[Any], str] = digest_weights
        self.limits: dict[str, str] = {}  # checks that failed (checks.py), with the reason
        self.kind: BackboneKind = self.structure.kind
        self.base: Any = model.base_model
        self.layers = layers_of(model, self.structure.source)  # in the order of their runs
        # Modules whose output enters a residual sum, layer by layer; those of the source layers come first.
        self.sublayers: list[nn.Module] = [
            module
            for stack in (self.structure.source, self.structure.decoder)
            if stack is not None
            for module in modules_of(layers_of(model, stack), [layer.sublayers for layer in stack.layers])
        ]
        self.injected_sublayers: Sequence[nn.Module] = ()  # set by `with_sublayers` on a view of this backbone
        self.injected_linears: Mapping[str, nn.Module] = {}  # set by `with_linears` on a view of this backbone
        self.runtime: LayerRuntime | Recorder | None = (
            None  # runs passes without gradients instead of torch; encoders only
        )
        self.server: DecoderServer | None = None  # set by `on_server` on a view of this backbone
        self._local: Backbone | None = None
        self._views_from_layers: dict[int, Backbone] = {}
        self._pass_class: type[ForwardPass] = _PASS_CLASSES[self.kind]
        self.layout_side: PaddingSide = "left" if self.kind == "decoder" else "right"
        self.first_position = self.structure.first_position
        self.checkpoints_layers = False
        self.is_sharded = False  # whether its layers are divided over processes (sharding.py)
        prepare_tokenizer(tokenizer, model.config)
        if self.kind != "encoder":
            if tokenizer.eos_token_id is None and not self.word_table.is_meta:
                raise BackboneError(
                    setting="backbone tokenizer",
                    got="no end token",
                    expected="an eos_token, which ends every target",
                    fix=f"add one to the tokenizer of {name}",
                )
            if model.can_generate():  # else it has no output words
                model.generation_config = _make_generation_config(model.generation_config, tokenizer)
            make_head_inputs_contiguous(model)
        install_hooks(model)

    @cached_property
    def word_head(self) -> WordHead | None:
        """The masked-word head; None if the model has none."""
        return WordHead(self.model) if has_word_head(self.model) and self.kind == "encoder" else None

    @property
    def word_table(self) -> Tensor:
        """The frozen word embeddings. [V D]"""
        return self.model.get_input_embeddings().weight  # type: ignore[no-any-return]

    @property
    def width(self) -> int:
        """D of prompt vectors: the width of word embeddings, which may be narrower than the layers."""
        return int(self.word_table.shape[1])

    @property
    def hidden_width(self) -> int:
        """D of hidden states."""
        return self.structure.hidden_width

    @property
    def mask_width(self) -> int:
        """D of the state at a mask token: as wide as output words if there is a masked-word head."""
        return self.hidden_width if self.word_head is None else self.word_head.width

    @property
    def key_width(self) -> int:
        """K: the width of one token's keys over all heads, for prompts that are keys and values."""
        if reason := self.structure.why_no_keys:
            self.limits.setdefault("keys and values", reason)
        advice = "set method.rule=add: keys and values cannot be set"
        self.require("keys and values", "method.rule", "kv", "add or replace", advice)
        return self.structure.key_width

    @property
    def query_width(self) -> int:
        """Q: the width of one token's queries over all heads, for prompts that are attended to beside the text."""
        if not self.structure.query_width:
            self.limits.setdefault("parallel prompts", "its queries were not found")
        advice = "set method.rule=kv or add"
        self.require("parallel prompts", "method.rule", "parallel", "kv, add or replace", advice)
        return self.structure.query_width

    def require(self, check: str, setting: str, got: str, instead: str, advice: str) -> None:
        """Raise an error if this backbone failed a check that a setting needs.

        Example:
            backbone.require("keys and values", "method.rule", "kv", "add", "set method.rule=add")
        """
        if reason := self.limits.get(check):
            expected = f"{instead} with {self.model.config.model_type}"
            raise BackboneError(setting=setting, got=got, expected=expected, fix=f"{advice} ({reason})")

    @property
    def num_layers(self) -> int:
        """The number of layers that run on the source text."""
        return len(self.layers)

    @property
    def attention(self) -> str:
        """How attention is computed: eager, sdpa or flash_attention_2."""
        return chosen_attention(self.model.config)

    @property
    def dtype(self) -> torch.dtype:
        """The number format of the frozen weights."""
        return self.word_table.dtype

    @cached_property
    def quantization(self) -> str:
        """How the weights are quantized: none, int8, int4, or the method of a quantized checkpoint."""
        return quantization_of(self.model)

    @property
    def is_split(self) -> bool:
        """Whether accelerate has put the layers on several devices, or on disk."""
        return len(set(getattr(self.model, "hf_device_map", {}).values())) > 1

    @property
    def numbers(self) -> str:
        """How states are computed, in words: vectors that are computed in another way are stored apart."""
        if isinstance(self.runtime, LayerRuntime):
            return self.runtime.numbers
        return _NUMBER_FORMATS.get(self.dtype, str(self.dtype))

    @property
    def device(self) -> torch.device:
        """The device of the word embeddings, where inputs go; with a device map, layers may be elsewhere."""
        return self.word_table.device

    @property
    def tokens_at_once(self) -> int:
        """The fastest number of tokens in a pass without gradients: as many as a processor's caches or memory hold."""
        if self.device.type != "cpu" or self.server is not None:
            return TOKENS_AT_ONCE
        narrower = max(1, CACHED_WIDTH // self.hidden_width)  # the states of a narrower model take less
        return min(TOKENS_AT_ONCE, CACHED_TOKENS * narrower)

    @cached_property
    def changes_in_passes(self) -> bool:
        """Whether a pass changes the model: rotary frequencies that depend on the longest row of a batch.

        transformers keeps the frequencies of the last batch in the model (`dynamic_rope_update`), so two passes at a
        time would use each other's.
        """
        types = (getattr(module, "rope_type", "") for module in self.model.modules())
        names = {name for kind in types for name in (kind.values() if isinstance(kind, dict) else [kind])}
        return any("dynamic" in str(name) or name == "longrope" for name in names)

    @cached_property
    def pass_tokens(self) -> float:
        """The fixed cost of a pass, as the number of tokens that take the same time; measured once per machine."""
        return pass_tokens(self.model, min(TRIAL_LENGTH, self.max_length))

    @property
    def start_id(self) -> int:
        """The token an encoder-decoder's decoder starts from."""
        for config in (self.model.generation_config, self.model.config):
            if (start_id := getattr(config, "decoder_start_token_id", None)) is not None:
                return int(start_id)
        raise BackboneError(
            setting="backbone decoder_start_token_id",
            got=None,
            expected="a token number in its config.json",
            fix=f"add it to the config of {self.name}",
        )

    @cached_property
    def target_prefix(self) -> tuple[int, ...]:
        """Special tokens that an encoder-decoder's tokenizer puts in front of every target."""
        special = set(self.tokenizer.all_special_ids)
        return tuple(itertools.takewhile(lambda token: token in special, self.tokenizer("a")["input_ids"]))

    @cached_property
    def max_length(self) -> int:
        """The largest number of tokens in one pass, prompt included."""
        config = self.model.config.get_text_config()
        for name in ("max_position_embeddings", "n_positions"):
            if (limit := getattr(config, name, None)) and limit > 0:
                return int(limit) - (self.first_position or 0)
        return min(int(self.tokenizer.model_max_length), 512)  # relative positions: the length common in training

    @property
    def max_target_length(self) -> float:
        """The largest number of tokens an encoder-decoder's decoder takes; infinite with relative positions."""
        return float(getattr(self.model.config, "max_position_embeddings", None) or math.inf)

    @cached_property
    def sentence_transformers(self) -> SentenceTransformersFolder:
        """What the folder says about sentence vectors: pooling, prompts."""
        return read_sentence_transformers_folder(self.folder) if self.folder else SentenceTransformersFolder()

    @cached_property
    def default_pooling(self) -> Pooling:
        """The pooling this backbone was trained with.

        A folder of sentence-transformers says it. Else it is `last` for decoders and `mean` for encoder-decoders; for
        encoders it is read from config.json, or `cls`.
        """
        if self.sentence_transformers.pooling is not None:
            return self.sentence_transformers.pooling
        if self.kind == "decoder":
            return "last"
        if self.kind == "encoder-decoder":
            return "mean"
        # A key of ModernBERT's config.json, and of the entries in shapes.yaml.
        return "mean" if getattr(self.model.config, "classifier_pooling", "cls") == "mean" else "cls"

    @property
    def should_compare_pairs(self) -> bool:
        """Whether features of two texts are their comparison: better on encoders trained with mean pooling."""
        return self.kind == "encoder" and self.default_pooling == "mean"

    def summary(self) -> dict[str, str]:
        """What was found in the model, in words, for people."""
        layer, decoder = self.structure.source.layers[0], self.structure.decoder
        keys, reason = layer.keys, self.limits.get("keys and values") or self.structure.why_no_keys
        keys_values = (
            reason
            if reason or keys is None or layer.values is None
            else "{} wide, from {}".format(
                self.structure.key_width, " and ".join(dict.fromkeys((keys.module, layer.values.module)))
            )
        )
        num_runs, num_layers = len(self.layers), len(set(self.layers))
        return {
            "model type": f"{self.model.config.model_type} ({type(self.model).__name__})",
            "kind": self.kind,
            "weights": f"{num_weights(self.model):,}",
            "quantization": self.quantization,
            "layers": f"{num_runs}" if num_runs == num_layers else f"{num_runs} runs of {num_layers} shared",
            "decoder layers": "-" if decoder is None else f"{len(decoder.runs)}",
            "sub-layers of a layer": self.structure.why_no_sublayers or ", ".join(layer.sublayers),
            "keys and values": keys_values,
            "width of words and states": f"{self.width}, {self.hidden_width}",
            "scale of words": f"{self.word_factor:.4g}",
            "first position": "counted by the model" if self.first_position is None else f"{self.first_position}",
            "two texts told apart": "yes" if self.structure.takes_segments else "no",
            "masked-word head": "-" if self.kind != "encoder" else "yes" if self.word_head else "no",
            "longest input": f"{self.max_length} tokens",
            "sliding window": "-" if self.window is None else f"{self.window} tokens",
            "format and attention": f"{str(self.dtype).removeprefix('torch.')}, {self.attention}",
        }

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """Digests of this backbone; a cue that was trained on another one is an error."""
        return compute_fingerprint(self.model, self.tokenizer, self.digest_weights(self.model))

    def embed(self, ids: Tensor) -> Tensor:
        """Look up frozen word embeddings, in float32. [B T] -> [B T D]"""
        words: Tensor = self.model.get_input_embeddings()(ids).float()
        return words * self.structure.word_scale if self.structure.word_scale != 1.0 else words

    def input_states(self, batch: Batch) -> Tensor:
        """Return the states of the text at the layer where prompts enter, in float32: here word embeddings. [B T D]"""
        return self.embed(batch.ids)

    def target_input_states(self, batch: Batch) -> Tensor:
        """Return the same for the target, on backbones that read it after the text. [B U D]"""
        return self.embed(batch.target_ids)

    @property
    def word_input_states(self) -> WordVectors:
        """Vectors of single words at the layer where prompts enter, by token id."""
        return EmbeddedWords(self)

    @cached_property
    def word_size(self) -> float:
        """The root mean square of those vectors, over some thousand words: the unit of prompt vectors beside them.

        Rounded to four digits: the last digits of a sum depend on the number of threads.
        """
        words = self.word_input_states
        vectors = words[torch.arange(0, len(words), math.ceil(len(words) / NUM_MEASURED_WORDS))]  # [V' D]
        if vectors.is_meta:
            return 1.0
        return float(f"{float(vectors.double().square().mean().sqrt()):.4g}")

    @cached_property
    def word_factor(self) -> float:
        """What the model multiplies its table of words with, as Gemma does, before they enter as embeddings."""
        table = self.word_table.detach()
        if table.is_meta:
            return 1.0
        word = table[:1024].abs().amax(dim=1).argmax().view(1)  # a word whose vector is not zero
        largest = table[word].abs().argmax()
        return float(self.embed(word).flatten()[largest] / table[word].flatten()[largest].float())

    @property
    def has_constant_text(self) -> bool:
        """Whether the states of the text that enter the first layer need no gradients."""
        return False

    @property
    def whole(self) -> Backbone:
        """The whole model in this process, of which this may be the part from a layer on."""
        return self if self._local is None else self._local

    def from_layer(self, first_layer: int) -> Backbone:
        """Return a view of this backbone whose prompts enter at a deeper layer.

        The layers below run on the text alone, once per text.
        """
        from softcue.backbones.late_prompts import LateBackbone

        # States that one process has kept and another has not would let only one of them run the layers below.
        self._refuse_sharded("prompts that enter at the first layer", "set method.insert_layer=0")
        with _making_views:  # two passes may ask for it at a time
            if first_layer not in self._views_from_layers:
                whole = self if self.runtime is None else self.in_torch
                self._views_from_layers[first_layer] = LateBackbone(whole, first_layer)
            return self._views_from_layers[first_layer]

    def _refuse_sharded(self, expected: str, fix: str) -> None:
        """Raise an error if the layers are divided over processes."""
        if self.is_sharded:
            raise ConfigurationError(setting="backbone.shard_layers", got=True, expected=expected, fix=fix)

    def position_inputs(self, positions: Tensor) -> dict[str, Tensor]:
        """Return the model's argument for positions that are counted from 0; none if it counts them itself."""
        return {} if self.first_position is None else {"position_ids": positions + self.first_position}

    def read(
        self,
        batch: Batch,
        prompt: Prompt | None,
        embeds: Tensor,
        with_target: bool = False,
        dropout: Dropout | None = None,
        joins_keys: bool = True,
    ) -> ForwardPass:
        """Lay out a batch with its prompts and return the forward pass over it, which runs on demand.

        `embeds` are the states of the text from `input_states`. [B T D] A pass with `dropout` is for training. Prompts
        that are keys and values join those of each layer, where the model allows it, and take positions elsewhere or
        with `joins_keys=False`.
        """
        tokens = embeds.new_zeros(batch.size, 0, embeds.shape[2]) if prompt is None else prompt.tokens
        with_target = with_target and self.kind == "decoder"  # an encoder-decoder's target goes to its decoder
        shared = self._find_shared(batch, prompt, with_target, dropout)
        joined_mask = None if shared or not joins_keys else self._joined_vectors(batch, prompt, with_target)
        # Made where the batch was made: the host needs lengths and columns, and need not ask the device for them.
        mask = _mask_on_host(batch, prompt)
        layout = lay_out(batch.on_host, mask, self.layout_side, with_target, joined_mask).on(embeds.device)
        target = self.target_input_states(batch) if with_target else embeds[:, :0]  # [B U D]
        placed = layout.place(tokens, embeds, target).to(self.dtype)  # [B S D]
        segments = None if batch.segments is None else layout.place_segments(batch.segments)
        forward_pass = self._pass_class(self, layout, placed, segments, batch.ids, prompt, batch.parts, batch.offsets)
        forward_pass.dropout = dropout
        if isinstance(forward_pass, DecoderPass):
            forward_pass.shared = shared
        if joined_mask is not None:
            forward_pass.read_with_positions = partial(
                self.read, batch, prompt, embeds, with_target, dropout, joins_keys=False
            )
        return forward_pass

    def _find_shared(
        self, batch: Batch, prompt: Prompt | None, with_target: bool, dropout: Dropout | None
    ) -> list[SharedPrefix]:
        """Find the prefixes that run once for several rows."""
        # With dropout each row has its own noise, also in its prompt, so nothing is shared.
        can_cache = self.limits.keys().isdisjoint({"cached decoding", "shared prefix"})
        if self.kind != "decoder" or not can_cache or dropout is not None:
            return []
        shared = find_shared_prefixes(batch, prompt, self.layout_side)
        if not shared or self.window is None:
            return shared
        # A sliding window counts columns, also the padding between the shared columns and the others.
        num_columns = self._num_columns(batch, prompt, with_target) + max(prefix.length for prefix in shared)
        return [] if num_columns > self.window else shared

    def _num_columns(self, batch: Batch, prompt: Prompt | None, with_target: bool) -> int:
        """The number of columns that rows, prompts and targets take."""
        host = batch.on_host
        lengths = host.mask.sum(dim=1) + _mask_on_host(batch, prompt).sum(dim=1)  # [B]
        return int((lengths + host.target_mask.sum(dim=1) if with_target else lengths).max())

    def _joined_vectors(self, batch: Batch, prompt: Prompt | None, with_target: bool) -> Tensor | None:
        """Which prompt vectors join a layer's keys instead of taking positions, on the host; None if none do. [B P]"""
        if prompt is None or not self.can_join_keys:
            return None
        host = batch.on_host
        parts = prompt.parts or ((torch.arange(batch.size, device=host.ids.device), prompt),)
        if all(part.needs_positions for _, part in parts):
            return None
        is_joined = torch.zeros(batch.size, 1, dtype=torch.bool, device=host.ids.device)
        for rows, part in parts:
            is_joined[rows.to(host.ids.device)] = not part.needs_positions
        mask = _mask_on_host(batch, prompt) & is_joined  # [B P]
        # Of a prompt behind the text, a decoder reads the state at its last position.
        last = host.insert_at if host.places is None else host.places.amax(dim=1).maximum(host.insert_at)
        is_behind = self.kind == "decoder" and bool((last >= host.mask.sum(dim=1)).any())
        # A sliding window counts columns, and joined vectors have none.
        is_far = self.window is not None and (
            torch.compiler.is_exporting() or self._num_columns(batch, prompt, with_target) > self.window
        )
        return None if is_behind or is_far else mask

    @property
    def can_join_keys(self) -> bool:
        """Whether prompts that are keys and values can do without positions, inside the attention of each layer.

        A model that counts positions itself would move the text to the place of the prompt.
        """
        knows_positions = self.first_position is not None or self.structure.has_position_bias
        if not self.structure.can_join_keys or not knows_positions or "joined keys" in self.limits:
            return False
        steps = self.structure.source.layers[0].key_steps
        return steps is not None and is_routed(self.layers[0].get_submodule(steps.attention))

    def check_dropout(self, share: float) -> None:
        """Check that values are dropped where they should be, and not twice."""
        if share and (reason := self.limits.get("sub-layers") or self.structure.why_no_sublayers):
            raise ConfigurationError(
                setting="backbone.dropout",
                got=share,
                expected=f"0 with {self.model.config.model_type}",
                fix=f"set backbone.dropout=0: the outputs to drop values of are not known ({reason})",
            )
        if share and self.model.training:
            raise ConfigurationError(
                setting="backbone.dropout",
                got=share,
                expected="0 with a method that turns the backbone's own dropout on",
                fix="set method.dropout=false or backbone.dropout=0",
            )

    @cached_property
    def window(self) -> int | None:
        """The size of the sliding window of attention; None if no layer has one."""
        config = self.model.config.get_text_config()
        layer_types = getattr(config, "layer_types", None)
        has_sliding_layers = layer_types is None or "sliding_attention" in layer_types
        is_used = getattr(config, "use_sliding_window", True) and has_sliding_layers
        window = getattr(config, "sliding_window", None) if is_used else None
        if window is None and "local" in getattr(config, "attention_layers", ()):  # GPT-Neo
            window = config.window_size
        return window

    def weights(self) -> dict[str, nn.Parameter]:
        """Return the weights that are used, by name; for an encoder those that compute its hidden states."""
        unused: set[int] = set()
        if self.kind == "encoder":
            used = {id(value) for name, value in self.base.named_parameters() if not name.startswith("pooler.")}
            unused = {id(value) for value in self.model.parameters()} - used
        return {name: value for name, value in self.model.named_parameters() if id(value) not in unused}

    @cached_property
    def prefixes(self) -> PrefixCache:
        """Keys and values of prompts that all rows share, kept between batches; decoders only."""
        return PrefixCache(prefix_bytes(self.device) if self.prefix_bytes is None else self.prefix_bytes)

    def set_prefix_bytes(self, num_bytes: int) -> None:
        """Bound the memory of `prefixes`, instead of the device's default.

        Example:
            backbone.set_prefix_bytes(1 << 30)
        """
        self.prefix_bytes = num_bytes
        self.prefixes.max_bytes = num_bytes
        for view in self._views_from_layers.values():
            view.set_prefix_bytes(num_bytes)

    def with_sublayers(self, modules: Sequence[nn.Module]) -> Backbone:
        """Return a view of this backbone whose passes apply one module to the output of each of `sublayers`."""
        assert len(modules) == len(self.sublayers)
        view = self._new_view()
        view.injected_sublayers = modules
        return view

    @cached_property
    def linears(self) -> dict[str, nn.Module]:
        """The linear modules inside all layers, by their path below the base model."""
        return linear_modules(self.model, self.structure)

    @cached_property
    def query_and_value_names(self) -> tuple[str, ...]:
        """The names of the linear modules that compute queries and values; empty if they are not found."""
        return query_and_value_names(self.structure.source, self.linears)

    def with_linears(self, changes: Mapping[str, nn.Module]) -> Backbone:
        """Return a view of this backbone whose passes apply a module to the input and output of some of `linears`."""
        install_linear_hooks(self.base, changes)
        view = self._new_view()
        view.injected_linears = changes
        return view

    def on_server(self, server: DecoderServer) -> Backbone:
        """Return a view of this backbone whose passes run in a program with the same weights; decoders only.

        Word embeddings and sentence vectors are still computed here.

        Example:
            backbone.on_server(VllmClient("http://127.0.0.1:8100"))
        """
        if self.kind != "decoder":
            raise BackboneError(
                setting="backbone",
                got=self.name,
                expected="a decoder, where another program runs it from input embeddings",
                fix=f"use --engine local: this is an {self.kind}",
            )
        view = self._new_view()
        view.server, view._local, view._pass_class = server, self, ServedPass
        view.max_length = min(self.max_length, server.max_length - 1)  # it writes at least one token
        view.pass_tokens = TOKENS_AT_ONCE  # nothing is padded, so rows of any lengths go together
        return view

    def _new_view(self) -> Backbone:
        view = copy.copy(self)
        view._views_from_layers = {}
        view.runtime = None  # its graphs do not have what a view changes
        vars(view).pop("prefixes", None)  # made again: a method's modules change what a prompt's keys and values are
        return view

    @cached_property
    def in_torch(self) -> Backbone:
        """The same backbone, all of whose passes run in torch."""
        return self._new_view()

    def with_runtime(self, runtime: LayerRuntime | Recorder) -> Backbone:
        """Return a view of this backbone whose passes without gradients run in, or are noted by, this runtime."""
        view = self._new_view()
        view.runtime = runtime
        return view

    @property
    def may_store_vectors(self) -> bool:
        """Whether vectors of texts may be kept: not those of weights in training, nor while passes are recorded."""
        return self.is_frozen and not isinstance(self.runtime, Recorder)

    def with_weights(self, weights: Mapping[str, nn.Parameter] | None = None) -> Backbone:
        """Return a second model of the same structure that has these weights and shares all others with this one."""
        fix = "set method.name to one that trains prompts, or leave backbone.shard_layers out"
        self._refuse_sharded("a method that leaves the backbone's weights and dropout as they are", fix)
        parameters = {id(value): (weights or {}).get(name, value) for name, value in self.model.named_parameters()}
        dtype = next(iter(weights.values())).dtype if weights else self.dtype
        for key, value in parameters.items():
            if weights and value.dtype != dtype:  # such as a word head that is not trained: its inputs have this dtype
                parameters[key] = nn.Parameter(value.to(dtype), requires_grad=False)
        model = copy.deepcopy(self.model, memo=dict(parameters))
        for layer in layers_of(model, self.structure.source):
            vars(layer).pop("forward", None)  # of a checkpointed layer: it would run the layer of the first model
        trainable = [value for value in parameters.values() if value.requires_grad]
        view = Backbone(model, self.tokenizer, self.name, self.folder, trainable)
        view.layout_side, view.limits = self.layout_side, self.limits
        if weights is None:
            view.digest_weights = self.digest_weights
        if self.checkpoints_layers:
            view.checkpoint_layers()
        return view

    @cached_property
    def with_dropout(self) -> Backbone:
        """The same frozen weights with dropout on."""
        view = self.with_weights()
        view.model.train()
        return view

    def save(self, folder: Path) -> None:
        """Write weights, configuration, tokenizer and pooling as a model folder that can be loaded as a backbone."""
        temporary = folder.with_name(f"{folder.name}{TEMPORARY_SUFFIX}")
        remove(temporary)
        temporary.mkdir(parents=True)
        with _without_gguf(self.model):
            self.model.save_pretrained(temporary)
        self.tokenizer.save_pretrained(temporary)
        if self.folder:
            copy_sentence_transformers_files(self.folder, temporary)
        os.replace(temporary, folder)

    def checkpoint_layers(self) -> None:
        """Run each source layer again in the backward pass from now on, instead of keeping its states."""
        if not self.checkpoints_layers:
            checkpoint_layers(self.layers)
        self.checkpoints_layers = True

    def generate(
        self,
        decoding: Decoding,
        listeners: Sequence[TokenListener | None] = (),
        draw_keys: Tensor | None = None,
        **inputs: Any,
    ) -> Tensor:
        """Generate token ids with the model. Listeners get each row's tokens, unless beams are compared.

        With a temperature, tokens are drawn by adding Gumbel noise and taking the largest. `draw_keys` decide the noise
        of each row [B], so a draw depends on the row alone.
        """
        use_listeners = decoding.num_beams == 1 and any(listeners)
        generated: Tensor = self.model.generate(
            **inputs,
            num_beams=decoding.num_beams,
            max_new_tokens=decoding.max_new_tokens,
            do_sample=False,
            stopping_criteria=[make_stopping_criterion(listeners)] if use_listeners else None,
            logits_processor=None if draw_keys is None else [partial(add_gumbel_noise, decoding, draw_keys)],
        )
        return generated


def prefix_bytes(device: torch.device) -> int:
    """The bytes that the keys and values of prompts may take: a sixteenth of the device's memory.

    Example:
        >>> prefix_bytes(torch.device("cpu")) >= 1 << 28
        True
    """
    total: float | None = None
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
    elif device.type == "cpu":
        memory = read_memory()
        gigabytes = memory.total if memory.limit is None else memory.limit
        total = None if gigabytes is None else gigabytes * GIGABYTE
    return max(LEAST_PREFIX_BYTES, 0 if total is None else int(total * PREFIX_SHARE))


def _mask_on_host(batch: Batch, prompt: Prompt | None) -> Tensor:
    """Which vectors of each row's prompt are real, where the batch was made. [B P]"""
    device = batch.on_host.ids.device
    if prompt is None:
        return torch.zeros(batch.size, 0, dtype=torch.bool, device=device)
    if prompt.is_full and prompt.mask.device != device:
        return torch.ones(prompt.mask.shape, dtype=torch.bool, device=device)
    return prompt.mask.to(device)


class EmbeddedWords:
    """Word vectors as they enter the model, which may scale them, looked up on demand by ids of any device."""

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone

    def __len__(self) -> int:
        return len(self._backbone.word_table)

    def __getitem__(self, ids: Tensor) -> Tensor:
        """[n] -> [n D]"""
        if ids.is_meta:  # of a model whose parameters are loaded afterwards
            return ids.new_empty(len(ids), self._backbone.width, dtype=torch.float32)
        with torch.no_grad():
            return self._backbone.embed(ids.to(self._backbone.device))


def make_head_inputs_contiguous(model: Any) -> None:
    """Give the word head of a model contiguous states.

    For the states of one position, a slice of those of all, torch multiplies row by row on a processor and copies the
    matrix for each row: 32 rows on 49,152 words take 10 times as long in float32 and 270 times in bfloat16, and Gemma's
    262,144 words took 6 GB for 18 rows. Ranking and the first step of generation are such passes.
    """
    head = model.get_output_embeddings()
    if head is None or hasattr(head, "softcue_contiguous"):  # a copied model has the hook already
        return
    head.softcue_contiguous = True
    head.register_forward_pre_hook(lambda module, args: (args[0].contiguous(), *args[1:]))


@contextlib.contextmanager
def _without_gguf(model: Any) -> Iterator[None]:
    """Let a model from a GGUF file be saved: its weights are unpacked, but transformers takes them for packed ones.

    Afterwards its configuration is as it was, for the fingerprint.
    """
    quantization = getattr(model.config, "quantization_config", None)
    if not str(getattr(quantization, "quant_method", "")).lower().endswith("gguf"):
        yield
        return
    quantizer = getattr(model, "hf_quantizer", None)
    model.hf_quantizer = None
    del model.config.quantization_config
    try:
        yield
    finally:
        model.hf_quantizer, model.config.quantization_config = quantizer, quantization


def prepare_tokenizer(tokenizer: Any, config: Any) -> None:
    """Give a tokenizer the end token of the model's configuration and a padding token, if it has none.

    Padding is masked everywhere, so any token serves.
    """
    if tokenizer.eos_token_id is None:
        tokenizer.eos_token_id = next(iter(token_ids_of(config, "eos_token_id")), None)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token_id = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else 0


def _make_generation_config(checkpoint_config: Any, tokenizer: Any) -> Any:
    """Keep only token ids: no penalties, minimum lengths or sampling that a checkpoint ships."""
    from transformers import GenerationConfig

    return GenerationConfig(
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=checkpoint_config.bos_token_id,
        decoder_start_token_id=checkpoint_config.decoder_start_token_id,
        forced_bos_token_id=checkpoint_config.forced_bos_token_id,
    )
