"""The contract of a readout: it turns the backbone's output into a loss and predictions.

A readout may have a trained head. It never reads the prompt, and it changes nothing in the backbone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor, nn
from torch.nn import functional

from softcue.backbones import Backbone, Decoding, ForwardPass, Summary
from softcue.errors import ConfigurationError
from softcue.inputs.formatter import InputFormatter, OffsetUnit
from softcue.tasks import Task
from softcue.types import Batch, Example, Prediction, RowLabel, TokenizedRow


class ReadoutConfig(BaseModel):
    """How predictions are made from the backbone's output."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["auto", "classifier", "regression", "label-words", "generation", "span", "tags"] = Field(
        "auto",
        description="auto: a head on encoders, and for sets of labels; generation on backbones that write text. "
        "classifier: softmax over the labels, or a sigmoid for each label of a set",
    )
    pooling: Literal["auto", "measured", "cls", "mean", "last", "mask"] = Field(
        "auto",
        description="one vector for the text; auto follows the backbone's own pooling config; measured does too, and "
        "without one takes what a linear probe prefers, cross-validated on training rows; mask: the state at a "
        "mask token behind the first text, from the masked-word head of an encoder that has one (WARP)",
    )
    pairs: Literal["auto", "joint", "compare"] = Field(
        "auto",
        description="two texts: joint pools them as one; compare uses |u-v| and u*v; auto compares on mean pooling",
    )
    head: Literal["linear", "mlp"] = Field("linear", description="mlp is RoBERTa's dense-tanh-linear head")
    head_init: float = Field(0.02, ge=0, description="standard deviation of a head's first weights")
    head_start: Literal["auto", "random", "solved", "words"] = Field(
        "random",
        description="auto: solved for a linear head on one vector, else random; solved: a linear head starts as the "
        "linear probe of the training rows, and the start is evaluated as well; words: with pooling=mask "
        "its rows start as the word vectors of the labels' words",
    )
    centre: bool = Field(
        False,
        description="a head reads the vector less its mean over training rows, divided by its root mean square, as "
        "training starts: one learning rate then fits heads on all backbones",
    )
    refit: bool = Field(
        False,
        description="solve a linear head again on the vectors of the trained prompt at the end, and keep it if the "
        "validation rows score higher",
    )
    threshold: float = Field(
        0.5, gt=0, lt=1, description="multi-label: a label is predicted from this probability on; the cue keeps it"
    )
    dropout: float = Field(0.1, ge=0, lt=1, description="before a head's last layer, in training")
    mask_phrase: str = Field(
        " {mask}", description="label-words on encoders, and pooling=mask: the phrase after the text"
    )
    decoding: Literal["auto", "rank", "greedy", "beam", "sample"] = Field(
        "auto",
        description="generation: rank scores every label string, so it always predicts a label; auto ranks if it can",
    )
    num_beams: int = Field(4, ge=1, le=256, description="generation with decoding=beam")
    max_new_tokens: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="generation without ranking; 0: 32 tokens, or 96 for tasks of kind tags",
    )
    stop: str = Field(
        "auto",
        description="generation without ranking: the answer ends before this text; auto: nowhere, or where the method "
        "ends its demonstrations",
    )
    temperature: float = Field(1.0, gt=0, description="generation with decoding=sample: divides the logits")
    top_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description="generation with decoding=sample: draw among the likeliest tokens of this total probability",
    )
    draw_seed: int = Field(
        0, ge=0, le=2**63 - 1, description="generation with decoding=sample: another seed gives other texts"
    )
    answer_prefix: str = Field(
        "auto",
        max_length=1000,
        description="generation and label-words on backbones that write text: what stands between the text of a row "
        "and its target; auto: a line with Answer: on decoders, nothing on encoder-decoders; manual-prompt has its own",
    )
    pad_punctuation: bool = Field(
        False,
        description="generation: spaces around punctuation in texts and targets, as T5 reads SQuAD and the MRQA sets",
    )
    sentinel: bool = Field(
        False,
        description="encoder-decoders: put `<extra_id_0>` before every target, as span corruption does, and read "
        "answers behind it (Lester et al. 2021, section 3.2)",
    )
    z_loss: float = Field(0.0, ge=0, description="generation: weight of log(Z)^2; t5x uses 0.0001")

    @field_validator("answer_prefix")
    @classmethod
    def _drop_last_spaces(cls, prefix: str) -> str:
        """Drop white space at the end: the target follows after a space."""
        return prefix.rstrip()

    @field_validator("mask_phrase")
    @classmethod
    def _has_one_mask(cls, phrase: str) -> str:
        if phrase.count("{mask}") != 1 or set("{}") & set(phrase.replace("{mask}", "")):
            raise ValueError("a text with {mask} in it once, and no other braces")
        return phrase


