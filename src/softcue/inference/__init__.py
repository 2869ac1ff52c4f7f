"""A task on a backbone, rows of several tasks in one pass, and predictions for many rows."""

from softcue.inference.input_embeds import Obstacle, find_obstacle
from softcue.inference.mixed_batches import group_by_model, predict_mixed, tokenize_requests
from softcue.inference.predict import Predictions, PreparedRequests, predict
from softcue.inference.task_model import StepOutput, TaskModel, make_task_model, with_readout

__all__ = [
    "Obstacle",
    "Predictions",
    "PreparedRequests",
    "StepOutput",
    "TaskModel",
    "find_obstacle",
    "group_by_model",
    "make_task_model",
    "predict",
    "predict_mixed",
    "tokenize_requests",
    "with_readout",
]
