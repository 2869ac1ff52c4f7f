"""Metrics as pure functions, and how they are filled."""

from softcue.evaluation.baselines import linear_probe, zero_shot
from softcue.evaluation.evaluate import Evaluation, evaluate, score
from softcue.evaluation.scoring import check_metric
from softcue.evaluation.transfer import Transfer, transfer_between
from softcue.evaluation.voting import check_one_task, mean, vote, votes

__all__ = [
    "Evaluation",
    "Transfer",
    "check_metric",
    "check_one_task",
    "evaluate",
    "linear_probe",
    "mean",
    "score",
    "transfer_between",
    "vote",
    "votes",
    "zero_shot",
]
