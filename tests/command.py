"""The command line, run in this process, and the form of all its errors."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest

from softcue.cli.app import main

# what `evaluate --json` tells of one cue
EVALUATED = {
    "baselines",
    "by_label",
    "confusion",
    "cue",
    "data",
    "rows",
    "scores",
    "truncated",
    "illegal",
    "illegal_share",
    "main",
    "predicted_labels",
}


# Starts a script or `-m module` in two processes on a free port.
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
TORCHRUN += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be one JSON object and nothing else."""
        assert self.code == 0, self.err
        assert self.out.count("\n") == 1
        printed = json.loads(self.out)
        assert isinstance(printed, dict)
        return printed


def run(*words: object, stdin: bytes = b"") -> Ended:
    """The command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    argv, typed = ["softcue", *map(str, words)], io.TextIOWrapper(io.BytesIO(stdin))
    with (
        patch.object(sys, "argv", argv),
        patch.object(sys, "stdin", typed),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        main()
    return Ended(int(end.value.code or 0), out.getvalue(), err.getvalue())


def check_error(result: Ended, *parts: object) -> None:
    """Exit code 2 and one line that says what is wrong, perhaps with indented details below it; nothing else."""
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert all(line.startswith("  ") for line in result.err.splitlines()[1:])
    for part in ("got ", "expected ", *parts):
        assert str(part) in result.err
