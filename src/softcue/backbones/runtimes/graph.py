"""The layers of an encoder as a graph of tensors: laid-out embeddings and prompts in, hidden states out.

Prompts are inputs of the graph, so one graph serves all cues, and rows of several cues share a batch. Which kinds of
prompts it takes are its `parts`; prompts among the embeddings need none. The hooks of injection.py put them in, as in
any other pass.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from softcue.backbones.injection import inject
from softcue.backbones.layout import JoinedVectors, Layout
from softcue.types import LayerPrompt, Prompt

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from softcue.backbones.backbone import Backbone
    from softcue.backbones.passes.forward_pass import ForwardPass

OPSET = 20  # the first with Gelu, which runtimes fuse
OUTPUT_NAME = "states"
TRACED_ROWS, TRACED_COLUMNS, TRACED_VECTORS = 3, 12, 5  # a size of 1 would become a constant of the graph
# joined: keys and values that join those of a layer; placed: those that take positions; parallel: a second attention;
# states: vectors that are added to the states of a layer, or replace them.
Part = Literal["joined", "placed", "parallel", "states"]
# The inputs of each part. Axes: B rows, S columns, P vectors; the first of [L ...] are layers, D and K are fixed.
PART_INPUTS: Mapping[Part, Mapping[str, str]] = {
    "joined": {"keys": "LBPK", "values": "LBPK", "joined": "BP", "joined_positions": "BP"},
    "placed": {"keys": "LBPK", "values": "LBPK", "slots": "BS", "sets": "B"},
    "parallel": {"parallel_keys": "LBQK", "parallel_values": "LBQK", "parallel_mask": "BQ"},
    "states": {"prompt_states": "LBPD", "slots": "BS", "adds": "B"},
}
TEXT_INPUTS = {"embeds": "BSD", "mask": "BS", "positions": "BS"}
NO_SLOT = torch.iinfo(torch.int32).max  # of a column that holds no prompt vector
Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class GraphKind:
    """Which layers a graph runs, and which kinds of prompts it takes."""

    parts: frozenset[Part] = frozenset()
    layer: int | None = None  # the one layer that it runs; None: all

    @property
    def name(self) -> str:
        """A name for files and messages.

        Example:
            >>> GraphKind(frozenset({"joined"}), layer=2).name
            'layer 2, joined'
        """
        return ", ".join(["all layers" if self.layer is None else f"layer {self.layer}", *sorted(self.parts)])


class CannotRunError(Exception):
    """Says why a pass does not go through a graph; it then runs in torch."""


class BackboneGraph(nn.Module):
    """Hidden states of laid-out rows, from inputs by name.

    Example:
        graph = BackboneGraph(backbone, GraphKind(frozenset({"joined"})))
        graph(*graph.example_inputs().values()).shape     # [3 12 D]
    """

    def __init__(self, backbone: Backbone, kind: GraphKind) -> None:
        super().__init__()
        # The layers before a layer are left out by its view; those behind it are dead code of the traced graph.
        self.view = backbone.from_layer(kind.layer) if kind.layer else backbone
        self.stops_at = 1 if kind.layer is not None and kind.layer < backbone.num_layers - 1 else None
        self.num_layers = backbone.num_layers if kind.layer is None else 1
        self.base = self.view.base
        self.kind = kind
        self.axes = {**TEXT_INPUTS, **({"segments": "BS"} if takes_segments(backbone) else {})}
        for part in sorted(kind.parts):
            self.axes |= PART_INPUTS[part]
        self.input_names = tuple(self.axes)

    def forward(self, *values: Tensor) -> Tensor:
        """Return the states of the last layer of the graph. [B S D]"""
        inputs = dict(zip(self.input_names, values, strict=True))
        view, mask = self.view, inputs["mask"]
        arguments: Inputs = {"inputs_embeds": inputs["embeds"], "attention_mask": mask.long()}
        arguments |= view.position_inputs(inputs["positions"])
        if "segments" in inputs:
            arguments["token_type_ids"] = inputs["segments"]
        layout = self._layout(inputs)
        prompt = self._prompt(inputs) if self.kind.parts else None
        with inject(self.base, (), layout, prompt, self.stops_at) as active:
            states: Tensor = self.base(**arguments).last_hidden_state
        if self.stops_at is not None:
            assert active is not None
            states = active.reached[0]
        return states.float()

    def _layout(self, inputs: Inputs) -> Layout:
        """A layout of what the hooks read: the places of prompt vectors. No column counts as text."""
        mask = inputs["mask"]
        slots = inputs.get("slots", torch.full_like(inputs["positions"], NO_SLOT))
        joined = None
        if "joined" in inputs:
            joined = JoinedVectors(inputs["joined"], inputs["joined_positions"], torch.zeros_like(slots))
        vectors = inputs.get("keys", inputs.get("prompt_states"))
        length = 0 if vectors is None else vectors.shape[2]
        nothing = slots[:, :0]
        return Layout(slots, mask, 0 * slots, nothing, mask, nothing.bool(), length, length, joined)

    def _prompt(self, inputs: Inputs) -> Prompt:
        parts = self.kind.parts

        def layer_prompts(layer: int, hidden: Tensor, text_mask: Tensor) -> LayerPrompt | None:
            if layer >= self.num_layers:  # behind the graph's own
                return None
            prompt = LayerPrompt()
            if parts & {"joined", "placed"}:
                prompt = replace(prompt, keys=inputs["keys"][layer], values=inputs["values"][layer])
            if "placed" in parts:
                prompt = replace(prompt, sets=inputs["sets"])
            # The first layer's states are embeddings, which hold their prompts already.
            if "states" in parts and (layer > 0 or self.kind.layer):
                number = layer if self.kind.layer else layer - 1
                prompt = replace(prompt, states=inputs["prompt_states"][number], adds=inputs["adds"])
            if "parallel" in parts:
                prompt = replace(
                    prompt,
                    parallel_keys=inputs["parallel_keys"][layer],
                    parallel_values=inputs["parallel_values"][layer],
                    parallel_mask=inputs["parallel_mask"],
                )
            return prompt

        embeds, mask = inputs["embeds"], inputs["mask"]
        return Prompt(embeds[:, :0], mask[:, :0], embeds.new_zeros(()), layer_prompts)

    def example_inputs(self) -> Inputs:
        """Made-up inputs of the right shapes, to trace the graph with."""
        structure = self.view.structure
        sizes = {"B": TRACED_ROWS, "S": TRACED_COLUMNS, "P": TRACED_VECTORS, "Q": TRACED_VECTORS + 1}
        states_layers = self.num_layers - 1 if self.kind.layer is None else 1
        widths = {
            "embeds": self.view.width,
            "keys": structure.key_width,
            "values": structure.key_width,
            "parallel_keys": structure.query_width,
            "parallel_values": structure.query_width,
            "prompt_states": structure.hidden_width,
        }
        inputs: Inputs = {}
        for name, axes in self.axes.items():
            layers = states_layers if name == "prompt_states" else self.num_layers
            shape = [layers if axis == "L" else sizes.get(axis, widths.get(name, 0)) for axis in axes]
            inputs[name] = torch.zeros(shape) if name in widths else torch.zeros(shape, dtype=_dtype_of(name))
        inputs["mask"][:, : TRACED_COLUMNS // 2] = True
        inputs["positions"] += torch.arange(TRACED_COLUMNS)
        return inputs


def _dtype_of(name: str) -> torch.dtype:
    is_flag = name in ("mask", "joined", "sets", "adds", "parallel_mask")
    return torch.bool if is_flag else torch.int64


def takes_segments(backbone: Backbone) -> bool:
    """Whether a graph of this backbone has segments as an input."""
    return backbone.whole.structure.takes_segments


def trace(graph: BackboneGraph) -> ExportedProgram:
    """Trace a graph for batches of any number of rows, columns and prompt vectors.

    Example:
        trace(BackboneGraph(backbone, GraphKind())).module()(*inputs.values())
    """
    names = {"B": "rows", "S": "columns", "P": "vectors", "Q": "parallel_vectors"}
    dimensions = {axis: torch.export.Dim(name) for axis, name in names.items()}
    shapes = tuple(
        {index: dimensions[axis] for index, axis in enumerate(axes) if axis in dimensions}
        for axes in graph.axes.values()
    )
    inputs = tuple(graph.example_inputs().values())
    with torch.no_grad(), quiet():
        return torch.export.export(graph.eval(), inputs, dynamic_shapes=(shapes,), strict=False)


def write_onnx(graph: BackboneGraph, path: Path) -> None:
    """Write a graph as an ONNX file.

    Example:
        write_onnx(BackboneGraph(backbone, GraphKind()), Path("model.onnx"))
    """
    program = trace(graph)
    with quiet():
        exported = torch.onnx.export(
            program,
            input_names=list(graph.input_names),
            output_names=[OUTPUT_NAME],
            opset_version=OPSET,
            verbose=False,
        )
    assert exported is not None
    exported.save(str(path))


@contextmanager
def quiet() -> Iterator[None]:
    """Hide warnings and messages of exporters about their own insides."""
    loggers = [logging.getLogger(name) for name in ("torch.export", "torch.onnx", "torch.fx", "root", "nncf")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


# From a pass to the inputs of a graph


def text_inputs(forward_pass: ForwardPass) -> Inputs:
    """The inputs of a pass that do not depend on deeper layers' prompts.

    Example:
        text_inputs(forward_pass)["mask"].shape     # [B S]
    """
    layout = forward_pass.layout
    inputs = {"embeds": forward_pass.embeds.float(), "mask": layout.mask, "positions": layout.positions}
    if takes_segments(forward_pass.backbone):
        segments = forward_pass.segments
        inputs["segments"] = torch.zeros_like(layout.positions) if segments is None else segments
    return inputs


def prompt_inputs(layout: Layout, prompts: list[LayerPrompt | None]) -> tuple[frozenset[Part], Inputs]:
    """The prompts of layers, in order, as inputs of a graph that runs these layers, and which parts they need.

    Raises CannotRunError if only some layers have a prompt of a kind, which no graph takes.

    Example:
        parts, inputs = prompt_inputs(forward_pass.layout, [LayerPrompt(keys=keys, values=values)] * 6)
    """
    parts: set[Part] = set()
    inputs: Inputs = {}
    given = [prompt or LayerPrompt() for prompt in prompts]
    if (keys := _stack(given, "keys")) is not None:
        values = _stack(given, "values")
        assert values is not None
        inputs |= {"keys": keys, "values": values}
        if layout.joined is not None:
            parts.add("joined")
            inputs |= {"joined": layout.joined.mask, "joined_positions": layout.joined.positions.clamp(min=0)}
        else:
            parts.add("placed")
            inputs["sets"] = _flags(given[0].sets, keys)
    # A prompt among the embeddings is in them already, so the first layer may have none.
    deeper = given if len(given) == 1 or given[0].states is not None else given[1:]
    if (states := _stack(deeper, "states")) is not None:
        if deeper is given and len(given) > 1:
            raise CannotRunError("the first layer's states are changed")
        parts.add("states")
        inputs |= {"prompt_states": states, "adds": _flags(deeper[0].adds, states)}
    if parts & {"placed", "states"}:
        inputs["slots"] = layout.index.where(layout.is_prompt, NO_SLOT)
    if (parallel_keys := _stack(given, "parallel_keys")) is not None:
        parts.add("parallel")
        parallel_values, mask = _stack(given, "parallel_values"), given[0].parallel_mask
        assert parallel_values is not None
        if mask is None:
            mask = torch.ones(parallel_keys.shape[1:3], dtype=torch.bool)
        inputs |= {"parallel_keys": parallel_keys, "parallel_values": parallel_values, "parallel_mask": mask}
    return frozenset(parts), inputs


def _stack(prompts: list[LayerPrompt], name: str) -> Tensor | None:
    """One field of all layers' prompts [L B P X]; None if no layer has it."""
    vectors = [value for prompt in prompts if (value := getattr(prompt, name)) is not None]
    if not vectors:
        return None
    if len(vectors) < len(prompts):
        raise CannotRunError("only some layers have a prompt")
    return torch.stack(vectors).float()


def _flags(flags: Tensor | None, vectors: Tensor) -> Tensor:
    """Flags of rows [B]; all of them, if a prompt does not say which."""
    return torch.ones(vectors.shape[1], dtype=torch.bool) if flags is None else flags
