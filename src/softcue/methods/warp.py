"""WARP (Hambardzumyan et al. 2021): prompt vectors around the text and a mask, and class vectors for its state.

    [CLS] P P  text  P P [MASK] P P  second text  P P [SEP]

The state at the mask, from the masked-word head without its last layer, is compared with one trained vector for each
class. Prompt vectors and class vectors are trained. The class vectors are the rows of the linear head
(`readout.pooling=mask`); one output is a regression.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import torch
from pydantic import Field

from softcue.backbones import Backbone
from softcue.inputs.formatter import InsertAt
from softcue.methods.method import MethodConfig, Prompted
from softcue.methods.prompt_tuning import InitConfig, initial_prompt
from softcue.prompts import StaticPrompt
from softcue.tasks import Task
from softcue.types import BackboneKind


class WARPConfig(InitConfig):
    """WARP: the number of prompt vectors and how they start."""

    prompt_length: int = Field(
        20, ge=0, le=1000, description="number of prompt vectors, K; 0: only the class vectors (the paper's WARP_0)"
    )
    insert_at: InsertAt = Field(
        "around", description="around: a quarter each at the start, before the mask, behind it and at the end"
    )
    init: Literal["mask", "uniform", "vocabulary", "labels", "text", "file"] = Field(  # type: ignore[assignment]
        "mask", description="initial prompt vectors; mask: each is the word vector of the mask token"
    )


class WARP(Prompted):
    """WARP (Hambardzumyan et al. 2021)."""

    Config: ClassVar[type[MethodConfig]] = WARPConfig
    summary = "prompt vectors around the text and a mask token, and a vector for each class"
    paper = "Hambardzumyan et al. 2021"
    kinds: ClassVar[tuple[BackboneKind, ...]] = ("encoder",)
    readout_defaults: ClassVar[dict[str, str]] = {"pooling": "mask"}

    @classmethod
    def build(cls, config: MethodConfig, backbone: Backbone, task: Task, generator: torch.Generator | None) -> Self:
        """Make the prompt vectors; the class vectors are the readout's."""
        assert isinstance(config, WARPConfig)
        initial = torch.zeros(config.prompt_length, backbone.width)
        if generator is not None and config.init == "mask":
            initial += backbone.word_input_states[torch.tensor([backbone.tokenizer.mask_token_id])].cpu().float()
            initial *= config.init_scale
        elif generator is not None:
            initial = initial_prompt(config, backbone, task, generator)
        return cls(StaticPrompt(initial), config)
