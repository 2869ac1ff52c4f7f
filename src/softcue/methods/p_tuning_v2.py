"""P-tuning v2 (Liu et al. 2022) and prefix tuning (Li and Liang 2021): trained prompts in every layer.

By default P-tuning v2 has the form that IDPG compares with (Wu et al. 2022, table 2): t*L*D parameters, added to the
hidden states. `rule=kv` is the original form with keys and values: 2*t*L*D parameters.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from softcue.backbones import Backbone
from softcue.inputs.formatter import InsertAt
from softcue.methods.method import (
    MOST_WIDTH,
    DeepConfig,
    DeepRule,
    MethodConfig,
    Prompted,
    make_prompted_layers,
    unit_keys,
    with_rule,
    with_units,
)
from softcue.prompts import DeepPrompt, PromptedLayers, ReparameterisedPrompt
from softcue.prompts.prompt_tuning import uniform_vectors
from softcue.tasks import Task


class PTuningV2Config(DeepConfig):
    """P-tuning v2: how layers take their prompts, and the initial values."""

    fields_free_to_differ: ClassVar[tuple[str, ...]] = ("init", "init_std")

    prompt_length: int = Field(5, ge=1, le=1000, description="number of prompt vectors per layer, P")
    dropout: float = Field(
        0.0, ge=0, lt=1, description="on the prompt vectors, in training; P-tuning v2's code has 0.1"
    )
    init: Literal["normal", "uniform"] = Field("normal", description="N(0, init_std), or U(-0.5, 0.5)")
    init_std: float = Field(0.02, ge=0, description="standard deviation of the initial vectors with init=normal")


class PTuningV2(Prompted):
    """Trained vectors for every layer, the same for every input.

    The paper sets keys and values (`rule=kv`). The default, `rule=add`, is the form IDPG compares with.
    """

    Config = PTuningV2Config
    summary = "trained prompt vectors in every layer, the same for every input"
    paper = "Liu et al. 2022"

    @classmethod
    def build(cls, config: MethodConfig, backbone: Backbone, task: Task, generator: torch.Generator | None) -> Self:
        """Make a prompt for every layer."""
        assert isinstance(config, PTuningV2Config)
        config = with_rule(config, backbone)
        prompted_layers = make_prompted_layers(config, backbone)
        config = with_units(config, prompted_layers, backbone)
        return cls(cls._make_encoder(config, prompted_layers, backbone, generator), config)

    @classmethod
    def _make_encoder(
        cls,
        config: PTuningV2Config,
        prompted_layers: PromptedLayers,
        backbone: Backbone,
        generator: torch.Generator | None,
    ) -> DeepPrompt:
        if prompted_layers.rule == "parallel":
            initial = [
                unit_keys(config.prompt_length, prompted_layers.key_width, generator) for _ in prompted_layers.layers
            ]
            return DeepPrompt(prompted_layers, initial, config.dropout, config.units)
        initial = [
            _initial_vectors(config, prompted_layers.vector_width(layer), generator) for layer in prompted_layers.layers
        ]
        return DeepPrompt(prompted_layers, initial, config.dropout)


def _initial_vectors(config: PTuningV2Config, width: int, generator: torch.Generator | None) -> Tensor:
    """Return the initial vectors of one layer. [P X]"""
    if generator is None:
        return torch.zeros(config.prompt_length, width)
    if config.init == "uniform":
        return uniform_vectors(config.prompt_length, width, generator)
    return torch.randn(config.prompt_length, width, generator=generator) * config.init_std


class PrefixTuningConfig(PTuningV2Config):
    """Prefix tuning: keys and values, optionally made by a small network."""

    rule: DeepRule = Field("kv", description="kv: trained keys and values; add and replace work on hidden states")
    insert_at: InsertAt = Field("front", description="where the prefix goes; in the paper before everything")
    reparameterise: int = Field(
        0,
        ge=0,
        le=MOST_WIDTH,
        description="hidden width of the network that makes the prefix from a table; 0: no network",
    )


class PrefixTuning(PTuningV2):
    """Trained keys and values in front of every layer's attention.

    The paper's network over the prefix is off unless `reparameterise` gives its width; the cue then stores it.
    """

    Config = PrefixTuningConfig
    summary = "trained keys and values in front of every layer's attention"
    paper = "Li and Liang 2021"

    @classmethod
    def _make_encoder(
        cls,
        config: PTuningV2Config,
        prompted_layers: PromptedLayers,
        backbone: Backbone,
        generator: torch.Generator | None,
    ) -> DeepPrompt:
        assert isinstance(config, PrefixTuningConfig)
        if not config.reparameterise:
            return super()._make_encoder(config, prompted_layers, backbone, generator)
        table = _initial_vectors(config, backbone.width, generator)  # [P D], also where keys are narrower
        return ReparameterisedPrompt(prompted_layers, table, config.reparameterise, config.dropout)
