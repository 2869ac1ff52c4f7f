"""Several processes in one run, on one machine or many: rank, sums, gathered parts, and what the first one decides."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter

from softcue.errors import LostProcessError, RunError, SoftcueError, first_line

MAX_SUMMED_NUMBERS = 1 << 24  # of gradients in one message between processes
DEFAULT_TIMEOUT = 600  # seconds
# In the messages of gloo and NCCL about a process that is gone.
TIMEOUT_WORDS = ("Timed out", "timed out", "timeout", "Timeout")
LOST_WORDS = ("Connection", "connection", "closed by peer", "Broken pipe", "Socket", "NCCL", "gloo")

Item = TypeVar("Item")
Value = TypeVar("Value")


class Processes:
    """This process among those torchrun started; the only one without torchrun.

    A process that is lost ends the others with a `LostProcessError`: at once if its connection closes, else after
    `timeout` seconds without an answer.
    """

    def __init__(self, timeout: int = DEFAULT_TIMEOUT) -> None:
        self.rank, self.world_size, self.timeout = 0, 1, timeout
        self.is_in_step = False  # all processes take the same passes of the backbone: its layers are divided over them
        expected = int(os.environ.get("WORLD_SIZE", "1"))
        if expected > 1:
            if not torch.distributed.is_initialized():
                _connect(expected, timeout)
            self.rank, self.world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def total(self, values: Tensor) -> Tensor:
        """Sum over all processes."""
        if self.world_size > 1:
            with self.tell_lost():
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
            with self.tell_lost():
                for tensor in tensors:
                    torch.distributed.broadcast(tensor, src=0)

    def decide(self, value: Value, owner: int = 0) -> Value:
        """One process' value, usually the first one's, in all: what depends on rounding or on files must be the same.

        Example:
            >>> Processes().decide("stop")
            'stop'
        """
        if self.world_size == 1:
            return value
        values = [value]
        with self.tell_lost():
            torch.distributed.broadcast_object_list(values, src=owner)
        return values[0]

    def gather(self, part: Value) -> list[Value]:
        """The parts of all processes, by rank.

        Example:
            >>> Processes().gather("part")
            ['part']
        """
        if self.world_size == 1:
            return [part]
        parts: list[Any] = [None] * self.world_size
        with self.tell_lost():
            torch.distributed.all_gather_object(parts, part)
        return parts

    def share_of(self, items: Sequence[Value]) -> Sequence[Value]:
        """Every n-th of the items, for n processes: this process' share. Similar lengths are often neighbours.

        Example:
            >>> Processes().share_of([1, 2, 3])
            [1, 2, 3]
        """
        return items if not self.has_shares else items[self.rank :: self.world_size]

    @property
    def has_shares(self) -> bool:
        """Whether processes divide work without gradients. Those that must keep in step all do all of it."""
        return self.world_size > 1 and not self.is_in_step

    def gather_shares(self, share: Value) -> list[Value]:
        """The shares of all processes, by rank; only this one's if each does all the work.

        Example:
            >>> Processes().gather_shares("share")
            ['share']
        """
        return self.gather(share) if self.has_shares else [share]

    def in_shares(self, items: Sequence[Item], compute: Callable[[Sequence[Item]], Sequence[Value]]) -> list[Value]:
        """One value for each item, in order and in all processes; each process computes those of its share.

        Example:
            >>> Processes().in_shares([1, 2, 3], lambda share: [number * 10 for number in share])
            [10, 20, 30]
        """
        share = self.share_of(items)
        return interleave(self.gather_shares(list(compute(share)) if share else []))

    def share_tensors(self, tensors: Mapping[str, Tensor], owner: int) -> dict[str, Tensor]:
        """The tensors of one process, in all processes, sent one by one to save memory; only the owner's are read.

        Example:
            >>> Processes().share_tensors({"prompt": torch.zeros(2)}, owner=0)
            {'prompt': tensor([0., 0.])}
        """
        if self.world_size == 1:
            return dict(tensors)
        forms = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
        shared = {}
        for name, (shape, dtype) in self.decide(forms, owner).items():
            is_owner = self.rank == owner
            tensor = tensors[name].detach().cpu().contiguous() if is_owner else torch.empty(shape, dtype=dtype)
            with self.tell_lost():
                torch.distributed.broadcast(tensor, src=owner)
            shared[name] = tensor
        return shared

    def raise_together(self, error: SoftcueError | None) -> None:
        """Raise an error that any process has, in all of them: otherwise the others would wait for it."""
        parts = self.gather(None if error is None else (error.setting, str(error.got), error.expected, error.fix))
        if error is not None:
            raise error
        for rank, part in enumerate(parts):
            if part is not None:
                setting, got, expected, fix = part
                raise RunError(setting=f"process {rank}: {setting}", got=got, expected=expected, fix=fix)

    def wait(self) -> None:
        """Wait until all processes have arrived here."""
        if self.world_size > 1:
            with self.tell_lost():
                torch.distributed.barrier()

    @contextmanager
    def tell_lost(self) -> Iterator[None]:
        """Turn a failed message between processes into a `LostProcessError`, also of divided layers inside a pass."""
        try:
            yield
        except RuntimeError as error:  # gloo's errors have no class of their own
            is_timeout = any(words in str(error) for words in TIMEOUT_WORDS)
            if self.world_size == 1 or not (is_timeout or any(words in str(error) for words in LOST_WORDS)):
                raise
            raise LostProcessError(
                setting="processes",
                got=f"no answer for {self.timeout} seconds" if is_timeout else "a closed connection",
                expected=f"all {self.world_size} processes to stay until the end (this is process {self.rank})",
                fix="see what the other process printed, then start all again with `resume=True`",
            ) from error

    @staticmethod
    def is_first() -> bool:
        """Whether this process prints results; for code outside a run."""
        return int(os.environ.get("RANK", "0")) == 0

    @staticmethod
    def end() -> None:
        """If there is a group of processes, leave it and end this one, which has written all its files.

        Threads of torch abort a process now and then while C++ takes down what they use (2 of 20 runs with divided
        layers), so this last step is left out. Python's own exit functions are called.
        """
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)


def interleave(shares: Sequence[Sequence[Value]]) -> list[Value]:
    """The values of all shares, in the order of the items of which each process had every n-th.

    Example:
        >>> interleave([[1, 3, 5], [2, 4]])
        [1, 2, 3, 4, 5]
    """
    number = len(shares)
    return [shares[item % number][item // number] for item in range(sum(map(len, shares)))]


def _connect(num_processes: int, timeout: int) -> None:
    """Connect to the other processes: gloo for tensors on the processor, and NCCL for those on GPUs."""
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    try:
        torch.distributed.init_process_group(timeout=timedelta(seconds=timeout))
    except (ValueError, RuntimeError) as error:
        raise RunError(
            setting="WORLD_SIZE",
            got=num_processes,
            expected=f"{num_processes} processes that reach each other: {first_line(error)[:120]}",
            fix="start with: torchrun --nproc-per-node N -m softcue train ...",
        ) from error
