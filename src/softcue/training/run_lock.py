"""A lock that keeps a second run out of an output folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from softcue.errors import RunError


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keep a second run out of an output folder. The lock ends with the process, even if it is killed."""
    path = folder.parent / f".{folder.name}.lock"
    try:
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError("a file has that name")
        folder.parent.mkdir(parents=True, exist_ok=True)
        handle = path.open("w")
    except OSError as error:
        raise RunError(
            setting="output_dir", got=folder, expected="a folder that can be made and written to", fix=str(error)
        ) from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # the previous holder may have removed the file between `open` and `flock`
            has_lock = path.exists() and os.fstat(handle.fileno()).st_ino == path.stat().st_ino
        except OSError:
            has_lock = False
        if not has_lock:
            raise RunError(
                setting="output_dir",
                got=folder,
                expected="a folder no other run is writing to",
                fix="wait for that run, or choose another folder",
            )
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
