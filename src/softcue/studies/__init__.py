"""Comparisons of cues and runs: statistics, tables and reports. `softcue.compare` is in `softcue.studies.compare`."""

from softcue.studies.comparison import Comparison, Pair
from softcue.studies.methods import MethodComparison, MethodLine, TrainedRun, compare_methods
from softcue.studies.predictions import CuePair, DifferentRow, PredictionComparison, compare_predictions
from softcue.studies.statistics import Difference, bootstrap_difference, exact_mcnemar
from softcue.studies.table import Table

__all__ = [
    "Comparison",
    "CuePair",
    "Difference",
    "DifferentRow",
    "MethodComparison",
    "MethodLine",
    "Pair",
    "PredictionComparison",
    "Table",
    "TrainedRun",
    "bootstrap_difference",
    "compare_methods",
    "compare_predictions",
    "exact_mcnemar",
]
