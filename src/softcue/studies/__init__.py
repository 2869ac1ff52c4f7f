"""Comparisons of cues and runs: statistics, tables and reports."""

from softcue.studies.methods import MethodComparison, MethodLine, MethodPair, TrainedRun, compare_methods
from softcue.studies.predictions import CuePair, DifferentRow, PredictionComparison, compare_predictions
from softcue.studies.statistics import Difference, bootstrap_difference, exact_mcnemar

__all__ = [
    "CuePair",
    "Difference",
    "DifferentRow",
    "MethodComparison",
    "MethodLine",
    "MethodPair",
    "PredictionComparison",
    "TrainedRun",
    "bootstrap_difference",
    "compare_methods",
    "compare_predictions",
    "exact_mcnemar",
]
