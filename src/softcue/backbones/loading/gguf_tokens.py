"""Begin and end tokens of a GGUF file. The file says which are added to every text; transformers may not add them."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

ADD_BEGIN, BEGIN = "tokenizer.ggml.add_bos_token", "tokenizer.ggml.bos_token_id"
ADD_END, END = "tokenizer.ggml.add_eos_token", "tokenizer.ggml.eos_token_id"


def add_gguf_special_tokens(tokenizer: Any, file: Path) -> None:
    """Make a tokenizer add the begin and end tokens that its GGUF file says are added, if it does not do so yet.

    A file that does not say it, or says no, changes nothing. Of two texts each gets its own tokens.

    Example:
        add_gguf_special_tokens(tokenizer, Path("gemma-3-270m-q4_k_m.gguf"))
        tokenizer.decode(tokenizer("Hello")["input_ids"])     # "<bos>Hello"
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return
    values = _read_values(file, (ADD_BEGIN, BEGIN, ADD_END, END))
    ids = tokenizer("a")["input_ids"]
    begin, end = values.get(BEGIN), values.get(END)
    has_begin, has_end = bool(ids) and ids[0] == begin, bool(ids) and ids[-1] == end
    needs_begin = values.get(ADD_BEGIN) is True and begin is not None and not has_begin
    needs_end = values.get(ADD_END) is True and end is not None and not has_end
    if not needs_begin and not needs_end:
        return
    from tokenizers.processors import Sequence, TemplateProcessing

    first = tokenizer.convert_ids_to_tokens(begin) if needs_begin or has_begin else None
    last = tokenizer.convert_ids_to_tokens(end) if needs_end or has_end else None
    special = {token: number for token, number in ((first, begin), (last, end)) if token is not None}
    template = TemplateProcessing(
        single=[token for token in (first, "$A", last) if token is not None],
        pair=[
            f"{token}:{text}"
            for text, name in enumerate(("$A", "$B"))
            for token in (first, name, last)
            if token is not None
        ],
        special_tokens=list(special.items()),
    )
    present = backend.post_processor
    # A template of its own adds what `first` and `last` hold already; another processor trims offsets.
    keeps_present = present is not None and not isinstance(present, TemplateProcessing)
    backend.post_processor = Sequence([present, template]) if keeps_present else template


# Numbers of a GGUF file by type code; 8 is a text, 9 an array.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9


def _read_values(file: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    """Return the numbers of a GGUF file's metadata under these keys, as far as it has them.

    The reader of the package gguf makes an array of each word: 20 seconds for a vocabulary of 260,000.
    """
    values: dict[str, Any] = {}
    with file.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
        magic, version = struct.unpack_from("<4sI", data)
        if magic != b"GGUF" or version not in (2, 3):  # version 1, or a file for big-endian machines
            return {}
        (num_values,) = struct.unpack_from("<Q", data, 16)
        place = 24
        for _ in range(num_values):
            start, place = place + 8, _end_of(data, place, _TEXT)
            key = data[start:place].decode("utf-8", "replace")
            (kind,) = struct.unpack_from("<I", data, place)
            place += 4
            if key in keys and kind in _NUMBERS:
                (values[key],) = struct.unpack_from(f"<{_NUMBERS[kind]}", data, place)
            place = _end_of(data, place, kind)
    return values


def _end_of(data: mmap.mmap, place: int, kind: int) -> int:
    """Return the place behind a value of a type that begins at `place`."""
    if kind in _NUMBERS:
        return place + struct.calcsize(f"<{_NUMBERS[kind]}")
    if kind == _TEXT:
        return place + 8 + int(struct.unpack_from("<Q", data, place)[0])
    if kind != _ARRAY:
        raise ValueError(f"type {kind} of a value in the GGUF file is not known")
    element, length = struct.unpack_from("<IQ", data, place)
    place += 12
    if element in _NUMBERS:
        return place + int(length) * struct.calcsize(f"<{_NUMBERS[element]}")
    for _ in range(length):
        place = _end_of(data, place, element)
    return place
