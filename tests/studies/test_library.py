from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import pytest
import yaml

from softcue.adaptation.config import AdaptationConfig
from softcue.configuration import override, resolve
from softcue.errors import ConfigurationError
from softcue.evaluation import check_metric
from softcue.recipes import TaskForm
from softcue.studies.runs import StudyRun, plan_runs
from softcue.studies.study import _library, list_studies, make_study, read_study
from softcue.tasks import find_task
from softcue.tasks.catalogue import library_names

# Study -> runs at full scale, by hand: lines x tasks x seeds, and what is written beside it.
NUM_RUNS = {
    "quick": 4 * 4 * 3,
    "idpg-table1": 12 * 10 * 5,
    "idpg-table3-fewshot": 8 * 10 * 5 * 3,  # three numbers of rows
    "idpg-table6-sharing": 8 * 10 * 5,
    "idpg-table7-generator": 4 * 10 * (5 + 1),  # one vote of five
    "idpg-figure7-positions": 2 * (3 * 10 + 2 * 5) * 5,  # places 2 and 3 for pairs of sentences only
    "idpg-figure9-length": 4 * 10 * 5 * 5,  # five lengths
    "vip-table1-superglue": 6 * 8 * 3,
    "vip-table2": 6 * 4 * 3,
    "vip-table3-qa": 6 * 7 * 3,
    "vip-table4-ood-qa": 2 * 6 * 3,
    "vip-table5-ood-nli": 2 * 1 * 3,
    "vip-table6-multitask": 4 * 1 * 3,  # twelve tasks in one run
    "vip-table7-nr-dc": 4 * 6 * 3,
    "vip-table8-mixture": 5 * 8 * 3,
    "vip-figure5-curves": 2 * 1 * 3,
    "pt-figure1-size": 5 * (3 * 8 + 1) * 3,  # five sizes; one line has all tasks in one run
    "pt-figure3a-length": 5 * 5 * 8 * 3,
    "pt-figure3b-init": 5 * 3 * 8 * 3,
    "pt-figure3c-objective": 5 * (2 * 2 * 8 * 3 + 1),  # one adaptation of each size
    "pt-figure3d-adaptation": 5 * (4 * 8 * 3 + 3),
    "pt-table1-domain-shift": 2 * 1 * 3,
    "pt-table2-paraphrase": 2 * 2 * 3,
    "pt-table3-ensemble": 8 * (5 + 1),
}
SCALES = ("full", "small")
MEAN = "mean"  # the line or column of the mean over tasks
CASES = list(itertools.product(NUM_RUNS, SCALES))


@cache
def plan(name: str, scale: str) -> list[StudyRun]:
    return plan_runs(read_study(name, scale=scale), {}).runs


def distinct(runs: list[StudyRun]) -> list[StudyRun]:
    """One run of each cell: seeds have the same settings."""
    return list({run.id.rpartition("/")[0]: run for run in runs if run.kind == "train"}.values())


def check_settings(run: StudyRun) -> None:
    """Resolve the settings of a run as its training does, without loading a backbone."""
    kind = "encoder" if run.backbone == "minilm" else "encoder-decoder"
    settings: dict[str, Any] = {"method": {"name": run.method}}
    given = {**run.settings, **{f"backbone.{key}": value for key, value in run.backbone_settings.items()}}
    for key, value in given.items():
        for section, values in override(key, value).items():
            settings.setdefault(section, {}).update(values)
    task = find_task(run.tasks[0])
    form = TaskForm(
        num_texts=task.num_sentences,
        task_kind=task.kind if len(run.tasks) == 1 else "",
        has_several_tasks=len(run.tasks) > 1,
        is_few_shot=bool(run.settings.get("task.few_shot")),
    )
    resolve(settings, kind, run.recipe, form)


def test_all_studies_of_the_library_are_counted() -> None:
    assert set(list_studies()) == set(NUM_RUNS)


@pytest.mark.parametrize("name", NUM_RUNS)
def test_a_study_has_the_runs_of_its_table(name: str) -> None:
    assert len(plan(name, "full")) == NUM_RUNS[name]


@pytest.mark.parametrize(("name", "scale"), CASES)
def test_every_setting_exists_for_the_method_it_goes_with(name: str, scale: str) -> None:
    for run in distinct(plan(name, scale)):
        check_settings(run)


def test_a_setting_for_all_runs_reaches_the_methods_that_have_it() -> None:
    runs = plan_runs(read_study("pt-table1-domain-shift", settings={"method.prompt_length": 20}), {}).runs
    assert {run.method: run.settings.get("method.prompt_length") for run in runs} == {
        "fine-tuning": None,
        "prompt-tuning": 20,
    }


def test_a_setting_that_a_method_lacks_is_an_error() -> None:
    lines = [{"name": "fine-tuning", "settings": {"method.prompt_length": 20}}]
    with pytest.raises(ConfigurationError, match="prompt_length"):
        read_study("pt-table1-domain-shift", methods=lines)


