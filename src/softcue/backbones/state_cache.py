"""States of texts that wait for the next epoch: in memory, then in an unnamed file, both bounded.

The file has no name, so nothing is left behind however the process ends.
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


class _Place(NamedTuple):
    offset: int
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


class StateCache:
    """Tensors by key. What memory has no room for goes to disk, oldest first; what the disk has no room for is lost.

    Example:
        >>> kept = StateCache(memory_bytes=8)
        >>> kept.put({b"a": torch.ones(2), b"b": torch.zeros(2)})
        >>> [found.tolist() for found in kept.get([b"a", b"b"]) if found is not None]
        [[1.0, 1.0], [0.0, 0.0]]
        >>> kept.get([b"c"])
        [None]
    """

    def __init__(self, memory_bytes: int = MEMORY_BYTES, disk_bytes: int = DISK_BYTES) -> None:
        self.memory_bytes, self.disk_bytes = memory_bytes, disk_bytes
        self._memory: OrderedDict[bytes, Tensor] = OrderedDict()
        self._disk: dict[bytes, _Place] = {}
        self._file: BinaryIO | None = None
        self._held = 0  # bytes in memory
        self._end = 0  # of the file
        self._lock = threading.Lock()

    def get(self, keys: Sequence[bytes]) -> list[Tensor | None]:
        """What is kept, in the order asked."""
        with self._lock:
            return [self._found(key) for key in keys]

    def put(self, found: Mapping[bytes, Tensor]) -> None:
        """Keep tensors."""
        with self._lock:
            for key, value in found.items():
                if key not in self._memory and key not in self._disk:
                    self._memory[key] = value.detach().clone()  # not a view of a whole batch
                    self._held += value.nbytes
            while self._held > self.memory_bytes:
                key, value = self._memory.popitem(last=False)
                self._held -= value.nbytes
                self._spill(key, value)

    def _found(self, key: bytes) -> Tensor | None:
        if key in self._memory:
            self._memory.move_to_end(key)
            return self._memory[key]
        if key not in self._disk or self._file is None:
            return None
        place = self._disk[key]  # stays there: a random order of rows would only push others out
        data = bytearray(os.pread(self._file.fileno(), place.shape.numel() * place.dtype.itemsize, place.offset))
        return torch.frombuffer(data, dtype=place.dtype).view(place.shape).to(place.device)

    def _spill(self, key: bytes, value: Tensor) -> None:
        if self._end + value.nbytes > self.disk_bytes:
            return
        data = value.cpu().contiguous().view(torch.uint8).numpy().tobytes()
        try:
            if self._file is None:
                cache_folder().mkdir(parents=True, exist_ok=True)
                self._file = tempfile.TemporaryFile(dir=cache_folder())  # noqa: SIM115 - closed with this object
                weakref.finalize(self, self._file.close)
            written = os.pwrite(self._file.fileno(), data, self._end)
        except OSError:  # a full disk costs time, not the run
            written = 0
        if written < len(data):
            self.disk_bytes = 0
            return
        self._disk[key] = _Place(self._end, value.shape, value.dtype, value.device)
        self._end += len(data)
