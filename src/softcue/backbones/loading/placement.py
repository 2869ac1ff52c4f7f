"""Where the weights of a model go, and in how many bits: one device, several devices, quantized."""

from __future__ import annotations

import importlib.util
import re
import tempfile
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from softcue.backbones.loading.weight_reading import release_pages
from softcue.backbones.quantized_linear import (
    VALUES_AT_ONCE,
    QuantizedLinear,
    check_share,
    checkpoint_quantization,
    linears_to_quantize,
    require_torchao,
    stays_float32,
)
from softcue.errors import BackboneError

# What transformers needs to run checkpoints that are quantized already.
CHECKPOINT_PACKAGES = {
    "bitsandbytes": ("bitsandbytes",),
    "gptq": ("optimum", "gptqmodel"),
    "awq": ("gptqmodel",),
    "torchao": ("torchao",),
}
_SIZE = re.compile(r"\d+(\.\d+)?\s*(GB|MB|KB|GiB|MiB|KiB)")


def parse_max_memory(text: str) -> dict[int | str, str]:
    """Read what each device may hold.

    Example:
        >>> parse_max_memory("0=20GB,cpu=64GB")
        {0: '20GB', 'cpu': '64GB'}
    """
    limits: dict[int | str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, size = (piece.strip() for piece in part.partition("="))
        if not name or not _SIZE.fullmatch(size):
            raise ValueError(f"max_memory is DEVICE=SIZE,... such as 0=20GB,cpu=64GB, and not '{part}'")
        limits[int(name) if name.isdecimal() else name] = size
    return limits


def placement_options(device: torch.device, device_map: str, max_memory: Mapping[int | str, str]) -> dict[str, Any]:
    """The options of `from_pretrained` that put weights on their devices as they are read.

    Example:
        >>> placement_options(torch.device("cuda:1"), "none", {})
        {'device_map': {'': device(type='cuda', index=1)}}
    """
    if device_map != "none":
        options: dict[str, Any] = {"device_map": device_map, "offload_folder": _new_offload_folder()}
        return {**options, "max_memory": dict(max_memory)} if max_memory else options
    return {} if device.type == "cpu" else {"device_map": {"": device}}


def _new_offload_folder() -> str:
    """A folder for weights that fit no device; removed when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="softcue-offload-")
    _offload_folders.append(folder)
    return folder.name


_offload_folders: list[tempfile.TemporaryDirectory[str]] = []


def check_checkpoint(model_config: Any, name: str, quantization: str) -> str:
    """Return how the weights of a checkpoint are quantized, or an empty text.

    Raises an error if the packages for it are missing, or if they were to be quantized once more.
    """
    settings = getattr(model_config, "quantization_config", None)
    if settings is None:
        return ""
    checkpoint = checkpoint_quantization(settings)
    if quantization != "none":
        raise BackboneError(
            setting="backbone.quantization",
            got=quantization,
            expected=f"none with {name}, whose weights are quantized already ({checkpoint})",
            fix="leave it out, or take the model's unquantized weights",
        )
    method = checkpoint.partition("-")[0]
    missing = [package for package in CHECKPOINT_PACKAGES.get(method, ()) if not importlib.util.find_spec(package)]
    if missing:
        raise BackboneError(
            setting="backbone.name",
            got=f"{name}, whose weights are quantized ({checkpoint})",
            expected=f"the packages {' and '.join(CHECKPOINT_PACKAGES[method])}, which compute with such weights",
            fix=f"pip install {' '.join(missing)}; or take the unquantized model with backbone.quantization=int4",
        )
    return checkpoint


def keep_gradients(model: Any) -> None:
    """Keep the modules of a quantized checkpoint in the form in which gradients pass through them.

    On processors with AVX-512, a 4-bit module of bitsandbytes in eval mode packs its matrix anew in the first pass
    without gradients. Later gradients would be wrong: its kernel for that form has none.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def quantize_model(model: Any, quantization: str, dtype: torch.dtype, device: torch.device, name: str) -> Any:
    """Quantize the matrices of a model's layers and put all weights on a device, one after another.

    `model` has the weights as they are in its files. It is changed and returned.

    Example:
        quantize_model(model, "int8", torch.bfloat16, torch.device("cuda"), "my-model")
    """
    require_torchao()
    bits = 8 if quantization == "int8" else 4
    linears = linears_to_quantize(model, bits)
    # What stays gets its place before what is needed for a moment: the memory would have holes otherwise.
    rooms = {path: QuantizedLinear(linear, bits, dtype, device) for path, linear in linears.items()}
    for path, linear in linears.items():
        rooms[path].fill(linear.weight)
        parent, _, attribute = path.rpartition(".")
        setattr(model.get_submodule(parent), attribute, rooms[path])
        release_pages(linear.weight)
    check_share(model, name)
    for path, parameter in model.named_parameters():  # tied ones once
        if parameter.is_floating_point() and not path.endswith(".scales"):
            _move(parameter, torch.float32 if stays_float32(model, path, dtype) else dtype, device)
    model.config.dtype = dtype
    return model.to(device)  # buffers, in their own format


def _move(parameter: nn.Parameter, dtype: torch.dtype, device: torch.device) -> None:
    """Give a parameter its number format and device, part by part."""
    before = parameter.data
    if (before.dtype, before.device) == (dtype, device):
        return
    after = torch.empty(before.shape, dtype=dtype, device=device)
    for source, target in zip(before.view(-1).split(VALUES_AT_ONCE), after.view(-1).split(VALUES_AT_ONCE), strict=True):
        target.copy_(source)
        release_pages(source)
    parameter.data = after


def split_model(model: Any, device_map: str, max_memory: Mapping[int | str, str]) -> Any:
    """Split a model that is on the processor over devices, as `from_pretrained` with a device map does.

    Example:
        split_model(model, "auto", {0: "20GB", 1: "20GB"})
    """
    from accelerate import dispatch_model, infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    whole_modules = list(model._no_split_modules or ())
    limits: Any = dict(max_memory) or None
    if device_map != "sequential":
        low_0 = device_map == "balanced_low_0"
        limits = get_balanced_memory(model, limits, no_split_module_classes=whole_modules, low_zero=low_0)
    places = infer_auto_device_map(model, limits, no_split_module_classes=whole_modules)
    return dispatch_model(model, places, offload_dir=_new_offload_folder(), force_hooks=len(set(places.values())) > 1)
