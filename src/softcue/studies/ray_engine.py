"""Executes the runs of a study on a Ray cluster: each worker is an actor, on whichever machine has room.

All machines need the same folder for the results (a shared file system), or an fsspec URL. Backbones and data are read
on each machine. Ray is an extra, hence imported inside functions.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from softcue.errors import first_line
from softcue.ray_cluster import connect
from softcue.studies.engines import thread_environment
from softcue.studies.runs import StudyRun
from softcue.studies.worker import Outcome, Worker


@dataclass
class _Actor:
    handle: Any
    run: str = ""  # empty: it waits for work
    reference: Any = field(default=None)  # of the outcome it is working on


class RayEngine:
    """Workers on a Ray cluster. A worker that dies, with its machine or alone, is replaced; its run has crashed.

    Example:
        engine = RayEngine("/shared/studies/quick", num_workers=None, threads=1, address="auto")
    """

    def __init__(self, place: str, num_workers: int | None, threads: int, address: str) -> None:
        connect(address)
        self.place = place if "://" in place else str(Path(place).resolve())
        self.threads = threads
        self.num_workers = num_workers or self._room()
        self._actors: list[_Actor] = []
        self._stopped: dict[str, str] = {}  # run -> reason

    @property
    def num_free(self) -> int:
        """How many more runs can be started now."""
        return self.num_workers - sum(bool(actor.run) for actor in self._actors)

    def start(self, run: StudyRun) -> None:
        """Give a run to a worker that waits, or to a new one."""
        actor = next((actor for actor in self._actors if not actor.run), None) or self._new_actor()
        actor.run = run.id
        actor.reference = actor.handle.execute.remote(run.as_dict())

    def wait(self, seconds: float) -> list[Outcome]:
        """The outcomes of runs that have ended; waits so long for the first."""
        import ray

        busy = {actor.reference: actor for actor in self._actors if actor.run}
        if not busy:
            time.sleep(seconds)
            return []
        ended, _ = ray.wait(list(busy), num_returns=1, timeout=seconds)
        outcomes = []
        for reference in ended:
            actor = busy[reference]
            try:
                outcomes.append(ray.get(reference))
            except ray.exceptions.RayError as error:
                outcomes.append(self._bury(actor, first_line(error)))
            self._stopped.pop(actor.run, None)  # it may have ended just before
            actor.run, actor.reference = "", None
        return outcomes

    def stop(self, run: str, reason: str) -> None:
        """End the worker of a run that takes too long."""
        import ray

        for actor in self._actors:
            if actor.run == run:
                self._stopped[run] = reason
                ray.kill(actor.handle)

    def close(self) -> None:
        """End all workers and leave the cluster."""
        import ray

        for actor in self._actors:
            ray.kill(actor.handle)
        self._actors = []
        ray.shutdown()

    def _new_actor(self) -> _Actor:
        import ray

        num_gpus = 1 if ray.cluster_resources().get("GPU") else 0
        options = {"num_cpus": self.threads, "num_gpus": num_gpus, "max_restarts": 0}
        environment = {"env_vars": thread_environment(self.threads)}
        actor = _Actor(ray.remote(Worker).options(**options, runtime_env=environment).remote(self.place))
        self._actors.append(actor)
        return actor

    def _bury(self, actor: _Actor, reason: str) -> Outcome:
        """The outcome of a run whose worker is dead."""
        self._actors.remove(actor)
        if actor.run in self._stopped:
            return Outcome(actor.run, "failed", self._stopped.pop(actor.run))
        return Outcome(actor.run, "crashed", f"the worker died: {reason}")

    def _room(self) -> int:
        """The number of runs at a time that the cluster has room for."""
        import ray

        resources = ray.cluster_resources()
        return int(resources.get("GPU", 0)) or max(1, int(resources.get("CPU", 1)) // self.threads)
