"""The structure of a model: its kind, its layers, and the modules of a layer that prompts and adapters change.

`tracing.find_structure` finds it from short passes, so no family of models needs an entry in a table. All places
are paths, so the structure of a model is that of its copies too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from softcue.types import BackboneKind

ATTRIBUTE = "softcue_structure"  # of a transformers model whose structure is known


class Record(BaseModel):
    """A part of a structure. It never changes. As JSON it is part of the key under which checks are kept."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Projection(Record):
    """The columns of a module's output that hold the keys, the values or the queries of a layer."""

    module: str  # path below the layer
    # Runs of columns, each from its first to behind its last: one run, or one per head if a module computes queries,
    # keys and values of each head side by side.
    columns: tuple[tuple[int, int], ...]

    @property
    def num_columns(self) -> int:
        """K: the number of columns."""
        return sum(stop - start for start, stop in self.columns)

    def take(self, output: Tensor) -> Tensor:
        """Take these columns of the module's output. [... X] -> [... K]"""
        runs = [output[..., start:stop] for start, stop in self.columns]
        return runs[0] if len(runs) == 1 else torch.cat(runs, dim=-1)


class KeySteps(Record):
    """What happens to the output of a layer's key projection before its attention reads it (key_steps.py)."""

    attention: str  # the module that calls transformers' attention interface, as a path below the layer
    head_width: int  # d of its keys
    norm: str | None = None  # a norm of the keys
    norms_heads: bool = True  # of each head; else of all heads together
    rotates: bool = False  # by rotary positions


class LayerStructure(Record):
    """The modules of a layer that prompts and adapters change, as paths below it."""

    sublayers: tuple[str, ...]  # their output enters a residual sum: attention and feed-forward, in order of execution
    cross_attention: str | None = None  # the same of the cross-attention, in the decoder of an encoder-decoder
    keys: Projection | None = None
    values: Projection | None = None
    why_no_keys: str = ""  # the reason, where keys and values cannot be set
    key_steps: KeySteps | None = None  # None: a prompt's keys cannot be joined to the layer's own
    queries: Projection | None = None
    attention_output: str | None = None  # the module that reads the joined outputs of all heads


class Stack(Record):
    """The layers that run one after the other in a pass."""

    runs: tuple[str, ...]  # the path below the base model of the layer of each run; a shared layer is there repeatedly
    layers: tuple[LayerStructure, ...]  # of each run

    @property
    def list_path(self) -> str | None:
        """The path of the module list whose children run once each, in order; None if layers are shared."""
        parents = {run.rpartition(".")[0] for run in self.runs}
        names = [run.rpartition(".")[2] for run in self.runs]
        return parents.pop() if len(parents) == 1 and names == [str(number) for number in range(len(names))] else None


class Structure(Record):
    """What softcue needs to know of a model beside its configuration."""

    kind: BackboneKind
    source: Stack  # the layers that run on the source text
    decoder: Stack | None = None  # encoder-decoders only
    first_position: int | None  # the position number of the first token; None: the model takes no position numbers
    takes_segments: bool  # tells the first of two texts from the second by `token_type_ids`
    takes_logits_to_keep: bool  # computes logits at some positions only
    word_scale: float = 1.0  # what word embeddings are multiplied with before they are given as `inputs_embeds`
    hidden_width: int  # D of hidden states
    key_width: int  # K: the width of one token's keys over all heads; 0 if keys cannot be set
    why_no_keys: str = ""  # the reason, where keys and values cannot be set
    query_width: int = 0  # Q: the width of one token's queries over all heads; 0 if they were not found
    head_width: int = 1  # d: the width of one head
    why_no_sublayers: str = ""  # the reason, where the modules that enter residual sums were not found
    rotary: tuple[str, ...] = ()  # modules that compute rotary positions, as paths below the base model
    has_position_bias: bool = False  # attention adds a bias for the distance of two tokens (T5)

    @property
    def can_join_keys(self) -> bool:
        """Whether keys and values of a prompt can be joined to those of every source layer."""
        return all(layer.key_steps is not None for layer in self.source.layers)

    def from_layer(self, first_layer: int) -> Structure:
        """The structure of the model without its first source layers."""
        path = self.source.list_path
        assert path is not None
        num_layers = len(self.source.runs) - first_layer
        runs = tuple(f"{path}.{number}" for number in range(num_layers))
        return self.model_copy(update={"source": Stack(runs=runs, layers=self.source.layers[first_layer:])})


def layers_of(model: Any, stack: Stack) -> list[nn.Module]:
    """The layer of each run of a stack; a shared layer is there repeatedly."""
    return [model.base_model.get_submodule(path) for path in stack.runs]


def modules_of(layers: Sequence[nn.Module], paths: Sequence[Sequence[str]]) -> list[nn.Module]:
    """The modules at these paths below each layer, layer by layer."""
    return [layer.get_submodule(path) for layer, layer_paths in zip(layers, paths, strict=True) for path in layer_paths]


def cross_attentions_of(model: Any, stack: Stack) -> list[nn.Module]:
    """The modules of a stack whose output is that of cross-attention: in the decoder of an encoder-decoder."""
    paths = [() if layer.cross_attention is None else (layer.cross_attention,) for layer in stack.layers]
    return modules_of(layers_of(model, stack), paths)
