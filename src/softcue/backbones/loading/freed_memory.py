"""Freed memory goes back to the system while a model is rounded and its structure is found.

glibc keeps freed blocks of up to 32 MB for the next ones. Rounded layers are unpacked one by one in the first passes,
and what is kept of that was several times the rounded weights.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # glibc's numbers of the parameters of `mallopt`
RETURNED_BYTES = 1 << 20  # blocks of this size or more are returned at once
# Where glibc's own limits end after large blocks were freed; once they are set, it does not move them by itself.
USUAL_BYTES = 32 << 20


@contextlib.contextmanager
def returning_freed_memory() -> Iterator[None]:
    """Return freed blocks of a megabyte or more to the system at once, where the C library is glibc.

    Example:
        with returning_freed_memory():
            ...
    """
    set_parameter = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_parameter is None:
        yield
        return
    set_parameter(MMAP_THRESHOLD, RETURNED_BYTES)
    try:
        yield
    finally:
        set_parameter(MMAP_THRESHOLD, USUAL_BYTES)
        set_parameter(TRIM_THRESHOLD, 2 * USUAL_BYTES)
