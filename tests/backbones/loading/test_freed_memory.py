"""glibc's limits while a quantized model is loaded, and afterwards."""

from __future__ import annotations

import ctypes

import pytest

from softcue.backbones.loading.freed_memory import (
    MMAP_THRESHOLD,
    RETURNED_BYTES,
    TRIM_THRESHOLD,
    USUAL_BYTES,
    returning_freed_memory,
)


class FakeLibrary:
    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def mallopt(self, parameter: int, value: int) -> int:
        self.calls.append((parameter, value))
        return 1


def test_limits_are_usual_again_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeLibrary()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)

    def load() -> None:
        with returning_freed_memory():
            assert library.calls == [(MMAP_THRESHOLD, RETURNED_BYTES)]
            raise MemoryError

    with pytest.raises(MemoryError):
        load()
    assert library.calls[1:] == [(MMAP_THRESHOLD, USUAL_BYTES), (TRIM_THRESHOLD, 2 * USUAL_BYTES)]


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    with returning_freed_memory():
        pass
