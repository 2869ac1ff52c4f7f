"""From the output of a layer's key projection to the keys that its attention reads: a norm, a rotation, or nothing.

A prompt without positions joins its keys to those of the text inside the attention, so it must take the same steps.
They are found by watching a pass: the first combination that turns the projection's output into the attention's keys.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from softcue.backbones.attention import AttentionInputs, change_attention, routed
from softcue.backbones.structure import KeySteps, LayerStructure

Rotation = tuple[Tensor, Tensor]  # cosines and sines of rotary positions, each [B S r]


def apply_key_steps(steps: KeySteps, norm: nn.Module | None, keys: Tensor, rotation: Rotation | None) -> Tensor:
    """Turn outputs of the key projection into the keys that attention reads. [B P K] -> [B P K]"""
    heads = keys.reshape(*keys.shape[:2], -1, steps.head_width)  # [B P h d]
    if norm is not None:
        heads = norm(heads) if steps.norms_heads else norm(keys).view_as(heads)
    if steps.rotates:
        assert rotation is not None
        heads = rotate(heads, *(values.unsqueeze(2) for values in rotation))
    return heads.flatten(2)


def rotate(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate the first r numbers of each head, in pairs that are r/2 apart. [... d], [... r], [... r] -> [... d]

    Example:
        >>> rotate(torch.tensor([1.0, 0.0, 5.0]), torch.zeros(2), torch.ones(2)).tolist()
        [0.0, 1.0, 5.0]
    """
    size = cosines.shape[-1]
    turned = heads[..., :size]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cosines + torch.cat([-second, first], dim=-1) * sines
    return turned if size == heads.shape[-1] else torch.cat([turned, heads[..., size:]], dim=-1)


@dataclass
class _LayerRun:
    """What was seen in one run of a layer."""

    layer: nn.Module
    rotation: Rotation | None  # that the layer was given
    outputs: dict[str, Tensor] = field(default_factory=dict)  # of its projections, by path
    norm_inputs: dict[str, Tensor] = field(default_factory=dict)  # of modules with one weight per number
    calls: list[AttentionInputs] = field(default_factory=list)


@dataclass(frozen=True)
class FoundSteps:
    """The key steps of each run of a layer, and where rotations come from."""

    steps: Sequence[KeySteps | None]
    rotary: tuple[str, ...] = ()  # paths below the base model of the modules that compute rotations
    has_position_bias: bool = False


def find_key_steps(
    base: nn.Module,
    layers: Sequence[tuple[nn.Module, LayerStructure]],
    run_source: Callable[[], Tensor],
    is_same: Callable[[Tensor, Tensor], bool],
) -> FoundSteps:
    """Find the key steps of each layer; none where attention cannot be reached, or where they are others.

    `run_source` runs a short pass and returns its states. [B S D]
    """
    nothing = FoundSteps([None] * len(layers))
    if not all(structure.keys is not None and structure.values is not None for _, structure in layers):
        return nothing
    runs: list[_LayerRun] = []
    rotations: dict[int, str] = {}  # path of the module that returned these cosines, by identity
    kept: list[Any] = []  # alive, so that no identity is used twice

    def note_call(inputs: AttentionInputs) -> AttentionInputs:
        runs[-1].calls.append(inputs)
        return inputs

    expected = run_source()
    with ExitStack() as stack:
        stack.enter_context(routed(_configs_of(base)))
        stack.enter_context(change_attention(note_call))
        for handle in _watch(base, dict(layers), runs, rotations, kept):
            stack.callback(handle.remove)
        try:
            states = run_source()
        except Exception:  # a model that tells implementations apart by name: prompts take positions there
            return nothing
    if len(runs) != len(layers) or not is_same(states, expected):
        return nothing
    calls = [run.calls[0] for run in runs if len(run.calls) == 1]
    if len(calls) != len(runs):
        return nothing
    steps = [_steps_of(run, structure, is_same) for run, (_, structure) in zip(runs, layers, strict=True)]
    rotary = {rotations.get(id(run.rotation[0])) for run in runs if run.rotation is not None}
    if None in rotary and any(step is not None and step.rotates for step in steps):
        return nothing
    biases = [call.bias is not None for call in calls]
    can_compute = not biases[0] or hasattr(calls[0].module, "compute_bias")
    if any(biases) and not (all(biases) and can_compute):
        return nothing
    paths = tuple(sorted(path for path in rotary if path is not None))
    return FoundSteps(steps, paths, has_position_bias=any(biases))


