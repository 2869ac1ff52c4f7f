"""How a method changes a running backbone: prompts of deeper layers, keys and values, outputs of modules in a layer.

Hooks are installed once per model, those of linear modules when a method first names them. They do nothing unless a
pass in the same context is active. So two threads can share a backbone, and a pass of another backbone stays unchanged.
The active pass is in one ContextVar, which gradient checkpointing restores when it runs a layer again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from softcue.backbones.attention import AttentionInputs, change_attention, route_attention
from softcue.backbones.joined_keys import JoinedKeys, KeyPath, key_paths_of
from softcue.backbones.key_steps import Rotation
from softcue.backbones.layout import JoinedVectors, Layout
from softcue.backbones.structure import Projection, Stack, cross_attentions_of, layers_of, modules_of
from softcue.backbones.tracing import hidden_input, structure_of
from softcue.randomness import TokenNoise, begin_section, draws_of_pass
from softcue.types import LayerPrompt, Prompt


@dataclass(frozen=True)
class ActivePass:
    """A running pass of a backbone and the changes it makes."""

    owner: int  # identity of the base model, so that the hooks of another backbone do nothing
    layout: Layout | None
    prompt: Prompt | None
    sublayers: Sequence[nn.Module]
    linears: Mapping[str, nn.Module] = field(default_factory=dict)  # what changes a linear module's output, by its path
    stops_at: int | None = None  # the pass ends with the input of this layer
    noise: TokenNoise | None = None  # dropout of the hidden states in training
    reached: list[Tensor] = field(default_factory=list)  # that input, in a graph that is exported: it cannot end early
    layer_prompts: dict[int, LayerPrompt] = field(default_factory=dict)  # by layer, from the time its input is known
    num_rows: list[int] = field(default_factory=list)  # one number: rows of the layer that runs now
    # Of a layer that several places share, by its stack and first place. Not by identity: a traced module is a copy.
    num_runs: dict[tuple[bool, int], int] = field(default_factory=dict)
    queries: dict[int, Tensor] = field(default_factory=dict)  # [B S Q] by layer, until its attention is done
    joined: JoinedKeys | None = None  # prompts that are keys and values without positions

    def layer_prompt(self, number: int, device: torch.device) -> LayerPrompt | None:
        """Return a layer's prompt where the layer is, if the prompt has a part for it."""
        part = self.layer_prompts.get(number)
        if part is not None:
            part = self.layer_prompts[number] = part.on(device)
        return part

    def join(self, inputs: AttentionInputs) -> AttentionInputs:
        """Join the prompt of the layer that runs now to what its attention reads."""
        assert self.joined is not None
        return self.joined.join(self.layer_prompt(_layer.get(), inputs.keys.device), inputs)


