"""Inspection of a cue: nearest words, codes per label, pictures and an HTML page."""

from softcue.inspection.codes import CodesByLabel, codes_by_label
from softcue.inspection.nearest import NearestWords, nearest_words
from softcue.inspection.page import cue_page
from softcue.inspection.pictures import code_map, training_curves

__all__ = [
    "CodesByLabel",
    "NearestWords",
    "code_map",
    "codes_by_label",
    "cue_page",
    "nearest_words",
    "training_curves",
]
