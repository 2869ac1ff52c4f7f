"""A cache for the states of texts between epochs: in memory, then in an unnamed file. Both are bounded.

The file has no name, so no file remains, however the process ends.
"""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import BinaryIO, NamedTuple

import torch
from torch import Tensor

from softcue.files import cache_folder

MEMORY_BYTES = 1 << 30
DISK_BYTES = 8 << 30


class _FileEntry(NamedTuple):
    """Where a tensor is in the file, and what is needed to restore it."""

    offset: int
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


class StateCache:
    """Tensors by key. If memory is full, the least recently used go to disk; if that is full, they are dropped.

    Example:
        >>> cache = StateCache(memory_bytes=8)
        >>> cache.put({b"a": torch.ones(2), b"b": torch.zeros(2)})
        >>> [tensor.tolist() for tensor in cache.get([b"a", b"b"]) if tensor is not None]
        [[1.0, 1.0], [0.0, 0.0]]
        >>> cache.get([b"c"])
        [None]
    """

    def __init__(self, memory_bytes: int = MEMORY_BYTES, disk_bytes: int = DISK_BYTES) -> None:
        self.memory_bytes, self.disk_bytes = memory_bytes, disk_bytes
        self._memory: OrderedDict[bytes, Tensor] = OrderedDict()
        self._disk: dict[bytes, _FileEntry] = {}
        self._file: BinaryIO | None = None
        self._num_bytes_in_memory = 0
        self._file_end = 0
        self._lock = threading.Lock()

    def get(self, keys: Sequence[bytes]) -> list[Tensor | None]:
        """Return the tensor of each key, or None."""
        with self._lock:
            return [self._load(key) for key in keys]

    def put(self, tensors: Mapping[bytes, Tensor]) -> None:
        """Keep tensors."""
        with self._lock:
            for key, value in tensors.items():
                if key not in self._memory and key not in self._disk:
                    self._memory[key] = value.detach().clone()  # not a view of a whole batch
                    self._num_bytes_in_memory += value.nbytes
            while self._num_bytes_in_memory > self.memory_bytes:
                key, value = self._memory.popitem(last=False)
                self._num_bytes_in_memory -= value.nbytes
                self._write_to_file(key, value)

    def _load(self, key: bytes) -> Tensor | None:
        if key in self._memory:
            self._memory.move_to_end(key)
            return self._memory[key]
        if key not in self._disk or self._file is None:
            return None
        entry = self._disk[key]  # it stays on disk: with rows in random order it would only displace others
        num_bytes = entry.shape.numel() * entry.dtype.itemsize
        data = bytearray(os.pread(self._file.fileno(), num_bytes, entry.offset))
        return torch.frombuffer(data, dtype=entry.dtype).view(entry.shape).to(entry.device)

    def _write_to_file(self, key: bytes, value: Tensor) -> None:
        if self._file_end + value.nbytes > self.disk_bytes:
            return
        data = value.cpu().contiguous().view(torch.uint8).numpy().tobytes()
        try:
            if self._file is None:
                cache_folder().mkdir(parents=True, exist_ok=True)
                self._file = tempfile.TemporaryFile(dir=cache_folder())  # noqa: SIM115 - closed with this object
                weakref.finalize(self, self._file.close)
            num_written = os.pwrite(self._file.fileno(), data, self._file_end)
        except OSError:  # on a full disk the run is slower and goes on
            num_written = 0
        if num_written < len(data):
            self.disk_bytes = 0
            return
        self._disk[key] = _FileEntry(self._file_end, value.shape, value.dtype, value.device)
        self._file_end += len(data)
