"""What tests do with backbones whose weights are integers: load them, train a few steps, ask for a method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from toy import EXAMPLES, TASK, make_model

from softcue.backbones import Backbone, BackboneConfig, load_backbone
from softcue.configuration import method_config
from softcue.methods import METHODS
from softcue.training import TaskData, Trainer, TrainingConfig


def load(folder: Path, quantization: str = "none", **settings: str) -> Backbone:
    """Load a model folder in float32, unless settings say otherwise."""
    values = {"name": str(folder), "dtype": "float32", "quantization": quantization, **settings}
    return load_backbone(BackboneConfig.model_validate(values))


def losses_of(backbone: Backbone, method: str) -> list[float]:
    """The losses of three training steps: those after the first depend on gradients."""
    losses: list[float] = []

    def listen(kind: str, values: dict[str, Any]) -> None:
        if kind == "step":
            losses.append(values["loss"])

    model = make_model(backbone, method, readout={"dropout": 0.0, "name": "classifier"})
    config = TrainingConfig.model_validate({"steps": 3, "batch_size": 6, "learning_rate": 0.1})
    Trainer(backbone, [TaskData(model, EXAMPLES, EXAMPLES)], config, listener=listen).run()
    trained = [value for value in model.parameters() if value.requires_grad]
    assert trained and {value.dtype for value in trained} == {torch.float32}
    return losses


def build(backbone: Backbone, settings: dict[str, Any]) -> object:
    """Make the method of these settings on a backbone."""
    config = method_config(settings)
    return METHODS[config.name].make(config, backbone, TASK, torch.Generator())
