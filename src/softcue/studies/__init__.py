"""Comparisons of cues and runs: statistics, tables and reports."""

from softcue.studies.predictions import CuePair, DifferentRow, PredictionComparison, compare_predictions
from softcue.studies.statistics import Difference, bootstrap_difference, exact_mcnemar

__all__ = [
    "CuePair",
    "Difference",
    "DifferentRow",
    "PredictionComparison",
    "bootstrap_difference",
    "compare_predictions",
    "exact_mcnemar",
]
