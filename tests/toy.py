"""Test-only methods that use every part of the contract: prompts that read the input, on every layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

import torch
from torch import Tensor, nn

from softcue.backbones import Backbone, pooled
from softcue.methods import METHODS, Method, MethodConfig, TaskModel
from softcue.methods.prompted import Prompted, PromptedConfig
from softcue.prompts import PromptEncoder
from softcue.prompts.encoder import whole_prompt
from softcue.readouts import ReadoutConfig, make_readout
from softcue.tasks import Label, Task
from softcue.types import Example, Instance, Prompt

TASK = Task(
    name="toy",
    labels={"a": Label(words="account"), "b": Label(words="billing"), "c": Label(words="my order")},
)
PAIRS = Task(name="pairs", text=("first", "second"), labels={"same": Label(words="yes"), "other": Label(words="no")})
EXAMPLES = [
    Example(("The invoice is wrong.",), "b"),
    Example(("I cannot sign in to my account since this morning, please help me",), "a"),
    Example(("Where is it",), "c"),
    Example(("My order 77 never came and nobody answers the phone at all",), "c"),
    Example(("refund",), "b"),
]


class ReadingEncoder(PromptEncoder):
    """Prompt tokens and deeper vectors are linear in what they read."""

    def __init__(self, length: int, width: int, hidden: int, replaces: bool) -> None:
        super().__init__()
        self.prompt_length = length
        self.start = nn.Linear(width, length * width)
        self.deep = nn.Linear(hidden, length * hidden)
        self.base = nn.Parameter(torch.randn(length, width) * 0.1)
        self.replaces = replaces

    def forward(self, instance: Instance) -> Prompt:
        summary = pooled(instance.embeds, instance.mask, "mean")
        tokens = self.start(summary).view(len(summary), self.prompt_length, -1) + self.base

        def deeper(layer: int, hidden: Tensor, mask: Tensor) -> Tensor:
            summary = pooled(hidden.float(), mask, "mean")
            return self.deep(summary).view(len(summary), self.prompt_length, -1) * layer

        replaces = torch.full((len(summary),), self.replaces)
        return replace(whole_prompt(tokens), deeper=deeper, replaces=replaces)

    def prompt_parameters(self) -> list[nn.Parameter]:
        return [self.base]


class ToyConfig(PromptedConfig):
    replaces: bool = False


class Toy(Prompted):
    Config = ToyConfig
    summary, paper = "toy", "-"

    @classmethod
    def build(cls, config: MethodConfig, backbone: Backbone, task: Task, generator: torch.Generator | None) -> Self:
        assert isinstance(config, ToyConfig)
        encoder = ReadingEncoder(config.prompt_length, backbone.width, backbone.hidden_width, config.replaces)
        return cls(encoder, config.insert_at)


ALL_METHODS: dict[str, tuple[type[Method], dict[str, object]]] = {
    **{name: (method, {}) for name, method in METHODS.items()},
    "toy-add": (Toy, {}),
    "toy-replace": (Toy, {"replaces": True}),
}


def make_model(
    backbone: Backbone, method: str = "prompt-tuning", task: Task = TASK, readout: dict[str, object] | None = None,
    seed: int = 0, **settings: object,
) -> TaskModel:  # fmt: skip
    """A task model with visible numbers: prompts and heads far from zero."""
    torch.manual_seed(seed)
    method_class, fixed = ALL_METHODS[method]
    values: dict[str, object] = {"name": method, **fixed, **settings}
    if "prompt_length" in method_class.Config.model_fields:
        values.setdefault("prompt_length", 4)
    config = method_class.Config.model_validate(values)
    built = method_class.build(config, backbone, task, torch.Generator().manual_seed(seed))
    model = TaskModel(task, built, make_readout(ReadoutConfig.model_validate(readout or {}), task, backbone), backbone)
    for parameter in model.readout.parameters():
        parameter.data.normal_(std=0.5)
    return model.eval()
