"""Options that several commands have, and how their values are read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
