"""Runs report to trackers: what they get, over failures and interruptions. The trackers are real or a stand-in."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny

import softcue
from softcue.configuration import parse_overrides, read_settings, resolve
from softcue.errors import ConfigurationError, MissingExtraError, RunError
from softcue.studies import compare_methods
from softcue.training import TrainingConfig
from softcue.training.checkpoints import Checkpoints
from softcue.training.trackers import EndState, Reports, TrackedRun, name_run, registry, reports

ROWS = [
    {"text": text, "label": label}
    for text, label in (
        ("my invoice is wrong", "billing"),
        ("charged twice again", "billing"),
        ("the parcel is late", "shipping"),
        ("where is the box", "shipping"),
    )
]
# six steps, three evaluations, a checkpoint after each evaluation
OVERRIDES = {"training.epochs": 3, "training.batch_size": 2, "training.patience": 0, "training.label_share": 0}
TRACKED = TrackedRun(Path(), "tickets", "", {}, {})


class StandIn:
    """Keeps what it gets, and fails where it is told to."""

    def __init__(self, name: str, fails_in: str = "") -> None:
        self.name, self.fails_in, self.place = name, fails_in, "nowhere"
        self.identity, self.state = "", ""
        self.events: list[tuple[int, dict[str, float]]] = []
        self.scores: dict[str, float] = {}
        self.run = TRACKED
        self.last_step = -1

    def start(self, run: TrackedRun, identity: str) -> str:
        self._fail("start")
        self.run, self.identity = run, identity or f"{self.name}-{id(self)}"
        return self.identity

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._fail("log")
        self.events.append((step, dict(values)))

    def finish(self, scores: Mapping[str, float], step: int, state: EndState) -> None:
        self._fail("finish")
        self.scores, self.last_step, self.state = dict(scores), step, state

    def steps(self, name: str = "step/loss") -> list[int]:
        return [step for step, values in self.events if name in values]

    def _fail(self, where: str) -> None:
        if self.fails_in == where:
            raise ConnectionError("the server is gone\nmore")


class StandIns(list[StandIn]):
    """The stand-ins in the order in which runs made them. `failures` says where the one of a name fails."""

    failures: dict[str, str]

    def make(self, name: str) -> StandIn:
        self.append(StandIn(name, self.failures.get(name, "")))
        return self[-1]


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> StandIns:
    made = StandIns()
    made.failures = {}
    monkeypatch.setattr(reports, "make_tracker", made.make)
    monkeypatch.setattr(registry, "find_spec", lambda name: object())  # as if all were installed
    return made


def train(folder: Path, report_to: object = "wandb", **options: Any) -> softcue.Cue:
    overrides = {**OVERRIDES, "training.report_to": report_to, **options.pop("overrides", {})}
    rows = {"train": ROWS, "validation": ROWS, "test": ROWS, "text": "text", "label": "label"}
    backbone = tiny(options.pop("family", "bert"))
    return softcue.train(folder, backbone=backbone, overrides=overrides, progress=False, **rows, **options)


class Crash(Exception):
    pass


def die_at_save(monkeypatch: pytest.MonkeyPatch, number: int, error: type[BaseException]) -> None:
    """Let the next run die before it writes its checkpoint of this number."""
    save, count = Checkpoints.save, 0

    def dying(self: Checkpoints, checkpoint: Any) -> None:
        nonlocal count
        count += 1
        if count == number:
            monkeypatch.setattr(Checkpoints, "save", save)
            raise error
        save(self, checkpoint)

    monkeypatch.setattr(Checkpoints, "save", dying)


# --- settings ---


@pytest.mark.parametrize("text", ["tensorboard,mlflow", "'tensorboard, mlflow'", "[tensorboard, mlflow]"])
def test_names_are_a_list_or_text_with_commas(text: str) -> None:
    config = resolve(parse_overrides([f"training.report_to={text}"]))
    assert config.training.report_to == ("tensorboard", "mlflow")


@pytest.mark.parametrize("text", ["", "[]", "''"])
def test_no_name_is_no_tracker(text: str) -> None:
    assert resolve(parse_overrides([f"training.report_to={text}"])).training.report_to == ()


@pytest.mark.parametrize("value", ["wandbb", ["tensorboard", "wandbb"]])
def test_an_unknown_name_is_an_error_with_the_nearest_name(value: object) -> None:
    with pytest.raises(ConfigurationError, match=r"training.report_to: got .*did you mean 'wandb'\? known: mlflow"):
        resolve({"training": {"report_to": value}})


@pytest.mark.parametrize("value", [True, 3, {"a": 1}])
def test_what_is_no_list_of_names_is_an_error(value: object) -> None:
    with pytest.raises(ConfigurationError, match=r"training.report_to: got"):
        resolve({"training": {"report_to": value}})


@pytest.mark.parametrize(("value", "names"), [("false", ()), ("true", ("tensorboard",))])
def test_a_configuration_file_with_the_old_key_is_read(tmp_path: Path, value: str, names: tuple[str, ...]) -> None:
    (tmp_path / "config.yaml").write_text(f"training:\n  epochs: 7\n  tensorboard: {value}\n")
    training = resolve(read_settings(tmp_path / "config.yaml"), "encoder").training
    assert (training.epochs, training.report_to) == (7, names)


def test_the_old_key_with_another_value_names_the_new_one() -> None:
    with pytest.raises(ConfigurationError, match=r"it is called training\.report_to=tensorboard now"):
        resolve({"training": {"tensorboard": "runs"}})


def test_reporting_settings_are_no_settings_of_what_is_learned() -> None:
    reporting = TrainingConfig(report_to=("wandb",), report_group="study")
    assert reporting.without_reporting() == TrainingConfig().without_reporting()


def test_a_missing_package_is_one_line_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"package 'trackio': .*'\.\[trackio\]'"):
        train(tmp_path / "cue", "trackio")
    assert not list(tmp_path.iterdir())


def test_each_tracker_has_an_extra_of_its_name() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert registry.TRACKERS.keys() <= project["optional-dependencies"].keys()
    for name, class_name in registry.TRACKERS.items():
        assert type(registry.make_tracker(name)).__name__ == class_name


@pytest.mark.parametrize(
    ("folder", "group", "name"),
    [
        ("/cues/tickets", "", "tickets"),
        ("/cues/tickets", "ablation", "tickets"),
        ("/runs/tickets/minilm/vip/seed-0", "tickets", "minilm/vip/seed-0"),
        ("/tickets/runs/tickets/minilm", "tickets", "minilm"),
        ("/cues/tickets", "tickets", "tickets"),
    ],
)
def test_a_run_is_named_after_its_folder_below_its_group(folder: str, group: str, name: str) -> None:
    assert name_run(Path(folder), group) == name


# --- what a tracker gets ---


def test_a_tracker_gets_settings_steps_evaluations_and_final_scores(tmp_path: Path, stand_ins: StandIns) -> None:
    cue = train(tmp_path / "tickets", overrides={"training.report_group": "team"})
    [tracker] = stand_ins
    assert (tracker.run.name, tracker.run.group) == ("tickets", "team")
    assert tracker.run.settings["training.epochs"] == 3
    assert tracker.run.settings["method.name"] == tracker.run.tags["method"] == cue.cue_file.method["name"]
    assert tracker.run.tags.keys() == {"method", "backbone", "task"}
    assert tracker.steps() == [1, 2, 3, 4, 5, 6]
    assert tracker.steps("evaluation/accuracy") == [0, 2, 4, 6]
    assert (tracker.state, tracker.last_step) == ("finished", 6)
    assert tracker.scores["final/validation/accuracy"] == cue.scores["validation"]["accuracy"]
    assert tracker.scores["final/test/accuracy"] == cue.scores["test"]["accuracy"]


def test_only_finite_numbers_are_reported(tmp_path: Path, stand_ins: StandIns) -> None:
    run = TrackedRun(tmp_path, "tickets", "", {}, {})
    reporter = Reports(run, ["wandb"])
    reporter.start(0)
    reporter.log("step", {"step": 1, "loss": math.nan, "rate": 0.5, "text": "a", "other": math.inf, "none": None})
    reporter.log("step", {"step": 2, "loss": math.nan})
    reporter.finish({"accuracy": math.nan, "f1": 3}, "finished")
    assert stand_ins[0].events == [(1, {"step/rate": 0.5})]
    assert stand_ins[0].scores == {"final/f1": 3.0}


def test_an_evaluation_before_the_first_step_is_reported(tmp_path: Path, stand_ins: StandIns) -> None:
    train(tmp_path / "cue", method="manual-prompt", family="gpt2")
    assert stand_ins[0].steps("evaluation/accuracy") == [0]


def test_runs_of_a_comparison_are_a_group(tmp_path: Path, stand_ins: StandIns) -> None:
    tiny("bert").save(tmp_path / "bert")
    rows = {"train": ROWS, "validation": ROWS, "test": ROWS, "text": "text", "label": "label"}
    for overrides in ({"training.report_to": "wandb", **OVERRIDES}, ["training.report_to=wandb", "training.epochs=1"]):
        folder = tmp_path / f"study {len(stand_ins)}"
        compare_methods(folder, ["linear-probe"], 2, [str(tmp_path / "bert")], overrides=overrides, **rows)
        pair = stand_ins[-2:]
        assert [tracker.run.group for tracker in pair] == [folder.name] * 2
        assert [tracker.run.name for tracker in pair] == [f"bert/linear-probe/seed-{seed}" for seed in (0, 1)]


# --- failures ---


def test_a_tracker_that_fails_is_left_out_with_one_warning(
    tmp_path: Path, stand_ins: StandIns, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_ins.failures = {"wandb": "log"}
    train(tmp_path / "cue", "wandb,mlflow")
    lines = [line for line in capsys.readouterr().err.splitlines() if "wandb" in line]
    assert lines == ["warning: wandb failed, and the run goes on without it: the server is gone"]
    broken, whole = stand_ins
    assert (broken.events, broken.state) == ([], "")
    assert (whole.steps(), whole.state) == ([1, 2, 3, 4, 5, 6], "finished")
    assert (tmp_path / "cue/cue.json").is_file()


def test_a_tracker_that_cannot_end_is_a_warning(
    tmp_path: Path, stand_ins: StandIns, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_ins.failures = {"wandb": "finish"}
    train(tmp_path / "cue")
    assert "warning: wandb failed" in capsys.readouterr().err
    assert (tmp_path / "cue/cue.json").is_file()


def test_a_tracker_that_cannot_start_is_an_error_before_the_first_step(tmp_path: Path, stand_ins: StandIns) -> None:
    stand_ins.failures = {"mlflow": "start"}
    with pytest.raises(RunError, match=r"report_to: got 'mlflow'; .*: the server is gone$"):
        train(tmp_path / "cue", "wandb,mlflow")
    assert (stand_ins[0].events, stand_ins[0].state) == ([], "failed")
    assert not (tmp_path / "cue/metrics.jsonl").exists()


# --- interruptions ---


@pytest.mark.parametrize(("error", "state"), [(Crash, "failed"), (KeyboardInterrupt, "killed")])
def test_a_resumed_run_continues_its_tracked_run_without_repeating_steps(
    tmp_path: Path,
    stand_ins: StandIns,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
    state: str,
) -> None:
    die_at_save(monkeypatch, 2, error)  # after step 4, with a checkpoint of step 2
    with pytest.raises(error):
        train(tmp_path / "cue")
    train(tmp_path / "cue", resume=True)
    first, second = stand_ins
    assert (first.state, first.scores, second.state) == (state, {}, "finished")
    assert second.identity == first.identity
    assert first.steps() + second.steps() == [1, 2, 3, 4, 5, 6]
    assert first.steps("evaluation/score") + second.steps("evaluation/score") == [0, 2, 4, 6]


def test_after_kill_9_steps_after_the_checkpoint_are_reported_again(
    tmp_path: Path, stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_at_save(monkeypatch, 2, Crash)
    with monkeypatch.context() as patch:
        patch.setattr(Reports, "finish", lambda *arguments: [])  # what a killed process does not do
        with pytest.raises(Crash):
            train(tmp_path / "cue")
    train(tmp_path / "cue", resume=True)
    first, second = stand_ins
    assert second.identity == first.identity
    assert (first.steps(), second.steps()) == ([1, 2, 3, 4], [3, 4, 5, 6])


def test_other_trackers_do_not_keep_a_run_from_being_resumed(
    tmp_path: Path, stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path / "whole", ())
    die_at_save(monkeypatch, 2, Crash)
    with pytest.raises(Crash):
        train(tmp_path / "cue", "wandb")
    train(tmp_path / "cue", "mlflow", resume=True, overrides={"training.report_group": "later"})
    assert [tracker.steps() for tracker in stand_ins] == [[1, 2, 3, 4], [3, 4, 5, 6]]
    for name in ("cue.json", "cue.safetensors"):
        assert (tmp_path / "cue" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert json.loads((tmp_path / "cue/trackers.json").read_text()).keys() == {"wandb", "mlflow"}


def test_a_finished_run_that_is_resumed_reports_nothing(tmp_path: Path, stand_ins: StandIns) -> None:
    train(tmp_path / "cue")
    train(tmp_path / "cue", resume=True)
    assert len(stand_ins) == 1


def test_an_overwritten_run_is_a_new_tracked_run(tmp_path: Path, stand_ins: StandIns) -> None:
    train(tmp_path / "cue")
    train(tmp_path / "cue", overwrite=True)
    first, second = stand_ins
    assert first.identity != second.identity
    assert second.steps() == [1, 2, 3, 4, 5, 6]
    train(tmp_path / "cue", (), overwrite=True)
    assert not (tmp_path / "cue/trackers.json").exists()


@pytest.mark.parametrize("text", ["", "[]", '{"wandb": 3}', '{"wandb": {"run": "a", "last_steps": [1]}}'])
def test_a_damaged_file_of_identities_begins_a_new_tracked_run(tmp_path: Path, stand_ins: StandIns, text: str) -> None:
    (tmp_path / "trackers.json").write_text(text)
    reporter = Reports(TrackedRun(tmp_path, "tickets", "", {}, {}), ["wandb"])
    assert reporter.start(4) == ["reports to wandb: nowhere"]
    reporter.log("step", {"step": 5, "loss": 1.0})
    assert stand_ins[0].steps() == [5]


def test_a_tracked_run_that_is_gone_is_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(StandIn):
        def start(self, run: TrackedRun, identity: str) -> str:
            return "new"

    tracker = Forgetful("wandb")
    monkeypatch.setattr(reports, "make_tracker", lambda name: tracker)
    run = TrackedRun(tmp_path, "tickets", "", {}, {})
    (tmp_path / "trackers.json").write_text('{"wandb": {"run": "gone", "last_steps": {"step": 9}}}')
    reporter = Reports(run, ["wandb"])
    reporter.start(4)
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"wandb": {"run": "new", "last_steps": {}}}
    reporter.log("step", {"step": 5, "loss": 1.0})
    assert tracker.steps() == [5]
