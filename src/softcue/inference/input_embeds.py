"""What a program needs that computes a cue's predictions from input embeddings alone: prompt and text in one sequence.

It has the frozen weights of the decoder and nothing else of softcue. So all that a method adds must be in the sequence,
and all that a readout reads must be words.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from softcue.backbones import Backbone
from softcue.inference.task_model import TaskModel
from softcue.inputs.collate import collate
from softcue.types import Example


class Obstacle(NamedTuple):
    """A setting for which input embeddings are not enough, and the reason."""

    setting: str
    got: object
    expected: str
    reason: str


@torch.no_grad()
def find_obstacle(model: TaskModel, backbone: Backbone) -> Obstacle | None:
    """Why input embeddings are not enough for the predictions of a model; None if they are.

    Example:
        if obstacle := find_obstacle(cue.model, cue.backbone):
            print(obstacle.reason)
    """
    local, method, readout = backbone.whole, model.method, model.readout
    name = method.config.name
    if local.kind != "decoder":
        return Obstacle("backbone", local.name, "a decoder", f"it is an {local.kind}")
    if method.weights is not None:
        return Obstacle("method.name", name, "a frozen backbone", "the cue has its own weights of the backbone")
    if readout.shared_computation == "hidden":
        return Obstacle(
            "readout.name", readout.config.name, "a readout of words", "its head reads hidden states, which stay inside"
        )
    view = method.view_of(local)
    if view.whole is not view:
        layer = getattr(method.config, "insert_layer", None)
        return Obstacle("method.insert_layer", layer, "0", "its prompt enters a deeper layer")
    if view is not local:
        return Obstacle("method.name", name, "a prompt, or none", "it changes what layers compute")
    [example, *_] = model.split(Example(("a",) * len(model.task.text)))
    batch = collate(model.rows(local, [example], use_disk_cache=False), local.tokenizer.pad_token_id).to(local.device)
    prompt = model.prompt(local, batch, local.input_states(batch))
    if prompt is not None and prompt.layer_prompts is not None:
        expected = "a prompt that enters at the input only"
        return Obstacle("method.name", name, expected, "its prompts enter deeper layers, or are keys and values")
    return None
