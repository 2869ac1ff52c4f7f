"""Checkpoints of an adaptation: the whole model, its optimizer, and the chunks that wait in the shuffle buffer."""

from __future__ import annotations

from dataclasses import dataclass

from softcue.training.checkpoints import CheckpointFolder, RunState


@dataclass
class AdaptationState(RunState):
    """The progress of an adaptation at one step, except its tensors."""

    @property
    def best_perplexity(self) -> float | None:
        """The lowest perplexity so far."""
        return min((entry["perplexity"] for entry in self.history), default=None)


class AdaptationCheckpoints(CheckpointFolder[AdaptationState]):
    """The checkpoints of one adaptation."""

    state_class = AdaptationState
    parts = ("model", "optimizer", "stream")
    expected = "a checkpoint of the same adaptation (model, texts and settings)"
    fix = "repeat the settings it began with, choose another folder, or pass `overwrite=True`"
