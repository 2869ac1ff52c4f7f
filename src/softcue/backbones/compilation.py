"""Layers through torch.compile, where that works; everything else goes the plain way, with the same numbers.

What is compiled is a copy of each layer that shares its weights and has no hooks, made before any are installed:
dynamo cannot see through a ContextVar, and breaks the graph at each. A pass that changes something inside a layer
(keys and values, adapters), or fills a cache (whose place in each layer would be compiled in), runs the layer itself.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from softcue.backbones.families import family_of
from softcue.backbones.injection import _running
from softcue.backbones.loading.autotune import LAYERS
from softcue.backbones.loading.trials import agree, first_layers, typical_pass

VARIANTS = 32  # with and without gradient or mask, one row or many, a first layer unlike the others, ...

Forward = Callable[..., Any]


class _Attempt:
    """Whether compiled layers are used; all of a model's layers or none."""

    def __init__(self) -> None:
        self.is_on = True

    def give_up(self, reason: str) -> None:
        """Go the plain way from now on, and say so once."""
        if self.is_on:
            self.is_on = False
            line = " ".join(reason.split())[:200]
            warnings.warn(f"backbone.compile: going on without compiled layers: {line}", stacklevel=3)


def compile_layers(model: Any, backend: str | Callable[..., Any] = "inductor") -> None:
    """Run a new model's reading layers compiled, after a trial that must give the plain numbers, forward and backward.

    Example:
        compile_layers(model)
    """
    import torch._dynamo.config as settings
    from transformers import Cache

    settings.recompile_limit = max(settings.recompile_limit, VARIANTS)
    layers: nn.ModuleList = model.base_model.get_submodule(family_of(model.config.model_type).reader.layers)
    attempt = _Attempt()
    try:
        with first_layers(model, LAYERS):
            wanted = typical_pass(model)()
            for number, layer in enumerate(layers):
                spare = copy.deepcopy(layer, memo={id(value): value for value in layer.parameters()})
                compiled = torch.compile(spare.forward, dynamic=True, backend=backend)
                layer.forward = _either(compiled, layer.forward, attempt, layers, number, Cache)
            found = typical_pass(model)()
    except Exception as error:
        attempt.give_up(_told(error))
    else:
        if not agree(found, wanted, model.get_input_embeddings().weight.dtype):
            attempt.give_up("its numbers are not those of the plain ones")
    if not attempt.is_on:
        for layer in layers:
            vars(layer).pop("forward", None)


def _either(
    compiled: Forward, plain: Forward, attempt: _Attempt, layers: nn.ModuleList, number: int, cache: type
) -> Forward:
    def run(*args: Any, **kwargs: Any) -> Any:
        has_cache = any(isinstance(value, cache) for value in (*args, *kwargs.values()))
        if not attempt.is_on or has_cache or _reaches_into(layers, number):
            return plain(*args, **kwargs)
        try:
            return compiled(*args, **kwargs)
        except Exception as error:
            found = plain(*args, **kwargs)  # if this fails as well, the compiler is not to blame
            attempt.give_up(_told(error))
            return found

    return run


def _reaches_into(layers: nn.ModuleList, number: int) -> bool:
    """Whether the running pass changes something inside a layer, rather than only what enters it."""
    active = _running(id(layers))
    if active is None:
        return False
    own = active.taken.get(number)
    return bool(active.sublayers) or (own is not None and own.keys is not None)


def _told(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
