"""Prompt design by hand (Lester et al. 2021, figures 1 and 4; Brown et al. 2020): words, and no training.

    instruction                                 the task's description and its label words, or a text of the user
    row (task.template) answer_prefix target    a demonstration: a training row with its target, K times
    row (task.template) answer_prefix           the row to answer

The texts before the row are a hard prompt: the vectors of their words, the same for every row. A decoder computes them
once for all rows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import median
from typing import ClassVar, Self

import torch
from pydantic import Field, field_validator

from softcue.backbones import Backbone
from softcue.errors import ConfigurationError
from softcue.inputs.formatter import ANSWER_PREFIX, InputFormatter
from softcue.methods.hard_prompt import separate_vectors
from softcue.methods.method import Method, MethodConfig
from softcue.prompts import HardPrompt
from softcue.readouts import Readout
from softcue.tasks import Task
from softcue.types import BackboneKind, Example, Instance, Prompt

SEPARATOR = "\n\n"  # after the instruction and after each demonstration
MOST_TOKENS = 2**31 - 1  # of a limit; backbones have smaller ones
MAX_MEASURED_ROWS = 2000  # training rows whose lengths are measured


class ManualPromptConfig(MethodConfig):
    """A prompt of words: an instruction and demonstrations. The text of a row is `task.template`."""

    instruction: str = Field(
        "task", description="the first text; task: the task's description and its label words; empty: none"
    )
    num_demonstrations: int = Field(
        4, ge=0, le=1000, description="training rows with their targets before the row to answer, K"
    )
    answer_prefix: str = Field(
        ANSWER_PREFIX, description="text between a row and its target; the text of a row is task.template"
    )
    demonstrations: tuple[str, ...] = Field(
        (), description="the demonstrations as the backbone reads them: your own, or empty to take them from the rows"
    )
    token_limit: int = Field(
        0, ge=0, le=MOST_TOKENS, description="set by training: most tokens of prompt and row; 0: no limit"
    )
    num_left_out: int = Field(0, ge=0, le=1000, description="set by training: demonstrations that did not fit")

    @field_validator("answer_prefix")
    @classmethod
    def _drop_last_spaces(cls, prefix: str) -> str:
        """Drop white space at the end: the target follows after a space."""
        return prefix.rstrip()

    def notes(self) -> list[str]:
        """Return that the cue holds rows, and how many demonstrations were left out."""
        notes = []
        if num_kept := len(self.demonstrations):
            rows = "a demonstration" if num_kept == 1 else f"{num_kept} demonstrations"
            notes.append(f"the cue holds the text of {rows}, which are training rows unless they were written by hand")
        if self.num_left_out:
            total = self.num_left_out + num_kept
            notes.append(
                f"{self.num_left_out} of {total} demonstrations were left out: they do not fit into "
                f"{self.token_limit} tokens beside a row of median length"
            )
        return notes

    def settings_to_try(self, task: Task) -> list[str]:
        """Return more demonstrations, and a text of the user's own."""
        return [
            f"method.num_demonstrations={max(2 * self.num_demonstrations, len(task.labels))}",
            "another method.instruction or task.template",
        ]


