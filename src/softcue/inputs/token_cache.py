"""Tokens of many texts, kept on disk by content: a second run over the same rows reads them instead of making them.

One file per set of rows, named by a digest of the texts and of everything their tokens depend on. A file that cannot
be read or does not fit is made again; what was used longest ago goes first when the folder grows too large.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from softcue.files import cache_folder, tensor_bytes, write_whole
from softcue.inputs.formatter import InputFormatter
from softcue.types import Example, TokenizedRow

WORTH_KEEPING = 2000  # rows; fewer are made in the blink of an eye
SIZE_LIMIT = 2 << 30  # bytes of all files
FORMAT = "2"


def token_rows(formatter: InputFormatter, tokenizer: str, examples: Sequence[Example]) -> list[TokenizedRow]:
    """The tokens of each example, from disk where the same rows were worded before.

    `tokenizer` is the digest of the tokenizer, as in a backbone's fingerprint. SOFTCUE_CACHE_MB=0 keeps nothing.
    """
    if len(examples) < WORTH_KEEPING or os.environ.get("SOFTCUE_CACHE_MB", "").strip() == "0":
        return [formatter.source(example) for example in examples]
    path = cache_folder() / "tokens" / f"{_digest(formatter, tokenizer, examples)}.safetensors"
    known = _read(path, len(examples))
    if known is not None:
        return known
    found = [formatter.source(example) for example in examples]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, tensor_bytes(_packed(found)))
        _trim(path.parent, keep=path)
    except OSError:
        pass  # a full or read-only disk costs time, not the run
    return found


def _digest(formatter: InputFormatter, tokenizer: str, examples: Sequence[Example]) -> str:
    task, own = formatter.task, formatter.tokenizer
    # The digest is of the pieces; two models may have the same and still differ in segments or in their special tokens.
    roles = (tuple(own.model_input_names), sorted(own.special_tokens_map.items()), sorted(own.all_special_ids))
    settings = (
        FORMAT,
        tokenizer,
        roles,
        formatter.kind,
        formatter.limit,
        formatter.insert_at,
        formatter.suffix,
        formatter.writes_answer,
        formatter.places,
        task.kind,
        task.text,
        task.template,
        task.sentences,
    )
    digest = hashlib.sha256(repr(settings).encode())
    for example in examples:
        digest.update(repr((example.texts, example.offset)).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _packed(rows: Sequence[TokenizedRow]) -> dict[str, Tensor]:
    """Rows one behind the other; `lengths` says where each ends."""
    found = {
        "lengths": torch.tensor([len(row.ids) for row in rows], dtype=torch.int32),
        "ids": torch.tensor([number for row in rows for number in row.ids], dtype=torch.int32),
        "insert_at": torch.tensor([row.insert_at for row in rows], dtype=torch.int32),
        "is_truncated": torch.tensor([row.is_truncated for row in rows], dtype=torch.uint8),
    }
    for name in ("segments", "parts", "offsets"):
        if getattr(rows[0], name) is not None:
            found[name] = torch.tensor([number for row in rows for number in getattr(row, name)], dtype=torch.int32)
    return found


def _read(path: Path, num_rows: int) -> list[TokenizedRow] | None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        packed: dict[str, Tensor] = load_file(path)
        os.utime(path)  # used last now
    except (SafetensorError, OSError, ValueError, KeyError):
        return None
    lengths = packed["lengths"].tolist() if "lengths" in packed else []
    if len(lengths) != num_rows:
        return None
    ends = [0, *accumulate(lengths)]
    plain = {name: values.tolist() for name, values in packed.items()}

    def part(name: str, row: int) -> tuple[Any, ...] | None:
        return tuple(plain[name][ends[row] : ends[row + 1]]) if name in plain else None

    found = []
    for row in range(num_rows):
        places = part("offsets", row)
        found.append(
            TokenizedRow(
                part("ids", row) or (),
                part("segments", row),
                plain["insert_at"][row],
                is_truncated=bool(plain["is_truncated"][row]),
                parts=part("parts", row),
                offsets=None if places is None else tuple(map(tuple, places)),
            )
        )
    return found


def _trim(folder: Path, keep: Path) -> None:
    """Remove what was used longest ago until the rest fits."""
    files = sorted(folder.glob("*.safetensors"), key=lambda file: file.stat().st_mtime)
    total = sum(file.stat().st_size for file in files)
    for file in files:
        if total <= SIZE_LIMIT:
            return
        if file != keep:
            total -= file.stat().st_size
            file.unlink(missing_ok=True)
