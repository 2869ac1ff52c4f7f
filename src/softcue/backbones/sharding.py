"""A frozen backbone whose layers are divided over processes, for one that does not fit one device (torch's FSDP).

Each process keeps a part of every layer's weights. Before a layer runs, forward or backward, the processes send each
other their parts, and afterwards each keeps its own again. Word embeddings, the last norm and the head for words stay
whole: prompts start from word vectors, and readouts read them. The weights never change, so no gradient is sent.

A layer runs only when it runs in all processes. So all of them must take the same number of passes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from softcue.backbones.backbone import Backbone
from softcue.backbones.structure import layers_of
from softcue.errors import ConfigurationError

REASON = "its layers are divided over processes"


def shard_layers(backbone: Backbone, device: torch.device) -> None:
    """Divide the weights of all layers over the processes of the run, on their devices.

    Example:
        shard_layers(backbone, torch.device("cuda"))
    """
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() < 2:
        raise ConfigurationError(
            setting="backbone.shard_layers",
            got=True,
            expected="several processes to divide the layers over",
            fix="train with torchrun --nproc-per-node N -m softcue train ..., or leave it out",
        )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    backbone.fingerprint  # noqa: B018 - computed from whole weights, then kept
    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    stacks = [stack for stack in (backbone.structure.source, backbone.structure.decoder) if stack is not None]
    for layer in dict.fromkeys(layer for stack in stacks for layer in layers_of(backbone.model, stack)):
        fully_shard(layer, mesh=mesh)  # on its device at once, so that no device ever holds two whole layers
    _move_rest(backbone.model, device)
    # A prompt that runs once for all rows is read through its keys and values: FSDP would not know when the last layer
    # is needed in the backward pass.
    backbone.limits.setdefault("shared prefix", REASON)
    backbone.is_sharded = True


def _move_rest(model: nn.Module, device: torch.device) -> None:
    """Move the weights that are not divided, and all buffers."""
    from torch.distributed.tensor import DTensor

    tensors: list[Any] = [value for value in model.parameters() if not isinstance(value, DTensor)]
    for tensor in (*tensors, *model.buffers()):
        tensor.data = tensor.data.to(device)
