"""Structures of models that were traced before on this machine: a file each, so that a start needs no trial passes."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from softcue.backbones import key_steps, structure, tracing
from softcue.backbones.quantized_linear import quantization_of
from softcue.backbones.structure import Structure
from softcue.backbones.tracing import find_structure, set_structure
from softcue.files import METADATA_LIMIT, cache_folder, read_within, write_atomically


def restore_structure(model: Any) -> None:
    """Give a model its structure: the one kept for it, or else the one that is found, which is kept then.

    Example:
        restore_structure(model)
        structure_of(model).kind
    """
    path = cache_folder() / "structures" / f"{_key_of(model)}.json"
    model_structure = _read(path)
    if model_structure is None:
        model_structure = find_structure(model)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            content = model_structure.model_dump_json()
            write_atomically(path, f"{_digest(content)}\n{content}\n".encode())
    set_structure(model, model_structure)


def describe_model(model: Any) -> list[str]:
    """What a result about a model depends on: versions, configuration, class, format, device, a sample of weights.

    Example:
        hashlib.sha256("\\n".join(describe_model(backbone.model)).encode())
    """
    import transformers

    import softcue

    quantized = quantization_of(model)
    table = model.get_input_embeddings().weight
    words = table[:: max(1, len(table) // 64), 0].detach().float().cpu().tolist()
    weights: dict[torch.device, list[Tensor]] = {}  # of a model that is split; of a whole one, all on one device
    for value in model.parameters():
        if value.numel() and not value.is_meta:  # a layer on disk has no numbers between passes
            weights.setdefault(value.device, []).append(value.detach().reshape(-1)[value.numel() // 2].float())
    return [
        f"{softcue.__version__} {torch.__version__} {transformers.__version__}",
        json.dumps(model.config.to_diff_dict(), sort_keys=True, default=str),
        f"{type(model).__name__} {model.dtype} {model.device.type}" + ("" if quantized == "none" else f" {quantized}"),
        repr(words),
        repr([number for values in weights.values() for number in torch.stack(values).tolist()]),
    ]


def _read(path: Path) -> Structure | None:
    """A structure, or None if there is none or the file is damaged."""
    try:
        digest, _, content = read_within(path, METADATA_LIMIT).decode().rstrip("\n").partition("\n")
        return Structure.model_validate_json(content) if digest == _digest(content) else None
    except (OSError, ValueError):
        return None


def _key_of(model: Any) -> str:
    return _digest("\n".join([_code_digest(), *describe_model(model)]))[:32]


@cache
def _code_digest() -> str:
    """Of the modules that find structures: a change of theirs makes kept ones worthless."""
    code = [Path(str(module.__file__)).read_text("utf-8") for module in (structure, tracing, key_steps)]
    return _digest("\n".join(code))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
