"""What a cue has learned: its curve, mistakes, nearest words of its prompts, codes, sentence pairs; as a page."""

from softcue.inspection.checked_rows import CheckedRows, check_rows, check_suffix, write_evaluation
from softcue.inspection.codebook_curves import codebook_curves
from softcue.inspection.codes import Code, CodesByLabel, codes_by_label
from softcue.inspection.nearest import NearestWords, nearest_words
from softcue.inspection.page import cue_page, evaluation_page
from softcue.inspection.pair_page import length_page, pair_parts
from softcue.inspection.pair_pictures import length_picture, pair_picture
from softcue.inspection.pictures import code_map, evaluation_picture
from softcue.inspection.sentence_pairs import PairCosines, PairStudy, pair_study, text_vectors

__all__ = [
    "CheckedRows",
    "Code",
    "CodesByLabel",
    "NearestWords",
    "PairCosines",
    "PairStudy",
    "check_rows",
    "check_suffix",
    "code_map",
    "codebook_curves",
    "codes_by_label",
    "cue_page",
    "evaluation_page",
    "evaluation_picture",
    "length_page",
    "length_picture",
    "nearest_words",
    "pair_parts",
    "pair_picture",
    "pair_study",
    "text_vectors",
    "write_evaluation",
]
