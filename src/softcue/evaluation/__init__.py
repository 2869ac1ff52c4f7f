"""Metrics as pure functions, scores of predictions, ensembles and baselines."""

from softcue.evaluation.baselines import linear_probe, zero_shot
from softcue.evaluation.ensemble import check_one_task, mean, vote, votes
from softcue.evaluation.evaluate import Evaluation, evaluate, score
from softcue.evaluation.evaluation_set import EvaluationSet, LabelMapping, read_evaluation_set, transfer_between
from softcue.evaluation.scoring import check_metric

__all__ = [
    "Evaluation",
    "EvaluationSet",
    "LabelMapping",
    "check_metric",
    "check_one_task",
    "evaluate",
    "linear_probe",
    "mean",
    "read_evaluation_set",
    "score",
    "transfer_between",
    "vote",
    "votes",
    "zero_shot",
]
