"""What a cue has learned: curve, mistakes, nearest words, codes, sentence pairs; several cues; sizes; as pages."""

from softcue.inspection.checked_rows import CheckedRows, check_rows, check_suffix, write_evaluation
from softcue.inspection.clusters import WordClusters, word_clusters
from softcue.inspection.codebook_curves import codebook_curves
from softcue.inspection.codes import Code, CodesByLabel, codes_by_label
from softcue.inspection.comparison import CueComparison, compare_cues
from softcue.inspection.comparison_page import comparison_page
from softcue.inspection.comparison_pictures import curves_picture, similarity_picture
from softcue.inspection.kept_labels import LabelPlace, label_places
from softcue.inspection.nearest import AT_START, NearestWords, nearest_words
from softcue.inspection.page import cue_page, evaluation_page
from softcue.inspection.pair_page import length_page, pair_parts
from softcue.inspection.pair_pictures import length_picture, pair_picture
from softcue.inspection.parameter_page import parameter_page, parameter_picture
from softcue.inspection.parameter_sizes import ParameterSizes, count_by_size, figure_4
from softcue.inspection.pictures import code_map, evaluation_picture
from softcue.inspection.sentence_pairs import PairCosines, PairStudy, pair_study, text_vectors
from softcue.inspection.similarity import PlacedPrompt, PromptSimilarity, placed_prompt, prompt_similarity
from softcue.inspection.word_pictures import words_picture
from softcue.inspection.words_page import word_parts

__all__ = [
    "AT_START",
    "CheckedRows",
    "Code",
    "CodesByLabel",
    "CueComparison",
    "LabelPlace",
    "NearestWords",
    "PairCosines",
    "PairStudy",
    "ParameterSizes",
    "PlacedPrompt",
    "PromptSimilarity",
    "WordClusters",
    "check_rows",
    "check_suffix",
    "code_map",
    "codebook_curves",
    "codes_by_label",
    "compare_cues",
    "comparison_page",
    "count_by_size",
    "cue_page",
    "curves_picture",
    "evaluation_page",
    "evaluation_picture",
    "figure_4",
    "label_places",
    "length_page",
    "length_picture",
    "nearest_words",
    "pair_parts",
    "pair_picture",
    "pair_study",
    "parameter_page",
    "parameter_picture",
    "placed_prompt",
    "prompt_similarity",
    "similarity_picture",
    "text_vectors",
    "word_clusters",
    "word_parts",
    "words_picture",
    "write_evaluation",
]
