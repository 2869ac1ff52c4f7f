"""How a method changes a running backbone: prompts of deeper layers, keys and values, and sub-layer outputs.

Hooks are installed once per model. They do nothing unless a pass in the same context is active. So two threads can
share a backbone, and a pass of another backbone stays unchanged. The active pass is in one ContextVar, which gradient
checkpointing restores when it runs a layer again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from softcue.backbones.families import Family
from softcue.backbones.layout import Layout
from softcue.randomness import TokenNoise
from softcue.types import LayerPrompt, Prompt


@dataclass(frozen=True)
class ActivePass:
    """A running pass of a backbone and the changes it makes."""

    owner: int  # identity of the layer list, so that the hooks of another backbone do nothing
    layout: Layout | None
    prompt: Prompt | None
    sublayers: Sequence[nn.Module]
    stops_at: int | None = None  # the pass ends with the input of this layer
    noise: TokenNoise | None = None  # dropout of the hidden states in training
    layer_prompts: dict[int, LayerPrompt] = field(default_factory=dict)  # by layer, from the time its input is known
    num_rows: list[int] = field(default_factory=list)  # one number: rows of the layer that runs now


class ReachedLayer(Exception):  # noqa: N818 - it ends a pass early and is no error
    """Ends a pass at the layer whose input is wanted."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden  # [B S D] the input of the layer


_active: ContextVar[ActivePass | None] = ContextVar("softcue_pass", default=None)


@contextmanager
def inject(
    layers: nn.ModuleList,
    sublayers: Sequence[nn.Module],
    layout: Layout | None = None,
    prompt: Prompt | None = None,
    stops_at: int | None = None,
    noise: TokenNoise | None = None,
) -> Iterator[None]:
    """Give layers the prompt's parts for them, and apply `sublayers` to the outputs of sub-layers, while active.

    `noise` drops values of the states that enter the first layer, and of each output before it enters a residual sum.
    A pass that `stops_at` a layer raises ReachedLayer there.
    """
    has_layer_prompts = prompt is not None and prompt.layer_prompts is not None
    is_plain = not sublayers and not has_layer_prompts and stops_at is None and noise is None
    # None hides the outer pass from a plain pass within it.
    token = _active.set(None if is_plain else ActivePass(id(layers), layout, prompt, sublayers, stops_at, noise))
    try:
        yield
    finally:
        _active.reset(token)


def running_pass(owner: int) -> ActivePass | None:
    """Return the active pass if it belongs to the layer list with this identity."""
    active = _active.get()
    return active if active is not None and active.owner == owner else None


@dataclass(frozen=True)
class NoisePlaces:
    """Where dropout acts beside the sub-layers: the layers whose input is embeddings, and cross-attention."""

    first_layers: Sequence[nn.Module]
    cross_attentions: Sequence[nn.Module]


def install_hooks(
    layers: nn.ModuleList, sublayers: Sequence[nn.Module], family: Family, num_heads: int, places: NoisePlaces
) -> None:
    """Install the hooks on a model: once, however many backbones share it. A copied model gets its own."""
    if getattr(layers, "_hooks_installed_for", None) == id(layers):
        return
    layers._hooks_installed_for = id(layers)  # type: ignore[assignment]
    owner = id(layers)
    modules = family.key_value_modules
    for number, layer in enumerate(layers):
        layer.register_forward_pre_hook(_make_layer_hook(number, owner), with_kwargs=True)
        if modules is None:
            continue
        for which, path in (("keys", modules.key), ("values", modules.value)):
            hook = _make_projection_hook(number, owner, which, modules.packing, num_heads)
            layer.get_submodule(path).register_forward_hook(hook)
    # Before the hooks of the layers: the first layer's prompt of a method is added to states that have their dropout.
    for number, layer in enumerate(places.first_layers, start=1):
        layer.register_forward_pre_hook(_make_input_noise_hook(-number, owner), with_kwargs=True, prepend=True)
    for number, module in enumerate(places.cross_attentions, start=len(sublayers)):
        module.register_forward_hook(_make_noise_hook(number, owner))
    for number, sublayer in enumerate(sublayers):
        hook = _make_sublayer_hook(number, owner, family.source_stack.flattens_feed_forward)
        sublayer.register_forward_hook(hook)


