"""The contract of a readout: what the backbone computed -> loss and prediction.

A readout may hold a trained head. It never sees the prompt, and it changes nothing in the backbone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor, nn

from softcue.backbones import Backbone, Decoding, ForwardPass, Summary
from softcue.errors import ConfigurationError
from softcue.inputs.formatter import InputFormatter, OffsetUnit
from softcue.tasks import Task
from softcue.types import Batch, Example, Prediction, TokenizedRow


class ReadoutConfig(BaseModel):
    """How the answer is read off the backbone."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["auto", "classifier", "regression", "label-words", "generation", "span", "tags"] = Field(
        "auto", description="auto: a head on encoders, generation on backbones that write text"
    )
    pooling: Literal["auto", "cls", "mean", "last"] = Field(
        "auto", description="one vector for the text; auto follows the backbone's own pooling config"
    )
    pairs: Literal["auto", "joint", "compare"] = Field(
        "auto",
        description="two texts: joint pools them as one; compare uses |u-v| and u*v; auto compares on mean pooling",
    )
    head: Literal["linear", "mlp"] = Field("linear", description="mlp is RoBERTa's dense-tanh-linear head")
    head_init: float = Field(0.02, ge=0, description="standard deviation of a head's first weights")
    head_start: Literal["random", "solved"] = Field(
        "random", description="solved: a linear head starts as the linear probe of the training rows"
    )
    dropout: float = Field(0.1, ge=0, lt=1, description="before a head's last layer, in training")
    mask_phrase: str = Field(" {mask}", description="label-words on encoders: what follows the text")
    decoding: Literal["auto", "rank", "greedy", "beam", "sample"] = Field(
        "auto", description="generation: rank scores every label string and is never illegal; auto ranks if it can"
    )
    num_beams: int = Field(4, ge=1, description="generation with decoding=beam")
    max_new_tokens: int = Field(
        0,
        ge=0,
        description="generation that writes freely; 0: 32, or 96 where every span of a text is written",
    )
    temperature: float = Field(1.0, gt=0, description="generation with decoding=sample: below 1 the likely is likelier")
    top_p: float = Field(
        1.0, gt=0, le=1, description="generation with decoding=sample: draw among the likeliest so much"
    )
    draw_seed: int = Field(0, ge=0, description="generation with decoding=sample: another seed gives other texts")
    z_loss: float = Field(0.0, ge=0, description="generation: weight of log(Z)^2; t5x uses 0.0001")

    @field_validator("mask_phrase")
    @classmethod
    def _has_one_mask(cls, phrase: str) -> str:
        if phrase.count("{mask}") != 1 or set("{}") & set(phrase.replace("{mask}", "")):
            raise ValueError("a text with {mask} in it once, and no other braces")
        return phrase


@dataclass(frozen=True)
class Loss:
    """A sum and what it is to be divided by; the division waits for all processes and micro-batches."""

    total: Tensor  # []
    count: float


class Readout(nn.Module, ABC):
    """Reads answers off the backbone for one task."""

    writes_answer = False  # decoders then get a cue where the answer begins
    summary: Summary | None = None  # the one vector per text that a head reads; None: no head, no vector
    needs_target = False  # training feeds the target's tokens to the backbone
    shared_pass: Literal["hidden", "answers"] | None = "hidden"  # what prediction can share with other tasks
    decoding: Decoding | None = None  # how it writes freely; rows of tasks that write alike are written together
    offset_unit: OffsetUnit | None = None  # the unit of the offsets that the readout needs; None: no offsets

    def __init__(self, task: Task, config: ReadoutConfig, backbone: Backbone) -> None:
        super().__init__()
        self.task = task
        self.config = config

    @property
    def suffix(self) -> str:
        """Text that every source must end with."""
        return ""

    def see(self, examples: Sequence[Example]) -> None:
        """Take from the training rows what no gradient can find, such as the scale of scores."""

    @property
    def linear(self) -> nn.Linear | None:
        """The head, where it is a single linear layer."""
        return None

    def solve(self, features: Tensor, labels: Sequence[int | float], strength: float | None = None) -> None:
        """Set a linear head to the closed-form solution for features [N R]; without a strength, choose one."""
        raise ConfigurationError(
            setting="readout.head_start",
            got="solved",
            expected="classifier or regression, with readout.head=linear",
            fix="only a single linear layer can be solved for",
        )

    @property
    def max_target_length(self) -> int:
        """Room a decoder needs behind the text."""
        return 0

    def training_examples(self, example: Example) -> list[Example]:
        """What training makes of an example: itself, several, or nothing."""
        return [example]

    def split(self, example: Example, formatter: InputFormatter) -> list[Example]:
        """The pieces in which an example is read."""
        return [example]

    def merge(self, example: Example, answers: Sequence[Prediction]) -> Prediction:
        """The answers to the pieces of an example as one."""
        return answers[0]

    @abstractmethod
    def with_target(self, tokens: TokenizedRow, example: Example) -> TokenizedRow:
        """The tokens with the example's answer filled in, for training."""

    def num_losses(self, rows: Sequence[TokenizedRow]) -> float:
        """How many terms the loss of these rows averages."""
        return len(rows)

    @abstractmethod
    def loss(self, forward_pass: ForwardPass, batch: Batch) -> Loss:
        """The training loss of a batch."""

    @abstractmethod
    def predict(self, forward_pass: ForwardPass) -> list[Prediction]:
        """An answer per row."""


def label_prediction(task: Task, probabilities: Sequence[float]) -> Prediction:
    """The likeliest label, with all scores.

    Example:
        >>> from softcue.tasks import library_task
        >>> label_prediction(library_task("same-request"), [0.25, 0.75]).label
        'different'
    """
    scores = dict(zip(task.label_names, probabilities, strict=True))
    return Prediction(max(scores, key=scores.__getitem__), scores=scores)
