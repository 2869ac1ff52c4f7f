"""A model whose layers are on two devices, as `device_map` of transformers puts them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from on_device import assert_same, backbone_on, move, outcome
from pretend import PretendMode
from test_one_device import PRODUCT
from tiny import ONE_OF_EACH_KIND
from torch import nn
from torch.utils._pytree import tree_map

from softcue.backbones.structure import layers_of
from softcue.backbones.tracing import structure_of

FIRST_ON_SECOND = 1  # the layers from this one on are on the second device


def move_inputs(module: nn.Module, args: Any, kwargs: Any) -> Any:
    """What accelerate does for a model on several devices: inputs go where the module is."""
    device = next(module.parameters()).device
    return tree_map(lambda value: value.to(device) if isinstance(value, torch.Tensor) else value, (args, kwargs))


def to_two_devices(model: Any) -> None:
    """The upper layers on the second device, everything else on the first."""
    structure = structure_of(model)
    move(model, "pretend:0")
    for stack in (structure.source, structure.decoder):
        for layer in [] if stack is None else layers_of(model, stack)[FIRST_ON_SECOND:]:
            move(layer, "pretend:1")
    for module in model.modules():
        if next(module.parameters(recurse=False), None) is not None or module in layers_of(model, structure.source):
            module.register_forward_pre_hook(move_inputs, with_kwargs=True)
    if structure.decoder is not None:
        for layer in layers_of(model, structure.decoder):
            layer.register_forward_pre_hook(move_inputs, with_kwargs=True)


# The readout that a family has by default: what happens in layers does not depend on it.
COMBINATIONS = [
    (family, case)
    for family, case, readout in PRODUCT
    if readout == ("classifier" if family == "bert" or case == "linear-probe" else "generation")
]
DEFAULT = [
    *("prompt-tuning", "m-idpg-phm", "prefix-tuning", "p-tuning-v2 parallel", "compacter", "lora", "vip"),
    *("m-idpg-phm kv", "prompt-tuning late"),
]
TAKING_TURNS = {(ONE_OF_EACH_KIND[number % 3], case) for number, case in enumerate(DEFAULT)}


@pytest.mark.parametrize(
    ("family", "case"),
    [pytest.param(*one, marks=() if one in TAKING_TURNS else pytest.mark.slow) for one in COMBINATIONS],
)
def test_layers_on_two_devices_compute_what_one_device_computes(family: str, case: str) -> None:
    readout = {"name": "classifier" if family == "bert" or case == "linear-probe" else "generation"}
    assert_same(outcome(family, case, readout, to_two_devices), outcome(family, case, readout))


def test_the_layers_are_on_two_devices() -> None:
    with PretendMode():
        backbone = backbone_on("gpt2", to_two_devices)
        devices = [str(next(layer.parameters()).device) for layer in backbone.layers]
    assert devices == ["pretend:0", "pretend:1", "pretend:1"]
