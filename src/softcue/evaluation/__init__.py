"""Metrics as pure functions, scores of predictions, ensembles and baselines."""

from softcue.evaluation.baselines import linear_probe, zero_shot
from softcue.evaluation.ensemble import check_one_task, mean, vote, votes
from softcue.evaluation.evaluation_set import EvaluationSet, LabelMapping, match_labels, read_evaluation_set
from softcue.evaluation.scoring import Evaluation, check_metric, evaluate, score

__all__ = [
    "Evaluation",
    "EvaluationSet",
    "LabelMapping",
    "check_metric",
    "check_one_task",
    "evaluate",
    "linear_probe",
    "match_labels",
    "mean",
    "read_evaluation_set",
    "score",
    "vote",
    "votes",
    "zero_shot",
]
