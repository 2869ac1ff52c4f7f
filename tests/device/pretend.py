"""A second device without a GPU: tensors that hold real numbers, but say that they are on `pretend:0` or `pretend:1`.

They compute on the processor with its numbers. They keep the rules of a real device: tensors of two devices do not mix,
a generator of the processor does not draw on them, and whatever makes the host wait for the device is counted.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

NAME = "pretend"
NUM_DEVICES = 2
aten = torch.ops.aten


class DeviceMismatchError(RuntimeError):
    """What a real device would refuse."""


class Backend(backend_registration._DummyBackendModule):  # type: ignore[misc]
    """What torch asks of a kind of device."""

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return NUM_DEVICES

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def get_rng_state(self, device: object = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: object = None) -> None:
        torch.set_rng_state(state)

    def device(self, device: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class Synchronisations:
    """What made the host wait for a device, with the place in the code, while `counting` was active."""

    def __init__(self) -> None:
        self.places: Counter[tuple[str, str]] = Counter()
        self.is_counting = False

    def note(self, kind: str) -> None:
        if self.is_counting:
            self.places[kind, _calling_place()] += 1

    @contextlib.contextmanager
    def counting(self) -> Iterator[Counter[tuple[str, str]]]:
        self.places.clear()
        self.is_counting = True
        try:
            yield self.places
        finally:
            self.is_counting = False


SYNCHRONISATIONS = Synchronisations()


def _calling_place() -> str:
    """The nearest line of softcue, and the line of transformers that it called, if any."""
    frame, library = sys._getframe(2), ""
    while frame is not None:
        path, line = frame.f_code.co_filename, frame.f_lineno
        if "/src/softcue/" in path:
            return f"{path.partition('/src/softcue/')[2]}:{line}{library}"
        if "/transformers/" in path and not library:
            library = f" <- transformers/{path.partition('/transformers/')[2]}:{line}"
        frame = frame.f_back  # type: ignore[assignment]
    return library or "tests"


class PretendTensor(torch.Tensor):
    """A tensor of a pretend device; `values` is the tensor of the processor that holds its numbers."""

    values: Tensor

    @staticmethod
    def __new__(cls, values: Tensor, device: torch.device) -> PretendTensor:
        made: PretendTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=device,
        )
        made.values = values
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"PretendTensor({self.device}, {self.values!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> PretendTensor:
        if id(self) not in memo:
            copied = PretendTensor(self.values.clone(), self.device)
            copied.requires_grad_(self.requires_grad)
            if isinstance(self, torch.nn.Parameter):
                copied._is_param = True  # type: ignore[attr-defined]
            memo[id(self)] = copied
        return memo[id(self)]  # type: ignore[no-any-return]

    def tolist(self) -> Any:
        SYNCHRONISATIONS.note("tolist")
        return self.values.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


class PretendMode(TorchDispatchMode):
    """Also sees calls that have no pretend tensor yet, such as moving a tensor there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


COPIES = {aten.copy_.default, aten._to_copy.default}
INDEXING = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
}
# Their result, or its size, is read by the host.
WAITING = {
    aten._local_scalar_dense.default: "item",
    aten.nonzero.default: "nonzero",
    aten.equal.default: "equal",
    aten.masked_select.default: "masked_select",
    aten._unique2.default: "unique",
    aten.bincount.default: "bincount",
    aten.repeat_interleave.Tensor: "repeat_interleave",
}
# These do not take a single number of the processor, as pointwise kernels do.
WITHOUT_NUMBERS = {
    aten.cat.default,
    aten.stack.default,
    aten.index_add_.default,
    aten.embedding.default,
    aten.gather.default,
}


