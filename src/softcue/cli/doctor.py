"""`softcue doctor`: checks of the installation and the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import torch


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Check the installation: versions, extras, processor, memory, GPUs, caches and backbones."""
    from softcue.cli.output import print_json, print_table

    checks = {
        "versions": _versions(),
        "processor": _processor(),
        "memory": _memory(),
        "devices": _devices(),
        "extras": _extras(),
        "caches": _caches(),
        "backbones": _backbones(),
    }
    if as_json:
        print_json(checks)
        return
    for title, group in checks.items():
        print_table(title, ["what", "found"], [[name, _text(value)] for name, value in group.items()])


def _versions() -> dict[str, Any]:
    import platform

    from softcue import __version__
    from softcue.machine import CORE_PACKAGES, package_version

    packages = {name: package_version(name) or "not installed" for name in CORE_PACKAGES}
    return {"softcue": __version__, "python": platform.python_version(), "system": platform.platform(), **packages}


def _processor() -> dict[str, Any]:
    import os

    import torch

    from softcue.machine import number_formats, processor_name, usable_cores

    return {
        "name": processor_name(),
        "cores": os.cpu_count() or 1,
        "usable cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "number formats": ["float32", *number_formats()],
        "native bfloat16": _describe_bfloat16(torch.device("cpu")),
    }


def _describe_bfloat16(device: torch.device) -> str:
    from softcue.backbones.loading.autotune import BFLOAT16_GAIN, measure_bfloat16_speed

    speed = measure_bfloat16_speed([(384, 384), (1536, 384), (384, 1536)], device)  # a small model's matrices
    comparison = f"multiplies {speed:.2g} times as fast as float32"
    return f"yes: {comparison}" if speed >= BFLOAT16_GAIN else f"no: {comparison}; dtype=auto takes float32"


def _memory() -> dict[str, Any]:
    from softcue.machine import read_memory

    memory = read_memory()
    values = {"total GB": memory.total, "available GB": memory.available, "limit of the container GB": memory.limit}
    return {name: None if value is None else round(value, 1) for name, value in values.items()}


def _devices() -> dict[str, Any]:
    """The GPUs that torch can use, and the device that `backbone.device=auto` takes."""
    import torch

    devices: dict[str, Any] = {"backbone.device=auto takes": "cuda" if torch.cuda.is_available() else "cpu"}
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(number)
        free, total = torch.cuda.mem_get_info(number)
        devices[f"cuda:{number}"] = {
            "name": properties.name,
            "memory GB": round(total / 2**30, 1),
            "free GB": round(free / 2**30, 1),
            "compute capability": f"{properties.major}.{properties.minor}",
            "bfloat16": torch.cuda.is_bf16_supported(including_emulation=False),
        }
    if len(devices) == 1:
        devices["cuda"] = "no GPU that this torch can use"
    devices["mps"] = "available" if torch.backends.mps.is_available() else "not available"
    return devices


def _extras() -> dict[str, Any]:
    from softcue.machine import list_extras

    extras: dict[str, Any] = {}
    for extra in list_extras():
        extras[extra.name] = {"installed": extra.is_installed, "packages": extra.packages}
        if not extra.is_installed:
            extras[extra.name]["install"] = extra.how_to_install
    return extras


def _caches() -> dict[str, Any]:
    from softcue.machine import list_caches

    return {cache.content: {"path": str(cache.path), "MB": round(cache.megabytes, 1)} for cache in list_caches()}


def _backbones() -> dict[str, Any]:
    from softcue.backbones.loading.sources import ALIASES, find_alias_folder, verify_alias_folder
    from softcue.errors import BackboneError

    def state(name: str) -> str:
        if find_alias_folder(name) is None:
            return f"not here: softcue backbones pull {name}"
        try:
            return f"ok, sha256 matches: {verify_alias_folder(name)}"
        except BackboneError as error:
            return str(error)

    return {name: state(name) for name in ALIASES}


def _text(value: Any) -> str:
    """A cell: lists and records in words."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if not isinstance(value, dict):
        return str(value)
    if "packages" in value:
        missing = [name for name, number in value["packages"].items() if number is None]
        there = ", ".join(f"{name} {number}" for name, number in value["packages"].items() if number is not None)
        return f"missing {', '.join(missing)}: {value['install']}" if missing else f"installed: {there}"
    if "path" in value:
        return f"{value['MB']:,} MB in {value['path']}"
    return ", ".join(f"{name} {entry}" for name, entry in value.items())
