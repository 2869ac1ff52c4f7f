"""Weights & Biases. Offline unless WANDB_MODE or WANDB_API_KEY say otherwise; it never asks for a key."""

from __future__ import annotations

import os
from collections.abc import Mapping

from softcue.training.trackers.tracker import PROJECT, EndState, TrackedRun

EXIT_CODES: dict[EndState, int] = {"finished": 0, "failed": 1, "killed": 255}  # as wandb reads them
LONGEST_TAG = 64


class WandbTracker:
    """Writes a run of wandb: to its server, or below the run folder for `wandb sync`."""

    place = ""

    def start(self, run: TrackedRun, identity: str) -> str:
        """Begin or continue a run."""
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # wandb reads it when it is imported
        import wandb

        is_online = bool(os.environ.get("WANDB_API_KEY"))
        mode = os.environ.get("WANDB_MODE") or ("online" if is_online else "offline")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            name=run.name,
            group=run.group or None,
            id=identity or None,
            resume="allow" if identity else None,
            mode=mode,
            dir=os.environ.get("WANDB_DIR") or run.folder,
            tags=[tag[:LONGEST_TAG] for tag in run.tags.values() if tag],
            config=run.settings,
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        upload = f"{mode}; upload with: wandb sync {self._run.settings.sync_dir}"
        self.place = upload if mode == "offline" else str(self._run.url)
        return str(self._run.id)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log values. The step is a value too: wandb's own counter refuses an evaluation after its step."""
        self._run.log({"step": step, **values})

    def finish(self, scores: Mapping[str, float], step: int, state: EndState) -> None:
        """Put the scores into the summary and end the run."""
        self._run.summary.update(dict(scores))
        self._run.finish(exit_code=EXIT_CODES[state])
