"""Change a checkpoint and write digests that fit again, as another program could."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

Change = Callable[[dict[str, Any], dict[str, Tensor]], object]  # of the progress, and of the tensors by name


def change_state(**values: Any) -> Change:
    return lambda progress, _: progress.update(values)


def change_tensor(part: str, edit: Callable[[Tensor], Tensor]) -> Change:
    """Change the first matrix of a part, such as "model/"."""

    def change(_: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        name = next(name for name in sorted(tensors) if name.startswith(part) and tensors[name].dim() > 1)
        tensors[name] = edit(tensors[name])

    return change


def rewrite(checkpoint: Path, change: Change) -> None:
    """Apply a change to a checkpoint and sign it again."""
    facts, tensors = json.loads((checkpoint / "state.json").read_text()), load_file(checkpoint / "state.safetensors")
    tensors = {name: value.clone() for name, value in tensors.items()}
    change(facts["progress"], tensors)
    (checkpoint / "state.json").write_text(json.dumps(facts))
    save_file({name: value.contiguous() for name, value in tensors.items()}, checkpoint / "state.safetensors")
    digests = {
        name: hashlib.sha256((checkpoint / name).read_bytes()).hexdigest()
        for name in json.loads((checkpoint / "manifest.json").read_text())
    }
    (checkpoint / "manifest.json").write_text(json.dumps(digests))
