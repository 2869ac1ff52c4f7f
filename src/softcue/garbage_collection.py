"""Pauses of Python's garbage collector, which looks through all new objects again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Collect no garbage in a block whose objects nearly all stay, such as imports or loading a model.

    Example:
        >>> with collection_paused():
        ...     gc.isenabled()
        False
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