class ReachedLayer(Exception):  # noqa: N818 - it ends a pass early and is no error
    """Ends a pass at the layer whose input is wanted."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden  # [B S D] the input of the layer


_active: ContextVar[ActivePass | None] = ContextVar("softcue_pass", default=None)
# A ContextVar, because gradient checkpointing runs a layer again in a copy of the context of its first run.
_layer: ContextVar[int] = ContextVar("softcue_layer", default=0)


@contextmanager
def inject(
    base: nn.Module,
    sublayers: Sequence[nn.Module],
    layout: Layout | None = None,
    prompt: Prompt | None = None,
    stops_at: int | None = None,
    noise: TokenNoise | None = None,
    lasting: Mapping[int, LayerPrompt] | None = None,
    is_causal: bool = False,
    linears: Mapping[str, nn.Module] | None = None,
    has_constant_text: bool = False,
) -> Iterator[ActivePass | None]:
    """Give layers the prompt's parts for them, and apply `sublayers` to the outputs of sub-layers, while active.

    `linears` change the outputs of linear modules, by path below the base model. `noise` drops values of the states
    that enter the first layer, and of each output before it enters a residual sum. A pass that `stops_at` a layer
    raises ReachedLayer there. `lasting` are layer prompts of an earlier pass over the source that act behind it too;
    several continuations of a row are adjacent. In a model that `is_causal`, tokens before a prompt do not see it. With
    `has_constant_text` gradients end at the prompt's positions (prompt_gradients.py).
    """
    has_layer_prompts = prompt is not None and prompt.layer_prompts is not None
    has_modules = bool(sublayers or linears)
    is_plain = not has_modules and not has_layer_prompts and stops_at is None and noise is None and not lasting
    is_plain = is_plain and not has_constant_text
    lasting = dict(lasting or {})
    has_joined = (layout is not None and layout.joined is not None) or any(
        part.joined is not None for part in lasting.values()
    )
    joined = JoinedKeys(layout, is_causal) if has_joined else None
    active = None
    if not is_plain:
        active = ActivePass(
            id(base), layout, prompt, sublayers, linears or {}, stops_at, noise, layer_prompts=lasting, joined=joined
        )
    token = _active.set(active)  # None hides the outer pass from a plain pass within it
    try:
        with draws_of_pass(), change_attention(None if active is None or active.joined is None else active.join):
            yield active
    finally:
        _active.reset(token)


def running_pass(owner: int) -> ActivePass | None:
    """Return the active pass if it belongs to the base model with this identity."""
    active = _active.get()
    return active if active is not None and active.owner == owner else None


def running_layer() -> int:
    """Return the number of the source layer that runs now; a shared layer has a number for each of its runs."""
    return _layer.get()


@dataclass(frozen=True)
class RunNumbers:
    """The numbers of a module's runs in a pass, by the layer that runs. Only a shared module has several."""

    by_layer: Mapping[int, int]

    @property
    def current(self) -> int:
        """The number of the run that takes place now."""
        if len(self.by_layer) == 1:
            return next(iter(self.by_layer.values()))
        return self.by_layer[_layer.get()]


def _number_runs(
    modules: Sequence[nn.Module], layers: Sequence[int], first: int = 0
) -> Iterator[tuple[Any, RunNumbers]]:
    """Number modules in the order of their runs. A module that is there several times comes once, with all numbers."""
    numbers: dict[int, dict[int, int]] = {}
    for number, (module, layer) in enumerate(zip(modules, layers, strict=True), start=first):
        numbers.setdefault(id(module), {})[layer] = number
    for module in dict.fromkeys(modules):
        yield module, RunNumbers(numbers[id(module)])


def install_hooks(model: Any) -> None:
    """Install the hooks on a model: once, however many backbones share it. A copied model gets its own."""
    base, structure = model.base_model, structure_of(model)
    owner = id(base)
    if getattr(base, "_hooks_installed_for", None) == owner:
        return
    base._hooks_installed_for = owner
    first_sublayer = 0
    key_paths = key_paths_of(model, structure)
    route_attention(path.attention.config for path in key_paths)
    for path in structure.rotary if key_paths else ():
        _install_rotary_hooks(base.get_submodule(path), owner)
    stacks = [stack for stack in (structure.source, structure.decoder) if stack is not None]
    for stack_number, stack in enumerate(stacks):
        layers = layers_of(model, stack)
        is_source = stack_number == 0
        for layer, runs in _number_runs(layers, range(len(layers))):
            hook = _make_layer_hook(
                list(runs.by_layer), owner, is_source, -1 - stack_number, key_paths if is_source else ()
            )
            layer.register_forward_pre_hook(hook, with_kwargs=True)
        if is_source and all(layer.keys is not None for layer in stack.layers):
            _install_projection_hooks(layers, stack, owner)
        if is_source and all(layer.queries is not None for layer in stack.layers):
            _install_parallel_hooks(layers, stack, owner, structure.head_width)
        sublayers = modules_of(layers, [layer.sublayers for layer in stack.layers])
        layer_numbers = [number for number, layer in enumerate(stack.layers) for _ in layer.sublayers]
        for sublayer, runs in _number_runs(sublayers, layer_numbers, first_sublayer):
            sublayer.register_forward_hook(_make_sublayer_hook(runs, owner))
        first_sublayer += len(sublayers)
    cross_attentions = [module for stack in stacks for module in cross_attentions_of(model, stack)]
    for number, module in enumerate(cross_attentions, start=first_sublayer):
        module.register_forward_hook(_make_noise_hook(number, owner))