class Readout(nn.Module, ABC):
    """Makes a loss and predictions from the backbone's output, for one task."""

    use_answer_prefix = False  # the backbone writes the target; decoders get a marker where it begins
    summary: Summary | None = None  # the pooling whose vector the head reads; None: no such head
    feature_width = 0  # R of that vector
    needs_target = False  # training feeds the target's tokens to the backbone
    # What several tasks in a batch compute together: hidden states, the likelihoods of `candidates`, or the logits of
    # the word behind `words_before`. From the last two, and from the features of a head, `predict_from` predicts.
    shared_computation: Literal["hidden", "ranking", "next word"] | None = "hidden"
    candidates: Sequence[Tensor] = ()  # the targets that are ranked, each [U]
    words_before: tuple[int, ...] = ()  # tokens of the target before the word that is scored
    decoding: Decoding | None = None  # how it generates text; rows of tasks with equal decoding generate together
    pads_punctuation = False  # the backbone reads and writes texts with spaces around punctuation
    is_taken_over = False  # the head is that of a first stage, and training starts with it
    offset_unit: OffsetUnit | None = None  # tokens or words whose character offsets it needs, to predict spans

    def __init__(self, task: Task, config: ReadoutConfig, backbone: Backbone) -> None:
        super().__init__()
        self.task = task
        self.config = config

    @property
    def suffix(self) -> str:
        """Text that is added to the end of every input."""
        return ""

    @property
    def suffix_in_first(self) -> bool:
        """Whether the suffix ends the first of two texts."""
        return False

    def fit_statistics(self, examples: Sequence[Example]) -> None:
        """Set what is not trained by gradients from the training rows, such as the scale of scores."""

    @property
    def linear(self) -> nn.Linear | None:
        """The head's linear layer, if the head is only that."""
        return None

    def fit_features(self, features: Tensor, weights: Tensor) -> None:
        """Set mean and scale of the vectors that a head reads from those of training rows [N R] with weights [N]."""

    @property
    def is_solvable(self) -> bool:
        """Whether the readout is one linear layer on one vector per row, for which there is a closed form."""
        return self.linear is not None and self.summary is not None and self.summary != "mask"

    def check_solvable(self) -> None:
        """Raise an error if there is no closed form."""
        if not self.is_solvable:
            raise ConfigurationError(
                setting="readout.head_start",
                got="solved",
                expected="classifier or regression, with readout.head=linear",
                fix="only a single linear layer can be solved for",
            )

    def solve(
        self, features: Tensor, labels: Sequence[RowLabel], strength: float, weights: Sequence[float] | None = None
    ) -> None:
        """Set a linear head to the closed-form solution for features [N R]; without weights, all rows have weight 1."""
        raise NotImplementedError(f"{type(self).__name__} has no closed form")

    def calibrate(self, features: Tensor, labels: Sequence[RowLabel], weights: Sequence[float] | None = None) -> None:
        """Make the probabilities of a solved head fit the features [N R] and labels of rows it was not solved for."""

    def start_from_words(self, backbone: Backbone) -> None:
        """Set the head to the word vectors of the labels."""
        raise ConfigurationError(
            setting="readout.head_start",
            got="words",
            expected="classifier with readout.pooling=mask and readout.head=linear",
            fix="leave it out: only vectors that a mask's state is compared with can start as words",
        )

    def notes(self) -> list[str]:
        """Return what a user should know about this readout on its backbone, for the run's first lines."""
        return []

    def settings_to_try(self) -> list[str]:
        """Return settings of the readout that may help when nothing was learned and that are not set already."""
        return []

    @property
    def max_target_length(self) -> int:
        """The number of target tokens that must fit after the text, on decoders."""
        return 0

    def training_examples(self, example: Example) -> list[Example]:
        """Return the examples to train on for this one: itself, several (one per right target), or none."""
        return [example]

    def split(self, example: Example, formatter: InputFormatter) -> list[Example]:
        """Return the examples that the backbone reads for this one: itself, or windows of a long text."""
        return [example]

    def merge(self, example: Example, predictions: Sequence[Prediction]) -> Prediction:
        """Join the predictions for the examples of `split` into one."""
        return predictions[0]

    def answer_tokens(self, ids: Sequence[int], is_complete: bool = True) -> Sequence[int]:
        """Return the part of generated token ids that is the answer; of an unfinished text, what is known of it."""
        return ids

    def target_text(self, example: Example) -> str:
        """Return the text of an example's target, as a backbone that writes text should write it."""
        return self.task.labels[str(example.target)].words if self.task.labels else str(example.target)

    @abstractmethod
    def with_target(self, row: TokenizedRow, example: Example) -> TokenizedRow:
        """Return the tokenized row with the example's target, for training."""

    def num_losses(self, rows: Sequence[TokenizedRow]) -> float:
        """Return the number of terms in the losses of these rows."""
        return len(rows)

    @abstractmethod
    def losses(self, forward_pass: ForwardPass, batch: Batch) -> Tensor:
        """Return the training loss of each row, a sum over its terms: all rows of a step share one division. [B]"""

    @abstractmethod
    def predict(self, forward_pass: ForwardPass) -> list[Prediction]:
        """Return a prediction per row."""

    def predict_from(self, results: Tensor) -> list[Prediction]:
        """Return a prediction for each row: the vector that a head reads [N R], or what `shared_computation` gives."""
        raise NotImplementedError(f"{type(self).__name__} reads no single vector")


