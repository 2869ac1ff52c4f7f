"""Metrics as pure functions, and how they are filled."""

from softcue.evaluation.baselines import linear_probe, untrained
from softcue.evaluation.evaluate import Evaluation, Predicted, evaluate, predict, score
from softcue.evaluation.metrics import check_metric
from softcue.evaluation.voting import check_one_task, vote, votes

__all__ = [
    "Evaluation",
    "Predicted",
    "check_metric",
    "check_one_task",
    "evaluate",
    "linear_probe",
    "predict",
    "score",
    "untrained",
    "vote",
    "votes",
]
