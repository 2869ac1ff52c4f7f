"""Checkpoints of an adaptation: the whole model, its optimizer, and the chunks that wait in the shuffle buffer."""

from __future__ import annotations

from dataclasses import dataclass

from softcue.training.checkpoints import CheckpointFolder, RunState


@dataclass
class AdaptationState(RunState):
    """The progress of an adaptation at one step, except its tensors."""

    def is_possible(self, num_steps: int) -> bool:
        """Whether an adaptation of so many steps can be in this state.

        Example:
            >>> AdaptationState(step=3).is_possible(4), AdaptationState(step=5).is_possible(4)
            (True, False)
        """
        if type(self.step) is not int or not 0 <= self.step <= num_steps or not isinstance(self.history, list):
            return False
        return all(isinstance(entry, dict) and {"step", "perplexity"} <= entry.keys() for entry in self.history)

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
