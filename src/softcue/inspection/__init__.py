"""What a cue has learned: its curve, its mistakes, the nearest words of its prompt vectors, its codes; as a page."""

from softcue.inspection.checked_rows import CheckedRows, check_rows, check_suffix, write_evaluation
from softcue.inspection.clusters import WordClusters, word_clusters
from softcue.inspection.codebook_curves import codebook_curves
from softcue.inspection.codes import Code, CodesByLabel, codes_by_label
from softcue.inspection.kept_labels import LabelPlace, label_places
from softcue.inspection.nearest import NearestWords, nearest_words
from softcue.inspection.page import cue_page, evaluation_page
from softcue.inspection.pictures import code_map, evaluation_picture
from softcue.inspection.word_pictures import words_picture
from softcue.inspection.words_page import word_parts

__all__ = [
    "CheckedRows",
    "Code",
    "CodesByLabel",
    "LabelPlace",
    "NearestWords",
    "WordClusters",
    "check_rows",
    "check_suffix",
    "code_map",
    "codebook_curves",
    "codes_by_label",
    "cue_page",
    "evaluation_page",
    "evaluation_picture",
    "label_places",
    "nearest_words",
    "word_clusters",
    "word_parts",
    "words_picture",
    "write_evaluation",
]