@pytest.mark.parametrize(("name", "scale"), CASES)
def test_every_task_is_in_the_library_and_has_the_metric(name: str, scale: str) -> None:
    for run in distinct(plan(name, scale)):
        assert {*run.tasks, *run.score_on} <= set(library_names())
        if metric := run.settings.get("task.metric"):
            check_metric(find_task(run.tasks[0]).model_copy(update={"metric": metric}))


@pytest.mark.parametrize("name", [name for name in NUM_RUNS if name != "quick"])
def test_a_small_version_has_rows_in_files_and_fewer_steps(name: str) -> None:
    runs = distinct(plan(name, "small"))
    for run in runs:
        assert all(find_task(task).files for task in (*run.tasks, *run.score_on))
        assert 0 < run.settings["training.steps"] <= 300
        assert {"task.validation_rows", "task.test_rows"} <= set(run.settings)
        assert "task.train_rows" in run.settings or "task.few_shot" in run.settings
    assert len(plan(name, "small")) <= len(plan(name, "full"))


@pytest.mark.parametrize(("name", "scale"), CASES)
def test_adaptations_have_known_settings(name: str, scale: str) -> None:
    for run in plan(name, scale):
        if run.kind == "adapt":
            AdaptationConfig.model_validate({key: value for key, value in run.details.items() if key != "text"})


def places(name: str, axes: tuple[str, ...]) -> set[str]:
    """The names of the lines, or of the columns, of a report: the values of its axes, joined with a slash."""
    result = {MEAN}
    for run in plan(name, "full"):
        if run.kind == "adapt":
            continue
        for task in (*run.tasks, *run.score_on):
            values = {**run.axes, "task": task}
            result.add(" / ".join(values[axis] for axis in axes))
    return result


@pytest.mark.parametrize("name", [name for name in NUM_RUNS if read_study(name).reference])
def test_the_numbers_of_a_paper_stand_in_lines_and_columns_of_the_study(name: str) -> None:
    study = read_study(name)
    assert study.reference is not None
    tables = [study.reference.scores, *study.reference.blocks.values()]
    lines, columns = places(name, study.layout.rows), places(name, study.layout.columns)
    assert any(tables)
    for table in tables:
        assert set(table) <= lines
        assert {column for scores in table.values() for column in scores} <= columns
        for value in (value for scores in table.values() for value in scores.values()):
            assert isinstance(value, (int, float)) or "±" in value or "/" in value
    assert set(study.reference.blocks) <= places(name, study.layout.blocks)


@pytest.mark.parametrize("name", NUM_RUNS)
def test_a_report_shows_tasks_that_are_scored(name: str) -> None:
    study = read_study(name)
    scored = {task for run in plan(name, "full") for task in (*run.tasks, *run.score_on)}
    assert set(study.layout.tasks) <= scored


def test_titles_and_descriptions_name_the_table_and_the_paper() -> None:
    for name in NUM_RUNS:
        study = read_study(name)
        assert study.title and study.description and study.small
        if name != "quick":
            assert study.recipe == "paper"
            assert any(paper in study.description for paper in ("Wu et al.", "Bhardwaj et al.", "Lester et al."))


def test_a_given_backbone_is_the_source_of_all_that_is_made_from_it() -> None:
    study = read_study("pt-figure3d-adaptation", backbones=["my-t5"])
    assert [backbone.name for backbone in study.backbones] == ["0K", "10K", "50K", "100K"]
    assert {backbone.source for backbone in study.backbones} == {"my-t5"}
    adapted = [run for run in plan_runs(study, {}).runs if run.kind == "adapt"]
    assert [run.details["steps"] for run in adapted] == [10_000, 50_000, 100_000]


def test_several_given_backbones_and_chosen_entries() -> None:
    study = read_study("pt-figure3d-adaptation", backbones=["a", "10K", "b"])
    assert [(backbone.name, backbone.source) for backbone in study.backbones] == [("a 10K", "a"), ("b 10K", "b")]
    chosen = read_study("pt-figure3d-adaptation", scale="small", backbones=["10 steps"])
    assert [(backbone.name, backbone.source) for backbone in chosen.backbones] == [("10 steps", "google/t5-v1_1-small")]


def test_an_entry_without_a_given_backbone_is_an_error() -> None:
    values = yaml.safe_load((_library() / "pt-figure3d-adaptation.yaml").read_text("utf-8"))
    del values["given"]
    with pytest.raises(ConfigurationError, match="a backbone to begin with"):
        make_study(values)
    assert make_study(values, changes={"backbones": ["a"]}).backbones[0].source == "a"


def test_a_method_may_be_in_some_regimes_only() -> None:
    runs = plan("pt-figure1-size", "small")
    together = {run.axes["method"] for run in runs if run.axes["regime"] == "together"}
    alone = {run.axes["method"] for run in runs if run.axes["regime"] == "alone"}
    assert together == {"fine-tuning together"}
    assert alone == {"prompt-tuning", "fine-tuning", "manual-prompt"}
