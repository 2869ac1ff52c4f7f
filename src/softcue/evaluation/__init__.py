"""Metrics as pure functions, and how they are filled."""

from softcue.evaluation.baselines import linear_probe, untrained
from softcue.evaluation.evaluate import Evaluation, Predicted, Prepared, evaluate, predict, score
from softcue.evaluation.scoring import check_metric
from softcue.evaluation.transfer import Transfer, transfer_between
from softcue.evaluation.voting import check_one_task, mean, vote, votes

__all__ = [
    "Evaluation",
    "Predicted",
    "Prepared",
    "Transfer",
    "check_metric",
    "check_one_task",
    "evaluate",
    "linear_probe",
    "mean",
    "predict",
    "score",
    "transfer_between",
    "untrained",
    "vote",
    "votes",
]