def pretend_device(device: Any) -> torch.device | None:
    """The pretend device that a `device` argument names; None if it names none."""
    if device is None:
        return None
    named = torch.device(device)
    return torch.device(NAME, named.index or 0) if named.type == NAME else None


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute on the processor what concerns a pretend device, after its rules are checked."""
    leaves, _ = tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, PretendTensor)]
    target = pretend_device(kwargs.get("device"))
    if not tensors and target is None:
        return func(*args, **kwargs)
    if any(isinstance(leaf, torch.Generator) for leaf in leaves):
        raise DeviceMismatchError(f"{func} on a pretend device with a generator of the processor at {_calling_place()}")
    if func not in COPIES:
        _check_devices(func, args, leaves, tensors)
    if func in WAITING:
        SYNCHRONISATIONS.note(WAITING[func])
    if func in INDEXING:
        _count_masks(args)
    if func in COPIES:
        _count_copy(func, args, kwargs, target)
    return _run(func, args, kwargs, tensors, target)


def _check_devices(func: Any, args: Any, leaves: list[Any], tensors: list[PretendTensor]) -> None:
    others = [leaf for leaf in leaves if isinstance(leaf, Tensor) and not isinstance(leaf, PretendTensor)]
    if func in INDEXING:
        indices = [index for index in args[1] if isinstance(index, Tensor)]
        values = [value for value in tree_flatten(args[2:])[0] if isinstance(value, Tensor) and value.dim()]
        wrong = [tensor for tensor in (*indices, *values) if tensor.device != args[0].device]
        if wrong:
            raise DeviceMismatchError(
                f"{func}: {wrong[0].device} tensor {tuple(wrong[0].shape)} for one on {args[0].device} "
                f"at {_calling_place()}"
            )
        return
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        raise DeviceMismatchError(f"{func}: tensors on {sorted(map(str, devices))} at {_calling_place()}")
    wrong = [tensor for tensor in others if tensor.dim() or func in WITHOUT_NUMBERS]
    if wrong:
        raise DeviceMismatchError(
            f"{func}: a tensor of the processor {tuple(wrong[0].shape)} with one on {devices.pop()} "
            f"at {_calling_place()}"
        )


def _count_masks(args: Any) -> None:
    """A mask as an index is turned into numbers, whose count the host must learn."""
    for index in args[1]:
        if isinstance(index, Tensor) and index.dtype == torch.bool:
            SYNCHRONISATIONS.note("mask as index")


def _count_copy(func: Any, args: Any, kwargs: dict[str, Any], target: torch.device | None) -> None:
    """A copy that leaves a device waits; one to a device waits unless it is asked not to."""
    if func is aten.copy_.default:
        source, destination = args[1].device, args[0].device
        may_wait = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
    else:
        source = args[0].device
        destination = target or (torch.device(kwargs["device"]) if kwargs.get("device") is not None else source)
        may_wait = not kwargs.get("non_blocking", False)
    has_values = args[0 if func is aten._to_copy.default else 1].numel() > 0
    if has_values and source.type != destination.type and (may_wait or destination.type == "cpu"):
        SYNCHRONISATIONS.note("copy to the host" if destination.type == "cpu" else "copy to the device")


def _run(
    func: Any, args: Any, kwargs: dict[str, Any], tensors: list[PretendTensor], target: torch.device | None
) -> Any:
    plain_args, plain_kwargs = tree_map(_plain, (args, kwargs))
    goes_to = kwargs.get("device")
    if goes_to is not None:
        plain_kwargs["device"] = torch.device("cpu")
    result = func(*plain_args, **plain_kwargs)
    for argument, schema in zip(args, func._schema.arguments, strict=False):
        if schema.alias_info is not None and schema.alias_info.is_write:
            return argument  # changed in place
    if "out" in kwargs:
        return kwargs["out"]
    device = target if goes_to is not None else args[0].device if func in INDEXING else tensors[0].device
    if device is None or device.type == "cpu":
        return result
    return tree_map(lambda value: PretendTensor(value, device) if type(value) is Tensor else value, result)


def _plain(value: Any) -> Any:
    return value.values if isinstance(value, PretendTensor) else value


_kernels: list[torch.library.Library] = []


def register() -> None:
    """Register the device with torch: once in a process, and for good."""
    if _kernels:
        return
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=Backend())
    torch._C._set_only_lift_cpu_tensors(True)  # type: ignore[attr-defined]
    # The backward pass runs in a thread of the device, where no mode is active: its factories come here.
    kernels = torch.library.Library("aten", "IMPL")
    kernels.impl("empty.memory_format", _empty, "PrivateUse1")
    kernels.impl("empty_strided", _empty_strided, "PrivateUse1")
    kernels.impl("_copy_from", _copy_from, "PrivateUse1")
    _kernels.append(kernels)


def _empty(
    size: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Tensor:
    place = pretend_device(device)
    assert place is not None
    return PretendTensor(torch.empty(size, dtype=dtype, device="cpu"), place)


def _empty_strided(
    size: Any, stride: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Tensor:
    place = pretend_device(device)
    assert place is not None
    return PretendTensor(torch.empty_strided(size, stride, dtype=dtype, device="cpu"), place)


def _copy_from(source: Tensor, destination: Tensor, non_blocking: bool = False) -> Tensor:
    _plain(destination).copy_(_plain(source))
    return destination
