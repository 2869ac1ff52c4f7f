"""The linear modules inside the layers of a model, by name: what a low-rank update may change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from softcue.backbones.structure import Stack, Structure

# Names of the query and value projections in transformers, for models without memory and for those whose projections a
# trace does not tell apart: a module each, or one for queries, keys and values together.
PROJECTION_NAMES: tuple[tuple[str, ...], ...] = (
    *(("q_proj", "v_proj"), ("query", "value"), ("q", "v"), ("q_lin", "v_lin"), ("query_proj", "value_proj")),
    *(("query_key_value",), ("c_attn",), ("Wqkv",), ("qkv_proj",), ("qkv",), ("in_proj",)),
)


def linear_modules(model: Any, structure: Structure) -> dict[str, nn.Module]:
    """The linear modules of all layers, those of the decoder too, by their path below the base model.

    A shared layer counts once.

    Example:
        linear_modules(backbone.model, backbone.structure)["h.0.attn.c_attn"]
    """
    stacks = [stack for stack in (structure.source, structure.decoder) if stack is not None]
    return {
        f"{run}.{name}": module
        for run in dict.fromkeys(run for stack in stacks for run in stack.runs)
        for name, module in model.base_model.get_submodule(run).named_modules()
        if is_linear(module)
    }


def is_linear(module: nn.Module) -> bool:
    """Whether a module multiplies its input with one matrix: torch's Linear, or GPT-2's Conv1D.

    Example:
        >>> is_linear(nn.Linear(2, 3)), is_linear(nn.Embedding(2, 3))
        (True, False)
    """
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, (nn.Linear, Conv1D))


def is_transposed(module: nn.Module) -> bool:
    """Whether a linear module keeps its matrix as [in out], as GPT-2's Conv1D does.

    Example:
        >>> is_transposed(nn.Linear(2, 3))
        False
    """
    return not isinstance(module, nn.Linear)


def linear_widths(module: nn.Module) -> tuple[int, int]:
    """The widths of a linear module's input and output.

    Example:
        >>> linear_widths(nn.Linear(2, 3))
        (2, 3)
    """
    if isinstance(module, nn.Linear):  # a quantized one has its matrix in another shape
        return module.in_features, module.out_features
    weight = module.weight
    assert isinstance(weight, Tensor)
    first, second = weight.shape
    return int(first), int(second)


def select_linears(linears: Mapping[str, nn.Module], name: str) -> list[str]:
    """The paths that end with a name, which may have several parts, such as `SelfAttention.q`.

    Example:
        >>> select_linears({"h.0.attn.c_attn": nn.Linear(2, 2), "h.0.mlp.c_fc": nn.Linear(2, 2)}, "attn.c_attn")
        ['h.0.attn.c_attn']
    """
    return [path for path in linears if f".{path}".endswith(f".{name}")]


def query_and_value_names(source: Stack, linears: Mapping[str, nn.Module]) -> tuple[str, ...]:
    """The last names of the modules that compute queries and values; empty if they are not found.

    They are those that the trace of the model found, else known names that all source layers have.
    """
    traced_names = [
        None if projection is None else projection.module.rpartition(".")[2]
        for layer in source.layers
        for projection in (layer.queries, layer.values)
    ]
    names = tuple(dict.fromkeys(name for name in traced_names if name is not None))
    if None not in traced_names and all(select_linears(linears, name) for name in names):
        return names
    return next((names for names in PROJECTION_NAMES if _have_all(source.runs, linears, names)), ())


def _have_all(runs: Sequence[str], linears: Mapping[str, nn.Module], names: Sequence[str]) -> bool:
    """Whether every layer has a module of each name."""
    return all(
        any(path.startswith(f"{run}.") for path in select_linears(linears, name)) for run in runs for name in names
    )
