"""P-tuning v2 (Liu et al. 2022) and prefix tuning (Li and Liang 2021): trained prompts in every layer.

P-tuning v2 here is by default the form IDPG compares with (Wu et al. 2022, table 2): t*L*D numbers, added to the
hidden states. `rule=kv` is the original form, with keys and values: 2*t*L*D numbers.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from softcue.backbones import Backbone
from softcue.inputs.formatter import InsertAt
from softcue.methods.method import MethodConfig
from softcue.methods.prompted import DeepConfig, Prompted, levels_of
from softcue.prompts import DeepPrompt, PromptedLayers, ReparameterisedPrompt, Rule, initial
from softcue.tasks import Task


class PTuningV2Config(DeepConfig):
    """P-tuning v2: how layers take their prompts, and where these start."""

    only_training: ClassVar[tuple[str, ...]] = ("init", "init_std")

    prompt_length: int = Field(5, ge=1, le=1000, description="number of prompt vectors per layer, P")
    dropout: float = Field(
        0.0, ge=0, lt=1, description="on the prompt's numbers, in training; P-tuning v2's code has 0.1"
    )
    init: Literal["normal", "uniform"] = Field("normal", description="N(0, init_std), or U(-0.5, 0.5)")
    init_std: float = Field(0.02, ge=0, description="spread of the first vectors with init=normal")


class PTuningV2(Prompted):
    """Trained vectors for every layer, the same for every input."""

    Config = PTuningV2Config
    summary = "trained prompt vectors in every layer, the same for every input"
    paper = "Liu et al. 2022"

    @classmethod
    def build(cls, config: MethodConfig, backbone: Backbone, task: Task, generator: torch.Generator | None) -> Self:
        """A prompt for every layer."""
        assert isinstance(config, PTuningV2Config)
        return cls(cls._encoder(config, levels_of(config, backbone), backbone, generator), config)

    @classmethod
    def _encoder(
        cls, config: PTuningV2Config, levels: PromptedLayers, backbone: Backbone, generator: torch.Generator | None
    ) -> DeepPrompt:
        first = [_first(config, levels.width_of(level), generator) for level in levels.numbers]
        return DeepPrompt(levels, first, config.dropout)


def _first(config: PTuningV2Config, width: int, generator: torch.Generator | None) -> Tensor:
    if generator is None:
        return torch.zeros(config.prompt_length, width)
    if config.init == "uniform":
        return initial.uniform(config.prompt_length, width, generator)
    return torch.randn(config.prompt_length, width, generator=generator) * config.init_std


class PrefixTuningConfig(PTuningV2Config):
    """Prefix tuning: keys and values, through a small network if asked."""

    rule: Rule = Field("kv", description="kv: trained keys and values; add and replace work on hidden states")
    insert_at: InsertAt = Field("front", description="where the prefix stands; before everything in the paper")
    reparameterise: int = Field(
        0, ge=0, description="hidden width of the network that makes the prefix from a table; 0 trains it directly"
    )


class PrefixTuning(PTuningV2):
    """Trained keys and values in front of every layer's attention."""

    Config = PrefixTuningConfig
    summary = "trained keys and values in front of every layer's attention"
    paper = "Li and Liang 2021"

    @classmethod
    def _encoder(
        cls, config: PTuningV2Config, levels: PromptedLayers, backbone: Backbone, generator: torch.Generator | None
    ) -> DeepPrompt:
        assert isinstance(config, PrefixTuningConfig)
        if not config.reparameterise:
            return super()._encoder(config, levels, backbone, generator)
        table = _first(config, backbone.width, generator)  # [P D], however narrow the keys are
        return ReparameterisedPrompt(levels, table, config.reparameterise, config.dropout)
