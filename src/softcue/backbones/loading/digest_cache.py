"""The digest of a model's weights, kept on this machine (kept_digests.py): a start need not read them for it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from softcue.backbones.loading.fingerprint import digest_weights
from softcue.backbones.loading.kept_digests import FileStates
from softcue.backbones.quantized_linear import num_weights
from softcue.files import sha256

KEPT_WEIGHTS = 1_000_000  # models with fewer weights are read each time: it takes a hundredth of a second
VERSION = 1  # of the digest: raise it when `digest_weights` gives other digests


class WeightsDigest:
    """The digest of the weights of one model: recalled, or computed once when it is needed.

    `paths` are the files the model was loaded from. They are looked at when the object is made, before the model is
    loaded: a file that changes meanwhile has another time at the next start.
    """

    def __init__(self, paths: Iterable[Path], model_class: str) -> None:
        import transformers

        facts = {"digest": VERSION, "transformers": transformers.__version__, "class": model_class}
        self._files = FileStates.of(paths, **facts)
        self._digest: str | None = None

    def recall(self) -> str | None:
        """The digest, if it was kept."""
        self._digest = self._digest or self._files.recall()
        return self._digest

    def set_from(self, model: Any) -> None:
        """Compute the digest from a model whose weights are exactly those of the files, unless it was kept."""
        if self._digest is None:
            is_kept = num_weights(model) >= KEPT_WEIGHTS
            self._digest = self._files.recall() if is_kept else None
            if self._digest is None:
                self._digest = digest_weights(model)
                if is_kept:
                    self._files.keep(self._digest)

    def set_from_files(self, paths: Iterable[Path]) -> None:
        """Compute the digest from the bytes of weight files, for weights that are no numbers by themselves."""
        files = sorted(paths)
        if files and self.recall() is None:
            digests = "\n".join(sha256(Path(os.path.realpath(path))) for path in files)
            self._digest = hashlib.sha256(digests.encode()).hexdigest()[:16]
            self._files.keep(self._digest)

    def __call__(self, model: Any) -> str:
        """The digest; `model` is read if it was not computed before."""
        self.set_from(model)
        assert self._digest is not None
        return self._digest
