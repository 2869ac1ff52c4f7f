"""A short training of a toy task on a tiny backbone."""

from __future__ import annotations

from typing import Any

from tiny import tiny
from toy import EXAMPLES, make_model

from softcue.inference import TaskModel
from softcue.training import TaskData, Trainer, TrainingConfig
from softcue.training.loop import TrainingResult

SETTINGS = {"steps": 4, "batch_size": 6, "learning_rate": 0.1, "network_learning_rate": 0.05, "evaluate_every": 2}


def trained(
    readout: dict[str, Any] | None = None, family: str = "bert", method: str = "prompt-tuning", **settings: object
) -> tuple[TrainingResult, TaskModel, list[float]]:
    """Train a few steps; returns the result, the model and the loss of each step."""
    backbone = tiny(family)
    model = make_model(backbone, method, readout={"dropout": 0.0, "name": "classifier", **(readout or {})})
    losses: list[float] = []

    def listen(kind: str, values: dict[str, Any]) -> None:
        if kind == "step":
            losses.append(values["loss"])

    config = TrainingConfig.model_validate({**SETTINGS, **settings})
    result = Trainer(backbone, [TaskData(model, EXAMPLES * 2, EXAMPLES)], config, listener=listen).run()
    return result, model, losses
