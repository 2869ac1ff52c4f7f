"""Options that several commands have, and how their values are read."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class DtypeOption(StrEnum):
    """Number formats of a backbone, as `backbone.dtype` has them."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class AttentionOption(StrEnum):
    """Kinds of attention, as `backbone.attention` has them."""

    AUTO = "auto"
    EAGER = "eager"
    SDPA = "sdpa"
    FLASH_ATTENTION_2 = "flash_attention_2"


class QuantizationOption(StrEnum):
    """Bits of a backbone's matrices, as `backbone.quantization` has them."""

    NONE = "none"
    INT8 = "int8"
    INT4 = "int4"


# How a backbone is loaded; without them, as the cue records it.
Device = Annotated[str | None, typer.Option(help="Device of the backbone: cpu, cuda, cuda:1, ...")]
Dtype = Annotated[DtypeOption | None, typer.Option(help="Number format of the backbone; else that of the training.")]
AttentionKind = Annotated[AttentionOption | None, typer.Option(help="How attention is computed; else the fastest.")]
QuantizationKind = Annotated[
    QuantizationOption | None,
    typer.Option(help="Keep the backbone's matrices in 8 or 4 bits; else as in training."),
]
AllowPickle = Annotated[
    bool, typer.Option("--allow-pickle", help="Open a backbone whose weights are a pickle; only if you trust it.")
]
Columns = Annotated[
    list[str] | None,
    typer.Option("--column", help="FILE=CUE: the file's column for one the cue reads; may be repeated."),
]
RequireSignature = Annotated[
    Path | None,
    typer.Option(help="Public keys: load only cues that one of them has signed (`softcue sign`)."),
]
Runtime = Annotated[
    str,
    typer.Option(help="What runs the frozen layers of an encoder: torch, openvino, onnx, or auto for the fastest."),
]
RuntimeDtype = Annotated[
    str, typer.Option(help="Number format of that runtime: float32, bfloat16, int8, or auto for the fastest.")
]
RuntimeData = Annotated[
    Path | None,
    typer.Option(help="Rows to compare a runtime with torch on: a file, or a folder of published files."),
]
SkipBadRows = Annotated[bool, typer.Option("--skip-bad-rows", help="Leave out rows that cannot be read.")]


def split_names(names: str) -> list[str]:
    """Split `A,B,...` of an option into names.

    Example:
        >>> split_names("prompt-tuning, vip,")
        ['prompt-tuning', 'vip']
    """
    return [name.strip() for name in names.split(",") if name.strip()]
