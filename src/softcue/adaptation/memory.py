"""The memory an adaptation needs, told before it starts. Activations are counted on one real row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from softcue.machine import GIGABYTE
from softcue.training.optimizers import FACTORED_FROM

FLOAT32 = 4  # bytes
GRADIENTS_AT_ONCE = 3  # of the logits: of their masked copy, of its log-sums, and of the whole


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes that an adaptation needs in one process, beside Python and its packages (about half a gigabyte)."""

    weights: int
    optimizer: int
    gradients: int
    activations: int  # of one micro-batch
    checkpoint: int  # copies while one is written; 0 on a GPU, since they are made in the computer's memory

    @property
    def total(self) -> int:
        """The peak: at the end of a backward pass, or while a checkpoint is written.

        The memory of activations, which come in many blocks, mostly stays with the process after a pass, so it counts
        in both.
        """
        return self.weights + self.optimizer + self.activations + max(self.gradients, self.checkpoint)

    def describe(self, num_rows: int, free_bytes: float | None) -> str:
        """One line for the user.

        Example:
            >>> MemoryNeed(2**30, 2**20, 2**30, 2**31, 2**31).describe(8, None)
            'memory: about 5.0 GB (weights 1.0 GB, gradients 1.0 GB, optimizer 1 MB, activations of 8 rows 2.0 GB, \
checkpoint 2.0 GB)'
        """
        parts = [("weights", self.weights), ("gradients", self.gradients), ("optimizer", self.optimizer)]
        parts += [(f"activations of {num_rows} rows", self.activations), ("checkpoint", self.checkpoint)]
        listed = ", ".join(f"{name} {_format_bytes(size)}" for name, size in parts)
        free = "" if free_bytes is None else f"; {_format_bytes(free_bytes)} free"
        return f"memory: about {_format_bytes(self.total)} ({listed}){free}"


def estimate_memory(
    model: nn.Module, row_loss: Callable[[], Tensor], num_rows: int, num_checkpointed_layers: int = 0
) -> MemoryNeed:
    """The memory of training all weights of a model; `row_loss` computes the loss of one row of the largest size.

    With `num_checkpointed_layers`, `row_loss` keeps only the inputs of layers, and the activations of one layer are
    added: the backward pass computes them again.
    """
    parameters = list(model.parameters())
    weights = FLOAT32 * sum(parameter.numel() for parameter in parameters)
    activations = count_activation_bytes(model, row_loss)
    if num_checkpointed_layers:
        checkpointed: Any = model
        checkpointed.gradient_checkpointing_disable()
        activations += count_activation_bytes(model, row_loss) // num_checkpointed_layers
        checkpointed.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = FLOAT32 * sum(_optimizer_numbers(parameter.shape) for parameter in parameters)
    # tensors become bytes, and the bytes become one file
    checkpoint = 0 if parameters[0].is_cuda else 2 * (weights + optimizer)
    return MemoryNeed(weights, optimizer, weights, activations * num_rows, checkpoint)


def count_activation_bytes(model: nn.Module, compute_loss: Callable[[], Tensor]) -> int:
    """The bytes of all tensors that a loss keeps for its backward pass, and of the gradients that are there at once.

    The latter are taken as `GRADIENTS_AT_ONCE` of the largest tensor, which is that of the logits. The model's weights
    are not counted.

    Example:
        >>> layer = nn.Linear(4, 4)
        >>> count_activation_bytes(layer, lambda: layer(torch.zeros(2, 4)).exp().sum())  # input, exp, 3 gradients
        160
    """
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    sizes: dict[int, int] = {}
    kept: list[Tensor] = []  # a tensor that is freed could give its place to another one

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
            kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        compute_loss()
    return sum(sizes.values()) + GRADIENTS_AT_ONCE * max(sizes.values(), default=0)


def _optimizer_numbers(shape: torch.Size) -> int:
    """How many numbers Adafactor keeps for a parameter: rows and columns of a large matrix, else all."""
    is_factored = len(shape) == 2 and min(shape) >= FACTORED_FROM
    return sum(shape) if is_factored else shape.numel()


def _format_bytes(size: float) -> str:
    return f"{size / GIGABYTE:.1f} GB" if size >= GIGABYTE else f"{size / 2**20:.0f} MB"
