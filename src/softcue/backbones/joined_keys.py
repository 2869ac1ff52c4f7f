"""Prompts that are keys and values join those of a layer inside its attention, so that layers run on the text alone.

Keys first take the steps that the layer's own keys take (key_steps.py), at the positions that the prompt is counted
with. What the text computes is what it would compute if the prompt stood at these positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from softcue.backbones.attention import AttentionInputs
from softcue.backbones.key_steps import Rotation, apply_key_steps
from softcue.backbones.layout import Layout
from softcue.backbones.structure import KeySteps, Stack, Structure, layers_of
from softcue.types import LayerPrompt

MASKS_KEPT = 4  # layers may have masks of several kinds


@dataclass(frozen=True)
class KeyPath:
    """The way of keys in one layer, from projection to attention."""

    attention: Any  # the module
    steps: KeySteps
    norm: nn.Module | None


def key_paths_of(model: Any, structure: Structure) -> Sequence[KeyPath]:
    """The way of keys in each source layer; empty if prompts cannot join them."""
    if not structure.can_join_keys:
        return ()
    stack: Stack = structure.source
    paths = []
    for layer, layer_structure in zip(layers_of(model, stack), stack.layers, strict=True):
        steps = layer_structure.key_steps
        assert steps is not None
        norm = None if steps.norm is None else layer.get_submodule(steps.norm)
        paths.append(KeyPath(layer.get_submodule(steps.attention), steps, norm))
    return paths


@dataclass
class JoinedKeys:
    """Prompt keys and values without positions in one running pass."""

    layout: Layout | None  # None behind the source, in a pass over continuations
    is_causal: bool = False
    rotations: dict[int, tuple[Tensor, Rotation]] = field(default_factory=dict)  # by identity of the text's cosines
    # The mask of the text, the number of queries, and the mask of prompt and text, by identity of the first.
    masks: dict[int, tuple[Tensor | None, int, Tensor | None]] = field(default_factory=dict)
    bias: Tensor | None = None  # [B H S P+S] of the first layer, for all layers

    def prepare(self, path: KeyPath, layer_prompt: LayerPrompt, like: Tensor, rotation: Rotation | None) -> LayerPrompt:
        """Return a layer's prompt with the keys that its attention reads, if it has keys.

        `rotation` is that of the text; the prompt's belongs to it.
        """
        if layer_prompt.keys is None or layer_prompt.values is None or self.layout is None:
            return layer_prompt
        assert self.layout.joined is not None
        kept = None if rotation is None else self.rotations.get(id(rotation[0]))
        of_prompt = None if kept is None else (kept[1][0].to(like.device), kept[1][1].to(like.device))
        keys = apply_key_steps(path.steps, path.norm, layer_prompt.keys.to(like.dtype), of_prompt)
        values, joined = layer_prompt.values.to(like.dtype), self.layout.on(like.device).joined
        assert joined is not None
        return replace(layer_prompt, keys=keys, values=values, joined=joined.mask)

    def join(self, layer_prompt: LayerPrompt | None, inputs: AttentionInputs) -> AttentionInputs:
        """Join a layer's prompt to the keys and values that its attention reads. The prompt comes first."""
        layout = self.layout
        if layout is not None:  # None in a decoding step: every new token comes after the prompt
            layout = layout.on(inputs.keys.device) if inputs.keys.shape[2] == layout.index.shape[1] else None
        bias = None if inputs.bias is None or layout is None else self._join_bias(inputs, layout)
        if layer_prompt is None or layer_prompt.joined is None:
            return inputs if bias is None else replace(inputs, bias=bias[..., -inputs.keys.shape[2] :])
        assert layer_prompt.keys is not None and layer_prompt.values is not None
        num_beams = inputs.keys.shape[0] // layer_prompt.keys.shape[0]  # beam search repeats each row

        def heads(vectors: Tensor) -> Tensor:  # [B P K] -> [B h P d]
            repeated = vectors.repeat_interleave(num_beams, dim=0) if num_beams > 1 else vectors
            repeated = repeated.to(inputs.keys.dtype)  # a rotation in float32 may leave prompts of bfloat16 in it
            return repeated.view(*repeated.shape[:2], -1, inputs.keys.shape[-1]).transpose(1, 2)

        return replace(
            inputs,
            keys=torch.cat([heads(layer_prompt.keys), inputs.keys], dim=2),
            values=torch.cat([heads(layer_prompt.values), inputs.values], dim=2),
            mask=self._join_mask(layer_prompt.joined, inputs, layout, num_beams),
            bias=bias,
        )

    def _join_mask(
        self, joined: Tensor, inputs: AttentionInputs, layout: Layout | None, num_beams: int
    ) -> Tensor | None:
        """The mask over prompt and text; layers with the same mask of the text have the same. [B 1 S P+N]"""
        num_queries, num_keys = inputs.queries.shape[2], joined.shape[1] + inputs.keys.shape[2]
        of_text, queries_kept, kept = self.masks.get(id(inputs.mask), (None, 0, None))
        is_same = of_text is inputs.mask and queries_kept == num_queries
        if is_same and (kept is None or kept.shape[3] == num_keys):
            return kept
        is_visible = joined.unsqueeze(1)  # [B 1 P]
        if layout is not None and self.is_causal:
            assert layout.joined is not None
            is_visible = is_visible & (layout.positions.unsqueeze(2) > layout.joined.positions.unsqueeze(1))  # [B S P]
        if num_beams > 1:
            is_visible = is_visible.repeat_interleave(num_beams, dim=0)
        mask = _extend_mask(inputs, is_visible.unsqueeze(1))
        if len(self.masks) > MASKS_KEPT:  # those of earlier decoding steps
            self.masks.clear()
        self.masks[id(inputs.mask)] = inputs.mask, num_queries, mask
        return mask

    def _join_bias(self, inputs: AttentionInputs, layout: Layout) -> Tensor:
        """The bias for the distances of text to prompt and text, by their positions. [B H S P+S]"""
        module: Any = inputs.module
        if module.has_relative_attention_bias:  # in T5 the first layer's bias is that of all layers
            assert layout.joined is not None
            positions = layout.positions  # [B S]
            key_positions = torch.cat([layout.joined.positions.clamp(min=0), positions], dim=1)  # [B P+S]
            host = layout.on_host
            assert host.joined is not None
            length = int(torch.cat([host.joined.positions, host.positions], dim=1).max()) + 1
            by_position = module.compute_bias(length, length)[0]  # [H N N]
            bias = by_position[:, positions.unsqueeze(2), key_positions.unsqueeze(1)]  # [H B S P+S]
            self.bias = bias.transpose(0, 1).to(inputs.queries.dtype)
        assert self.bias is not None
        return self.bias.to(inputs.queries.device)


def _extend_mask(inputs: AttentionInputs, is_visible: Tensor) -> Tensor | None:
    """Put what each query sees of the prompt, [B 1 S P] or [B 1 1 P], in front of a mask. [B 1 S P+N]"""
    num_queries, num_keys = inputs.queries.shape[2], inputs.keys.shape[2]
    mask = inputs.mask
    if mask is None:
        hides_later = inputs.is_causal and num_queries > 1
        if not hides_later and bool(is_visible.all()):
            return None
        mask = torch.ones(1, 1, num_queries, num_keys, dtype=torch.bool, device=is_visible.device)
        if hides_later:
            assert num_queries == num_keys  # transformers leaves the mask out in no other case
            mask = mask.tril()
    of_prompt = is_visible
    if mask.dtype != torch.bool:
        hidden = torch.finfo(mask.dtype).min
        of_prompt = torch.zeros_like(is_visible, dtype=mask.dtype).masked_fill(~is_visible, hidden)
    num_rows = max(mask.shape[0], of_prompt.shape[0])
    parts = [part.expand(num_rows, mask.shape[1], num_queries, -1) for part in (of_prompt, mask)]
    return torch.cat(parts, dim=3)
