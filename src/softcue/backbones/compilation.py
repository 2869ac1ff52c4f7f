"""Layers run through torch.compile where that works; everything else runs uncompiled, with the same numbers.

A copy of each layer is compiled. It shares the weights and has no hooks, because it is made before they are installed:
dynamo breaks the graph at every ContextVar. The layer itself runs in a pass that changes something inside a layer (keys
and values, adapters) or fills a cache (whose index in each layer would be compiled in).
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn

from softcue.backbones.injection import running_layer, running_pass
from softcue.backbones.loading.autotune import TRIAL_LAYERS, agree, keep_first_layers, make_trial_pass
from softcue.backbones.structure import layers_of
from softcue.backbones.tracing import structure_of
from softcue.errors import first_line

VARIANTS = 32  # with and without gradient or mask, one row or many, a first layer unlike the others, ...

Forward = Callable[..., Any]


_is_off: ContextVar[bool] = ContextVar("softcue_uncompiled", default=False)


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run the plain layers while active.

    Example:
        with uncompiled():
            backbone.read(batch, prompt, embeds).text()
    """
    token = _is_off.set(True)
    try:
        yield
    finally:
        _is_off.reset(token)


class _CompileState:
    """Whether the compiled layers of a model are used: all of them or none."""

    def __init__(self) -> None:
        self.is_on = True
        self._reasons: set[str] = set()  # that were told

    def explain(self, reason: str) -> None:
        """Warn once that passes of this kind run the uncompiled layers."""
        if reason not in self._reasons:
            self._reasons.add(reason)
            warnings.warn(f"backbone.compile has no effect on passes in which {reason}", stacklevel=3)

    def turn_off(self, reason: str) -> None:
        """Use the uncompiled layers from now on, and warn once."""
        if self.is_on:
            self.is_on = False
            line = " ".join(reason.split())[:200]
            warnings.warn(f"backbone.compile: going on without compiled layers: {line}", stacklevel=3)


def compile_layers(model: Any, backend: str | Callable[..., Any] = "inductor") -> None:
    """Compile the source layers of a new model, if a trial pass gives the same numbers, forward and backward.

    Example:
        compile_layers(model)
    """
    import torch._dynamo.config as settings
    from transformers import Cache

    settings.recompile_limit = max(settings.recompile_limit, VARIANTS)
    layers = list(dict.fromkeys(layers_of(model, structure_of(model).source)))
    state = _CompileState()
    try:
        with keep_first_layers(model, TRIAL_LAYERS):
            plain_outputs = make_trial_pass(model)()
            for layer in layers:
                layer_copy = copy.deepcopy(layer, memo={id(value): value for value in layer.parameters()})
                compiled = torch.compile(layer_copy.forward, dynamic=True, backend=backend)
                layer.forward = _make_forward(compiled, layer.forward, state, model.base_model, Cache)
            compiled_outputs = make_trial_pass(model)()
    except Exception as error:
        state.turn_off(first_line(error))
    else:
        if not agree(compiled_outputs, plain_outputs, model.get_input_embeddings().weight.dtype):
            state.turn_off("its numbers are not those of the plain ones")
    if not state.is_on:
        for layer in layers:
            vars(layer).pop("forward", None)


def _make_forward(
    compiled: Forward, plain: Forward, state: _CompileState, base: nn.Module, cache_class: type
) -> Forward:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not state.is_on or _is_off.get():
            return plain(*args, **kwargs)
        has_cache = any(isinstance(value, cache_class) for value in (*args, *kwargs.values()))
        reason = "layers read a cache, as with a prompt that all rows share" if has_cache else _change_inside(base)
        if reason:
            state.explain(reason)
            return plain(*args, **kwargs)
        try:
            return compiled(*args, **kwargs)
        except Exception as error:
            output = plain(*args, **kwargs)  # if this fails as well, the cause is not the compiler
            state.turn_off(first_line(error))
            return output

    return run


def _change_inside(base: nn.Module) -> str:
    """What the running pass changes inside a layer, rather than at its input; empty if nothing."""
    active = running_pass(id(base))
    if active is None:
        return ""
    if active.sublayers or active.linears:
        return "sub-layers are changed, as by adapters and LoRA"
    if active.noise is not None:
        return "the backbone has dropout"
    layer_prompt = active.layer_prompts.get(running_layer())
    has_keys = layer_prompt is not None and (layer_prompt.keys is not None or layer_prompt.parallel_keys is not None)
    return "prompts are keys and values of a layer's attention" if has_keys else ""
