"""The digest of a large model's weights, kept on this machine, so that a start does not read all weights for it.

A digest is kept for the files of a model folder: their real paths, sizes, inodes, and times of modification and of
change. Whoever writes to a file changes one of the times. The time of change cannot be set back, short of setting the
clock of the machine: a file with other content and the same size, inode and times is taken for the old one.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softcue.backbones.loading.fingerprint import digest_weights
from softcue.backbones.quantized_linear import num_weights
from softcue.files import METADATA_LIMIT, cache_folder, read_within, sha256, write_atomically

KEPT_WEIGHTS = 100_000_000  # models with fewer weights are read each time: it takes less than a second
SETTLED_SECONDS = 2.0  # a file that was changed more recently may change again without another time
VERSION = 1  # of the digest: raise it when `digest_weights` gives other digests


@dataclass(frozen=True)
class WeightFiles:
    """The files of a model folder as they were at one moment, and the class and versions that make weights of them."""

    description: str
    is_settled: bool  # whether the times would show a later change

    @classmethod
    def of(cls, paths: Iterable[Path], model_class: str) -> WeightFiles:
        """Note the state of files.

        Example:
            >>> WeightFiles.of([], "BertModel").is_settled
            False
        """
        import transformers

        status = {path: path.stat() for path in sorted(paths)}  # of the file that a link leads to
        states = [
            [str(path.resolve()), facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns]
            for path, facts in status.items()
        ]
        newest = max((max(facts.st_mtime, facts.st_ctime) for facts in status.values()), default=math.inf)
        facts_of_weights = {"digest": VERSION, "transformers": transformers.__version__, "class": model_class}
        description = json.dumps({**facts_of_weights, "files": states}, sort_keys=True)
        return cls(description, time.time() - newest > SETTLED_SECONDS)

    @property
    def path(self) -> Path:
        """Where the digest of these files is kept."""
        name = hashlib.sha256(self.description.encode()).hexdigest()[:32]
        return cache_folder() / "digests" / f"{name}.json"


def recall_digest(files: WeightFiles) -> str | None:
    """The digest kept for files in this state; None if there is none or it is damaged.

    Example:
        recall_digest(WeightFiles.of(Path("models/mine").iterdir(), "LlamaForCausalLM"))
    """
    if not files.is_settled:
        return None
    try:
        entry = json.loads(read_within(files.path, METADATA_LIMIT).decode())
        digest = str(entry["digest"])
        if entry["description"] == files.description and len(digest) == 16:
            return digest
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def keep_digest(files: WeightFiles, digest: str) -> None:
    """Keep the digest of files, unless their times might not show a later change."""
    if files.is_settled:
        with suppress(OSError):
            files.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(files.path, json.dumps({"description": files.description, "digest": digest}).encode())


class WeightsDigest:
    """The digest of the weights of one model: recalled, or computed once when it is needed.

    `paths` are the files the model was loaded from. They are looked at when the object is made, before the model is
    loaded: a file that changes meanwhile has another time at the next start.
    """

    def __init__(self, paths: Iterable[Path], model_class: str) -> None:
        self._files = WeightFiles.of(paths, model_class)
        self._digest: str | None = None

    def recall(self) -> str | None:
        """The digest, if it was kept."""
        self._digest = self._digest or recall_digest(self._files)
        return self._digest

    def set_from(self, model: Any) -> None:
        """Compute the digest from a model whose weights are exactly those of the files, unless it was kept."""
        if self._digest is None:
            is_large = num_weights(model) >= KEPT_WEIGHTS
            self._digest = recall_digest(self._files) if is_large else None
            if self._digest is None:
                self._digest = digest_weights(model)
                if is_large:
                    keep_digest(self._files, self._digest)

    def set_from_files(self, paths: Iterable[Path]) -> None:
        """Compute the digest from the bytes of weight files, for weights that are no numbers by themselves."""
        files = sorted(paths)
        if files and self.recall() is None:
            digests = "\n".join(sha256(Path(os.path.realpath(path))) for path in files)
            self._digest = hashlib.sha256(digests.encode()).hexdigest()[:16]
            keep_digest(self._files, self._digest)

    def __call__(self, model: Any) -> str:
        """The digest; `model` is read if it was not computed before."""
        self.set_from(model)
        assert self._digest is not None
        return self._digest
