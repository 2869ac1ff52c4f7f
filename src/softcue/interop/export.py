"""`softcue export`: the formats by name, and what every export has in common: a new folder that is whole or absent."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Protocol

from softcue.cue import Cue
from softcue.errors import ConfigurationError, near_matches
from softcue.files import TEMPORARY_SUFFIX, convert_write_errors, remove, sync_folder


@dataclass(frozen=True)
class ExportOptions:
    """What a user may ask of an export. A format names those it takes; the others are an error."""

    data: str | None = None  # rows: texts to export prompts for, or rows on which an export is compared with the cue
    int8: bool = False  # quantise the weights of the backbone
    force: bool = False  # write an export whose predictions differ from the cue's


@dataclass(frozen=True)
class ExportReport:
    """What an export wrote: facts to print, and how it differs from the cue."""

    facts: Mapping[str, str | int | float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Exporter(Protocol):
    """Writes a cue into an empty folder."""

    def __call__(self, cue: Cue, folder: Path, options: ExportOptions) -> ExportReport:
        """Write the files of the export and say what they are worth."""
        ...


@dataclass(frozen=True)
class ExportFormat:
    """One format: where its exporter is, and which options it takes."""

    exporter: str  # module:function
    description: str
    options: tuple[str, ...] = ()
    dtype: str | None = None  # the number format in which the backbone must be loaded; None: that of the cue

    def load(self) -> Exporter:
        """Import the exporter. Its module imports the other software."""
        module, _, function = self.exporter.partition(":")
        exporter: Exporter = getattr(importlib.import_module(module), function)
        return exporter


FORMATS: dict[str, ExportFormat] = {
    "peft": ExportFormat(
        "softcue.interop.peft:export_peft",
        "a folder that PEFT loads: prompt-tuning, prefix-tuning, p-tuning-v2 and lora",
    ),
    "prompt-embeds": ExportFormat(
        "softcue.interop.prompt_embeds:export_prompt_embeds",
        "input embeddings of prompt and text for each row of --data, on decoders",
        options=("data",),
    ),
    "onnx": ExportFormat(
        "softcue.interop.onnx:export_onnx",
        "one ONNX file of backbone, prompts and head, for onnxruntime (encoders)",
        ("data", "int8", "force"),
        dtype="float32",
    ),
    "openvino": ExportFormat(
        "softcue.interop.openvino:export_openvino",
        "the same graph for OpenVINO (encoders)",
        ("data", "int8", "force"),
        dtype="float32",
    ),
    "mlflow": ExportFormat("softcue.interop.mlflow:export_mlflow", "a pyfunc model of MLflow that loads the cue"),
}


def export_cue(cue: Cue, to: str, folder: str | Path, options: ExportOptions | None = None) -> ExportReport:
    """Write a cue as a new folder in another format.

    Example:
        export_cue(softcue.load("cues/tickets"), "onnx", "tickets-onnx")
    """
    options = options or ExportOptions()
    if to not in FORMATS:
        raise ConfigurationError(setting="to", got=to, expected="a format", fix=near_matches(to, FORMATS))
    for option in fields(options):
        if getattr(options, option.name) != option.default and option.name not in FORMATS[to].options:
            takes = [name for name, export_format in FORMATS.items() if option.name in export_format.options]
            raise ConfigurationError(
                setting=option.name,
                got=getattr(options, option.name),
                expected=f"an option of {to}",
                fix=f"leave it out; it is for {', '.join(sorted(takes)) or 'no format'}",
            )
    target = Path(folder)
    if target.exists():
        raise ConfigurationError(
            setting="folder", got=folder, expected="a folder that does not exist yet", fix="choose another name"
        )
    exporter = FORMATS[to].load()
    temporary = target.with_name(f"{target.name}{TEMPORARY_SUFFIX}")
    with convert_write_errors("folder", target):
        remove(temporary)
        temporary.mkdir(parents=True)
        try:
            report = exporter(cue, temporary, options)
            os.replace(temporary, target)
        except BaseException:
            remove(temporary)
            raise
        sync_folder(target.parent)
    return report
