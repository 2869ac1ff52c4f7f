"""Prompt tuning (Lester et al. 2021): its settings, and the five ways to initialise prompt vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from softcue.backbones import Backbone
from softcue.errors import ConfigurationError
from softcue.methods.method import MethodConfig, Prompted, PromptedConfig
from softcue.prompts import StaticPrompt
from softcue.prompts.prompt_tuning import (
    check_vectors,
    label_vectors,
    text_vectors,
    uniform_vectors,
    vocabulary_vectors,
)
from softcue.tasks import Task


class InitConfig(PromptedConfig):
    """How prompt vectors are initialised."""

    fields_free_to_differ: ClassVar[tuple[str, ...]] = (
        "init",
        "init_fallback",
        "init_text",
        "init_from",
        "init_scale",
    )

    init: Literal["uniform", "vocabulary", "labels", "text", "file"] = Field(
        "labels", description="initial prompt vectors; init_fallback fills what labels and text leave over"
    )
    init_fallback: Literal["uniform", "vocabulary"] = Field(
        "vocabulary", description="for vectors that labels or text leave over"
    )
    init_text: str = Field("", description="the text of init=text")
    init_from: str = Field("", description="init=file: a cue folder, a .safetensors or a .npy file")
    init_scale: float = Field(1.0, gt=0, description="multiplies the initial vectors")

    def settings_to_try(self, task: Task) -> list[str]:
        """Return the initialiser with the words of the labels, unless it is set."""
        return ["method.init=labels"] if task.labels and self.init != "labels" else []


class PromptTuningConfig(InitConfig):
    """Prompt tuning: length and initialiser."""


class PromptTuning(Prompted):
    """Prompt tuning (Lester et al. 2021)."""

    Config = PromptTuningConfig
    summary = "one trained matrix in front of the text, the same for every input"
    paper = "Lester et al. 2021"

    @classmethod
    def build(cls, config: MethodConfig, backbone: Backbone, task: Task, generator: torch.Generator | None) -> Self:
        """Make a prompt with initial vectors as configured."""
        assert isinstance(config, PromptTuningConfig)
        if generator is None:
            initial = torch.zeros(config.prompt_length, backbone.width)
        else:
            initial = initial_prompt(config, backbone, task, generator)
        return cls(StaticPrompt(initial), config)


def initial_prompt(config: InitConfig, backbone: Backbone, task: Task, generator: torch.Generator) -> Tensor:
    """Return the initial vectors, by one of the paper's initialisers. [P D]"""
    return _unscaled_prompt(config, backbone, task, generator) * config.init_scale


def _unscaled_prompt(config: InitConfig, backbone: Backbone, task: Task, generator: torch.Generator) -> Tensor:
    length, table = config.prompt_length, backbone.word_input_states

    def draw_vectors(init: str) -> Tensor:
        if init == "uniform":
            return uniform_vectors(length, backbone.width, generator)
        return vocabulary_vectors(table, length, generator, skip=_meaningless_ids(backbone.tokenizer))

    def tokenize(text: str) -> list[int]:
        return list(backbone.tokenizer(text, add_special_tokens=False)["input_ids"])

    if config.init in ("uniform", "vocabulary"):
        return draw_vectors(config.init)
    if config.init == "file":
        return check_vectors(read_prompt(config.init_from), length, backbone.width, config.init_from)
    fallback = draw_vectors(config.init_fallback)
    if config.init == "labels":
        words = initial_words(config, task)
        return label_vectors(table, [ids for word in words if (ids := tokenize(word))], fallback)
    if not config.init_text.strip():
        raise ConfigurationError(
            setting="method.init_text",
            got=config.init_text,
            expected="the text for init=text",
            fix="set it, for example method.init_text='classify this message'",
        )
    return text_vectors(table, tokenize(config.init_text), fallback)


def initial_words(config: MethodConfig, task: Task) -> tuple[str, ...]:
    """Return the words that the first prompt vectors start from, one each; empty unless they start from labels.

    A task without a closed set of labels uses the words of its description.

    Example:
        >>> task = Task(name="tickets", labels={"billing": {"words": "billing"}, "bug": {"words": "bug report"}})
        >>> initial_words(PromptTuningConfig(name="prompt-tuning", prompt_length=20), task)
        ('billing', 'bug report')
    """
    if not isinstance(config, InitConfig) or config.init != "labels":
        return ()
    return task.init_words or task.label_words or tuple(task.description.split()[: config.prompt_length])


def _meaningless_ids(tokenizer: Any) -> set[int]:
    """Return the ids of special tokens and placeholders, which are no words."""
    placeholders = ("[unused", "<extra_id")
    return set(tokenizer.all_special_ids) | {
        token_id for token, token_id in tokenizer.get_vocab().items() if token.startswith(placeholders)
    }


def read_prompt(origin: str) -> Tensor:
    """Read prompt vectors from a cue folder, a .safetensors file with one matrix, or a .npy file. [P D]"""
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
            setting="method.init_from", got=origin, expected=expected, fix=f"it has {len(matrices)} matrices"
        )
    return matrices[0]
