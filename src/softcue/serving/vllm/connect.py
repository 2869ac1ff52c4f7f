"""A backbone whose passes run in vLLM, and the check that vLLM has the same model."""

from __future__ import annotations

import os
import shlex
import sys

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from softcue.backbones import Backbone
from softcue.errors import BackboneError, CueError
from softcue.inference import TaskModel, find_obstacle
from softcue.serving.vllm.client import VllmClient
from softcue.serving.vllm.process import VllmProcess

KEY = "SOFTCUE_VLLM_KEY"  # environment variable
CHECKED_TOKENS = 8
# Largest difference between the log-probabilities of equal models: rounding in another order, by number format.
LARGEST_DIFFERENCE = {torch.float32: 0.01, torch.bfloat16: 0.5, torch.float16: 0.1}


class VllmSettings(BaseModel):
    """Where vLLM is, or how it is started."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str | None = Field(None, description="a running vLLM with --enable-prompt-embeds; null: start one")
    python: str | None = Field(None, description="the Python of the environment that has vLLM, to start one")
    arguments: str = Field("", description="more options for the vLLM that is started, as in a shell")


def on_vllm(backbone: Backbone, settings: VllmSettings) -> Backbone:
    """The backbone with passes in vLLM, after a check on a few tokens that it computes the same.

    Example:
        served = on_vllm(load_backbone("smollm2"), VllmSettings(url="http://127.0.0.1:8100"))
    """
    if backbone.kind != "decoder":
        raise BackboneError(
            setting="engine",
            got=f"vllm for {backbone.name}",
            expected="a decoder, which vLLM can run from input embeddings",
            fix=f"use --engine local: this is an {backbone.kind}",
        )
    if settings.url is None:
        server: VllmClient = VllmProcess(backbone, settings.python or sys.executable, shlex.split(settings.arguments))
    else:
        server = VllmClient(settings.url, os.environ.get(KEY, ""))
    try:
        check_same_model(backbone, server)
    except BaseException:
        server.close()
        raise
    return backbone.on_server(server)


@torch.no_grad()
def check_same_model(backbone: Backbone, server: VllmClient) -> None:
    """Raise an error unless vLLM gives a few tokens the log-probabilities that the backbone gives them here.

    Example:
        check_same_model(load_backbone("smollm2"), VllmClient("http://127.0.0.1:8100"))
    """
    num_words = len(backbone.word_table)
    ids = torch.arange(1, 1 + CHECKED_TOKENS, device=backbone.device) * 41 % num_words
    embeds = backbone.embed(ids).to(backbone.dtype)  # [S D]
    logits: Tensor = backbone.model(inputs_embeds=embeds[None]).logits[0, -1].float()
    expected = logits.log_softmax(0)[ids].cpu()
    got = server.log_probabilities([embeds], ids.tolist())[0]
    difference = float((got - expected).abs().max())
    if not difference <= LARGEST_DIFFERENCE[backbone.dtype]:
        raise BackboneError(
            setting="vLLM",
            got=f"log-probabilities that differ by {difference:.3g} from those of {backbone.name}",
            expected="the same model in the same number format",
            fix=f"start it on the files of {backbone.name}, with --dtype {str(backbone.dtype).removeprefix('torch.')}",
        )


def check_cue(name: str, model: TaskModel, backbone: Backbone) -> None:
    """Raise an error if vLLM cannot compute the predictions of a cue.

    Example:
        check_cue("tickets", cue.model, cue.backbone)
    """
    decoding = model.readout.decoding
    if decoding is not None and (decoding.num_beams > 1 or decoding.temperature):
        raise CueError(
            setting=f"cue {name}, readout.decoding",
            got=model.readout.config.decoding,
            expected="rank or greedy with --engine vllm",
            fix="use --engine local: vLLM draws and compares beams in another way",
        )
    if obstacle := find_obstacle(model, backbone):
        raise CueError(
            setting=f"cue {name}, {obstacle.setting}",
            got=obstacle.got,
            expected=f"{obstacle.expected} with --engine vllm",
            fix=f"use --engine local: {obstacle.reason}",
        )
