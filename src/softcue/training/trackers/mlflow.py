"""MLflow: the server of MLFLOW_TRACKING_URI, else MLflow's own default, mlflow.db in the working folder."""

from __future__ import annotations

import os
import re
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from softcue.training.trackers.tracker import PROJECT, EndState, TrackedRun

if TYPE_CHECKING:
    from mlflow.entities import Metric

# Set unless the user has set them. A server that is gone must not hold up the training for minutes.
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
STATES: dict[EndState, str] = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}
SQLITE = "sqlite:///"
SECONDS_BETWEEN_CALLS = 1.0
MOST_METRICS, MOST_PARAMS = 1000, 100  # in one call
LONGEST_VALUE = 500  # of a parameter, on older servers
_FORBIDDEN = re.compile(r"[^\w\-. :/]")  # in names


class MlflowTracker:
    """Writes a run of MLflow. Values are sent once a second."""

    place = ""

    def start(self, run: TrackedRun, identity: str) -> str:
        """Begin or continue a run. One that the store does not have any more is begun again."""
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        import mlflow

        self._waiting: list[Metric] = []
        self._last_call = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # MLflow's own use of SQLAlchemy
            address = mlflow.get_tracking_uri()
            if address.startswith(SQLITE):
                _make_database(Path(address.removeprefix(SQLITE)))
            self._client = mlflow.MlflowClient(address)
            self._id = (self._continue(identity) if identity else "") or self._begin(run)
        self.place = f"{self._client.tracking_uri}, run {self._id}"
        return self._id

    def _continue(self, identity: str) -> str:
        from mlflow.exceptions import MlflowException

        try:
            self._client.update_run(identity, status="RUNNING")
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return ""
            raise
        return identity

    def _begin(self, run: TrackedRun) -> str:
        from mlflow.entities import Param

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
        experiment = self._client.get_experiment_by_name(name)
        experiment_id = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        tags = {**run.tags, "group": run.group} if run.group else run.tags
        identity = str(self._client.create_run(experiment_id, run_name=run.name, tags=tags).info.run_id)
        params = [Param(_name(key), str(value)[:LONGEST_VALUE]) for key, value in run.settings.items()]
        for first in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(identity, params=params[first : first + MOST_PARAMS])
        return identity

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Keep values, and send them if the last call was a second ago."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._waiting += [Metric(_name(name), value, now, step) for name, value in values.items()]
        if time.monotonic() - self._last_call >= SECONDS_BETWEEN_CALLS:
            self._send()

    def _send(self) -> None:
        for first in range(0, len(self._waiting), MOST_METRICS):
            self._client.log_batch(self._id, metrics=self._waiting[first : first + MOST_METRICS])
        self._waiting = []
        self._last_call = time.monotonic()

    def finish(self, scores: Mapping[str, float], step: int, state: EndState) -> None:
        """Send the rest and the scores, and end the run."""
        self.log(scores, step)
        self._send()
        self._client.set_terminated(self._id, status=STATES[state])


def _make_database(path: Path) -> None:
    """Make MLflow's tables in a new file, which is whole or absent: for runs that start together or are killed."""
    if path.exists():
        return
    import mlflow

    with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        new = Path(folder) / path.name
        mlflow.MlflowClient(f"{SQLITE}{new}")
        try:
            os.link(new, path)
        except OSError:  # another run was faster, or the file system has no links
            if not path.exists():
                os.replace(new, path)


def _name(text: str) -> str:
    """A name that MLflow takes."""
    return _FORBIDDEN.sub("_", text)
