"""An example of a method in a package of its own: prompt tuning with one trained scale of the whole prompt."""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from softcue.backbones import Backbone
from softcue.methods import MethodConfig, Prompted, PromptedConfig
from softcue.prompts import PromptEncoder
from softcue.prompts.encoder import make_prompt
from softcue.tasks import Task
from softcue.types import Instance, Prompt


class ScaledPromptConfig(PromptedConfig):
    init_std: float = Field(0.5, ge=0, description="standard deviation of the initial vectors")


class ScaledPrompt(PromptEncoder):
    def __init__(self, initial: Tensor) -> None:
        super().__init__()
        self.prompt_length = len(initial)
        self.prompt = nn.Parameter(initial)  # [P D]
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, instance: Instance) -> Prompt:
        return make_prompt((self.scale * self.prompt).expand(len(instance.embeds), -1, -1))  # [B P D]

    def prompt_parameters(self) -> list[nn.Parameter]:
        return [self.prompt]


class ScaledPromptTuning(Prompted):
    Config = ScaledPromptConfig
    summary = "one trained matrix in front of the text, and one trained scale"
    paper = "-"
    presets: ClassVar = {"encoder": {"method": {"prompt_length": 3}, "training": {"learning_rate": 0.05, "epochs": 2}}}

    @classmethod
    def build(cls, config: MethodConfig, backbone: Backbone, task: Task, generator: torch.Generator | None) -> Self:
        assert isinstance(config, ScaledPromptConfig)
        initial = torch.zeros(config.prompt_length, backbone.width)
        if generator is not None:
            initial.normal_(std=config.init_std, generator=generator)
        return cls(ScaledPrompt(initial), config)
