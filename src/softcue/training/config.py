"""Settings of a training run."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from softcue.training.trackers.registry import TrackerNames

MOST_ROWS = 1_000_000  # of a batch
MOST_RATE = 1e30  # a larger one is no number of an optimizer in float32
REPORTING_KEYS = {"report_to", "report_group", "process_timeout"}


class TrainingConfig(BaseModel):
    """Settings of the training loop. Batch sizes count rows over all processes."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    seed: int = Field(0, ge=0, description="decides the order of rows, the initial values and all other randomness")
    epochs: int = Field(20, ge=1, description="passes over the training rows")
    steps: int = Field(0, ge=0, description="stop after this many steps instead; 0 leaves it to epochs")
    min_steps: int = Field(
        0,
        ge=0,
        description="take at least this many steps, however few rows an epoch has; evaluations are then five in all",
    )
    batch_size: int = Field(16, ge=1, le=MOST_ROWS, description="rows per optimizer step, over all processes")
    micro_batch_size: int = Field(0, ge=0, le=MOST_ROWS, description="rows at once in one process; 0 takes them all")
    micro_batch_tokens: int = Field(
        16384, ge=0, description="tokens at once in one process, prompt and padding included; 0 sets no limit"
    )
    optimizer: Literal["adafactor", "adamw"] = Field(
        "adamw", description="the update rule; adafactor is Lester et al.'s"
    )
    learning_rate: float = Field(
        0.01, ge=0, le=MOST_RATE, description="learning rate of prompt vectors; fine-tuning: of the backbone's weights"
    )
    relative_rate: float = Field(
        0.0,
        ge=0,
        le=MOST_RATE,
        description="learning rate of prompt vectors among words, in units of the root mean square of the backbone's "
        "word vectors: one rate then fits backbones whose words differ in size; a learning_rate that you give takes "
        "its place",
    )
    network_learning_rate: float = Field(
        0.001, ge=0, le=MOST_RATE, description="learning rate of heads and other networks"
    )
    head_learning_rate: float | None = Field(
        None,
        ge=0,
        le=MOST_RATE,
        description="learning rate of heads that start solved, which need little change; unset: network_learning_rate",
    )
    backbone_learning_rate: float = Field(
        0.00001, ge=0, le=MOST_RATE, description="learning rate of the backbone's weights with method.tune_backbone"
    )
    weight_decay: float = Field(
        0.0, ge=0, description="adafactor: per step, not times the learning rate; adamw: times the learning rate"
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="adamw: decay of the mean of gradients")
    beta2: float = Field(0.999, ge=0, lt=1, description="adamw: decay of the mean of squared gradients")
    epsilon: float = Field(1e-8, gt=0, description="adamw: added to the divisor of a step")
    parameter_scaling: bool = Field(
        False,
        description="adafactor: steps relative to the RMS of each parameter, at least 0.001, as T5's fine-tuning; "
        "its learning rate is 0.001",
    )
    schedule: Literal["constant", "linear", "inverse-sqrt", "relative-step"] = Field(
        "constant",
        description="how the learning rates change after the warm-up; relative-step is T5's: constant for 10,000 "
        "steps, then by the inverse square root of the step (with 0.01: min(0.01, 1/sqrt(step)))",
    )
    warmup_steps: int = Field(0, ge=0, description="steps over which the learning rate rises from 0")
    warmup_share: float = Field(0.0, ge=0, lt=1, description="the same as a share of all steps, if warmup_steps is 0")
    contrastive: float = Field(
        0.0,
        ge=0,
        description="weight of a supervised contrastive term on the vectors that a head with classes reads: rows of "
        "one class in a batch are drawn together (Khosla et al. 2020)",
    )
    contrastive_temperature: float = Field(0.1, gt=0, description="divides the similarities of the contrastive term")
    label_share: float = Field(
        0.0,
        ge=0,
        le=10,
        description="add the words and descriptions of the labels to the training rows, this many times as many as "
        "these, at most 20 for each label; for classes of single texts and up to 5,000 rows",
    )
    evaluate_start: bool = Field(
        False, description="also evaluate before the first step, so that training cannot end worse than it began"
    )
    clip_norm: float = Field(0.0, ge=0, description="largest gradient norm; 0 does not clip")
    evaluate_every: int = Field(
        0, ge=0, description="steps between evaluations; 0: after each epoch, or five times in all if min_steps decides"
    )
    patience: int = Field(0, ge=0, description="evaluations without a better score before stopping; 0 never stops")
    evaluation_batch_size: int = Field(64, ge=1, le=MOST_ROWS, description="rows per forward pass in evaluation")
    checkpoint_every: int = Field(0, ge=0, description="steps between checkpoints; 0 writes one per evaluation")
    init_from: str = Field("", description="a cue folder to start from: a first stage on other rows, such as NLI")
    process_timeout: int = Field(
        600, ge=1, description="with torchrun: seconds without an answer of another process before a run ends"
    )
    report_to: TrackerNames = Field(
        (), description="trackers that get every step, evaluation and score: tensorboard, wandb, mlflow, trackio"
    )
    report_group: str = Field(
        "", description="trackers show runs of one group together; a comparison takes the name of its folder"
    )

    def takes_min_steps(self, steps_per_epoch: int) -> bool:
        """Return whether `min_steps` decides how long a run is, because its epochs have fewer steps.

        Example:
            >>> TrainingConfig(epochs=10, min_steps=150).takes_min_steps(steps_per_epoch=7)
            True
        """
        return not self.steps and self.epochs * steps_per_epoch < self.min_steps

    def without_reporting(self) -> dict[str, Any]:
        """Plain values of the settings that decide what is learned: all but where it is reported and how long it waits.

        Example:
            >>> "report_to" in TrainingConfig(report_to="tensorboard").without_reporting()
            False
        """
        return self.model_dump(mode="json", exclude=REPORTING_KEYS)
