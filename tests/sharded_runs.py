"""Short trainings on tiny backbones, also by torchrun with layers that are divided over the processes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from tiny import tiny_model, tiny_tokenizer
from toy import EXAMPLES, make_model

from softcue.backbones import Backbone
from softcue.backbones.sharding import shard_layers
from softcue.training import Processes, TaskData, Trainer, TrainingConfig

FAMILIES = ("bert", "t5", "gpt2")
METHODS = ("prompt-tuning", "p-tuning-v2", "m-idpg-phm", "m-idpg-phm kv", "vip", "lora", "adapter")
# name -> settings. Batches of 3 rows, one at a time: the second process has fewer rows than the first, or none.
BATCHES: dict[str, dict[str, Any]] = {
    "whole": {"batch_size": 4},
    "pieces": {"batch_size": 3, "micro_batch_size": 1},
    "contrastive": {"batch_size": 3, "micro_batch_size": 1, "contrastive": 0.5},
}
CASES = [(family, method, "whole") for family in FAMILIES for method in METHODS]
CASES += [(family, method, "pieces") for family in FAMILIES for method in ("prompt-tuning", "vip")]
CASES += [("bert", "m-idpg-phm", "contrastive"), ("bert", "p-tuning-v2 parallel", "whole")]


def train(backbone: Backbone, method: str, batches: str) -> dict[str, Any]:
    """The loss of each step, and the validation score after it."""
    model = make_model(backbone, method)
    processes = Processes()
    processes.is_in_step = backbone.is_sharded
    losses: list[float] = []

    def listen(kind: str, values: dict[str, Any]) -> None:
        if kind == "step":
            losses.append(values["loss"])

    settings = {"steps": 4, "learning_rate": 0.05, "network_learning_rate": 0.002, "evaluate_every": 2}
    config = TrainingConfig.model_validate({**settings, **BATCHES[batches]})
    data = [TaskData(model, EXAMPLES, EXAMPLES)]
    result = Trainer(backbone, data, config, listener=listen, processes=processes).run()
    return {"losses": losses, "scores": [entry["score"] for entry in result.state.history]}


def make_backbone(family: str) -> Backbone:
    """A backbone of its own, which can be divided."""
    return Backbone(tiny_model(family), tiny_tokenizer(family), family)


def num_bytes(backbone: Backbone) -> int:
    """The bytes of all layers' weights that this process holds."""
    weights = [weight for layer in backbone.layers for weight in layer.parameters()]
    local = [weight.to_local() if hasattr(weight, "to_local") else weight for weight in weights]
    return sum(tensor.untyped_storage().nbytes() for tensor in local)


if __name__ == "__main__":
    os.environ["SOFTCUE_HOME"] = f"{sys.argv[1]}/home-{os.environ['RANK']}"  # as on two machines
    Path(os.environ["SOFTCUE_HOME"]).mkdir()
    rank = Processes().rank
    results: dict[str, Any] = {}
    for family in FAMILIES:
        backbone = make_backbone(family)
        before = num_bytes(backbone)
        shard_layers(backbone, torch.device("cpu"))
        results[family] = num_bytes(backbone) / before
        for case in CASES:
            if case[0] == family:
                results[" ".join(case)] = train(backbone, *case[1:])
        backbone.checkpoint_layers()
        results[f"{family} checkpointed"] = train(backbone, "m-idpg-phm", "whole")
    (Path(sys.argv[1]) / f"{rank}.json").write_text(json.dumps(results))
    Processes.end()
