"""The cases of the conformance suite: every method with settings that fit tiny backbones, and two test-only methods
that use every part of the contract, prompts that read the input on every layer."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from functools import cache
from typing import Self

import torch
from tiny import KINDS
from torch import Tensor, nn

from softcue.backbones import Backbone, pool
from softcue.inference import TaskModel, make_task_model
from softcue.methods import METHODS, Method, MethodConfig
from softcue.methods.method import Prompted, PromptedConfig
from softcue.prompts import PromptEncoder
from softcue.prompts.encoder import make_prompt
from softcue.readouts import ReadoutConfig
from softcue.tasks import Label, Task
from softcue.types import Example, Instance, LayerPrompt, Prompt

Settings = dict[str, object]
TASK = Task(
    name="toy",
    labels={
        "a": Label(words="account", description="It is about an account"),
        "b": Label(words="billing", description="It is about a bill"),
        "c": Label(words="my order", description="It is about an order"),
    },
)
SETS = Task(name="sets", kind="multi-label", labels=TASK.labels)
PAIRS = Task(name="pairs", text=("first", "second"), labels={"same": Label(words="yes"), "other": Label(words="no")})
EXAMPLES = [
    Example(("The invoice is wrong.",), "b"),
    Example(("I cannot sign in to my account since this morning, please help me",), "a"),
    Example(("Where is it",), "c"),
    Example(("My order 77 never came and nobody answers the phone at all",), "c"),
    Example(("refund",), "b"),
]
LABEL_SETS = [("b",), ("a", "c"), (), ("a", "b", "c"), ("b",)]
SET_EXAMPLES = [Example(example.texts, labels=labels) for example, labels in zip(EXAMPLES, LABEL_SETS, strict=True)]


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
        summary = pool(instance.embeds, instance.mask, "mean")
        tokens = self.start(summary).view(len(summary), self.prompt_length, -1) + self.base

        def layer_prompts(layer: int, hidden: Tensor, mask: Tensor) -> LayerPrompt | None:
            if layer == 0:
                return None
            summary = pool(hidden.float(), mask, "mean").to(self.base.device)
            states = self.deep(summary).view(len(summary), self.prompt_length, -1) * layer
            return LayerPrompt(states, torch.full((len(summary),), not self.replaces, device=states.device))

        return replace(make_prompt(tokens), layer_prompts=layer_prompts)

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
        return cls(encoder, config)


@cache
def word_vectors() -> str:
    """A GloVe text file with some words of the examples."""
    words = [word.strip(".").lower() for example in EXAMPLES[:3] for word in example.texts[0].split()]
    numbers = torch.randn(len(words), 8, generator=torch.Generator().manual_seed(2)).tolist()
    lines = (f"{word} {' '.join(f'{value:.4f}' for value in row)}" for word, row in zip(words, numbers, strict=True))
    with tempfile.NamedTemporaryFile("w", dir=os.environ["SOFTCUE_HOME"], suffix=".txt", delete=False) as file:
        file.write("\n".join(lines) + "\n")
    return file.name


# Sizes that divide the tiny width 32, and first numbers far enough from zero to be seen in the output.
_PHM: Settings = {"phm_n": 4, "bottleneck": 8, "factor_std": 0.5, "init_std": 0.5}
_DNN: Settings = {"bottleneck": 8, "init_std": 0.5}
_DEEP: Settings = {"init_std": 0.5}
_VIP: Settings = {"width": 8, "codes_norm": 0.0, "temperature": 2.0}

# Each mechanism once; these run on every family of backbones.
EVERYWHERE: dict[str, tuple[type[Method], Settings]] = {
    "prompt-tuning": (METHODS["prompt-tuning"], {}),
    "m-idpg-phm": (METHODS["m-idpg-phm"], _PHM),
    "m-idpg-phm kv": (METHODS["m-idpg-phm"], {**_PHM, "rule": "kv"}),
    "vip": (METHODS["vip"], _VIP),
    "prefix-tuning": (METHODS["prefix-tuning"], _DEEP),
    "prompt-tuning late": (METHODS["prompt-tuning"], {"insert_layer": 1}),
    "compacter": (METHODS["compacter"], {"bottleneck": 8, "init_std": 0.7}),
    "p-tuning-v2 parallel": (METHODS["p-tuning-v2"], {"rule": "parallel"}),
    "lora": (METHODS["lora"], {"rank": 4, "init_std": 0.2, "up_std": 0.2}),
}
# The other methods and settings; these run on one family of each kind.
ELSEWHERE: dict[str, tuple[type[Method], Settings]] = {
    "adapter": (METHODS["adapter"], {"bottleneck": 8, "init_std": 0.5, "up_std": 0.5}),
    "toy-add": (Toy, {}),
    "toy-replace": (Toy, {"replaces": True}),
    "warp": (METHODS["warp"], {"init": "uniform"}),
    "manual-prompt": (
        METHODS["manual-prompt"],
        # short, because the tiny models with absolute positions take 96 tokens, 6 of them for the label
        {
            "instruction": "Sort.",
            "demonstrations": ("It broke\nAnswer: billing", "Hi\nAnswer: account"),
            "token_limit": 90,
        },
    ),
    "s-idpg-phm": (METHODS["s-idpg-phm"], _PHM),
    "s-idpg-dnn": (METHODS["s-idpg-dnn"], _DNN),
    "m-idpg-dnn": (METHODS["m-idpg-dnn"], _DNN),
    "m-idpg-phm-glove": (METHODS["m-idpg-phm-glove"], {**_PHM, "glove_width": 8}),
    "m-idpg-phm S": (METHODS["m-idpg-phm"], {**_PHM, "sharing": "S"}),
    "m-idpg-phm L": (METHODS["m-idpg-phm"], {**_PHM, "sharing": "L"}),
    "m-idpg-phm first": (METHODS["m-idpg-phm"], {**_PHM, "input": "first"}),
    "m-idpg-phm replace": (METHODS["m-idpg-phm"], {**_PHM, "rule": "replace"}),
    "m-idpg-phm parallel": (METHODS["m-idpg-phm"], {**_PHM, "rule": "parallel"}),
    "p-tuning-v2 parallel late": (METHODS["p-tuning-v2"], {"rule": "parallel", "insert_layer": 1}),
    "m-idpg-phm words": (METHODS["m-idpg-phm"], {**_PHM, "representation": "words"}),
    "m-idpg-phm normed": (METHODS["m-idpg-phm"], {**_PHM, "residual": True, "layer_norm": True}),
    "s-idpg-phm late": (METHODS["s-idpg-phm"], {**_PHM, "insert_layer": 1}),
    "m-idpg-phm late": (METHODS["m-idpg-phm"], {**_PHM, "insert_layer": 1}),
    "p-tuning-v2 late": (METHODS["p-tuning-v2"], {**_DEEP, "insert_layer": 1}),
    "vip late": (METHODS["vip"], {**_VIP, "insert_layer": 1}),
    "vip mixed": (METHODS["vip"], {**_VIP, "soft_tokens": 2, "hard_prompt": "task"}),
    "vip dedicated": (METHODS["vip"], {**_VIP, "dedicated": True}),
    "vip sample": (METHODS["vip"], {**_VIP, "evaluation": "sample"}),
    "vip argmax": (METHODS["vip"], {**_VIP, "evaluation": "argmax"}),
    "vip-c": (METHODS["vip-c"], {"width": 8, "skip": False}),
    "vip-idp": (METHODS["vip-idp"], {"bottleneck": 8}),
    "p-tuning-v2": (METHODS["p-tuning-v2"], _DEEP),
    "p-tuning-v2 deeper": (METHODS["p-tuning-v2"], {**_DEEP, "layers": "1,2"}),
    "p-tuning-v2 replace": (METHODS["p-tuning-v2"], {**_DEEP, "rule": "replace"}),
    "p-tuning-v2 kv": (METHODS["p-tuning-v2"], {**_DEEP, "rule": "kv"}),
    "prefix-tuning network": (METHODS["prefix-tuning"], {**_DEEP, "reparameterise": 8}),
    "compacter one A": (METHODS["compacter"], {"bottleneck": 8, "init_std": 0.7, "share_a": "all"}),
    "fine-tuning": (METHODS["fine-tuning"], {}),
    "efl": (METHODS["efl"], {}),
    "prompt-tuning tuned": (METHODS["prompt-tuning"], {"tune_backbone": True}),
    "prompt-tuning late tuned": (METHODS["prompt-tuning"], {"insert_layer": 1, "tune_backbone": True}),
    "s-idpg-phm tuned": (METHODS["s-idpg-phm"], {**_PHM, "tune_backbone": True}),
    "m-idpg-phm words tuned": (METHODS["m-idpg-phm"], {**_PHM, "representation": "words", "tune_backbone": True}),
    "vip tuned": (METHODS["vip"], {**_VIP, "tune_backbone": True}),
    "linear-probe": (METHODS["linear-probe"], {}),
    "no-prompt": (METHODS["no-prompt"], {}),
}
_KNOWN = {method_class for method_class, _ in (*EVERYWHERE.values(), *ELSEWHERE.values())}
EVERYWHERE |= {name: (method, {}) for name, method in METHODS.items() if method not in _KNOWN}  # a new one joins
CASES = {**EVERYWHERE, **ELSEWHERE}


def works_on(case: str, family: str) -> bool:
    """Whether the method of a case takes backbones of this family's kind."""
    return KINDS[family] in CASES[case][0].kinds


