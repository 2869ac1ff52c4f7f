"""`auto` as a method of a study: each run chooses among several methods."""

from __future__ import annotations

from pathlib import Path

import pytest
from study_grids import SETTINGS, small_study

from softcue.errors import ConfigurationError
from softcue.studies.estimate import estimate_study
from softcue.studies.execution import BackbonePool, execute
from softcue.studies.runs import plan_runs

METHODS = {"selection.methods": "linear-probe,prompt-tuning", "selection.folds": 1}


def test_a_run_of_a_study_chooses_its_method(tmp_path: Path) -> None:
    settings = {**SETTINGS, **METHODS, "method.prompt_length": 3}
    study = small_study(tmp_path, methods=["auto", "prompt-tuning"], seeds=1, settings=settings)
    run = next(run for run in plan_runs(study, {}).runs if run.method == "auto")
    assert "method.prompt_length" not in run.settings  # it belongs to single methods
    result = execute(run, tmp_path / "runs" / run.id, tmp_path / "runs", BackbonePool())
    assert result["scores"]["desk"]["rows"] == 12
    assert result["seconds"] > 0
    again = execute(run, tmp_path / "runs" / run.id, tmp_path / "runs", BackbonePool())
    assert again["scores"] == result["scores"]


def test_the_estimate_says_that_auto_tries_several_methods(tmp_path: Path) -> None:
    [line] = estimate_study(small_study(tmp_path, methods=["auto"])).lines
    assert line.seconds is None
    assert "tries several methods" in line.problem


def test_settings_of_a_method_and_joint_regimes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"method.prompt_length: got 3"):
        small_study(tmp_path, methods=[{"name": "auto", "settings": {"method.prompt_length": 3}}])
    with pytest.raises(ConfigurationError, match="it is for one task"):
        small_study(tmp_path, methods=["auto"], regimes=[{"name": "all", "joint": True}])
    with pytest.raises(ConfigurationError, match="not 'nothing'"):
        small_study(tmp_path, methods=[{"name": "auto", "settings": {"selection.methods": "nothing"}}])
