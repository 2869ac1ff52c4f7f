"""TensorBoard: event files in the folder `tensorboard` of the run."""

from __future__ import annotations

from collections.abc import Mapping

from softcue.training.trackers.tracker import EndState, TrackedRun


class TensorboardTracker:
    """Writes event files."""

    place = ""

    def start(self, run: TrackedRun, identity: str) -> str:
        """Open an event file. Those of an overwritten run are hidden by an event that says: from step 0 on."""
        from torch.utils.tensorboard import SummaryWriter

        folder = run.folder / "tensorboard"
        self.place = f"tensorboard --logdir {folder}"
        self._writer = SummaryWriter(folder, purge_step=None if identity else 0)
        if not identity:
            lines = [f"| {key} | {value} |" for key, value in {**run.tags, **run.settings}.items()]
            self._writer.add_text("settings", "\n".join(["| key | value |", "|---|---|", *lines]))
        return folder.name

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write each value as a scalar."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def finish(self, scores: Mapping[str, float], step: int, state: EndState) -> None:
        """Write the scores and close the file. TensorBoard has no state of a run."""
        self.log(scores, step)
        self._writer.close()
