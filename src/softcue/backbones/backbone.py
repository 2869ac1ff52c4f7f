"""A frozen language model with its tokenizer: the only thing the rest of softcue knows of transformers."""

from __future__ import annotations

import copy
import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from softcue.backbones.families import WordHead, family_of
from softcue.backbones.injection import checkpoint_layers, install_hooks
from softcue.backbones.layout import lay_out
from softcue.backbones.loading.fingerprint import Fingerprint, fingerprint_of
from softcue.backbones.loading.trials import LENGTH, pass_tokens
from softcue.backbones.passes.decoder import DecoderPass
from softcue.backbones.passes.decoding import Decoding, Listener, drawn_scores, telling
from softcue.backbones.passes.encoder import EncoderPass
from softcue.backbones.passes.encoder_decoder import EncoderDecoderPass
from softcue.backbones.passes.forward_pass import ForwardPass
from softcue.backbones.passes.shared_prefix import PrefixStore, shared_parts
from softcue.backbones.pooling import Pooling
from softcue.backbones.state_cache import DISK_BYTES, MEMORY_BYTES
from softcue.errors import BackboneError
from softcue.files import TEMPORARY_SUFFIX, remove, write_whole
from softcue.inputs.collate import PaddingSide
from softcue.inputs.formatter import TOKENS_AT_ONCE
from softcue.types import BackboneKind, Batch, Prompt, Words

CACHED_TOKENS = 1024  # with 8,192 in a pass MiniLM takes a fifth longer, a small T5 two thirds (docs/lab-notes.md)
_READINGS: dict[BackboneKind, type[ForwardPass]] = {
    "encoder": EncoderPass,
    "encoder-decoder": EncoderDecoderPass,
    "decoder": DecoderPass,
}


