"""The runner: what it starts, what it keeps, what it tries again. Most tests use an engine without processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import check_error, run
from study_grids import small_study, write_backbone, write_task

from softcue.errors import ConfigurationError, RunError, TrainingError
from softcue.studies import execution
from softcue.studies.engines import LocalEngine
from softcue.studies.report import make_report
from softcue.studies.runner import StudyStatus, read_status, run_study
from softcue.studies.runs import StudyRun, plan_runs
from softcue.studies.store import StudyFolder, open_study
from softcue.studies.study import make_study
from softcue.studies.worker import Outcome, Worker

VALUES: dict[str, Any] = {"name": "s", "backbones": ["minilm"], "tasks": ["tickets"], "methods": ["vip"], "seeds": 2}
Behaviour = Callable[[StudyRun], Outcome]


class FakeEngine:
    """Ends each run at once, as a function says; a run that is done gets a result."""

    def __init__(self, folder: StudyFolder, behaviour: Behaviour, num_workers: int = 2) -> None:
        self.folder, self.behaviour, self.num_workers = folder, behaviour, num_workers
        self.started: list[str] = []
        self.stopped: dict[str, str] = {}
        self._waiting: deque[StudyRun] = deque()
        self.is_closed = False

    @property
    def num_free(self) -> int:
        return self.num_workers - len(self._waiting)

    def start(self, run: StudyRun) -> None:
        assert self.num_free > 0
        self.started.append(run.id)
        self._waiting.append(run)

    def wait(self, seconds: float) -> list[Outcome]:
        if not self._waiting:
            return []
        run = self._waiting.popleft()
        outcome = self.behaviour(run)
        if outcome.state == "done":
            scores = {"tickets": {"main": 50.0 + run.seed, "metrics": {}, "rows": 9, "split": "test"}}
            result = {"digest": run.digest, "scores": scores, "validation": scores, "run_seconds": 1.0}
            with self.folder.claim(run):
                self.folder.finish(run, result)
        return [outcome]

    def stop(self, run: str, reason: str) -> None:
        self.stopped[run] = reason

    def close(self) -> None:
        self.is_closed = True


def done(run: StudyRun) -> Outcome:
    return Outcome(run.id, "done")


def run_fake(
    tmp_path: Path, behaviour: Behaviour = done, retries: int = 1, **values: Any
) -> tuple[StudyStatus, FakeEngine]:
    folder = open_study(tmp_path / "study")
    engine = FakeEngine(folder, behaviour)
    status = run_study(make_study({**VALUES, **values}), folder, engine, retries=retries)
    assert engine.is_closed
    return status, engine


def test_finished_runs_are_not_started_again(tmp_path: Path) -> None:
    _, first = run_fake(tmp_path)
    assert len(first.started) == 2
    status, second = run_fake(tmp_path, seeds=3)
    assert second.started == ["minilm/tickets/vip/seed-2"]
    assert len(status.done) == 3


def test_a_crashed_run_is_tried_again_and_its_reason_kept(tmp_path: Path) -> None:
    crashes = {"minilm/tickets/vip/seed-0": 1}

    def crash_first(run: StudyRun) -> Outcome:
        if crashes.get(run.id):
            crashes[run.id] -= 1
            return Outcome(run.id, "crashed", "the worker was ended by SIGKILL")
        return done(run)

    status, engine = run_fake(tmp_path, crash_first)
    assert engine.started.count("minilm/tickets/vip/seed-0") == 2
    assert not status.failed and len(status.done) == 2
    assert [attempt["reason"] for attempt in status.failures["minilm/tickets/vip/seed-0"]] == [
        "the worker was ended by SIGKILL"
    ]


def test_a_run_that_keeps_crashing_is_given_up(tmp_path: Path) -> None:
    status, engine = run_fake(tmp_path, lambda run: Outcome(run.id, "crashed", "out of memory"), retries=2)
    assert engine.started.count("minilm/tickets/vip/seed-0") == 3
    assert status.failed["minilm/tickets/vip/seed-0"] == "out of memory"


def test_a_failed_run_is_tried_again_only_by_the_next_command(tmp_path: Path) -> None:
    status, engine = run_fake(tmp_path, lambda run: Outcome(run.id, "failed", "no such file"))
    assert len(engine.started) == 2 and len(status.failed) == 2 and status.num_waiting == 0
    status, engine = run_fake(tmp_path)
    assert len(engine.started) == 2 and not status.failed


def test_failures_of_an_earlier_command_are_not_counted_while_they_are_tried_again(tmp_path: Path) -> None:
    run_fake(tmp_path, lambda run: Outcome(run.id, "failed", "no such file"))
    folder = open_study(tmp_path / "study")
    assert len(read_status(folder).failed) == 2
    counts: list[int] = []
    engine = FakeEngine(folder, done)
    run_study(make_study(VALUES), folder, engine, listener=lambda status, outcome: counts.append(len(status.failed)))
    assert set(counts) == {0}


def test_what_needs_a_failed_run_is_left_out(tmp_path: Path) -> None:
    status, engine = run_fake(
        tmp_path,
        lambda run: Outcome(run.id, "failed", "bad rows") if run.seed == 1 else done(run),
        ensembles=["vote"],
    )
    assert not any("ensemble" in name for name in engine.started)
    assert status.num_waiting == 1


def test_runs_of_chosen_settings_follow_the_search(tmp_path: Path) -> None:
    line = {"name": "vip", "search": {"space": {"training.learning_rate": [0.1, 0.3]}}}
    status, engine = run_fake(tmp_path, methods=[line])
    assert [("search" in name) for name in engine.started] == [True, True, False, False]
    assert status.plan.size == len(status.done) == 4 and status.plan.num_later == 0


def test_a_run_of_another_process_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softcue.studies.runner.BUSY_SECONDS", 0.01)
    busy = ["minilm/tickets/vip/seed-0"]

    def busy_first(run: StudyRun) -> Outcome:
        if run.id in busy:
            busy.remove(run.id)
            return Outcome(run.id, "busy")
        return done(run)

    status, _ = run_fake(tmp_path, busy_first)
    assert len(status.done) == 2 and not status.failures


def test_results_of_other_settings_are_an_error_and_stay(tmp_path: Path) -> None:
    run_fake(tmp_path)
    before = (tmp_path / "study" / "study.yaml").read_text()
    with pytest.raises(RunError, match="choose another folder"):
        run_fake(tmp_path, settings={"training.steps": 9})
    assert (tmp_path / "study" / "study.yaml").read_text() == before
    assert len(read_status(open_study(tmp_path / "study")).done) == 2


def test_folder_of_another_study_is_an_error(tmp_path: Path) -> None:
    run_fake(tmp_path)
    with pytest.raises(RunError, match="holds the study 's'"):
        run_fake(tmp_path, name="other", tasks=["urgency"])


def test_a_damaged_result_does_not_count(tmp_path: Path) -> None:
    run_fake(tmp_path)
    (tmp_path / "study/runs/minilm/tickets/vip/seed-0/result.json").write_text('{"digest": ')
    assert len(read_status(open_study(tmp_path / "study")).done) == 1
    _, engine = run_fake(tmp_path)
    assert engine.started == ["minilm/tickets/vip/seed-0"]


def result_file(tmp_path: Path, seed: int = 0) -> Path:
    return tmp_path / f"study/runs/minilm/tickets/vip/seed-{seed}/result.json"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[7]",
        "{}",
        "[" * 50_000,
        '{"digest": "x"}',
        '{"digest": "DIGEST", "run_seconds": "long", "scores": {}}',
        '{"digest": "DIGEST", "run_seconds": 1, "scores": {"tickets": {"main": "good"}}}',
        '{"digest": "DIGEST", "run_seconds": 1, "scores": {}, "curve": [[1]]}',
        '{"digest": "DIGEST", "run_seconds": 1, "scores": {}, "trial": "rate=1"}',
        '{"digest": "DIGEST", "run_seconds": 1, "scores": {}, "kind": "adapt"}',
        '{"digest": "DIGEST", "run_seconds": 1, "scores": {}, "threads": null}',
    ],
)
def test_status_and_report_survive_a_file_that_is_no_result(tmp_path: Path, text: str) -> None:
    status, _ = run_fake(tmp_path)
    result_file(tmp_path).write_text(text.replace("DIGEST", status.plan.runs[0].digest))
    folder = open_study(tmp_path / "study")
    state = read_status(folder)
    assert len(state.done) == 1 and state.seconds_left(1) is not None
    assert make_report(folder).content.count_notes == ["1 of 2 runs are finished, 0 failed, 1 missing."]
    assert folder.result_of("minilm/tickets/vip/seed-0") is None or text == '{"digest": "x"}'


@pytest.mark.parametrize("text", ["", "{}", '{"attempts": 7}', '{"attempts": [{}, 3]}'])
def test_a_damaged_list_of_failures_is_none(tmp_path: Path, text: str) -> None:
    run_fake(tmp_path, lambda run: Outcome(run.id, "failed", "bad rows") if run.seed == 1 else done(run))
    result_file(tmp_path, 1).with_name("failures.json").write_text(text)
    assert not read_status(open_study(tmp_path / "study")).failed
    status, _ = run_fake(tmp_path, lambda run: Outcome(run.id, "failed", "bad rows"))
    assert list(status.failed.values()) == ["bad rows"]


@pytest.mark.parametrize("text", ["", ": : [", "- a", "name: s\n", "scale: full\nname: 3\n"])
def test_a_damaged_study_file_is_an_error(tmp_path: Path, text: str) -> None:
    run_fake(tmp_path)
    (tmp_path / "study" / "study.yaml").write_text(text)
    check_error(run("study", "status", tmp_path / "study"), "study")
    check_error(run("study", "report", tmp_path / "study"), "study")


def test_more_seeds_make_ensembles_anew(tmp_path: Path) -> None:
    run_fake(tmp_path, ensembles=["vote"])
    status, engine = run_fake(tmp_path, ensembles=["vote"], seeds=3)
    assert engine.started == ["minilm/tickets/vip/seed-2", "minilm/tickets/vip/ensemble-vote"]
    assert len(status.done) == 4


def test_a_longer_search_trains_what_it_now_chooses(tmp_path: Path) -> None:
    def study(*rates: float) -> dict[str, Any]:
        return {"methods": [{"name": "vip", "search": {"space": {"training.learning_rate": list(rates)}}}], "seeds": 1}

    run_fake(tmp_path, **study(0.3, 0.1))
    # The new trial is better than the one that was chosen; then only the report is read from the folder again.
    path = tmp_path / "study/runs/minilm/tickets/vip/search-learning_rate=0.3/seed-0/result.json"
    path.write_text(path.read_text().replace("50.0", "40.0"))
    status, engine = run_fake(tmp_path, **study(0.3, 0.1))
    assert engine.started == ["minilm/tickets/vip/seed-1"] and len(status.done) == 3
    assert status.done[-1].settings["training.learning_rate"] == 0.1
    assert len(read_status(open_study(tmp_path / "study")).done) == 3


def test_a_run_that_is_tried_again_is_not_shown_as_failed(tmp_path: Path) -> None:
    crashes = {"minilm/tickets/vip/seed-0": 1}
    shown: list[int] = []

    def crash_first(run: StudyRun) -> Outcome:
        if crashes.get(run.id):
            crashes[run.id] -= 1
            return Outcome(run.id, "crashed", "no memory")
        return done(run)

    folder = open_study(tmp_path / "study")
    study = make_study({**VALUES, "seeds": 4})
    engine = FakeEngine(folder, crash_first)
    run_study(
        study, folder, engine, listener=lambda status, outcome: shown.extend([len(status.failed)] * bool(outcome))
    )
    assert shown == [0, 0, 0, 0, 0]  # also between the crash and the next attempt


def test_cues_that_an_ensemble_needs_are_kept(tmp_path: Path) -> None:
    study = small_study(tmp_path, tasks=["tickets"], ensembles=["vote"], keep_below_mb=0)
    assert [run.keep_below_mb for run in plan_runs(study, {}).runs if run.kind == "train"] == [float("inf")] * 4
    alone = small_study(tmp_path, tasks=["tickets"], keep_below_mb=0)
    assert {run.keep_below_mb for run in plan_runs(alone, {}).runs} == {0.0}


def test_an_unfinished_run_with_other_settings_starts_again(tmp_path: Path) -> None:
    """Its cue is written, its result is not: the study was killed between the two, and its settings changed."""
    for steps in (2, 3):
        study = small_study(tmp_path, settings={"training.steps": steps, "training.batch_size": 4})
        planned = next(run for run in plan_runs(study, {}).runs if run.method == "prompt-tuning")
        worker = Worker(str(tmp_path / "study"))
        assert worker.execute(planned.as_dict()) == Outcome(planned.id, "done")
        result = worker.folder.result_of(planned.id)
        assert result is not None and result["steps"] == steps
        (worker.folder.runs / planned.id / "result.json").unlink()


def test_a_task_with_the_name_of_another_has_a_score_of_its_own(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    elsewhere = write_task(tmp_path / "elsewhere", "desk", num_rows=6)
    values = study.model_dump(mode="json")
    values["tasks"] = [{**values["tasks"][0], "score_on": [elsewhere]}]
    planned = plan_runs(make_study(values), {}).runs[0]
    worker = Worker(str(tmp_path / "study"))
    assert worker.execute(planned.as_dict()).state == "done"
    result = worker.folder.result_of(planned.id)
    assert result is not None and [score["rows"] for score in result["scores"].values()] == [12, 6]


def test_a_worker_that_died_while_it_waited_is_replaced(tmp_path: Path) -> None:
    runs = plan_runs(small_study(tmp_path, methods=["linear-probe"]), {}).runs
    engine = LocalEngine(str(tmp_path / "study"), num_workers=1)
    try:
        for planned in runs[:2]:
            engine.start(planned)
            outcomes: list[Outcome] = []
            while not outcomes:
                outcomes = engine.wait(60.0)
            assert outcomes == [Outcome(planned.id, "done")]
            [worker] = engine._workers
            worker.process.kill()
            worker.process.join()
    finally:
        engine.close()


def test_time_left_comes_from_runs_of_the_same_method(tmp_path: Path) -> None:
    folder = open_study(tmp_path / "study")
    study = make_study({**VALUES, "methods": ["vip", "adapter"]})
    status = read_status(folder, study)
    assert status.seconds_left(2) is None
    for planned in status.plan.runs[:1]:
        status.results[planned.id] = {"run_seconds": 10.0}
    assert status.seconds_left(1) == 30.0 and status.seconds_left(3) == 10.0


def test_status_of_a_folder_without_a_study_is_an_error(tmp_path: Path) -> None:
    check_error(run("study", "status", tmp_path), "softcue study run")


def test_worker_scores_each_task_and_leaves_ordinary_cues(tmp_path: Path) -> None:
    import softcue

    folder = open_study(tmp_path / "study")
    study = small_study(tmp_path, seeds=2, ensembles=["vote"])
    worker = Worker(str(folder))
    folder.begin(study)
    for planned in read_status(folder, study).plan.runs:
        outcome = worker.execute(planned.as_dict())
        assert outcome.state == "done", outcome
    status = read_status(folder)
    assert len(status.done) == status.plan.size == 2 * 2 * 2 + 4
    result = status.results["bert/desk/prompt-tuning/seed-0"]
    cue = softcue.load(folder.runs / "bert/desk/prompt-tuning/seed-0/cue")
    assert result["scores"]["desk"]["metrics"] == cue.scores["test"]
    assert result["scores"]["desk"]["rows"] == 12 and result["steps"] == 2
    assert result["trainable"] == cue.counts.gradient + cue.counts.head
    vote = status.results["bert/desk/prompt-tuning/ensemble-vote"]
    assert 0 <= vote["scores"]["desk"]["main"] <= 100


def test_trial_of_a_search_reads_no_test_rows(tmp_path: Path) -> None:
    line = {"name": "prompt-tuning", "search": {"space": {"method.prompt_length": [2, 3]}}}
    study = small_study(tmp_path, methods=[line])
    folder = open_study(tmp_path / "study")
    planned = read_status(folder, study).plan.runs[0]
    outcome = Worker(str(folder)).execute(planned.as_dict())
    assert planned.trial and outcome.state == "done", outcome
    result = folder.results()[planned.id]
    assert result["scores"]["desk"]["split"] == "validation" and result["rows"]["test"] == 0


def test_a_trial_whose_training_breaks_down_has_the_lowest_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = execution._train

    def break_down(run: StudyRun, *options: Any) -> dict[str, Any]:
        if run.settings["training.learning_rate"] == 50.0:
            raise TrainingError(setting="loss at step 1", got="nan", expected="a finite number", fix="lower the rate")
        return train(run, *options)

    monkeypatch.setattr(execution, "_train", break_down)
    search = {"space": {"training.learning_rate": [50.0, 0.01]}}
    method = {"name": "prompt-tuning", "settings": {"method.prompt_length": 2}, "search": search}
    study = small_study(tmp_path, methods=[method], seeds=1)
    folder = open_study(tmp_path / "study")
    folder.begin(study)
    worker = Worker(str(folder))
    for _ in range(2):
        for planned in read_status(folder).plan.runs:
            assert worker.execute(planned.as_dict()) == Outcome(planned.id, "done")
    status = read_status(folder)
    assert len(status.done) == status.plan.size == 6
    chosen = {planned.settings["training.learning_rate"] for planned in status.done if not planned.trial}
    assert chosen == {0.01}
    assert "broke down" in make_report(folder).files["index.html"]
    # Without a search it is a failure, as before.
    [planned] = plan_runs(small_study(tmp_path, methods=["prompt-tuning"], tasks=["tickets"], seeds=1), {}).runs
    planned = replace(planned, settings={"training.learning_rate": 50.0})
    assert worker.execute(planned.as_dict()).state == "failed"


def test_unknown_tasks_are_an_error_before_any_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="tickets"):
        run_fake(tmp_path, tasks=["tikets"])
    with pytest.raises(ConfigurationError, match="an existing file"):
        run_fake(tmp_path, tasks=[{"name": "tickets", "score_on": ["nowhere.yaml"]}])
    assert not (tmp_path / "study").exists()


def test_backbones_with_and_without_checkpointing_are_not_the_same(tmp_path: Path) -> None:
    """It stays on for all that is trained on a backbone."""
    pool, name = execution.BackbonePool(), write_backbone(tmp_path)
    plain = pool.get(name, {"max_length": 64})
    assert pool.get(name, {}) is plain is not pool.get(name, {"gradient_checkpointing": True})


def test_a_url_keeps_failures_and_fetches_what_a_run_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two folders at one URL are two machines: each has a working folder of its own."""
    study = make_study({**VALUES, "ensembles": ["vote"]})
    *members, ensemble = plan_runs(study, {}).runs
    url = f"file://{tmp_path / 'remote'}"
    machines = []
    for name in ("a", "b"):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / name))
        machines.append(open_study(url))
    for machine in machines:
        machine.add_failure(members[0], f"no memory on {machine.path.parts[-3]}")
    assert [attempt["reason"] for attempt in machines[0].failures()[members[0].id]] == [
        "no memory on a",
        "no memory on b",
    ]
    for text in ("old", "new"):  # the second time from a study that begins again at the same URL
        for member in members:
            with machines[0].claim(member) as folder:
                (folder / "cue").mkdir()
                (folder / "cue" / "cue.json").write_text(text)
                machines[0].finish(member, {"digest": text, "run_seconds": 1.0, "scores": {}})
        with machines[1].claim(ensemble):
            cues = [machines[1].runs / member.id / "cue" / "cue.json" for member in members]
            assert [cue.read_text() for cue in cues] == [text, text]