def _install_projection_hooks(layers: Sequence[nn.Module], stack: Stack, owner: int) -> None:
    for which in ("keys", "values"):
        projections: list[Projection] = [getattr(layer, which) for layer in stack.layers]
        modules = modules_of(layers, [[projection.module] for projection in projections])
        for module, runs in _number_runs(modules, range(len(layers))):
            columns = projections[next(iter(runs.by_layer))]
            module.register_forward_hook(_make_projection_hook(runs, owner, which, columns))


def _install_parallel_hooks(layers: Sequence[nn.Module], stack: Stack, owner: int, head_width: int) -> None:
    """Install the hooks for prompts that are attended to beside the text, with a softmax of their own."""
    projections = [layer.queries for layer in stack.layers]
    modules = modules_of(layers, [[projection.module] for projection in projections if projection is not None])
    for module, runs in _number_runs(modules, range(len(layers))):
        queries = projections[next(iter(runs.by_layer))]
        assert queries is not None
        module.register_forward_hook(_make_query_hook(runs, owner, queries))
    modules = modules_of(layers, [[layer.attention_output or ""] for layer in stack.layers])
    for module, runs in _number_runs(modules, range(len(layers))):
        module.register_forward_pre_hook(_make_heads_hook(runs, owner, head_width))


def _install_rotary_hooks(module: nn.Module, owner: int) -> None:
    """Compute the rotations of prompt vectors without positions together with those of the text."""

    def running_source() -> tuple[JoinedKeys, Layout, JoinedVectors] | None:
        active = running_pass(owner)
        joined = None if active is None else active.joined
        if joined is None or joined.layout is None or joined.layout.joined is None:
            return None
        return joined, joined.layout, joined.layout.joined

    def add_positions(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        source = running_source()
        if source is None:
            return None
        _, layout, vectors = source
        positions: Tensor = kwargs["position_ids"] if "position_ids" in kwargs else args[1]  # [B S]
        if positions.shape[1] != layout.index.shape[1]:  # a decoding step
            return None
        of_prompt = vectors.positions.clamp(min=0)  # [B P]
        num_beams = positions.shape[0] // of_prompt.shape[0]
        extended = torch.cat([of_prompt.repeat_interleave(num_beams, dim=0), positions], dim=1)  # [B P+S]
        if "position_ids" in kwargs:
            return args, {**kwargs, "position_ids": extended}
        return (args[0], extended, *args[2:]), kwargs

    def split_off(module: nn.Module, args: tuple[Any, ...], output: Rotation) -> Rotation | None:
        source = running_source()
        if source is None:
            return None
        joined, layout, vectors = source
        num_rows, num_vectors = vectors.mask.shape
        if output[0].shape[1] != num_vectors + layout.index.shape[1]:
            return None
        cosines, sines = (values[:, num_vectors:] for values in output)  # [B S r]
        first_beams = slice(None, None, output[0].shape[0] // num_rows)
        of_prompt = output[0][first_beams, :num_vectors], output[1][first_beams, :num_vectors]  # [B P r] each
        joined.rotations[id(cosines)] = cosines, of_prompt
        return cosines, sines

    module.register_forward_pre_hook(add_positions, with_kwargs=True)
    module.register_forward_hook(split_off)


def _make_layer_hook(
    numbers: Sequence[int], owner: int, is_source: bool, noise_place: int, key_paths: Sequence[KeyPath]
) -> Any:
    """Make a hook that drops input values of the first layer, and asks the prompt for each source layer's part."""

    def change_input(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        active = running_pass(owner)
        if active is None:
            return None
        hidden = hidden_input(args, kwargs)  # [B S D]
        assert hidden is not None
        changed = hidden.to(device_of(module, hidden.device))  # of a model on several devices: that of this layer
        number = numbers[0]
        if len(numbers) > 1:  # a shared layer
            num_runs = active.num_runs.get((is_source, numbers[0]), 0)
            active.num_runs[is_source, numbers[0]] = num_runs + 1
            number = numbers[num_runs % len(numbers)]
        active.num_rows[:] = [hidden.shape[0]]
        begin_section(number if is_source else -2 - number)
        if number == 0 and active.noise is not None:
            changed = active.noise.on(changed.device).drop(changed, noise_place)
        if is_source:
            _layer.set(number)
            if active.stops_at == number:
                if not torch.compiler.is_exporting():
                    raise ReachedLayer(changed)
                active.reached.append(changed)
            rotation = kwargs.get("position_embeddings")
            changed = _prompt_layer(active, number, changed, key_paths[number] if key_paths else None, rotation)
        if changed is hidden:
            return None
        if args:
            return (changed, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": changed}

    return change_input


def _prompt_layer(
    active: ActivePass, number: int, hidden: Tensor, key_path: KeyPath | None, rotation: Rotation | None
) -> Tensor:
    """Ask the prompt for a layer's part, given the states of the text that enter it, and apply it to these states."""
    if active.layout is None or active.prompt is None or active.prompt.layer_prompts is None:
        return hidden
    layout = active.layout.on(hidden.device)
    is_source = hidden.shape[1] == layout.index.shape[1] and number not in active.layer_prompts
    if not is_source:
        # A cached decoding step: the prompt is already in the keys and values, unless it has no positions.
        part = active.layer_prompts.pop(number, None)
        if part is not None and (kept := part.lasting_part) is not None:
            active.layer_prompts[number] = kept
        return hidden
    num_beams = hidden.shape[0] // layout.index.shape[0]  # beam search repeats each row
    first_beams = hidden[::num_beams] if num_beams > 1 else hidden
    layer_prompt = active.prompt.layer_prompts(number, layout.text_of(first_beams), layout.text_mask)
    if layer_prompt is None:
        active.layer_prompts.pop(number, None)
        return hidden
    layer_prompt = layer_prompt.on(hidden.device)
    if active.joined is not None:
        assert key_path is not None
        layer_prompt = active.joined.prepare(key_path, layer_prompt, hidden, rotation)
    active.layer_prompts[number] = layer_prompt
    if layer_prompt.states is None:
        return hidden
    changed = _apply_states(layout, layer_prompt, first_beams)
    return changed.repeat_interleave(num_beams, dim=0) if num_beams > 1 else changed


def _apply_states(layout: Layout, layer_prompt: LayerPrompt, hidden: Tensor) -> Tensor:
    assert layer_prompt.states is not None
    at_slots = layout.at_slots(layer_prompt.states.to(hidden.dtype))  # [B S D]
    kept = hidden if layer_prompt.adds is None else hidden * layer_prompt.adds[:, None, None]
    return torch.where(layout.is_prompt.unsqueeze(2), kept + at_slots, hidden)


def _make_projection_hook(runs: RunNumbers, owner: int, which: str, projection: Projection) -> Any:
    """Make a hook that replaces the frozen projection's keys (or values) by the prompt's at the prompt's positions."""

    def change_output(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        active = running_pass(owner)
        if active is None or active.layout is None:
            return None
        layer_prompt = active.layer_prompt(runs.current, output.device)
        if layer_prompt is None or layer_prompt.joined is not None:
            return None
        layout, vectors = active.layout.on(output.device), getattr(layer_prompt, which)  # [B P K]
        if vectors is None or output.shape[1] != layout.index.shape[1]:
            return None
        is_replaced = layout.is_prompt if layer_prompt.sets is None else layout.is_prompt & layer_prompt.sets[:, None]
        placed = layout.at_slots(vectors.to(output.dtype))  # [B S K]
        num_beams = output.shape[0] // is_replaced.shape[0]
        if num_beams > 1:
            is_replaced, placed = (values.repeat_interleave(num_beams, dim=0) for values in (is_replaced, placed))
        return _replace_columns(output, placed, is_replaced.unsqueeze(2), projection.columns)

    return change_output


def _make_query_hook(runs: RunNumbers, owner: int, projection: Projection) -> Any:
    """Make a hook that keeps the queries of a layer whose prompt is attended to beside the text."""

    def note_output(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        active = running_pass(owner)
        if active is None:
            return
        layer_prompt = active.layer_prompts.get(runs.current)
        if layer_prompt is not None and layer_prompt.parallel_keys is not None:
            active.queries[runs.current] = projection.take(output)

    return note_output


def _make_heads_hook(runs: RunNumbers, owner: int, head_width: int) -> Any:
    """Make a hook that adds the attention to the prompt to the joined outputs of the heads."""

    def change_input(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        active = running_pass(owner)
        queries = None if active is None else active.queries.pop(runs.current, None)  # [B S Q]
        if active is None or queries is None:
            return None
        joined: Tensor = args[0]
        layer_prompt = active.layer_prompt(runs.current, queries.device)
        assert layer_prompt is not None
        added = parallel_attention(queries, layer_prompt, head_width)
        return (joined + added.to(joined.dtype).view_as(joined), *args[1:])

    return change_input


def parallel_attention(queries: Tensor, layer_prompt: LayerPrompt, head_width: int) -> Tensor:
    """Return the attention to a prompt alone: softmax(q K^T / sqrt(d)) V for each head, joined. [B S Q]

    Example:
        >>> prompt = LayerPrompt(parallel_keys=torch.zeros(1, 2, 4), parallel_values=torch.ones(1, 2, 4))
        >>> parallel_attention(torch.zeros(1, 3, 4), prompt, head_width=2).shape
        torch.Size([1, 3, 4])
    """
    keys, values, mask = layer_prompt.parallel_keys, layer_prompt.parallel_values, layer_prompt.parallel_mask
    assert keys is not None and values is not None
    num_beams = queries.shape[0] // keys.shape[0]  # beam search repeats each row

    def heads(vectors: Tensor) -> Tensor:  # [B X Q] -> [B H X d]
        repeated = vectors.repeat_interleave(num_beams, dim=0) if vectors.shape[0] < queries.shape[0] else vectors
        return repeated.to(queries.dtype).view(*repeated.shape[:2], -1, head_width).transpose(1, 2)

    # Written out: with bfloat16 on a processor the gradient of torch's fused attention takes ten times as long.
    logits = (heads(queries) @ heads(keys).transpose(2, 3)).float() * head_width**-0.5  # [B H S P]
    if mask is not None:
        repeated_mask = mask.repeat_interleave(num_beams, dim=0)
        # Rows without such a prompt attend to values that are zero.
        is_attended = repeated_mask | ~repeated_mask.any(dim=1, keepdim=True)  # [B P]
        logits = logits.masked_fill(~is_attended[:, None, None, :], -torch.inf)
    attended: Tensor = logits.softmax(dim=3).to(queries.dtype) @ heads(values)  # [B H S d]
    return attended.transpose(1, 2).flatten(2)


def _replace_columns(output: Tensor, placed: Tensor, is_replaced: Tensor, columns: Sequence[tuple[int, int]]) -> Tensor:
    """Replace some columns of [B S X] by the values of [B S K] where [B S 1] says so."""
    if len(columns) == 1:
        ((start, stop),) = columns
        replaced = torch.where(is_replaced, placed, output[..., start:stop])
        if (start, stop) == (0, output.shape[2]):
            return replaced
        return torch.cat([output[..., :start], replaced, output[..., stop:]], dim=2)
    index = torch.cat([torch.arange(start, stop, device=output.device) for start, stop in columns])
    return output.index_copy(2, index, torch.where(is_replaced, placed, output[..., index]))


def _make_sublayer_hook(runs: RunNumbers, owner: int) -> Any:
    """Make a hook that applies the method's module to the output of a sub-layer."""

    def change_output(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        active = running_pass(owner)
        if active is None or (not active.sublayers and active.noise is None):
            return None
        states = output if isinstance(output, Tensor) else output[0]
        # OPT's feed-forward runs on all positions of the batch as one axis: [B*S D].
        changed = states if states.dim() == 3 else states.view(active.num_rows[0], -1, states.shape[1])  # [B S D]
        if active.noise is not None:
            changed = active.noise.on(changed.device).drop(changed, runs.current)
        if active.sublayers:
            changed = _run_on(changed.device, active.sublayers[runs.current], changed)
        changed = changed.view_as(states)
        return changed if isinstance(output, Tensor) else (changed, *output[1:])

    return change_output


def device_of(module: nn.Module, otherwise: torch.device) -> torch.device:
    """Return the device of a module's weights; another one if it has none, or if they are loaded when it runs.

    Example:
        >>> device_of(nn.Linear(2, 2), torch.device("meta"))
        device(type='cpu')
    """
    weight = next(module.parameters(), None)
    return otherwise if weight is None or weight.is_meta else weight.device


def _run_on(device: torch.device, module: nn.Module, *inputs: Tensor) -> Tensor:
    """Run a method's module where a layer is. Its parameters stay together on one device; the layer gets copies."""
    tensors = dict(itertools.chain(module.named_parameters(), module.named_buffers()))
    if all(value.device == device for value in tensors.values()):
        return module(*inputs)  # type: ignore[no-any-return]
    copies = {name: value.to(device) for name, value in tensors.items()}
    return torch.func.functional_call(module, copies, inputs)  # type: ignore[no-any-return]


_linears_lock = Lock()


def install_linear_hooks(base: Any, paths: Iterable[str]) -> None:
    """Install the hooks on linear modules: once each, however many methods change them. A copied model gets its own.

    Example:
        install_linear_hooks(model.base_model, ["h.0.attn.c_attn"])
    """
    owner = id(base)
    with _linears_lock:  # a server loads cues beside the thread that predicts
        hooked_for, hooked = getattr(base, "_hooked_linears", (owner, frozenset()))
        if hooked_for != owner:
            hooked = frozenset()
        for path in (new := [path for path in paths if path not in hooked]):
            base.get_submodule(path).register_forward_hook(_make_linear_hook(path, owner))
        if new:
            base._hooked_linears = owner, hooked | set(new)


def _make_linear_hook(path: str, owner: int) -> Any:
    """Make a hook that applies the method's module to the input and the output of a linear module."""

    def change_output(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        active = running_pass(owner)
        change = None if active is None else active.linears.get(path)
        if active is None or change is None:
            return None
        # The row of a token is the first axis. OPT's feed-forward runs on all positions as one axis: [B*S X].
        num_rows = args[0].shape[0] if args[0].dim() == 3 else active.num_rows[0]
        inputs, outputs = (states.reshape(num_rows, -1, states.shape[-1]) for states in (args[0], output))  # [B S X]
        changed = _run_on(output.device, change, inputs, outputs)
        return changed.view_as(output)

    return change_output


def _make_noise_hook(place: int, owner: int) -> Any:
    """Make a hook that drops values of an output."""

    def change_output(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        active = running_pass(owner)
        return None if active is None or active.noise is None else active.noise.on(output.device).drop(output, place)

    return change_output


def checkpoint_layers(layers: Sequence[nn.Module]) -> None:
    """Keep only each layer's input for the backward pass and run the layer again there.

    The layer hook is outside of what runs again, so a prompt is computed once. What is inside (keys, values, adapters,
    dropout by a row's place) finds its context again, because the layer runs in a copy of the context of its first run.
    """
    for layer in layers:
        if not hasattr(layer.forward, "softcue_checkpointed"):  # two backbones may share a model, two places a layer
            layer.forward = _make_checkpointed(layer.forward)


def _make_checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        context = copy_context()
        return checkpoint(lambda *again: context.copy().run(forward, *again, **kwargs), *args, use_reentrant=False)

    run.softcue_checkpointed = True  # type: ignore[attr-defined]
    return run
