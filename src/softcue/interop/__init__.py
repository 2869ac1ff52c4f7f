"""Cues in the formats of other software, one file per format; nothing here is needed for training or serving."""

from softcue.interop.export import FORMATS, ExportFormat, ExportOptions, ExportReport, export_cue
from softcue.interop.peft_import import import_peft

__all__ = ["FORMATS", "ExportFormat", "ExportOptions", "ExportReport", "export_cue", "import_peft"]