def make_model(
    backbone: Backbone,
    case: str = "prompt-tuning",
    task: Task = TASK,
    readout: Settings | None = None,
    seed: int = 0,
    **settings: object,
) -> TaskModel:
    """A task model with visible numbers: prompts, heads and changed weights far from zero."""
    torch.manual_seed(seed)
    method_class, fixed = CASES[case]
    values: Settings = {"name": case.split()[0], **fixed, **settings}
    if "prompt_length" in method_class.Config.model_fields:
        values.setdefault("prompt_length", 4)
    if method_class is METHODS["m-idpg-phm-glove"]:
        values.setdefault("glove", word_vectors())
    config = method_class.Config.model_validate(values)
    generator = torch.Generator().manual_seed(seed)
    model = make_task_model(
        task, (method_class, config), ReadoutConfig.model_validate(readout or {}), backbone, generator
    )
    for parameter in model.readout.parameters():
        parameter.data.normal_(std=0.5)
    if values.get("rule") == "parallel":  # its values start at zero; with 0.2 attention doubles the rounding of keys
        for parameter in model.method.parameters():
            parameter.data += 0.1 * torch.randn(parameter.shape).to(parameter.device)
    if model.method.weights is not None:  # they start as a copy: move them away
        for parameter in model.method.weights.parameters():
            parameter.data += 0.05 * torch.randn(parameter.shape).to(parameter.device)
    return model.eval()