def test_wrong_rows_are_a_failure_with_a_reason_and_a_log(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    (tmp_path / "tasks" / "desk-train.csv").write_text("text,team\n")
    folder = open_study(tmp_path / "study")
    planned = read_status(folder, study).plan.runs[0]
    outcome = Worker(str(folder)).execute(planned.as_dict())
    assert outcome.state == "failed" and "desk-train.csv" in outcome.reason
    assert "Traceback" in folder.log_of(planned.id).read_text()


def test_a_claimed_run_is_busy_for_others(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    folder = open_study(tmp_path / "study")
    planned = read_status(folder, study).plan.runs[0]
    with folder.claim(planned):
        assert Worker(str(folder)).execute(planned.as_dict()).state == "busy"


def test_large_cues_are_removed_when_they_are_scored(tmp_path: Path) -> None:
    study = small_study(tmp_path, keep_below_mb=0.0001)
    folder = open_study(tmp_path / "study")
    planned = read_status(folder, study).plan.runs[0]
    assert Worker(str(folder)).execute(planned.as_dict()).state == "done"
    assert not (folder.runs / planned.id / "cue").exists() and folder.results()[planned.id]["cue_bytes"] > 100


def test_joint_runs_score_every_task(tmp_path: Path) -> None:
    line = {"name": "prompt-tuning", "settings": {"method.prompt_length": 2}}
    study = small_study(tmp_path, methods=[line], regimes=[{"name": "together", "joint": True}], seeds=1)
    folder = open_study(tmp_path / "study")
    [planned] = read_status(folder, study).plan.runs
    outcome = Worker(str(folder)).execute(planned.as_dict())
    assert outcome.state == "done", outcome
    assert set(folder.results()[planned.id]["scores"]) == {"desk", "shop"}


def test_out_of_domain_tasks_are_scored_too(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    [desk, shop] = [task.model_dump() for task in study.tasks]
    study = small_study(tmp_path, tasks=[{**desk, "score_on": [shop["task"]]}], methods=["linear-probe"], seeds=1)
    folder = open_study(tmp_path / "study")
    [planned] = read_status(folder, study).plan.runs
    outcome = Worker(str(folder)).execute(planned.as_dict())
    assert outcome.state == "done", outcome
    assert len(folder.results()[planned.id]["scores"]) == 2


@pytest.mark.processes
def test_a_run_over_its_budget_is_stopped_and_counts_as_failed(tmp_path: Path) -> None:
    study = small_study(tmp_path, minutes=0.0005, seeds=1, methods=["linear-probe"])
    status = run_study(study, open_study(tmp_path / "study"), LocalEngine(str(tmp_path / "study"), 2))
    assert len(status.failed) == 2 and all("budget" in reason for reason in status.failed.values())
    check_error(run("study", "status", tmp_path / "nothing"), "check the path")
    assert len(run("study", "status", tmp_path / "study", "--json").json["failed"]) == 2
