"""Several processes in one run: rank, sums over all processes, and barriers (with accelerate)."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from softcue.errors import RunError

MAX_SUMMED_NUMBERS = 1 << 24  # of gradients in one message between processes


class Processes:
    """This process among those torchrun started; the only one without torchrun."""

    def __init__(self) -> None:
        self.rank, self.world_size = 0, 1
        expected = int(os.environ.get("WORLD_SIZE", "1"))
        if expected > 1:
            from accelerate import PartialState

            state = PartialState(cpu=not torch.cuda.is_available())
            self.rank, self.world_size = state.process_index, state.num_processes
            if self.world_size != expected:  # accelerate may quietly fall back to one process
                raise RunError(
                    setting="WORLD_SIZE",
                    got=expected,
                    expected=f"as many processes as came up ({self.world_size})",
                    fix="start with: torchrun --nproc-per-node N -m softcue train ...",
                )

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def total(self, values: Tensor) -> Tensor:
        """Sum over all processes."""
        if self.world_size > 1:
            torch.distributed.all_reduce(values)
        return values

    def sum_gradients(self, parameters: Sequence[Parameter]) -> None:
        """Sum the gradients over all processes; a process without rows in this batch adds zeros.

        Small ones travel together. A group is bounded, because its copy needs memory beside the gradients.
        """
        if self.world_size == 1:
            return
        groups: list[list[Parameter]] = [[]]
        for parameter in parameters:
            if sum(member.numel() for member in groups[-1]) + parameter.numel() > MAX_SUMMED_NUMBERS:
                groups.append([])
            groups[-1].append(parameter)
        for group in filter(None, groups):
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in group]
            flat = self.total(torch.cat([gradient.reshape(-1) for gradient in gradients]))
            for parameter, total in zip(group, flat.split([p.numel() for p in group]), strict=True):
                parameter.grad = total.view_as(parameter).clone()

    def share_first(self, tensors: Sequence[Tensor]) -> None:
        """Copy the first process' values to all processes."""
        if self.world_size > 1:
            for tensor in tensors:
                torch.distributed.broadcast(tensor, src=0)

    def wait(self) -> None:
        """Wait until all processes have arrived here."""
        if self.world_size > 1:
            torch.distributed.barrier()

    @staticmethod
    def is_first() -> bool:
        """Whether this process prints results; for code outside a run."""
        return int(os.environ.get("RANK", "0")) == 0

    @staticmethod
    def leave() -> None:
        """Leave the group of processes, if there is one."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
