"""How rows of several tasks are mixed in one run (Raffel et al. 2020, section 3.5.2), by seed and epoch.

proportional: in proportion to the number of a task's rows, at most `cap`. equal: the same number of rows for each
task. temperature: in proportion to the T-th root of the number of rows; T = 1 is proportional, large T is near equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field

from softcue.tasks import shares
from softcue.training.batches import stream_seed

WHOLE = 1_000_000  # rates are compared as integers, so that rounding cannot differ


class MixtureConfig(BaseModel):
    """Which tasks share one prompt, and how their rows are mixed."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    tasks: tuple[str, ...] = Field(
        (), description="names of `softcue tasks` or task files; empty: one task, set by `task`"
    )
    sampling: Literal["proportional", "equal", "temperature"] = Field(
        "proportional", description="how often each task's rows come"
    )
    temperature: float = Field(2.0, ge=1, description="sampling=temperature: the root of the tasks' sizes")
    cap: int = Field(10_000, ge=1, description="most rows of a task, in training and in validation (seeded sample)")


def rows_per_task(sizes: Sequence[int], config: MixtureConfig) -> list[int]:
    """Number of rows of each task in an epoch; an epoch has as many rows as all tasks together.

    Example:
        >>> rows_per_task([90, 10], MixtureConfig(sampling="equal"))
        [50, 50]
        >>> rows_per_task([81, 16], MixtureConfig(sampling="temperature", temperature=2))
        [67, 30]
    """
    if config.sampling == "equal":
        rates = [1.0] * len(sizes)
    else:
        root = config.temperature if config.sampling == "temperature" else 1.0
        rates = [min(size, config.cap) ** (1 / root) for size in sizes]
    weights = {str(number): max(1, round(WHOLE * rate / max(rates))) for number, rate in enumerate(rates)}
    return list(shares(weights, sum(sizes)).values())


def epoch_rows(sizes: Sequence[int], config: MixtureConfig, seed: int, epoch: int) -> list[int]:
    """The row numbers of an epoch. Rows are numbered through all tasks, one task after the other.

    Each task goes through all its rows before one comes again, then in a new order. A round of a task may end
    within an epoch.

    Example:
        >>> sorted(row for row in epoch_rows([2, 4], MixtureConfig(), seed=0, epoch=0))
        [0, 1, 2, 3, 4, 5]
    """
    rows = []
    first = 0
    for number, (size, count) in enumerate(zip(sizes, rows_per_task(sizes, config), strict=True)):
        orders: dict[int, list[int]] = {}
        for num_before in range(epoch * count, (epoch + 1) * count):
            round_number, position = divmod(num_before, size)
            if round_number not in orders:
                generator = torch.Generator().manual_seed(stream_seed(seed, "task", number, round_number))
                orders[round_number] = torch.randperm(size, generator=generator).tolist()
            rows.append(first + orders[round_number][position])
        first += size
    return rows
