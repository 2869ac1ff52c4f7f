"""`softcue doctor`: checks of the installation."""

from __future__ import annotations

from typing import Annotated

import typer


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Check the installation: versions, device, number formats, backbones, optional packages."""
    import os
    import platform
    from importlib.metadata import PackageNotFoundError, version

    import torch

    from softcue import __version__
    from softcue.backbones.loading.autotune import BFLOAT16_GAIN, measure_bfloat16_speed
    from softcue.backbones.loading.sources import ALIASES, find_alias_folder, verify_alias_folder
    from softcue.cli.output import print_json, print_table
    from softcue.errors import BackboneError
    from softcue.files import cache_folder

    def installed(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "not installed"

    def alias_state(name: str) -> str:
        if find_alias_folder(name) is None:
            return f"not here: softcue backbones pull {name}"
        try:
            return f"ok, sha256 matches: {verify_alias_folder(name)}"
        except BackboneError as error:
            return str(error)

    def bfloat16_state() -> str:
        speed = measure_bfloat16_speed([(384, 384), (1536, 384), (384, 1536)], device)  # a small model's matrices
        comparison = f"multiplies {speed:.2g} times as fast as float32"
        return f"yes: {comparison}" if speed >= BFLOAT16_GAIN else f"no: {comparison}; dtype=auto takes float32"

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    checks = {
        "softcue": __version__,
        "python": platform.python_version(),
        **{name: installed(name) for name in ("torch", "transformers", "accelerate", "safetensors")},
        "device": str(device),
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "native bfloat16": bfloat16_state(),
        "cache folder": str(cache_folder()),
        **{f"backbone {name}": alias_state(name) for name in ALIASES},
        **{f"extra: {name}": installed(name) for name in ("gguf", "datasets", "peft", "tensorboard", "pandas")},
    }
    if as_json:
        print_json(checks)
        return
    print_table("", ["what", "found"], list(checks.items()))
