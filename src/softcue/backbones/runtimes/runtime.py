"""`LayerRuntime`: the frozen layers of an encoder in another library than torch, for passes without gradients.

A pass makes its prompts as always. They enter the library's graph as inputs, so all cues share the graphs, and rows of
several cues a batch. If prompts of a layer read the states that enter it, each layer is a graph of its own, and torch
makes the prompts between them. Graphs are made by `prepare`, never while requests wait: a pass that no prepared graph
takes runs in torch.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from softcue.backbones.runtimes.graph import (
    PART_INPUTS,
    BackboneGraph,
    CannotRunError,
    GraphKind,
    Inputs,
    Part,
    prompt_inputs,
    text_inputs,
)
from softcue.backbones.runtimes.sessions import Library, NumberFormat, Session, build_session, library_version
from softcue.backbones.tracing import hidden_input
from softcue.files import cache_folder

if TYPE_CHECKING:
    from softcue.backbones.backbone import Backbone
    from softcue.backbones.passes.forward_pass import ForwardPass

GRAPH_FORMAT = 1  # of the files in the cache folder
EMPTY_VECTORS = 1  # of a prompt that a graph takes and a batch does not have


@dataclass(frozen=True)
class RuntimeName:
    """A library and the number format it computes in."""

    library: Library
    number_format: NumberFormat

    def __str__(self) -> str:
        """The name in messages.

        Example:
            >>> str(RuntimeName("openvino", "int8"))
            'openvino int8'
        """
        return f"{self.library} {self.number_format}"


@dataclass
class Recorder:
    """Notes what passes give to the layers, and lets torch run them."""

    whole: list[tuple[frozenset[Part], Inputs]] = field(default_factory=list)  # of passes that one graph runs
    layers: list[list[tuple[frozenset[Part], Inputs]]] = field(default_factory=list)  # of passes by layer
    reasons: set[str] = field(default_factory=set)  # why passes cannot go through a graph

    def hidden(self, forward_pass: ForwardPass) -> Tensor | None:
        """Note the inputs of a pass; its states are left to torch."""
        try:
            if _reads_states(forward_pass):
                self.layers.append(
                    [
                        _layer_inputs(forward_pass, number, states)
                        for number, states in enumerate(_entering_states(forward_pass))
                    ]
                )
            else:
                self.whole.append(_whole_inputs(forward_pass))
        except CannotRunError as error:
            self.reasons.add(str(error))
        return None


def _entering_states(forward_pass: ForwardPass) -> list[Tensor]:
    """What a graph of each layer takes, computed by torch: embeddings, then the states that enter it. [B S D]"""
    backbone, thread = forward_pass.backbone, threading.get_ident()
    if backbone.structure.source.list_path is None:
        raise CannotRunError("its layers share weights, and the prompts read their states")
    entering = [forward_pass.embeds.float()]

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if threading.get_ident() == thread:
            states = hidden_input(args, kwargs)
            assert states is not None
            entering.append(states.float())

    # First of all hooks: the graph changes the states itself.
    handles = [layer.register_forward_pre_hook(note, with_kwargs=True, prepend=True) for layer in backbone.layers[1:]]
    try:
        replace(forward_pass, backbone=backbone.in_torch).hidden()
    finally:
        for handle in handles:
            handle.remove()
    return entering


class LayerRuntime:
    """The prepared graphs of one backbone in one library and number format.

    Example:
        backbone.runtime = LayerRuntime(backbone, RuntimeName("openvino", "bfloat16"))
        backbone.runtime.prepare(recorder)
    """

    def __init__(
        self, backbone: Backbone, name: RuntimeName, folder: Path | None = None, data: str | None = None
    ) -> None:
        self.backbone = backbone
        self.name = name
        self.data = data  # the rows that cues are compared on; None: their own
        self._folder = folder or cache_folder() / "runtimes"
        self._recorders: list[Recorder] = []
        self._sessions: dict[GraphKind, Session] = {}
        self._digest = ""

    @property
    def numbers(self) -> str:
        """What the computed numbers depend on beside the weights: a part of the keys of stored vectors."""
        return f"{self.name} {library_version(self.name.library)} {self._digest}".rstrip()

    def hidden(self, forward_pass: ForwardPass) -> Tensor | None:
        """Return the states of a pass, or None if no prepared graph takes it. [B S D]"""
        try:
            if not _reads_states(forward_pass):
                parts, inputs = _whole_inputs(forward_pass)
                return self._run(parts, inputs)
            states = forward_pass.embeds.float()
            for number in range(self.backbone.num_layers):
                parts, inputs = _layer_inputs(forward_pass, number, states)
                states = self._run(parts, inputs, number)
            return states
        except CannotRunError:
            return None

    def prepare(self, *recorders: Recorder) -> None:
        """Make the graphs for passes like the recorded ones, and for batches that mix them with earlier ones."""
        self._recorders += recorders
        layers = range(self.backbone.num_layers)
        if any(seen.whole for seen in self._recorders):
            self._prepare(None, [batch for seen in self._recorders for batch in seen.whole])
        if any(seen.layers for seen in self._recorders):
            # Rows of other cues may share a batch with rows whose prompts are made between layers.
            others = frozenset().union(*(parts for seen in self._recorders for parts, _ in seen.whole))
            for number in layers:
                batches = [run[number] for seen in self._recorders for run in seen.layers]
                self._prepare(number, batches, others)

    def _prepare(
        self,
        layer: int | None,
        batches: Sequence[tuple[frozenset[Part], Inputs]],
        others: frozenset[Part] = frozenset(),
    ) -> None:
        needed = others.union(*(parts for parts, _ in batches))
        if layer == 0:  # its states are embeddings, which hold their prompts already
            needed -= {"states"}
        try:
            self._find(needed, layer)
        except CannotRunError:
            kind = GraphKind(_compatible(needed), layer)
            graph = BackboneGraph(self.backbone, kind)
            inputs = [self._fill(kind, given) for _, given in batches]
            folder = self._folder / self._key(kind, inputs)
            session = build_session(graph, self.name.library, self.name.number_format, folder, inputs)
            self._sessions = {**self._sessions, kind: session}  # as a whole: another thread may run a pass

    def _key(self, kind: GraphKind, calibration: Sequence[Inputs]) -> str:
        """The name of a graph's folder: a digest of all that the graph depends on."""
        import transformers

        fingerprint = self.backbone.fingerprint
        digest = hashlib.sha256()
        versions = (torch.__version__, transformers.__version__, library_version(self.name.library), GRAPH_FORMAT)
        digest.update(repr((fingerprint.config, fingerprint.weights, kind.name, str(self.name), versions)).encode())
        if self.name == RuntimeName("openvino", "int8"):
            for inputs in calibration:
                for name in sorted(inputs):
                    digest.update(inputs[name].contiguous().numpy().tobytes())
            self._digest = digest.hexdigest()[:12]
        return digest.hexdigest()[:24]

    def _run(self, parts: frozenset[Part], inputs: Inputs, layer: int | None = None) -> Tensor:
        kind = self._find(parts, layer)
        return self._sessions[kind].run(self._fill(kind, inputs))

    def _find(self, parts: frozenset[Part], layer: int | None) -> GraphKind:
        """The smallest prepared graph that takes these kinds of prompts."""
        kinds = [kind for kind in self._sessions if kind.layer == layer and kind.parts >= _compatible(parts)]
        if not kinds:
            raise CannotRunError("no graph for such prompts is prepared")
        return min(kinds, key=lambda kind: len(kind.parts))

    def _fill(self, kind: GraphKind, inputs: Inputs) -> Inputs:
        """The inputs of a pass, with empty prompts where the graph takes a kind that the pass does not have."""
        num_rows, num_columns = inputs["mask"].shape
        structure = self.backbone.structure
        sizes = {"B": num_rows, "S": num_columns, "Q": EMPTY_VECTORS, "L": 1 if kind.layer is not None else 0}
        sizes["P"] = next((inputs[name].shape[2] for name in ("keys", "prompt_states") if name in inputs), 1)
        filled = dict(inputs)
        for part in kind.parts:
            for name, axes in PART_INPUTS[part].items():
                if name in inputs:
                    continue
                sizes["K"] = structure.query_width if name.startswith("parallel") else structure.key_width
                sizes["D"] = structure.hidden_width
                if kind.layer is None:
                    sizes["L"] = self.backbone.num_layers - (1 if name == "prompt_states" else 0)
                filled[name] = _empty_input(name, [sizes[axis] for axis in axes])
        return filled


