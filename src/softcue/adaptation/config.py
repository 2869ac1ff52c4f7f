"""Settings of an adaptation. The defaults are those of T5 1.1 and of Lester et al.'s 100,000 steps."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from softcue.training.config import MOST_RATE, MOST_ROWS
from softcue.training.trackers import TrackerNames

Objective = Literal["prefix-lm", "span-corruption"]
T5_STEPS = 1_000_000  # T5's pre-training, whose schedule an adaptation continues


class AdaptationConfig(BaseModel):
    """Settings of one adaptation. Batch sizes count rows over all processes; a row is made of one chunk of text."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    objective: Objective = Field("prefix-lm", description="prefix-lm continues texts; span-corruption fills gaps")
    steps: int = Field(100_000, ge=1, description="optimizer steps")
    batch_size: int = Field(128, ge=1, le=MOST_ROWS, description="rows per optimizer step, over all processes")
    micro_batch_size: int = Field(8, ge=0, le=MOST_ROWS, description="rows at once in one process; 0 takes them all")
    length: int = Field(
        512, ge=8, le=1_000_000, description="T5's length of sources, in tokens; it decides the length of a chunk"
    )
    noise_density: float = Field(0.15, gt=0, lt=1, description="span-corruption: the share of tokens that is dropped")
    mean_span: float = Field(3.0, ge=1, description="span-corruption: mean length of a dropped span")
    final_sentinel: bool = Field(
        False, description="span-corruption: end targets with one more sentinel; T5's published lengths have none"
    )
    learning_rate: float = Field(0.01, gt=0, le=MOST_RATE, description="Adafactor's rate before it falls")
    schedule: Literal["inverse-sqrt", "constant"] = Field(
        "inverse-sqrt", description="T5's: the rate falls with the square root of the steps after the first ones"
    )
    constant_steps: int = Field(10_000, ge=1, description="inverse-sqrt: the steps before the rate begins to fall")
    steps_before: int | None = Field(
        None, ge=0, description="inverse-sqrt: steps the model has had; unset: T5's million, or 0 for a new model"
    )
    parameter_scaling: bool = Field(True, description="T5's: an update is relative to the size of its parameter")
    weight_decay: float = Field(0.0, ge=0, description="per step, not times the learning rate")
    z_loss: float = Field(1e-4, ge=0, description="weight of the squared log of the softmax's sum, as in t5x")
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="number format of the computation; weights and optimizer stay in float32"
    )
    gradient_checkpointing: bool = Field(
        False, description="run each layer again in the backward pass: less memory, more time, the same numbers"
    )
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, ...")
    text_column: str = Field("text", description="the column with the text, in files of rows and hub data sets")
    shuffle_chunks: int = Field(1000, ge=1, description="chunks in memory from which the next one is drawn")
    held_out_every: int = Field(
        50, ge=2, description="without held-out texts: each so-manieth passage of about 2,000 characters is held out"
    )
    held_out_rows: int = Field(200, ge=1, description="at most this many held-out rows give the perplexity")
    evaluate_every: int = Field(0, ge=0, description="steps between perplexities; 0 takes twenty of them in all")
    checkpoint_every: int = Field(0, ge=0, description="steps between checkpoints; 0 writes one per perplexity")
    num_samples: int = Field(5, ge=0, description="held-out rows that the adapted model writes on at the end")
    sample_tokens: int = Field(64, ge=1, description="the longest text it writes for a sample")
    seed: int = Field(0, ge=0, description="decides the order of chunks, split points, gaps and new weights")
    report_to: TrackerNames = Field(
        (), description="trackers that get every step and perplexity: tensorboard, wandb, mlflow, trackio"
    )

    def rate_at(self, step: int, is_new: bool) -> float:
        """The learning rate of step number `step` (from 0); `is_new` says that the model began with random weights.

        Example:
            >>> config = AdaptationConfig()
            >>> config.rate_at(0, is_new=True), config.rate_at(39_999, is_new=True), config.rate_at(0, is_new=False)
            (0.01, 0.005, 0.00099999950000037...)
        """
        if self.schedule == "constant":
            return self.learning_rate
        before = (0 if is_new else T5_STEPS) if self.steps_before is None else self.steps_before
        steps_done = max(before + step + 1, self.constant_steps)
        return float(self.learning_rate * (self.constant_steps / steps_done) ** 0.5)
