"""Digests of files that were read before, kept on this machine, so that a start does not read them again.

A digest is kept for files with their real paths, sizes, inodes, and times of modification and of change. Whoever writes
to a file changes one of the times. The time of change cannot be set back, short of setting the clock of the machine: a
file with other content and the same size, inode and times is taken for the old one.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from softcue.files import METADATA_LIMIT, cache_folder, read_within, write_atomically

SETTLED_SECONDS = 2.0  # a file that was changed more recently may change again without another time


@dataclass(frozen=True)
class FileStates:
    """Files as they were at one moment, and what else their digest depends on."""

    description: str
    is_settled: bool  # whether the times would show a later change

    @classmethod
    def of(cls, paths: Iterable[Path], **facts: object) -> FileStates:
        """Note the state of files.

        Example:
            >>> FileStates.of([], digest="sha256").is_settled
            False
        """
        status = {path: path.stat() for path in sorted(paths)}  # of the file that a link leads to
        states = [
            [str(path.resolve()), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
            for path, stat in status.items()
        ]
        newest = max((max(stat.st_mtime, stat.st_ctime) for stat in status.values()), default=math.inf)
        description = json.dumps({**facts, "files": states}, sort_keys=True)
        return cls(description, time.time() - newest > SETTLED_SECONDS)

    @property
    def path(self) -> Path:
        """Where the digest of these files is kept."""
        name = hashlib.sha256(self.description.encode()).hexdigest()[:32]
        return cache_folder() / "digests" / f"{name}.json"

    def recall(self) -> str | None:
        """The digest kept for files in this state; None if there is none or it is damaged.

        Example:
            FileStates.of(Path("models/mine").iterdir(), digest="sha256").recall()
        """
        if not self.is_settled:
            return None
        try:
            entry = json.loads(read_within(self.path, METADATA_LIMIT).decode())
            digest = str(entry["digest"])
            if entry["description"] == self.description and len(digest) in (16, 64):
                return digest
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return None

    def keep(self, digest: str) -> None:
        """Keep the digest of these files, unless their times might not show a later change."""
        if self.is_settled:
            with suppress(OSError):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self.path, json.dumps({"description": self.description, "digest": digest}).encode())
