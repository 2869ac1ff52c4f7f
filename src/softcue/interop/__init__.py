"""Cues in the formats of other software, one file per format; nothing here is needed for training or serving."""

from softcue.interop.export import FORMATS, ExportFormat, ExportOptions, ExportReport, export_cue

__all__ = ["FORMATS", "ExportFormat", "ExportOptions", "ExportReport", "export_cue"]
