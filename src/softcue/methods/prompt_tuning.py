"""Prompt tuning (Lester et al. 2021): its settings and its five initialisers, from names to vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from softcue.backbones import Backbone
from softcue.errors import ConfigurationError
from softcue.methods.method import MethodConfig
from softcue.methods.prompted import Prompted, PromptedConfig
from softcue.prompts import StaticPrompt, initial
from softcue.tasks import Task


class InitialConfig(PromptedConfig):
    """Where prompt vectors start."""

    only_training: ClassVar[tuple[str, ...]] = (
        "init",
        "init_fallback",
        "init_text",
        "init_from",
        "init_scale",
    )

    init: Literal["uniform", "vocabulary", "labels", "text", "file"] = Field(
        "labels", description="where prompt vectors start; labels and text are filled up by init_fallback"
    )
    init_fallback: Literal["uniform", "vocabulary"] = Field("vocabulary", description="for rows labels leave over")
    init_text: str = Field("", description="the text of init=text")
    init_from: str = Field("", description="init=file: a cue folder, a .safetensors or a .npy file")
    init_scale: float = Field(1.0, gt=0, description="multiplies the starting vectors")


class PromptTuningConfig(InitialConfig):
    """Prompt tuning: length and initialiser."""


class PromptTuning(Prompted):
    """Prompt tuning (Lester et al. 2021)."""

    Config = PromptTuningConfig
    summary = "one trained matrix in front of the text, the same for every input"
    paper = "Lester et al. 2021"

    @classmethod
    def build(cls, config: MethodConfig, backbone: Backbone, task: Task, generator: torch.Generator | None) -> Self:
        """A prompt started as the configuration says."""
        assert isinstance(config, PromptTuningConfig)
        if generator is None:
            first = torch.zeros(config.prompt_length, backbone.width)
        else:
            first = initial_prompt(config, backbone, task, generator)
        return cls(StaticPrompt(first), config)


def initial_prompt(config: InitialConfig, backbone: Backbone, task: Task, generator: torch.Generator) -> Tensor:
    """The starting vectors, by one of the paper's initialisers. [P D]"""
    return _started(config, backbone, task, generator) * config.init_scale


def _started(config: InitialConfig, backbone: Backbone, task: Task, generator: torch.Generator) -> Tensor:
    length, table = config.prompt_length, backbone.word_input_states

    def sampled(name: str) -> Tensor:
        if name == "uniform":
            return initial.uniform(length, backbone.width, generator)
        return initial.sampled_vocabulary(table, length, generator, skip=_no_words(backbone.tokenizer))

    def pieces(text: str) -> list[int]:
        return list(backbone.tokenizer(text, add_special_tokens=False)["input_ids"])

    if config.init in ("uniform", "vocabulary"):
        return sampled(config.init)
    if config.init == "file":
        return initial.exactly(read_prompt(config.init_from), length, backbone.width, config.init_from)
    fallback = sampled(config.init_fallback)
    if config.init == "labels":
        # A task without a closed label set has only its own description to speak for it.
        words = task.init_words or task.label_words or tuple(task.description.split()[: config.prompt_length])
        return initial.class_labels(table, [found for word in words if (found := pieces(word))], fallback)
    if not config.init_text.strip():
        raise ConfigurationError(
            setting="method.init_text",
            got=config.init_text,
            expected="the text for init=text",
            fix="set it, for example method.init_text='classify this message'",
        )
    return initial.free_text(table, pieces(config.init_text), fallback)


def _no_words(tokenizer: Any) -> set[int]:
    """Special tokens and placeholders, whose vectors say nothing."""
    placeholders = ("[unused", "<extra_id")
    return set(tokenizer.all_special_ids) | {
        row for word, row in tokenizer.get_vocab().items() if word.startswith(placeholders)
    }


def read_prompt(origin: str) -> Tensor:
    """Prompt vectors from a cue folder, a .safetensors file with one matrix, or a .npy file."""
    path = Path(origin)
    file = path / "cue.safetensors" if path.is_dir() else path
    expected = "a cue folder, or a .safetensors or .npy file with one matrix"
    try:
        if file.suffix == ".npy":
            import numpy

            return torch.from_numpy(numpy.load(file, allow_pickle=False)).float()
        from safetensors.torch import load_file

        tensors: dict[str, Tensor] = load_file(file)
    except Exception as error:
        raise ConfigurationError(
            setting="method.init_from", got=origin, expected=expected, fix=f"check the path: {error}"
        ) from error
    named = [tensor for name, tensor in tensors.items() if name.split(".")[-1] == "prompt"]
    matrices = named or [tensor for tensor in tensors.values() if tensor.dim() == 2]
    if len(matrices) != 1:
        raise ConfigurationError(
            setting="method.init_from", got=origin, expected=expected, fix=f"it holds {len(matrices)}"
        )
    return matrices[0]
