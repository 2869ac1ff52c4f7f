"""How weight files are read with little memory: what is kept on a processor as it is in the file is mapped, the rest
is read tensor by tensor.

safetensors maps a whole file into memory. Pages of it that were read once stay in the memory of the process as long as
the file is open, although only their copies in another number format or on another device are needed.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any

import torch
from torch import Tensor

FORMATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_patching = RLock()


@contextmanager
def reading_without_maps(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Let transformers read weight files tensor by tensor while active, unless their tensors can stay where they are.

    They can if the device is the processor and the file has the number format. transformers has no setting for it.

    Example:
        with reading_without_maps(torch.bfloat16, torch.device("cpu")):
            model = AutoModel.from_pretrained("models/mine", dtype=torch.bfloat16)
    """
    from transformers import modeling_utils

    with _patching:
        original = modeling_utils.safe_open

        def open_weights(file: Any, *args: Any, **options: Any) -> Any:
            weights = original(file, *args, **options)
            if options.get("backend", "mmap") != "mmap" or (device.type == "cpu" and formats_of(weights) <= {dtype}):
                return weights
            return original(file, *args, **{**options, "backend": "pread"})

        modeling_utils.safe_open = open_weights
        try:
            yield
        finally:
            modeling_utils.safe_open = original


def formats_of(weights: Any) -> set[torch.dtype]:
    """The number formats of the tensors of an open safetensors file; integers do not count."""
    codes = {weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118 (it is no dictionary)
    return {FORMATS[code] for code in codes if code in FORMATS}


def exact_format(files: Iterable[Path]) -> torch.dtype:
    """The number format in which the tensors of safetensors files lose nothing; float32 if they have several.

    Example:
        exact_format(sorted(Path("models/mine").glob("*.safetensors")))
    """
    from safetensors import safe_open

    formats: set[torch.dtype] = set()
    for file in files:
        with safe_open(file, framework="pt") as weights:
            formats |= formats_of(weights)
    return formats.pop() if len(formats) == 1 else torch.float32


def release_pages(values: Tensor) -> None:
    """Give back the memory of a tensor that is mapped from a safetensors file. It is read again when it is needed.

    Nothing happens to other tensors, whose numbers are nowhere else.
    """
    if values.device.type != "cpu" or not values.is_contiguous():
        return
    start, size = values.data_ptr(), values.numel() * values.element_size()
    first, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + size) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > first and any(low <= first and end <= high for low, high in _mapped_ranges()):
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), mmap.MADV_DONTNEED)


def _mapped_ranges() -> list[tuple[int, int]]:
    """The addresses of safetensors files that are mapped into this process; none where the system does not tell."""
    try:
        lines = Path("/proc/self/maps").read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    ranges = [line.split(maxsplit=1)[0].split("-") for line in lines if line.endswith(".safetensors")]
    return [(int(low, 16), int(high, 16)) for low, high in ranges]