class Backbone:
    """A frozen model in eval mode. It holds no task state, so threads and cues may share it.

    `layout_side` says where the padding of a laid-out batch goes. Decoders take the left, so that the last
    column ends every text; the other kinds take the right, so that absolute positions start at 0.
    """

    def __init__(self, model: Any, tokenizer: Any, name: str, folder: Path | None = None) -> None:
        self.model = model.requires_grad_(False).eval()
        self.tokenizer = tokenizer
        self.name = name
        self.state_cache_bytes = (
            MEMORY_BYTES,
            DISK_BYTES,
        )  # of states that enter a layer where late prompts do, for each
        self.folder = folder
        architecture = family_of(model.config.model_type)
        self.kind: BackboneKind = architecture.kind
        self.base: Any = model.base_model
        self.layers: nn.ModuleList = self.base.get_submodule(architecture.reader.layers)
        stacks = [stack for stack in (architecture.reader, architecture.writer) if stack is not None]
        # Modules whose output enters a residual sum, layer by layer; what reads the text comes first.
        self.sublayers: list[nn.Module] = [
            layer.get_submodule(path)
            for stack in stacks
            for layer in self.base.get_submodule(stack.layers).children()
            for path in stack.sublayers
        ]
        self.injected_sublayers: Sequence[nn.Module] = ()  # set on a view of this backbone, by `with_sublayers`
        self._keys_values = architecture.keys_values
        self.prefixes = PrefixStore()
        self._late: dict[int, Backbone] = {}
        self._reading: type[ForwardPass] = _READINGS[self.kind]
        self.layout_side: PaddingSide = "left" if self.kind == "decoder" else "right"
        self.first_position: int | None
        if architecture.first_position == "after padding":
            self.first_position = model.config.pad_token_id + 1
        else:
            self.first_position = architecture.first_position
        has_word_head = model is not self.base and self.kind == "encoder"
        self.word_head: WordHead | None = architecture.word_head if has_word_head else None
        self.checkpoints_layers = False
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        if self.kind != "encoder":
            model.generation_config = _plain_generation(model.generation_config, tokenizer)
        install_hooks(self.layers, self._keys_values, self.sublayers, model.config.num_attention_heads)

    @property
    def word_table(self) -> Tensor:
        """The frozen word embeddings. [V D]"""
        return self.model.get_input_embeddings().weight  # type: ignore[no-any-return]

    @property
    def width(self) -> int:
        """D of prompt vectors; ELECTRA-like models have word embeddings narrower than their layers."""
        return int(self.word_table.shape[1])

    @property
    def hidden_width(self) -> int:
        """D of hidden states."""
        return int(self.model.config.hidden_size)

    @property
    def key_width(self) -> int:
        """K, of one token's keys over all heads, for prompts that are keys and values."""
        if self._keys_values is None:
            raise BackboneError(
                setting="method.rule",
                got="kv",
                expected=f"add or replace with {self.model.config.model_type}",
                fix="set method.rule=add: its key projection also serves relative positions, so keys cannot be set",
            )
        projection: Any = self.layers[0].get_submodule(self._keys_values.key)
        size = int(getattr(projection, "out_features", 0) or projection.nf)  # GPT-2's is a Conv1D
        return size if self._keys_values.packing == "apart" else size // 3

    @property
    def num_layers(self) -> int:
        """Layers that read the source text."""
        return len(self.layers)

    @property
    def dtype(self) -> torch.dtype:
        """The number format of the frozen weights."""
        return self.word_table.dtype

    @property
    def device(self) -> torch.device:
        """Where the frozen weights are."""
        return self.word_table.device

    @property
    def tokens_at_once(self) -> int:
        """Tokens of a pass that keeps no gradients, where speed counts: what a processor's caches hold, or memory."""
        return CACHED_TOKENS if self.device.type == "cpu" else TOKENS_AT_ONCE

    @cached_property
    def pass_tokens(self) -> float:
        """How many tokens take as long as a pass takes by itself; measured in a moment."""
        return pass_tokens(self.model, min(LENGTH, self.max_length))

    @property
    def start_id(self) -> int:
        """The token an encoder-decoder's decoder starts from."""
        for config in (self.model.generation_config, self.model.config):
            if (found := getattr(config, "decoder_start_token_id", None)) is not None:
                return int(found)
        raise BackboneError(
            setting="backbone decoder_start_token_id",
            got=None,
            expected="a token number in its config.json",
            fix=f"add it to the config of {self.name}",
        )

    @cached_property
    def answer_prefix(self) -> tuple[int, ...]:
        """Special tokens an encoder-decoder's tokenizer puts in front of every answer."""
        special = set(self.tokenizer.all_special_ids)
        return tuple(itertools.takewhile(lambda token: token in special, self.tokenizer("a")["input_ids"]))

    @cached_property
    def max_length(self) -> int:
        """The most tokens one pass takes, prompt included."""
        config = self.model.config
        for name in ("max_position_embeddings", "n_positions"):
            if (limit := getattr(config, name, None)) and limit > 0:
                return int(limit) - (self.first_position or 0)
        return min(int(self.tokenizer.model_max_length), 512)  # relative positions: the usual training length

    @property
    def max_answer_length(self) -> float:
        """The most tokens an encoder-decoder's decoder takes; no limit with relative positions."""
        return float(getattr(self.model.config, "max_position_embeddings", None) or math.inf)

    @cached_property
    def natural_pooling(self) -> Pooling:
        """How this backbone was trained to pool: its own pooling config, else last for decoders, else cls/mean."""
        if self.kind == "decoder":
            return "last"
        if self.kind == "encoder-decoder":
            return "mean"
        path = self.folder / "1_Pooling" / "config.json" if self.folder else None
        if path and path.is_file():
            try:
                config = json.loads(path.read_text("utf-8"))
                modes = {name for name, value in config.items() if value is True}
            except (ValueError, AttributeError) as error:
                raise BackboneError(
                    setting="pooling config",
                    got=path,
                    expected="a JSON object of sentence-transformers",
                    fix="repair it or set readout.pooling",
                ) from error
            if "pooling_mode_lasttoken" in modes:
                return "last"
            return "cls" if "pooling_mode_cls_token" in modes else "mean"
        return "mean" if getattr(self.model.config, "classifier_pooling", "cls") == "mean" else "cls"

    @property
    def compares_pairs(self) -> bool:
        """Whether two texts are better compared than pooled as one: on encoders trained with mean pooling."""
        return self.kind == "encoder" and self.natural_pooling == "mean"

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """What a cue was trained on, to refuse it elsewhere."""
        return fingerprint_of(self.model, self.tokenizer)

    def embed(self, ids: Tensor) -> Tensor:
        """Frozen word embeddings in float32. [B T] -> [B T D]"""
        return self.model.get_input_embeddings()(ids).float()  # type: ignore[no-any-return]

    def input_states(self, batch: Batch) -> Tensor:
        """The text as the first layer that sees prompts gets it, in float32: word embeddings. [B T D]"""
        return self.embed(batch.ids)

    def following(self, batch: Batch) -> Tensor:
        """The target likewise, where it stands behind the text. [B U D]"""
        return self.embed(batch.target_ids)

    @property
    def word_input_states(self) -> Words:
        """What words are where prompts stand, by their numbers."""
        return self.word_table.detach()

    def late(self, first_layer: int) -> Backbone:
        """This backbone with prompts that enter at a deeper layer; the layers below read the text alone, once."""
        from softcue.backbones.late_prompts import LateBackbone

        if first_layer not in self._late:
            self._late[first_layer] = LateBackbone(self, first_layer)
        return self._late[first_layer]

    def read(self, batch: Batch, prompt: Prompt | None, embeds: Tensor, with_target: bool = False) -> ForwardPass:
        """Lay out a batch with its prompts; `embeds` are the text's, by `input_states`. [B T D]"""
        if prompt is None:
            tokens = embeds.new_zeros(batch.size, 0, embeds.shape[2])
            mask = torch.zeros(batch.size, 0, dtype=torch.bool, device=embeds.device)
        else:
            tokens, mask = prompt.tokens, prompt.mask
        with_target = with_target and self.kind == "decoder"  # other kinds hand the target to their decoder
        layout = lay_out(batch, mask, self.layout_side, with_target)
        target = self.following(batch) if with_target else embeds[:, :0]  # [B U D]
        placed = layout.place(tokens, embeds, target).to(self.dtype)  # [B S D]
        segments = None if batch.segments is None else layout.place_segments(batch.segments)
        forward_pass = self._reading(self, layout, placed, segments, batch.ids, prompt, batch.parts, batch.offsets)
        # A layer that is run again in the backward pass would add its keys to the cache a second time.
        reruns_layers = self.checkpoints_layers and torch.is_grad_enabled()
        if isinstance(forward_pass, DecoderPass) and not reruns_layers:
            shared = shared_parts(batch, prompt, self.layout_side)
            # A layer with a sliding window counts columns, padding between the shared ones and the others among them.
            columns = layout.mask.shape[1] + max((part.length for part in shared), default=0)
            forward_pass.shared = [] if self.window is not None and columns > self.window else shared
        return forward_pass

    @cached_property
    def window(self) -> int | None:
        """How many positions back its layers see, where that is bounded in some of them."""
        config = self.model.config
        kinds = getattr(config, "layer_types", None)
        is_used = getattr(config, "use_sliding_window", True) and (kinds is None or "sliding_attention" in kinds)
        return getattr(config, "sliding_window", None) if is_used else None

    def weights(self) -> dict[str, nn.Parameter]:
        """The weights that take part, by name; an encoder's are those that make its hidden states."""
        unused: set[int] = set()
        if self.kind == "encoder":
            used = {id(value) for name, value in self.base.named_parameters() if not name.startswith("pooler.")}
            unused = {id(value) for value in self.model.parameters()} - used
        return {name: value for name, value in self.model.named_parameters() if id(value) not in unused}

    def with_sublayers(self, changes: Sequence[nn.Module]) -> Backbone:
        """A view of this backbone whose passes put one module on each sub-layer's output (`sublayers`)."""
        assert len(changes) == len(self.sublayers)
        view = copy.copy(self)
        view.injected_sublayers = changes
        view._late = {}
        view.prefixes = PrefixStore()
        return view

    def twin(self, weights: Mapping[str, nn.Parameter] | None = None) -> Backbone:
        """A second model of the same structure that has these weights, and shares all others with this one."""
        known = {id(value): (weights or {}).get(name, value) for name, value in self.model.named_parameters()}
        dtype = next(iter(weights.values())).dtype if weights else self.dtype
        for key, value in known.items():
            if weights and value.dtype != dtype:  # such as a word head that is not trained: it reads what is
                known[key] = nn.Parameter(value.to(dtype), requires_grad=False)
        model = copy.deepcopy(self.model, memo=dict(known))
        for layer in model.base_model.get_submodule(family_of(model.config.model_type).reader.layers).children():
            vars(layer).pop("forward", None)  # a checkpointed layer's, which would run the first model's
        trained = [value for value in known.values() if value.requires_grad]
        view = Backbone(model, self.tokenizer, self.name, self.folder)
        view.layout_side = self.layout_side
        for value in trained:  # a new backbone freezes what it finds
            value.requires_grad_(True)
        if self.checkpoints_layers:
            view.checkpoint_layers()
        return view

    @cached_property
    def with_dropout(self) -> Backbone:
        """The same frozen weights with dropout on."""
        view = self.twin()
        view.model.train()
        return view

    def save(self, folder: Path) -> None:
        """Write weights, configuration, tokenizer and pooling as a model folder that can be loaded as a backbone."""
        temporary = folder.with_name(f"{folder.name}{TEMPORARY_SUFFIX}")
        remove(temporary)
        temporary.mkdir(parents=True)
        self.model.save_pretrained(temporary)
        self.tokenizer.save_pretrained(temporary)
        pooling = self.folder / "1_Pooling" / "config.json" if self.folder else None
        if pooling and pooling.is_file():
            (temporary / "1_Pooling").mkdir()
            write_whole(temporary / "1_Pooling" / "config.json", pooling.read_bytes())
        os.replace(temporary, folder)

    def checkpoint_layers(self) -> None:
        """From now on run each reading layer a second time in the backward pass instead of keeping its states."""
        if not self.checkpoints_layers:
            checkpoint_layers(self.layers)
        self.checkpoints_layers = True

    def generate(
        self,
        decoding: Decoding,
        listeners: Sequence[Listener | None] = (),
        streams: Sequence[torch.Generator] = (),
        **inputs: Any,
    ) -> Tensor:
        """The model's own generation; listeners hear each row's tokens, unless beams are compared.

        Tokens are drawn from each row's stream: the likeliest after noise is a draw (Gumbel's), so that nothing but
        a row's own numbers decides.
        """
        heard = decoding.num_beams == 1 and any(listeners)
        written: Tensor = self.model.generate(
            **inputs,
            num_beams=decoding.num_beams,
            max_new_tokens=decoding.max_new_tokens,
            do_sample=False,
            stopping_criteria=[telling(listeners)] if heard else None,
            logits_processor=[partial(drawn_scores, decoding, streams)] if decoding.temperature else None,
        )
        return written


def _plain_generation(own: Any, tokenizer: Any) -> Any:
    """Token numbers only: penalties, minimum lengths or sampling that a checkpoint ships were not asked for."""
    from transformers import GenerationConfig

    return GenerationConfig(
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=own.bos_token_id,
        decoder_start_token_id=own.decoder_start_token_id,
        forced_bos_token_id=own.forced_bos_token_id,
    )
