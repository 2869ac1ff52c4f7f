"""The trackers by name. A tracker's name is also that of its file here, of its package and of its extra."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Annotated

from pydantic import BeforeValidator

from softcue.errors import MissingExtraError, near_matches
from softcue.training.trackers.tracker import Tracker

# name -> the class in the file of that name
TRACKERS = {
    "tensorboard": "TensorboardTracker",
    "wandb": "WandbTracker",
    "mlflow": "MlflowTracker",
    "trackio": "TrackioTracker",
}


def parse_names(value: object) -> object:
    """Split `a,b` of the command line into names, and check that there are trackers of these names.

    Example:
        >>> parse_names("tensorboard, wandb")
        ('tensorboard', 'wandb')
    """
    names = value.split(",") if isinstance(value, str) else () if value is None else value
    if not isinstance(names, (list, tuple)):
        return value  # pydantic says what is wrong with it
    names = tuple(dict.fromkeys(str(name).strip() for name in names if str(name).strip()))
    for name in names:
        if name not in TRACKERS:
            raise ValueError(f"names of trackers, not '{name}': {near_matches(name, TRACKERS)}")
    return names


TrackerNames = Annotated[tuple[str, ...], BeforeValidator(parse_names)]


def check_installed(names: Sequence[str]) -> None:
    """Check that the packages of these trackers are installed, without importing them.

    Example:
        >>> check_installed([])
    """
    for name in names:
        if find_spec(name) is None:
            raise MissingExtraError(name, name)


def make_tracker(name: str) -> Tracker:
    """A tracker that has not started yet. Its package is imported when it starts.

    Example:
        make_tracker("tensorboard").start(run, identity="")
    """
    module = importlib.import_module(f"softcue.training.trackers.{name}")
    tracker: Tracker = getattr(module, TRACKERS[name])()
    return tracker
