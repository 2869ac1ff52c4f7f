"""The studies of the project's own measurements can be read and planned."""

from __future__ import annotations

from pathlib import Path

import pytest

from softcue.studies.runs import plan_runs
from softcue.studies.study import read_study
from softcue.tasks import list_tasks

STUDIES = sorted((Path(__file__).parents[2] / "benchmarks" / "studies").glob("*.yaml"))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_study_is_called_as_its_file_and_has_runs(path: Path) -> None:
    study = read_study(path)
    assert study.name == path.stem and study.description
    assert plan_runs(study, {}).size >= 6


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_tasks_of_a_study_exist(path: Path) -> None:
    study = read_study(path)
    names = {task.name for task in study.tasks}
    assert names <= set(list_tasks().names), names - set(list_tasks().names)
