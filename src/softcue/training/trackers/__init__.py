"""Trackers that a run reports to: one small adapter file each, imported when a run names it."""

from softcue.training.trackers.registry import TRACKERS, TrackerNames, check_installed
from softcue.training.trackers.reports import Reports
from softcue.training.trackers.tracker import EndState, TrackedRun, Tracker, flatten, name_run

__all__ = [
    "TRACKERS",
    "EndState",
    "Reports",
    "TrackedRun",
    "Tracker",
    "TrackerNames",
    "check_installed",
    "flatten",
    "name_run",
]
