"""A disk cache of tokenized rows: a second run over the same rows reads them instead of tokenizing again.

There is one file per set of rows. Its name is a digest of the texts and of everything that changes their tokens, and it
holds a digest of its own content. A file that cannot be read, is damaged or does not fit is replaced. When the folder
grows too large, the least recently used files are removed. Rows of a file are not loaded but mapped (`PackedRows`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy

from softcue.files import cache_folder, open_regular, write_atomically
from softcue.inputs.formatter import InputFormatter
from softcue.inputs.packed_rows import TOKEN_FIELDS, Array, PackedRows, collect_rows, iterate_chunks, pack_rows
from softcue.types import Example, TokenizedRow

MIN_CACHED_ROWS = 2000  # fewer rows are tokenized faster than a file is worth
SIZE_LIMIT = 2 << 30  # bytes of all files
FORMAT = "6"
DIGEST = "sha256"  # the first tensor of a file: the digest of its header and of the other tensors
DIGEST_BYTES = 32
MAX_HEADER = 1 << 16  # bytes
BLOCK = 1 << 20  # bytes that are read at once
TYPES = {"I64": "int64", "I32": "int32", "I8": "int8", "U8": "uint8", "F64": "float64"}  # of safetensors, of numpy


def tokenize_rows(
    formatter: InputFormatter, tokenizer: str, examples: Sequence[Example], *, use_disk_cache: bool = True
) -> Sequence[TokenizedRow]:
    """Tokenize examples, or read their tokens from disk if the same rows were tokenized before.

    `tokenizer` is the digest of the tokenizer, as in the fingerprint of a backbone. The cache serves only sets of many
    rows. `use_disk_cache=False` and SOFTCUE_CACHE_MB=0 in the environment turn it off.
    """
    is_off = not use_disk_cache or os.environ.get("SOFTCUE_CACHE_MB", "").strip() == "0"
    rows = formatter.iterate_sources(examples)
    if is_off or len(examples) < MIN_CACHED_ROWS:
        return collect_rows(rows, len(examples))
    path = cache_folder() / "tokens" / f"{_digest(formatter, tokenizer, examples)}.safetensors"
    cached_rows = _read(path, len(examples), formatter)
    if cached_rows is not None:
        return cached_rows
    packed = pack_rows(rows)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, file_chunks(packed.arrays))
        _trim(path.parent, keep=path)
    except OSError:
        pass  # a full or read-only disk costs time, not the run
    return packed


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


def file_chunks(arrays: Mapping[str, Array]) -> Iterator[bytes]:
    """The bytes of a cache file, a safetensors file, in chunks. The widest numbers come first, so that all are aligned.

    Example:
        write_atomically(path, file_chunks(rows.arrays))
    """
    names = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    codes = {numpy.dtype(name): code for code, name in TYPES.items()}
    header: dict[str, object] = {DIGEST: {"dtype": "U8", "shape": [DIGEST_BYTES], "data_offsets": [0, DIGEST_BYTES]}}
    start = DIGEST_BYTES
    for name in names:
        end = start + arrays[name].nbytes
        code = codes[numpy.dtype(arrays[name].dtype)]
        header[name] = {"dtype": code, "shape": list(arrays[name].shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256(text)
    for name in names:
        for chunk in iterate_chunks(arrays[name]):
            digest.update(chunk)
    yield len(text).to_bytes(8, "little") + text + digest.digest()
    for name in names:
        yield from iterate_chunks(arrays[name])


def _map_file(path: Path) -> dict[str, Array] | None:
    """The arrays of an undamaged file, mapped; None if it is damaged."""
    with open_regular(path) as file:
        header_size = int.from_bytes(file.read(8), "little")
        if header_size > MAX_HEADER:
            return None
        text = file.read(header_size)
        stored, digest = file.read(DIGEST_BYTES), hashlib.sha256(text)
        while chunk := file.read(BLOCK):
            digest.update(chunk)
        if stored != digest.digest():
            return None
        facts = json.loads(text)
        del facts[DIGEST]
        return {
            name: numpy.memmap(file, TYPES[fact["dtype"]], "r", 8 + header_size + fact["data_offsets"][0], shape)
            if all(shape := tuple(fact["shape"]))
            else numpy.zeros(shape, TYPES[fact["dtype"]])
            for name, fact in facts.items()
        }


def _fits(arrays: Mapping[str, Array], num_rows: int, largest_token_id: int) -> bool:
    """Whether the file has all arrays of that many rows, each row within it, and ids of this vocabulary alone."""
    required = {"ends", "ids", "insert_at", "is_truncated"}
    if not required <= arrays.keys() <= required | {*TOKEN_FIELDS, "places"}:
        return False
    ends, ids = arrays["ends"], arrays["ids"]
    for name, values in arrays.items():
        num_dimensions = 2 if name in ("offsets", "places") else 1
        num_entries = len(ids) if name == "ids" or name in TOKEN_FIELDS else num_rows
        is_integer = numpy.issubdtype(values.dtype, numpy.integer)
        if values.ndim != num_dimensions or not is_integer or len(values) != num_entries:
            return False
    if int(ends[0]) < 0 or int(ends[-1]) != len(ids) or bool((ends[1:] < ends[:-1]).any()):
        return False
    return not len(ids) or (int(ids.min()) >= 0 and int(ids.max()) <= largest_token_id)


def _read(path: Path, num_rows: int, formatter: InputFormatter) -> PackedRows | None:
    """The rows of a file, or None if it cannot be read, is damaged or does not fit these rows."""
    try:
        arrays = _map_file(path)
        if arrays is None or not _fits(arrays, num_rows, formatter.largest_token_id):
            return None
        os.utime(path)  # now the most recently used
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return PackedRows(arrays)


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