def _empty_input(name: str, shape: Sequence[int]) -> Tensor:
    if name == "slots":
        return torch.full(shape, torch.iinfo(torch.int32).max)
    if name == "adds":  # zeros are added to no column
        return torch.ones(shape, dtype=torch.bool)
    if name in ("joined", "sets", "parallel_mask"):
        return torch.zeros(shape, dtype=torch.bool)
    return torch.zeros(shape, dtype=torch.int64 if name == "joined_positions" else torch.float32)


def _compatible(parts: frozenset[Part]) -> frozenset[Part]:
    """Keys either join those of a layer or take positions, by the backbone: a graph has one of both."""
    assert not parts >= {"joined", "placed"}
    return parts


def _reads_states(forward_pass: ForwardPass) -> bool:
    prompt = forward_pass.prompt
    return prompt is not None and prompt.layer_prompts is not None and prompt.reads_states


def _whole_inputs(forward_pass: ForwardPass) -> tuple[frozenset[Part], Inputs]:
    """The inputs of a graph of all layers."""
    inputs, prompt = text_inputs(forward_pass), forward_pass.prompt
    if prompt is None or prompt.layer_prompts is None:
        return frozenset(), inputs
    mask = forward_pass.text_mask
    width = forward_pass.backbone.hidden_width
    unread = torch.zeros(()).expand(*mask.shape, width)  # nothing reads it
    prompts = [prompt.layer_prompts(number, unread, mask) for number in range(forward_pass.backbone.num_layers)]
    parts, prompt_values = prompt_inputs(forward_pass.layout, prompts)
    return parts, inputs | prompt_values


def _layer_inputs(forward_pass: ForwardPass, number: int, states: Tensor) -> tuple[frozenset[Part], Inputs]:
    """The inputs of the graph of one layer, given the states that enter it; those of the first are embeddings."""
    prompt = forward_pass.prompt
    assert prompt is not None and prompt.layer_prompts is not None
    read = forward_pass.input_states(0)[0] if number == 0 else forward_pass.layout.text_of(states)  # [B T D]
    layer_prompt = prompt.layer_prompts(number, read, forward_pass.text_mask)
    parts, prompt_values = prompt_inputs(forward_pass.layout, [layer_prompt])
    return parts, text_inputs(forward_pass) | {"embeds": states} | prompt_values
