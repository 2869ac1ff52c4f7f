"""Metrics as pure functions, and how they are filled."""

from softcue.evaluation.baselines import linear_probe, representations, untrained
from softcue.evaluation.evaluate import Evaluation, Predicted, evaluate, predict, score
from softcue.evaluation.metrics import check_metric

__all__ = [
    "Evaluation",
    "Predicted",
    "check_metric",
    "evaluate",
    "linear_probe",
    "predict",
    "representations",
    "score",
    "untrained",
]
