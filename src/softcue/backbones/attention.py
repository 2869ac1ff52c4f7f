"""How softcue reaches into the attention of a transformers model: by attention functions that are registered there.

`softcue_eager` and `softcue_sdpa` call the implementation they are named after. Before that, a hook of the running
context may change keys, values, mask and position bias. Without a hook they change nothing, so a model that uses them
computes what it computed before. Models whose layers do not call transformers' attention interface never come here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from torch import Tensor, nn

PREFIX = "softcue_"
IMPLEMENTATIONS = ("eager", "sdpa")


@dataclass(frozen=True)
class AttentionInputs:
    """What one attention reads: queries, keys and values of all heads, and what is added to their products."""

    module: nn.Module  # the attention module of the layer
    queries: Tensor  # [B H S d]
    keys: Tensor  # [B h N d] with h heads, which may be fewer than H
    values: Tensor  # [B h N d]
    mask: Tensor | None  # [B 1 S N] bool: may be attended to; or numbers to add. None: all, or all before if causal
    bias: Tensor | None  # [1 H S N] relative position bias (T5)
    is_causal: bool  # without a mask, a query attends to no later key


AttentionHook = Callable[[AttentionInputs], AttentionInputs]
_hook: ContextVar[AttentionHook | None] = ContextVar("softcue_attention", default=None)


@contextmanager
def change_attention(hook: AttentionHook | None) -> Iterator[None]:
    """Let a hook change what the attention of routed models reads, while active. None hides an outer hook."""
    token = _hook.set(hook)
    try:
        yield
    finally:
        _hook.reset(token)


def chosen_attention(config: Any) -> str:
    """Return the implementation of attention that was chosen for a model: eager, sdpa or flash_attention_2."""
    return str(config._attn_implementation).removeprefix(PREFIX)


def is_routed(attention: Any) -> bool:
    """Whether an attention module calls its implementation through softcue."""
    return str(attention.config._attn_implementation).startswith(PREFIX)


def route_attention(configs: Iterable[Any]) -> None:
    """Make the models of these configurations call their attention through softcue, if its implementation allows it."""
    _register()
    for config in configs:
        if config._attn_implementation in IMPLEMENTATIONS:
            config._attn_implementation = PREFIX + config._attn_implementation


@contextmanager
def routed(configs: Iterable[Any]) -> Iterator[None]:
    """Route the attention of models while active."""
    before = [(config, config._attn_implementation) for config in configs]
    try:
        route_attention(config for config, _ in before)
        yield
    finally:
        for config, implementation in before:
            config._attn_implementation = implementation


@cache
def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    for name in IMPLEMENTATIONS:
        AttentionInterface.register(PREFIX + name, partial(_attend, name))
        AttentionMaskInterface.register(PREFIX + name, ALL_MASK_ATTENTION_FUNCTIONS[name])


def _attend(
    name: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> Any:
    """Attend with the implementation of this name, after the hook has changed what it reads."""
    attend = _implementation_of(type(module).forward, name)
    hook = _hook.get()
    if hook is None:
        return attend(module, query, key, value, attention_mask, **kwargs)
    is_causal = kwargs.get("is_causal")
    inputs = AttentionInputs(
        module,
        query,
        key,
        value,
        attention_mask,
        kwargs.get("position_bias"),
        bool(getattr(module, "is_causal", True) if is_causal is None else is_causal),
    )
    changed = hook(inputs)
    if changed.bias is not None:
        kwargs["position_bias"] = changed.bias
    return attend(module, query, changed.keys, changed.values, changed.mask, **kwargs)


@cache
def _implementation_of(forward: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function that the forward of an attention module would call: its file has its own eager one."""
    names = inspect.unwrap(forward).__globals__
    implementation: Callable[..., Any] = names["ALL_ATTENTION_FUNCTIONS"].get_interface(
        name, names["eager_attention_forward"]
    )
    return implementation