class ManualPrompt(Method):
    """An instruction and demonstrations before the row. Nothing is trained."""

    Config: ClassVar[type[MethodConfig]] = ManualPromptConfig
    summary = "nothing: an instruction and K training rows as text before the row to answer (a baseline)"
    paper = "Brown et al. 2020"
    kinds: ClassVar[tuple[BackboneKind, ...]] = ("encoder-decoder", "decoder")
    needs_training = False
    length_setting = "method.instruction"
    readout_defaults: ClassVar[dict[str, str]] = {"stop": SEPARATOR}

    def __init__(self, encoder: HardPrompt, config: ManualPromptConfig) -> None:
        super().__init__()
        self.encoder = encoder
        self.config: ManualPromptConfig = config
        self.prompt_length = encoder.prompt_length
        self.answer_prefix = config.answer_prefix
        self.changes_hidden_states = encoder.prompt_length > 0
        self.row_note = ""  # about the training rows, where this method has seen them

    @property
    def reserved_length(self) -> int:
        """The words of the instruction: a long row gets fewer demonstrations before its own text is cut."""
        return self.encoder.ends[0]

    @classmethod
    def build(cls, config: MethodConfig, backbone: Backbone, task: Task, generator: torch.Generator | None) -> Self:
        """Make the prompt of the texts in the configuration."""
        assert isinstance(config, ManualPromptConfig)
        if task.kind == "multi-label":
            raise ConfigurationError(
                setting="method.name",
                got=config.name,
                expected=f"a task whose target is written as text ({task.name} is {task.kind})",
                fix="a set of labels needs a trained head: use linear-probe or prompt-tuning",
            )
        # The cue records the text itself. Several tasks have their own: see `for_task`.
        config = config.model_copy(update={"instruction": instruction_text(config.instruction, task)})
        texts = [config.instruction, *config.demonstrations]
        vectors = [separate_vectors(text, SEPARATOR, backbone) for text in texts]
        return cls(HardPrompt(vectors, config.token_limit), config)

    def for_task(self, config: MethodConfig, backbone: Backbone, task: Task) -> Self:
        """Return the prompt of one of several tasks; they share nothing."""
        return self.build(config, backbone, task, None)

    def with_rows(
        self, examples: Sequence[Example], formatter: InputFormatter, readout: Readout, backbone: Backbone, seed: int
    ) -> Self:
        """Return this prompt with demonstrations from the training rows, as many as fit."""
        config = self.config
        own_texts = list(config.demonstrations)
        sources = [row for example in examples for row in readout.training_examples(example)[:1]]
        chosen = choose_demonstrations(readout.task, sources, config.num_demonstrations, seed)
        texts = own_texts or [f"{formatter.source_text(row)} {readout.target_text(row)}" for row in chosen]
        # `formatter.limit` is the length for a row, beside the target and the instruction.
        limit = formatter.limit + self.reserved_length
        sample = random.Random(seed).sample(list(examples), min(len(examples), MAX_MEASURED_ROWS))
        lengths = [len(formatter.source(example).ids) for example in sample]
        room = formatter.limit - round(median(lengths))
        kept: list[str] = []
        for text in texts:
            num_tokens = len(separate_vectors(text, SEPARATOR, backbone))
            if num_tokens <= room:
                kept.append(text)
                room -= num_tokens
        update = {"demonstrations": tuple(kept), "token_limit": limit, "num_left_out": len(texts) - len(kept)}
        built = self.build(config.model_copy(update=update), backbone, readout.task, None)
        num_long = sum(length + built.prompt_length > limit for length in lengths)
        if kept and num_long:
            built.row_note = (
                f"{num_long:,} of {len(lengths):,} training rows are too long for all {len(kept)} demonstrations: "
                "such rows get fewer"
            )
        return built

    def notes(self) -> list[str]:
        """Return the notes of the settings, and how many rows get fewer demonstrations."""
        return [*self.config.notes(), *([self.row_note] if self.row_note else [])]

    def prompt(self, instance: Instance) -> Prompt | None:
        """Return the words before each row."""
        return self.encoder(instance) if self.prompt_length else None

    @property
    def prompt_text(self) -> str:
        """The instruction and the demonstrations."""
        return SEPARATOR.join(text for text in (self.config.instruction, *self.config.demonstrations) if text)


def instruction_text(setting: str, task: Task) -> str:
    """Return the text of `method.instruction`; `task` stands for the task's description and its label words.

    Example:
        >>> from softcue.tasks import library_task
        >>> instruction_text("task", library_task("same-request"))
        'Whether two customer messages ask for the same thing. Answer with one of: same, different.'
    """
    if setting != "task":
        return setting
    choices = f"Answer with one of: {', '.join(task.label_words)}." if task.has_classes and task.labels else ""
    return f"{task.description} {choices}".strip()


def choose_demonstrations(task: Task, examples: Sequence[Example], number: int, seed: int) -> list[Example]:
    """Return a sample of rows, balanced over the labels: the first ones are balanced too, whatever their number.

    Labels take turns, in another order in each round, so that the order of labels says nothing.

    Example:
        >>> from softcue.tasks import Label
        >>> task = Task(name="t", labels={"a": Label(words="a"), "b": Label(words="b")})
        >>> rows = [Example((str(number),), "b" if number == 5 else "a") for number in range(9)]
        >>> sorted(str(row.target) for row in choose_demonstrations(task, rows, 2, seed=0))
        ['a', 'b']
    """
    generator = random.Random(seed)
    groups: dict[str, list[Example]] = {}
    for example in generator.sample(list(examples), len(examples)):
        groups.setdefault(str(example.target) if task.has_classes else "", []).append(example)
    labels = sorted(groups)
    chosen: list[Example] = []
    while len(chosen) < number and any(groups.values()):
        generator.shuffle(labels)
        chosen += [groups[label].pop() for label in labels if groups[label]]
    return chosen[:number]
