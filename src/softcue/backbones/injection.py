"""How a method reaches into a running backbone: deep prompts, keys and values, and sub-layer outputs.

Hooks are installed once per model and are idle unless a pass in the same context is active; so two threads can
share a backbone, and another backbone's pass is left alone. What is active travels in one ContextVar, which
gradient checkpointing brings back when it runs a layer again.
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

from softcue.backbones.families import KeysValues
from softcue.backbones.layout import Layout
from softcue.types import LayerPrompt, Prompt


@dataclass(frozen=True)
class _Pass:
    """A running backbone pass and what goes into it."""

    owner: int  # identity of the layer list, so that another backbone's hooks stay idle
    layout: Layout | None
    prompt: Prompt | None
    sublayers: Sequence[nn.Module]
    stops_at: int | None = None  # the layer whose input is all that is wanted
    taken: dict[int, LayerPrompt] = field(default_factory=dict)  # by layer, known once its input is
    num_rows: list[int] = field(default_factory=list)  # of the layer that runs


class ReachedLayer(Exception):  # noqa: N818 - it ends a pass early, no error
    """Ends a pass whose further layers nobody asks for."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden  # [B S D] what enters the layer


_active: ContextVar[_Pass | None] = ContextVar("softcue_pass", default=None)


@contextmanager
def injected(
    layers: nn.ModuleList,
    sublayers: Sequence[nn.Module],
    layout: Layout | None = None,
    prompt: Prompt | None = None,
    stops_at: int | None = None,
) -> Iterator[None]:
    """While active, layers take the prompt's deeper parts, and `sublayers` change the sub-layers' outputs.

    A pass that `stops_at` a layer raises ReachedLayer there.
    """
    is_plain = not sublayers and (prompt is None or prompt.layer_prompts is None) and stops_at is None
    # None hides the outer pass from a plain one within it
    token = _active.set(None if is_plain else _Pass(id(layers), layout, prompt, sublayers, stops_at))
    try:
        yield
    finally:
        _active.reset(token)


def install_hooks(
    layers: nn.ModuleList, keys_values: KeysValues | None, sublayers: Sequence[nn.Module], num_heads: int
) -> None:
    """Make a model ask for what is injected; once, however many backbones share it. A copied model asks anew."""
    if getattr(layers, "_asks_for_prompts", None) == id(layers):
        return
    layers._asks_for_prompts = id(layers)  # type: ignore[assignment]
    owner = id(layers)
    for number, layer in enumerate(layers):
        layer.register_forward_pre_hook(_on_layer(number, owner), with_kwargs=True)
        if keys_values is None:
            continue
        for which, path in (("keys", keys_values.key), ("values", keys_values.value)):
            hook = _on_projection(number, owner, which, keys_values.packing, num_heads)
            layer.get_submodule(path).register_forward_hook(hook)
    for number, sublayer in enumerate(sublayers):
        sublayer.register_forward_hook(_on_sublayer(number, owner))


def _running(owner: int) -> _Pass | None:
    active = _active.get()
    return active if active is not None and active.owner == owner else None


def _on_layer(number: int, owner: int) -> Any:
    """Ask the prompt for this layer's part, with the text's states that enter it."""

    def change_input(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        active = _running(owner)
        if active is not None and active.stops_at == number:
            raise ReachedLayer(args[0] if args else kwargs["hidden_states"])
        if active is not None:
            active.num_rows[:] = [len(args[0] if args else kwargs["hidden_states"])]
        if active is None or active.layout is None or active.prompt is None or active.prompt.layer_prompts is None:
            return None
        hidden = args[0] if args else kwargs["hidden_states"]  # [B S D]
        layout = active.layout
        if hidden.shape[1] != layout.index.shape[1]:
            active.taken.clear()  # a cached decoding step: the prompt is already in the keys and values
            return None
        num_beams = hidden.shape[0] // layout.index.shape[0]  # beam search repeats each row
        own = hidden[::num_beams] if num_beams > 1 else hidden
        taken = active.prompt.layer_prompts(number, layout.text_of(own), layout.text_mask)
        if taken is None:
            active.taken.pop(number, None)
            return None
        active.taken[number] = taken
        if taken.states is None:
            return None
        changed = _with_states(layout, taken, own)
        if num_beams > 1:
            changed = changed.repeat_interleave(num_beams, dim=0)
        if args:
            return (changed, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": changed}

    return change_input


def _with_states(layout: Layout, taken: LayerPrompt, hidden: Tensor) -> Tensor:
    assert taken.states is not None
    at_slots = layout.at_slots(taken.states.to(hidden.dtype))  # [B S D]
    kept = hidden if taken.adds is None else hidden * taken.adds[:, None, None]
    return torch.where(layout.is_prompt.unsqueeze(2), kept + at_slots, hidden)


def _on_projection(number: int, owner: int, which: str, packing: str, num_heads: int) -> Any:
    """Put the prompt's keys (or values) where the frozen projection computed its own."""

    def change_output(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        active = _running(owner)
        if active is None or active.layout is None or (taken := active.taken.get(number)) is None:
            return None
        layout, own = active.layout, getattr(taken, which)  # [B P K]
        if own is None or output.shape[1] != layout.index.shape[1]:
            return None
        chosen = layout.is_prompt if taken.sets is None else layout.is_prompt & taken.sets[:, None]  # [B S]
        placed = layout.at_slots(own.to(output.dtype))  # [B S K]
        num_beams = output.shape[0] // len(chosen)
        if num_beams > 1:
            chosen, placed = (values.repeat_interleave(num_beams, dim=0) for values in (chosen, placed))
        if packing == "apart":
            return torch.where(chosen.unsqueeze(2), placed, output)
        number_of = {"keys": 1, "values": 2}[which]
        if packing == "in a row":  # [q k v]
            parts = list(output.chunk(3, dim=2))
            parts[number_of] = torch.where(chosen.unsqueeze(2), placed, parts[number_of])
            return torch.cat(parts, dim=2)
        by_head = list(output.view(*output.shape[:2], num_heads, 3, -1).unbind(dim=3))  # each [B S heads K/heads]
        placed = placed.view(*by_head[0].shape)
        by_head[number_of] = torch.where(chosen[:, :, None, None], placed, by_head[number_of])
        return torch.stack(by_head, dim=3).view_as(output)

    return change_output


def _on_sublayer(number: int, owner: int) -> Any:
    def change_output(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        active = _running(owner)
        if active is None or not active.sublayers:
            return None
        if output.dim() == 2 and active.num_rows:  # OPT runs its feed-forward on all positions in one row
            by_row = output.view(active.num_rows[0], -1, output.shape[1])
            return active.sublayers[number](by_row).view_as(output)  # type: ignore[no-any-return]
        return active.sublayers[number](output)  # type: ignore[no-any-return]

    return change_output


def checkpoint_layers(layers: nn.ModuleList) -> None:
    """Keep only each layer's input for the backward pass and run the layer again there.

    The layer hook stands outside: a prompt is computed once. What runs inside (keys, values, adapters, dropout
    by a row's place) finds its context again, because the layer runs in a copy of the context of its first run.
    """
    for layer in layers:
        if "forward" not in vars(layer):  # two backbones may share a model
            layer.forward = _checkpointed(layer.forward)


def _checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        context = copy_context()
        return checkpoint(lambda *again: context.copy().run(forward, *again, **kwargs), *args, use_reentrant=False)

    return run
