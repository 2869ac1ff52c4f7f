"""The file of a study: what it may say, what is an error, and which runs it asks for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import check_error, run
from pydantic import ValidationError
from study_grids import small_study, write_task

from softcue.errors import ConfigurationError
from softcue.studies.runs import StudyPlan, plan_runs, run_from_dict
from softcue.studies.search import propose
from softcue.studies.study import Search, list_studies, make_study, read_study

VALUES: dict[str, Any] = {"name": "s", "backbones": ["minilm"], "tasks": ["tickets", "urgency"], "methods": ["vip"]}
RATES = {"training.learning_rate": [0.1, 0.3]}


def test_a_grid_has_a_run_for_each_cell_and_seed() -> None:
    regimes = [{"name": "K=8", "few_shot": 8}, {"name": "K=16", "few_shot": 16}]
    values = {**VALUES, "methods": ["vip", "adapter"], "regimes": regimes, "seeds": 3}
    plan = plan_runs(make_study(values), {})
    assert plan.size == len(plan.runs) == len({run.id for run in plan.runs}) == 2 * 2 * 2 * 3
    assert {run.settings["task.few_shot"] for run in plan.runs} == {8, 16}


def test_first_seeds_of_all_cells_come_first() -> None:
    plan = plan_runs(make_study({**VALUES, "seeds": 3}), {})
    assert [run.seed for run in plan.runs] == [0, 0, 1, 1, 2, 2]


def test_few_shot_runs_of_a_seed_share_their_sample() -> None:
    values = {**VALUES, "methods": ["vip", "adapter"], "regimes": [{"name": "K=8", "few_shot": 8}]}
    settings = {"task.train_rows": 50}
    for planned in plan_runs(make_study({**values, "settings": settings}), {}).runs:
        assert planned.settings["task.sample_seed"] == planned.seed
        assert "task.train_rows" not in planned.settings


def test_settings_of_a_method_win_over_those_of_the_study() -> None:
    line = {"name": "short", "method": "vip", "settings": {"method.prompt_length": 5}}
    study = make_study({**VALUES, "methods": [line, "vip"], "settings": {"method.prompt_length": 20}})
    lengths = {
        planned.axes["method"]: planned.settings["method.prompt_length"] for planned in plan_runs(study, {}).runs
    }
    assert lengths == {"short": 5, "vip": 20}


def test_a_setting_that_varies_is_an_axis() -> None:
    plan = plan_runs(make_study({**VALUES, "vary": {"method.prompt_length": [1, 5]}, "seeds": 1}), {})
    assert [(planned.axes["variant"], planned.settings["method.prompt_length"]) for planned in plan.runs] == [
        ("1", 1),
        ("1", 1),
        ("5", 5),
        ("5", 5),
    ]


def test_joint_regime_trains_all_tasks_in_one_run() -> None:
    regimes = ["alone", {"name": "together", "joint": True}]
    plan = plan_runs(make_study({**VALUES, "regimes": regimes, "seeds": 1}), {})
    assert [planned.tasks for planned in plan.runs] == [("tickets",), ("urgency",), ("tickets", "urgency")]


def test_ensembles_wait_for_all_their_members() -> None:
    plan = plan_runs(make_study({**VALUES, "tasks": ["tickets"], "seeds": 3, "ensembles": ["vote", "mean"]}), {})
    ensembles = [planned for planned in plan.runs if planned.kind == "ensemble"]
    assert [planned.axes["method"] for planned in ensembles] == ["vip, vote of 3", "vip, mean of 3"]
    assert all(len(planned.needs) == 3 for planned in ensembles)


def test_runs_on_an_adapted_backbone_wait_for_it() -> None:
    backbones = ["minilm", {"name": "adapted", "backbone": "models/t5", "adapt": {"steps": 10, "text": "books"}}]
    plan = plan_runs(make_study({**VALUES, "backbones": backbones, "seeds": 1}), {})
    assert plan.runs[0].kind == "adapt" and plan.runs[0].details["steps"] == 10
    waiting = [planned for planned in plan.runs if planned.axes["backbone"] == "adapted" and planned.kind == "train"]
    assert waiting and all(planned.needs == (plan.runs[0].id,) for planned in waiting)


def search_study(**search: Any) -> dict[str, Any]:
    line = {"name": "vip", "search": {"space": RATES, "seeds": 2, **search}}
    return {**VALUES, "tasks": ["tickets"], "methods": [line], "seeds": 3}


def results_of(plan: StudyPlan, scores: dict[str, float]) -> dict[str, dict[str, Any]]:
    return {
        planned.id: {"validation": {"tickets": {"main": scores[planned.trial]}}}
        for planned in plan.runs
        if planned.trial
    }


def test_search_chooses_on_validation_rows_and_trains_again_with_fresh_seeds() -> None:
    study = make_study(search_study())
    first = plan_runs(study, {})
    assert [planned.trial for planned in first.runs].count("learning_rate=0.1") == 2
    assert len(first.runs) == 4 and first.num_later == 3
    results = results_of(first, {"learning_rate=0.1": 70.0, "learning_rate=0.3": 80.0})
    chosen = [planned for planned in plan_runs(study, results).runs if not planned.trial]
    assert [planned.seed for planned in chosen] == [2, 3, 4]  # 0 and 1 were used up by the search
    assert {planned.settings["training.learning_rate"] for planned in chosen} == {0.3}


def test_half_a_search_chooses_nothing() -> None:
    study = make_study(search_study())
    plan = plan_runs(study, {})
    results = results_of(plan, {"learning_rate=0.1": 70.0, "learning_rate=0.3": 80.0})
    del results[plan.runs[-1].id]
    assert all(planned.trial for planned in plan_runs(study, results).runs)


def test_range_needs_a_number_of_trials() -> None:
    with pytest.raises(ValidationError, match="a number of trials"):
        Search(space={"training.learning_rate": {"low": 0.1, "high": 1.0}})


def test_optuna_proposes_the_same_after_an_interruption() -> None:
    pytest.importorskip("optuna")
    space: Any = {"training.learning_rate": {"low": 0.001, "high": 1.0, "log": True}, "method.prompt_length": [5, 20]}
    search = Search(space=space, trials=10)
    rounds: list[list[tuple[dict[str, Any], float]]] = []
    while (proposals := propose(search, rounds)) is not None:
        assert proposals == propose(search, rounds)
        rounds.append([(settings, 50 - abs(settings["training.learning_rate"] - 0.3)) for settings in proposals])
    assert [len(tried) for tried in rounds] == [4, 4, 2]


def test_a_run_travels_as_plain_data() -> None:
    for planned in plan_runs(read_study("quick"), {}).runs:
        assert run_from_dict(json.loads(json.dumps(planned.as_dict()))) == planned
        assert run_from_dict(json.loads(json.dumps(planned.as_dict()))).digest == planned.digest


def test_digest_knows_settings_and_not_the_place_of_data() -> None:
    def digest(**changes: Any) -> str:
        return plan_runs(make_study({**VALUES, **changes}), {}).runs[0].digest

    assert digest() == digest(data="elsewhere") != digest(settings={"training.steps": 9})
    assert digest() == digest(settings={"training.report_to": ["tensorboard"], "training.report_group": "mine"})


def test_names_with_other_characters_have_folders_of_their_own() -> None:
    lines = [{"name": name, "method": "vip"} for name in ("a b", "a-b", "a/b")]
    plan = plan_runs(make_study({**VALUES, "methods": lines}), {})
    assert len({planned.id for planned in plan.runs}) == plan.size
    assert all(".." not in planned.id and not planned.id.startswith("/") for planned in plan.runs)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ["vipp"]}, "vip"),
        ({"methods": ["vip", "vip"]}, "twice"),
        ({"settings": {"method.prompt_lenght": 5}}, "prompt_length"),
        ({"settings": {"method.prompt_length": -5}}, "prompt_length"),
        ({"settings": {"trianing.steps": 5}}, "training"),
        ({"seeds": 0}, "seeds"),
        ({"vary": {"training.seed": [1], "training.steps": [2]}}, "at most one"),
        ({"unknown": 1}, "unknown"),
        ({"tasks": ["tickets"], "regimes": [{"name": "all", "joint": True}]}, "several tasks"),
        ({"recipe": "best"}, "recipe"),
        ({"name": ".."}, "letters, digits"),
        ({"name": "a" * 300}, "at most 100"),
        ({"backbones": "minilm"}, "study.backbones: got 'minilm'; expected a list"),
        ({"backbones": 3}, "a list"),
        ({"backbones": ["x" * 5000], "methods": ["vipp"]}, "vip"),
        ({"tasks": [{"task": "tickets"}]}, "entries with a name"),
        ({"settings": ["training.steps"]}, "keys with values"),
        ({"small": "few"}, "keys with values"),
        ({"small": {"tasks": 3}}, "study.small.tasks"),
        ({"regimes": []}, "regimes"),
        ({"ensembles": ["vote", "vote"]}, "twice"),
        ({"vary": {"method.prompt_length": []}}, "values for method.prompt_length"),
        ({"vary": {"training.learning_rate": [1, 1.0]}}, "not 1 twice"),
        ({"vary": {"training.seed": [1, 2]}}, "decides itself"),
        ({"settings": {"task.use_test_rows": True}}, "decides itself"),
        ({"settings": {"task.name": "rte"}}, "decides itself"),
        ({"methods": [{"name": "vip", "tasks": ["rte"]}]}, "none has a run"),
        ({"methods": [{"name": "vip", "regimes": ["K=3"]}]}, "none has a run"),
        ({"tasks": [{"name": "tickets", "score_on": ["urgency", "urgency"]}]}, "different tasks below `score_on`"),
        ({"tasks": [{"name": "tickets", "score_on": ["tickets"]}]}, "not its own"),
    ],
)
def test_a_wrong_study_is_an_error_before_any_run(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_study({**VALUES, **changes})


@pytest.mark.parametrize(
    ("space", "trials", "message"),
    [
        ({}, 0, "below `space`"),
        ({"training.learning_rate": [0.1, 0.1]}, 0, "not 0.1 twice"),
        ({"training.learning_rate": [0.1, "x"]}, 0, "learning_rate: got 'x'"),
        ({"task.sample_seed": [1, 2]}, 0, "decides itself"),
        ({"training.learning_rate": {"low": 3, "high": 1}}, 4, "`low` below `high`"),
        ({"training.learning_rate": {"low": 0, "high": 1, "log": True}}, 4, "`low` above 0"),
        ({"method.prompt_length": {"low": 0.5, "high": 4, "whole": True}}, 4, "whole numbers"),
        ({"method.prompt_length": {"low": -3, "high": 4, "whole": True}}, 4, "prompt_length: got -3"),
    ],
)
def test_a_wrong_search_is_an_error_before_any_run(space: dict[str, Any], trials: int, message: str) -> None:
    method = {"name": "vip", "search": {"space": space, "trials": trials}}
    with pytest.raises(ConfigurationError, match=message):
        make_study({**VALUES, "methods": [method]})


def test_entries_without_a_form_cannot_be_chosen_from() -> None:
    with pytest.raises(ConfigurationError, match="a list"):
        make_study({**VALUES, "methods": 3}, changes={"methods": ["vip"]})


def test_values_that_look_alike_have_trials_of_their_own() -> None:
    method = {"name": "vip", "search": {"space": {"training.learning_rate": [0.000123451, 0.000123452]}}}
    plan = plan_runs(make_study({**VALUES, "methods": [method]}), {})
    assert len({planned.id for planned in plan.runs}) == len(plan.runs) == 4


def test_settings_that_optuna_proposes_twice_are_tried_once() -> None:
    pytest.importorskip("optuna")
    method = {"name": "vip", "search": {"space": {"method.prompt_length": [5, 20]}, "trials": 8}}
    study = make_study({**VALUES, "tasks": ["tickets"], "methods": [method], "seeds": 1})
    results: dict[str, Any] = {}
    for _ in range(3):
        plan = plan_runs(study, results)
        assert len({planned.id for planned in plan.runs}) == len(plan.runs)
        results |= results_of(plan, {"prompt_length=5": 70.0, "prompt_length=20": 80.0})
    assert [planned.settings["method.prompt_length"] for planned in plan.runs if not planned.trial] == [20]


def test_task_files_are_those_beside_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The study goes on from any working folder: it has their full paths."""
    write_task(tmp_path / "tasks", "desk")
    values = {**VALUES, "tasks": ["tasks/desk.yaml", {"name": "tickets", "score_on": ["tasks/desk.yaml"]}]}
    (tmp_path / "mine.yaml").write_text(json.dumps({**values, "layout": {"tasks": ["tasks/desk.yaml"]}}))
    full = str((tmp_path / "tasks" / "desk.yaml").resolve())
    away = tmp_path / "away"
    away.mkdir()
    for place, name in ((tmp_path, "mine.yaml"), (away, "../mine.yaml")):
        monkeypatch.chdir(place)
        study = read_study(name)
        assert (study.tasks[0].name, study.tasks[0].source) == ("tasks/desk.yaml", full)
        assert study.tasks[1].score_on == (full,) and study.layout.tasks == ("tasks/desk.yaml",)


def test_small_scale_replaces_parts_of_the_study() -> None:
    values = {**VALUES, "settings": {"training.steps": 900}, "seeds": 5}
    small = {"seeds": 2, "tasks": ["tickets"], "settings": {"training.steps": 9}}
    study = make_study({**values, "small": small}, "small")
    assert (study.seeds, study.tasks[0].name, study.settings) == (2, "tickets", {"training.steps": 9})
    assert make_study({**values, "small": small}).settings == {"training.steps": 900}


def test_small_scale_of_a_study_without_it_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="small"):
        make_study(VALUES, "small")


def test_the_command_line_wins_over_the_small_version() -> None:
    assert read_study("quick", scale="small", seeds=7).seeds == 7


def test_unknown_study_names_similar_ones(tmp_path: Path) -> None:
    check_error(run("study", "run", "quik", "--output-dir", tmp_path), "quick")


def test_list_has_every_study() -> None:
    assert [study["name"] for study in run("study", "list", "--json").json["studies"]] == list_studies()


def test_backbone_folder_is_called_by_its_last_part(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    assert study.backbones[0].name == "bert" and Path(study.backbones[0].source).is_absolute()
