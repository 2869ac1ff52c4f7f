"""Other software in a study: the same rows, scored beside the methods."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from study_grids import small_study

from softcue.errors import ConfigurationError
from softcue.studies.execution import BackbonePool, execute
from softcue.studies.peers import find_peer
from softcue.studies.report.record import StudyRecord
from softcue.studies.runner import read_status
from softcue.studies.runs import plan_runs
from softcue.studies.store import StudyFolder

PEER = {"name": "guesser", "function": "study_grids:guess"}


def test_a_peer_gets_the_rows_of_the_study_and_its_predictions_are_scored(tmp_path: Path) -> None:
    study = small_study(tmp_path, methods=["linear-probe", PEER], seeds=1)
    runs = [run for run in plan_runs(study, {}).runs if run.kind == "peer"]
    assert [run.axes["method"] for run in runs] == ["guesser"] * 2  # on two tasks
    result = execute(runs[0], tmp_path / "run", tmp_path, BackbonePool())
    assert result["scores"]["desk"]["main"] == 50.0  # two labels, twelve rows
    assert result["scores"]["desk"]["rows"] == 12
    assert result["trainable"] == 7


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cannot count the peak again from a moment on")
def test_the_memory_of_a_run_is_not_that_of_the_runs_before_it(tmp_path: Path) -> None:
    large = {"name": "large", "function": "study_grids:guess_with_much_memory"}
    study = small_study(tmp_path, methods=[large, PEER], seeds=1)
    peaks = {
        run.axes["method"]: execute(run, tmp_path / run.id, tmp_path, BackbonePool())["peak_megabytes"]
        for run in plan_runs(study, {}).runs
    }
    assert peaks["guesser"] < peaks["large"] - 200
    assert peaks["guesser"] > 0


def test_a_report_has_a_line_for_the_peer(tmp_path: Path) -> None:
    study = small_study(tmp_path, methods=["linear-probe", PEER], seeds=1)
    folder = StudyFolder(tmp_path / "study")
    folder.begin(study)
    for run in plan_runs(study, {}).runs:
        with folder.claim(run) as place:
            folder.finish(run, execute(run, place, folder.runs, BackbonePool()))
    record = StudyRecord(study, read_status(folder))
    assert {score.place.method for score in record.scores} == {"linear-probe", "guesser"}


def test_settings_of_methods_do_not_apply_to_peers(tmp_path: Path) -> None:
    study = small_study(tmp_path, methods=["prompt-tuning", PEER], settings={"method.prompt_length": 3})
    assert study.settings_for(study.methods[1]) == {}


def test_ensembles_join_cues_alone(tmp_path: Path) -> None:
    study = small_study(tmp_path, methods=["linear-probe", PEER], ensembles=["vote"])
    joined = [run.axes["method"] for run in plan_runs(study, {}).runs if run.kind == "ensemble"]
    assert joined == ["linear-probe, vote of 2"] * 2


@pytest.mark.parametrize(
    "method",
    [
        {"name": "x", "function": "no-colon"},
        {"name": "x", "function": "os:system('ls')"},
        {"name": "x", "function": "study_grids:guess", "method": "vip"},
    ],
)
def test_wrong_names_of_functions_are_errors(tmp_path: Path, method: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="module:function"):
        small_study(tmp_path, methods=["linear-probe", method])


def test_functions_that_cannot_be_imported_are_errors_with_advice() -> None:
    with pytest.raises(ConfigurationError, match="install the module"):
        find_peer("no_such_module:train")
    with pytest.raises(ConfigurationError, match="install the module"):
        find_peer("json:no_such_function")
    with pytest.raises(ConfigurationError, match="cannot be called"):
        find_peer("string:digits")
