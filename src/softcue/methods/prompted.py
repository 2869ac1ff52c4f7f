"""What methods made of one prompt encoder share, and the unprompted baseline."""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from pydantic import Field, field_validator
from torch import nn

from softcue.backbones import Backbone
from softcue.errors import ConfigurationError
from softcue.inputs.formatter import NUMBERED_PLACES, InsertAt
from softcue.methods.method import Method, MethodConfig
from softcue.prompts import PromptedLayers, PromptEncoder, Rule
from softcue.tasks import Task
from softcue.types import Instance, Prompt


class PromptedConfig(MethodConfig):
    """Settings of every method that puts prompt vectors beside the text."""

    only_training: ClassVar[tuple[str, ...]] = ("insert_at",)

    prompt_length: int = Field(20, ge=1, le=1000, description="number of prompt vectors, P")
    insert_at: InsertAt = Field(
        "start",
        description="front: before everything; start: after a leading [CLS]/BOS; first-end, second-start: of two "
        "texts; end: after the text; appended: behind it between separators; or IDPG's numbers 0 to 4 for "
        "start, first-end, second-start, end, appended",
    )

    insert_layer: int = Field(
        0, ge=0, description="the layer prompts enter at; those below read the text alone, once (0: word embeddings)"
    )

    def view_of(self, backbone: Backbone) -> Backbone:
        """The backbone from the layer on that prompts enter."""
        return backbone.from_layer(self.insert_layer) if self.insert_layer else backbone

    @field_validator("insert_at", mode="before")
    @classmethod
    def _numbered(cls, place: object) -> object:
        """A place by IDPG's number."""
        if str(place).isdigit() and not isinstance(place, bool) and int(str(place)) < len(NUMBERED_PLACES):
            return NUMBERED_PLACES[int(str(place))]
        return place


class DeepConfig(PromptedConfig):
    """Settings of methods that put prompts into every layer."""

    rule: Rule = Field(
        "add", description="how a layer takes its prompt: add to hidden states, replace them, or kv (keys and values)"
    )
    layers: tuple[int, ...] = Field((), description="levels that get prompts, from 0; none given: all of them")

    @field_validator("layers", mode="before")
    @classmethod
    def _listed(cls, layers: object) -> object:
        """`0,2,4` on the command line, or one number."""
        if isinstance(layers, int) and not isinstance(layers, bool):
            return (layers,)
        return tuple(part.strip() for part in layers.split(",")) if isinstance(layers, str) and layers else layers


def levels_of(config: DeepConfig, backbone: Backbone, deepest: int | None = None) -> PromptedLayers:
    """The levels a configuration names on a backbone."""
    known = range(backbone.num_layers if deepest is None else deepest)
    numbers = tuple(sorted(set(config.layers))) or tuple(known)
    if unknown := [number for number in numbers if number not in known]:
        raise ConfigurationError(
            setting="method.layers",
            got=unknown[0],
            expected=f"levels 0 to {len(known) - 1} of {backbone.name}",
            fix="leave it out for all of them",
        )
    if config.rule == "kv" and len(numbers) < backbone.num_layers:
        raise ConfigurationError(
            setting="method.rule",
            got="kv",
            expected="prompts in every layer, or the rules add and replace",
            fix="elsewhere the text would attend to empty positions",
        )
    key_width = backbone.key_width if config.rule == "kv" else 0
    return PromptedLayers(numbers, config.rule, backbone.width, backbone.hidden_width, key_width)


class Prompted(Method):
    """A method whose only trained part is a prompt encoder."""

    def __init__(self, encoder: PromptEncoder, config: PromptedConfig) -> None:
        super().__init__()
        self.encoder = encoder
        self.config = config
        self.prompt_length = encoder.prompt_length
        self.insert_at = config.insert_at

    def prompt(self, instance: Instance) -> Prompt:
        """The encoder's prompt."""
        return self.encoder(instance)  # type: ignore[no-any-return]

    def prompt_parameters(self) -> list[nn.Parameter]:
        """The encoder's own vectors."""
        return self.encoder.prompt_parameters()

    def prompt_encoder(self) -> PromptEncoder:
        """The encoder."""
        return self.encoder


class NoPromptConfig(MethodConfig):
    """The unprompted backbone has no settings."""


class NoPrompt(Method):
    """The backbone as it is; only a readout's head, if there is one, is trained, on features computed once."""

    Config: ClassVar[type[MethodConfig]] = NoPromptConfig
    summary = "no prompt at all: only the readout's head is trained (a baseline)"
    paper = "-"
    changes_reading = False

    def __init__(self, config: MethodConfig) -> None:
        super().__init__()
        self.config = config

    @classmethod
    def build(cls, config: MethodConfig, backbone: Backbone, task: Task, generator: torch.Generator | None) -> Self:
        """Nothing to build."""
        return cls(config)
