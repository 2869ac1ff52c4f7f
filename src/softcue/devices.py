"""Moving tensors from the host to a device without waiting for it."""

from __future__ import annotations

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