def _make_layer_hook(number: int, owner: int) -> Any:
    """Make a hook that asks the prompt for this layer's part, given the states of the text that enter the layer."""

    def change_input(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        active = running_pass(owner)
        if active is None:
            return None
        hidden = args[0] if args else kwargs["hidden_states"]  # [B S D]
        if active.stops_at == number:
            raise ReachedLayer(hidden)
        active.num_rows[:] = [len(hidden)]
        layout = active.layout
        if layout is None or active.prompt is None or active.prompt.layer_prompts is None:
            return None
        if hidden.shape[1] != layout.index.shape[1]:
            active.layer_prompts.clear()  # a cached decoding step: the prompt is already in the keys and values
            return None
        num_beams = hidden.shape[0] // layout.index.shape[0]  # beam search repeats each row
        first_beams = hidden[::num_beams] if num_beams > 1 else hidden
        layer_prompt = active.prompt.layer_prompts(number, layout.text_of(first_beams), layout.text_mask)
        if layer_prompt is None:
            active.layer_prompts.pop(number, None)
            return None
        active.layer_prompts[number] = layer_prompt
        if layer_prompt.states is None:
            return None
        changed = _apply_states(layout, layer_prompt, first_beams)
        if num_beams > 1:
            changed = changed.repeat_interleave(num_beams, dim=0)
        if args:
            return (changed, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": changed}

    return change_input


def _apply_states(layout: Layout, layer_prompt: LayerPrompt, hidden: Tensor) -> Tensor:
    assert layer_prompt.states is not None
    at_slots = layout.at_slots(layer_prompt.states.to(hidden.dtype))  # [B S D]
    kept = hidden if layer_prompt.adds is None else hidden * layer_prompt.adds[:, None, None]
    return torch.where(layout.is_prompt.unsqueeze(2), kept + at_slots, hidden)


def _make_projection_hook(number: int, owner: int, which: str, packing: str, num_heads: int) -> Any:
    """Make a hook that replaces the frozen projection's keys (or values) by the prompt's at the prompt's positions."""

    def change_output(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        active = running_pass(owner)
        if active is None or active.layout is None or (layer_prompt := active.layer_prompts.get(number)) is None:
            return None
        layout, vectors = active.layout, getattr(layer_prompt, which)  # [B P K]
        if vectors is None or output.shape[1] != layout.index.shape[1]:
            return None
        is_replaced = layout.is_prompt if layer_prompt.sets is None else layout.is_prompt & layer_prompt.sets[:, None]
        placed = layout.at_slots(vectors.to(output.dtype))  # [B S K]
        num_beams = output.shape[0] // len(is_replaced)
        if num_beams > 1:
            is_replaced, placed = (values.repeat_interleave(num_beams, dim=0) for values in (is_replaced, placed))
        if packing == "separate":
            return torch.where(is_replaced.unsqueeze(2), placed, output)
        place = {"keys": 1, "values": 2}[which]  # among queries, keys, values
        if packing == "concatenated":
            blocks = list(output.chunk(3, dim=2))
            blocks[place] = torch.where(is_replaced.unsqueeze(2), placed, blocks[place])
            return torch.cat(blocks, dim=2)
        by_head = list(output.view(*output.shape[:2], num_heads, 3, -1).unbind(dim=3))  # each [B S heads K/heads]
        placed = placed.view(*by_head[0].shape)
        by_head[place] = torch.where(is_replaced[:, :, None, None], placed, by_head[place])
        return torch.stack(by_head, dim=3).view_as(output)

    return change_output


def _make_sublayer_hook(number: int, owner: int, flattens_feed_forward: bool) -> Any:
    """Make a hook that applies the method's module to the output of a sub-layer."""

    def change_output(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        active = running_pass(owner)
        if active is None or (not active.sublayers and active.noise is None):
            return None
        is_flat = flattens_feed_forward and output.dim() == 2  # [B*S D]
        changed = output.view(active.num_rows[0], -1, output.shape[1]) if is_flat else output  # [B S D]
        if active.noise is not None:
            changed = active.noise.drop(changed, number)
        if active.sublayers:
            changed = active.sublayers[number](changed)
        return changed.view_as(output)

    return change_output


def _make_noise_hook(place: int, owner: int) -> Any:
    """Make a hook that drops values of an output."""

    def change_output(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        active = running_pass(owner)
        return None if active is None or active.noise is None else active.noise.drop(output, place)

    return change_output


def _make_input_noise_hook(place: int, owner: int) -> Any:
    """Make a hook that drops values of a layer's input states."""

    def change_input(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        active = running_pass(owner)
        if active is None or active.noise is None:
            return None
        if args:
            return (active.noise.drop(args[0], place), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": active.noise.drop(kwargs["hidden_states"], place)}

    return change_input


def checkpoint_layers(layers: nn.ModuleList) -> None:
    """Keep only each layer's input for the backward pass and run the layer again there.

    The layer hook is outside of what runs again, so a prompt is computed once. What is inside (keys, values, adapters,
    dropout by a row's place) finds its context again, because the layer runs in a copy of the context of its first run.
    """
    for layer in layers:
        if "forward" not in vars(layer):  # two backbones may share a model
            layer.forward = _make_checkpointed(layer.forward)


def _make_checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        context = copy_context()
        return checkpoint(lambda *again: context.copy().run(forward, *again, **kwargs), *args, use_reentrant=False)

    return run