def _configs_of(base: nn.Module) -> list[Any]:
    configs = {id(module.config): module.config for module in base.modules() if hasattr(module, "config")}
    return [config for config in configs.values() if hasattr(config, "_attn_implementation")]


def _watch(
    base: nn.Module,
    layers: Mapping[nn.Module, LayerStructure],
    runs: list[_LayerRun],
    rotations: dict[int, str],
    kept: list[Any],
) -> Iterator[Any]:
    """Install hooks that note the runs of layers, their projections, and rotations."""

    def enter(layer: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        rotation = kwargs.get("position_embeddings")
        runs.append(_LayerRun(layer, rotation if isinstance(rotation, tuple) else None))

    def note_output(path: str) -> Callable[..., None]:
        def note(module: nn.Module, args: Any, output: Any) -> None:
            runs[-1].outputs[path] = output

        return note

    def note_input(path: str) -> Callable[..., None]:
        def note(module: nn.Module, args: Any) -> None:
            if args and isinstance(args[0], Tensor):
                runs[-1].norm_inputs[path] = args[0]

        return note

    def note_rotation(path: str) -> Callable[..., None]:
        def note(module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, tuple) and len(output) == 2 and isinstance(output[0], Tensor):
                rotations[id(output[0])] = path
                kept.append(output)

        return note

    for layer, structure in layers.items():
        yield layer.register_forward_pre_hook(enter, with_kwargs=True)
        assert structure.keys is not None and structure.values is not None
        for path in {structure.keys.module, structure.values.module}:
            yield layer.get_submodule(path).register_forward_hook(note_output(path))
        for path, module in layer.named_modules():
            if getattr(getattr(module, "weight", None), "ndim", 0) == 1:
                yield module.register_forward_pre_hook(note_input(path))
    inside = {id(module) for layer in layers for module in layer.modules()}
    for path, module in base.named_modules():
        if id(module) not in inside and not list(module.children()):
            yield module.register_forward_hook(note_rotation(path))


def _steps_of(run: _LayerRun, structure: LayerStructure, is_same: Callable[[Tensor, Tensor], bool]) -> KeySteps | None:
    """The steps that turn the output of a layer's key projection into the keys of its attention."""
    assert structure.keys is not None and structure.values is not None
    (call,) = run.calls
    if not hasattr(call.module, "config") or call.keys.dim() != 4:
        return None
    keys, values = (
        projection.take(run.outputs[projection.module]) for projection in (structure.keys, structure.values)
    )
    head_width = call.keys.shape[-1]
    joined_keys, joined_values = (heads.transpose(1, 2).flatten(2) for heads in (call.keys, call.values))  # [B S K]
    has_same_shapes = joined_keys.shape == keys.shape and joined_values.shape == values.shape
    if not has_same_shapes or not is_same(values, joined_values):
        return None
    prefix = next(path for path, module in run.layer.named_modules() if module is call.module)
    norms: list[tuple[str | None, bool]] = [(None, True)]
    for path, states in run.norm_inputs.items():
        forms = (states, states.transpose(1, 2)) if states.dim() == 4 else (states,)  # [B S h d] or [B h S d]
        if states.numel() == keys.numel() and any(torch.equal(form.reshape(keys.shape), keys) for form in forms):
            norms.append((path, states.dim() == 4))
    for (norm_path, norms_heads), rotates in itertools.product(norms, (False, True)):
        if rotates and run.rotation is None:
            continue
        steps = KeySteps(
            attention=prefix, head_width=head_width, norm=norm_path, norms_heads=norms_heads, rotates=rotates
        )
        norm = None if norm_path is None else run.layer.get_submodule(norm_path)
        if is_same(apply_key_steps(steps, norm, keys, run.rotation), joined_keys):
            return steps
    return None
