"""Metrics as pure functions, scores of predictions, ensembles and baselines."""

from softcue.evaluation.baseline_lines import BaselineLine, baseline_lines
from softcue.evaluation.baselines import (
    constant_prediction,
    describe_better_baselines,
    is_constant_zero_shot,
    linear_probe,
    predict_baselines,
    why_no_zero_shot,
    zero_shot,
)
from softcue.evaluation.ensemble import check_one_task, mean, vote, votes
from softcue.evaluation.evaluation_set import EvaluationSet, LabelMapping, match_labels, read_evaluation_set
from softcue.evaluation.label_scores import ConfusionMatrix, LabelScores
from softcue.evaluation.report import (
    BASELINES,
    FEW_ROWS,
    Evaluation,
    count_rows,
    evaluate,
    format_scores,
    main_of_scores,
    name_baselines,
    score,
)
from softcue.evaluation.scoring import check_metric, format_score
from softcue.evaluation.wrong_rows import WrongRow, wrong_rows

__all__ = [
    "BASELINES",
    "FEW_ROWS",
    "BaselineLine",
    "ConfusionMatrix",
    "Evaluation",
    "EvaluationSet",
    "LabelMapping",
    "LabelScores",
    "WrongRow",
    "baseline_lines",
    "check_metric",
    "check_one_task",
    "constant_prediction",
    "count_rows",
    "describe_better_baselines",
    "evaluate",
    "format_score",
    "format_scores",
    "is_constant_zero_shot",
    "linear_probe",
    "main_of_scores",
    "match_labels",
    "mean",
    "name_baselines",
    "predict_baselines",
    "read_evaluation_set",
    "score",
    "vote",
    "votes",
    "why_no_zero_shot",
    "wrong_rows",
    "zero_shot",
]
