"""A disk cache of tokenized rows: a second run over the same rows reads them instead of tokenizing again.

There is one file per set of rows. Its name is a digest of the texts and of everything that changes their tokens, and it
holds a digest of its own content. A file that cannot be read, is damaged or does not fit is replaced. When the folder
grows too large, the least recently used files are removed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from softcue.files import cache_folder, read_within, serialize_tensors, write_atomically
from softcue.inputs.formatter import InputFormatter
from softcue.types import Example, TokenizedRow

MIN_CACHED_ROWS = 2000  # fewer rows are tokenized faster than a file is worth
SIZE_LIMIT = 2 << 30  # bytes of all files
FORMAT = "6"
DIGEST = "sha256"  # the tensor with the digest of the others


def tokenize_rows(
    formatter: InputFormatter, tokenizer: str, examples: Sequence[Example], *, use_disk_cache: bool = True
) -> list[TokenizedRow]:
    """Tokenize examples, or read their tokens from disk if the same rows were tokenized before.

    `tokenizer` is the digest of the tokenizer, as in the fingerprint of a backbone. The cache serves only sets of many
    rows. `use_disk_cache=False` and SOFTCUE_CACHE_MB=0 in the environment turn it off.
    """
    is_off = not use_disk_cache or os.environ.get("SOFTCUE_CACHE_MB", "").strip() == "0"
    if is_off or len(examples) < MIN_CACHED_ROWS:
        return [formatter.source(example) for example in examples]
    path = cache_folder() / "tokens" / f"{_digest(formatter, tokenizer, examples)}.safetensors"
    cached_rows = _read(path, len(examples), formatter)
    if cached_rows is not None:
        return cached_rows
    rows = [formatter.source(example) for example in examples]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        packed = _pack(rows)
        write_atomically(path, serialize_tensors({**packed, DIGEST: _digest_of(packed)}))
        _trim(path.parent, keep=path)
    except OSError:
        pass  # a full or read-only disk costs time, not the run
    return rows


def _digest(formatter: InputFormatter, tokenizer_digest: str, examples: Sequence[Example]) -> str:
    task, tokenizer = formatter.task, formatter.tokenizer
    # The tokenizer's digest covers its vocabulary. Two models may share it and differ in segments or special tokens.
    roles = (
        tuple(tokenizer.model_input_names),
        sorted(tokenizer.special_tokens_map.items()),
        sorted(tokenizer.all_special_ids),
    )
    settings = (
        FORMAT,
        tokenizer_digest,
        roles,
        formatter.kind,
        formatter.limit,
        formatter.insert_at,
        formatter.prompt_length if formatter.insert_at == "around" else None,
        formatter.suffix,
        formatter.suffix_in_first,
        formatter.answer_prefix,
        formatter.offset_unit,
        formatter.pad_punctuation,
        task.kind,
        task.text,
        task.template,
        task.sentences,
    )
    digest = hashlib.sha256(repr(settings).encode())
    for example in examples:
        digest.update(repr((example.texts, example.offset)).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _pack(rows: Sequence[TokenizedRow]) -> dict[str, Tensor]:
    """Concatenate the rows; `lengths` tells where each row ends."""
    packed = {
        "lengths": torch.tensor([len(row.ids) for row in rows], dtype=torch.int32),
        "ids": torch.tensor([token for row in rows for token in row.ids], dtype=torch.int32),
        "insert_at": torch.tensor([row.insert_at for row in rows], dtype=torch.int32),
        "is_truncated": torch.tensor([row.is_truncated for row in rows], dtype=torch.uint8),
    }
    for name in ("segments", "parts", "offsets"):
        if getattr(rows[0], name) is not None:
            packed[name] = torch.tensor([value for row in rows for value in getattr(row, name)], dtype=torch.int32)
    if rows[0].places is not None:
        packed["places"] = torch.tensor([row.places for row in rows], dtype=torch.int32)  # [N P]
    return packed


def _digest_of(packed: Mapping[str, Tensor]) -> Tensor:
    """The SHA-256 of all tensors with their names, as bytes. [32]"""
    return torch.tensor(list(hashlib.sha256(serialize_tensors(packed)).digest()), dtype=torch.uint8)


def _fits(packed: Mapping[str, Tensor], num_rows: int, largest_token_id: int) -> bool:
    """Whether the file has all tensors of that many rows, each row within it, and ids of this vocabulary alone."""
    lengths, ids = packed["lengths"], packed["ids"]
    sizes = {"lengths": num_rows, "insert_at": num_rows, "is_truncated": num_rows, "places": num_rows}
    required = {"lengths", "ids", "insert_at", "is_truncated"}
    if not required <= packed.keys() <= required | {"segments", "parts", "offsets", "places"}:
        return False
    for name, tensor in packed.items():
        num_dimensions = 2 if name in ("offsets", "places") else 1
        is_integer = tensor.dtype in (torch.int32, torch.uint8)
        if tensor.dim() != num_dimensions or not is_integer or len(tensor) != sizes.get(name, len(ids)):
            return False
    if num_rows and (int(lengths.min()) < 0 or int(lengths.sum()) != len(ids)):
        return False
    return not len(ids) or (int(ids.min()) >= 0 and int(ids.max()) <= largest_token_id)


def _read(path: Path, num_rows: int, formatter: InputFormatter) -> list[TokenizedRow] | None:
    """The rows of a file, or None if it cannot be read, is damaged or does not fit these rows."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        packed: dict[str, Tensor] = load(read_within(path, SIZE_LIMIT))
        os.utime(path)  # now the most recently used
        is_intact = torch.equal(packed.pop(DIGEST), _digest_of(packed))
        if not is_intact or not _fits(packed, num_rows, formatter.largest_token_id):
            return None
    except (SafetensorError, OSError, ValueError, KeyError):
        return None
    ends = [0, *accumulate(packed["lengths"].tolist())]
    values = {name: tensor.tolist() for name, tensor in packed.items()}

    def row_values(name: str, row: int) -> tuple[Any, ...] | None:
        return tuple(values[name][ends[row] : ends[row + 1]]) if name in values else None

    rows = []
    for row in range(num_rows):
        offsets = row_values("offsets", row)
        rows.append(
            TokenizedRow(
                row_values("ids", row) or (),
                row_values("segments", row),
                values["insert_at"][row],
                is_truncated=bool(values["is_truncated"][row]),
                parts=row_values("parts", row),
                offsets=None if offsets is None else tuple(map(tuple, offsets)),
                places=tuple(values["places"][row]) if "places" in values else None,
            )
        )
    return rows


def _trim(folder: Path, keep: Path) -> None:
    """Remove the least recently used files until the rest fits."""
    files = sorted(folder.glob("*.safetensors"), key=lambda file: file.stat().st_mtime)
    total = sum(file.stat().st_size for file in files)
    for file in files:
        if total <= SIZE_LIMIT:
            return
        if file != keep:
            total -= file.stat().st_size
            file.unlink(missing_ok=True)
