"""Work that goes to a device: tensors are sent without waiting for it, numbers keep their formats there."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def send(values: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device. The host goes on at once; what is queued on the device later sees the copy.

    Example:
        >>> send(torch.ones(2), torch.device("cpu"))
        tensor([1., 1.])
    """
    if values.device == device:
        return values
    if values.device.type == "cpu" and device.type == "cuda":
        values = values.pin_memory()  # from other memory CUDA would first wait for what is queued
    return values.to(device, non_blocking=values.device.type == "cpu" and device.type != "mps")


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which operations on a device keep the number formats of their inputs.

    Example:
        >>> with torch.autocast("cpu"), without_autocast(torch.device("cpu")):
        ...     (torch.ones(1, 1) @ torch.ones(1, 1)).dtype
        torch.float32
    """
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)