def class_label(task: Task, target: object) -> int | float:
    """Return the `label` of a row: the number of the target's class, or the probability of the first label.

    A method that asks a regression as a question with two labels has such probabilities as targets.

    Example:
        >>> from softcue.tasks import library_task
        >>> class_label(library_task("same-request"), "different"), class_label(library_task("same-request"), 0.8)
        (1, 0.8)
    """
    return target if isinstance(target, float) else task.label_names.index(str(target))


def class_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropies of logits [B C] with the labels [B] of `class_label`. [B]

    Example:
        >>> logits = torch.tensor([[2.0, 0.0]])
        >>> certain, likely = (class_losses(logits, torch.tensor([label])) for label in (0, 0.8))
        >>> bool(certain < likely)
        True
    """
    if labels.is_floating_point():
        labels = torch.stack([labels, 1 - labels], dim=1).to(logits.dtype)  # [B 2]
    return functional.cross_entropy(logits, labels, reduction="none")


def label_prediction(task: Task, probabilities: Sequence[float]) -> Prediction:
    """Return the likeliest label, with the scores of all labels.

    Example:
        >>> from softcue.tasks import library_task
        >>> label_prediction(library_task("same-request"), [0.25, 0.75]).label
        'different'
    """
    return label_predictions(task, [probabilities])[0]


def label_predictions(task: Task, probabilities: Iterable[Sequence[float]]) -> list[Prediction]:
    """Return the likeliest label of each row, with the scores of all labels.

    Example:
        >>> from softcue.tasks import library_task
        >>> label_predictions(library_task("same-request"), [[0.2, 0.8], [1.0, 0.0]])
        [Prediction('different', 0.80), Prediction('same', 1.00)]
    """
    names = task.label_names
    return [Prediction(names[row.index(max(row))], scores=dict(zip(names, row, strict=True))) for row in probabilities]


def label_set_prediction(task: Task, probabilities: Sequence[float], threshold: float) -> Prediction:
    """Return the labels whose probability reaches the threshold, with the probabilities of all labels.

    Example:
        >>> from softcue.tasks import library_task
        >>> label_set_prediction(library_task("urgency"), [0.2, 0.5, 0.9], 0.5)
        Prediction(labels=['normal', 'high'])
    """
    scores = dict(zip(task.label_names, probabilities, strict=True))
    chosen = tuple(name for name, probability in scores.items() if probability >= threshold)
    return Prediction(None, scores=scores, labels=chosen, threshold=threshold)


def mask_suffix(config: ReadoutConfig, backbone: Backbone) -> str:
    """Return the phrase with the backbone's mask token that follows the text.

    Example:
        mask_suffix(ReadoutConfig(mask_phrase=" It was {mask}."), backbone)     # " It was [MASK]."
    """
    return config.mask_phrase.format(mask=backbone.tokenizer.mask_token)
