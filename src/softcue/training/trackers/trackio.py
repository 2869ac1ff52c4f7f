"""Trackio: local in TRACKIO_DIR, or a server or Space that its own environment variables name."""

from __future__ import annotations

import io
import os
import secrets
from collections.abc import Mapping
from contextlib import redirect_stdout

from softcue.training.trackers.tracker import PROJECT, EndState, TrackedRun


class TrackioTracker:
    """Writes a run of Trackio."""

    place = ""

    def start(self, run: TrackedRun, identity: str) -> str:
        """Begin or continue a run. Trackio finds a run by its name, so the name has a random end."""
        import trackio

        project = os.environ.get("TRACKIO_PROJECT") or PROJECT
        name = identity or f"{run.name}-{secrets.token_hex(3)}"
        with redirect_stdout(io.StringIO()):  # standard output is for results
            self._run = trackio.init(
                project=project,
                name=name,
                group=run.group or None,
                config={**run.tags, **run.settings},
                resume="allow" if identity else "never",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        self.place = f"trackio show --project {project}, run {name}"
        return name

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log values; Trackio sends them in the background."""
        self._run.log(dict(values), step=step)

    def finish(self, scores: Mapping[str, float], step: int, state: EndState) -> None:
        """Log the scores and wait until all is written. Trackio has no state of a run."""
        import trackio

        with redirect_stdout(io.StringIO()):
            if scores:
                self.log(scores, step)
            trackio.finish()
