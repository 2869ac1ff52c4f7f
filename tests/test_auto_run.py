"""`method="auto"`: several methods are tried on the same rows, and the best becomes an ordinary cue."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny import tiny

import softcue
from softcue.auto_run import AutoRun
from softcue.errors import ConfigurationError, RunError, TrainingError
from softcue.selection import CANDIDATES, RungScore, SelectionRecord, TriedMethod, halving
from softcue.training import Trainer
from softcue.training.checkpoints import Checkpoints

WORDS = {"billing": ["invoice", "refund", "charged", "bill"], "shipping": ["parcel", "box", "late", "address"]}
ROWS = [
    {"text": f"{word} number {number} is {'wrong' if number % 2 else 'here'}", "label": label}
    for label, words in WORDS.items()
    for word in words
    for number in range(8)
]
TRAIN, VALIDATION, TEST = ROWS[::2], ROWS[1::4], ROWS[3::4]
METHODS = "linear-probe,prompt-tuning,p-tuning-v2,vip-c,compacter"
OVERRIDES = {
    "training.steps": 8,
    "training.evaluate_every": 2,
    "training.batch_size": 4,
    "selection.methods": METHODS,
    "selection.folds": 1,
}


def run(folder: Path, *, family: str = "bert", **options: Any) -> softcue.Cue:
    overrides = {**OVERRIDES, **options.pop("overrides", {})}
    rows = {"train": TRAIN, "validation": VALIDATION, "test": TEST, "text": "text", "label": "label"}
    arguments = {**rows, "backbone": tiny(family), "method": "auto", "progress": False, **options}
    return softcue.train(folder, overrides=overrides, **arguments)  # type: ignore[no-any-return]


def cue_bytes(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "cue.json").read_bytes(), (folder / "cue.safetensors").read_bytes()


class Crash(Exception):
    pass


def set_scores(monkeypatch: pytest.MonkeyPatch, scores: dict[str, float | list[float]]) -> None:
    """Let each method have a score, or these scores at steps 2, 4, 6 and 8; before them it has 0."""
    evaluate = Trainer._evaluate

    def evaluated(self: Trainer, evaluations: list[Any] | None = None) -> None:
        values = scores[self.model.method.config.name]
        score = values if isinstance(values, float) else [0.0, *values][self.state.step // 2]
        evaluate(self, [replace(part, main=score) for part in evaluations or self._score_validation()])

    monkeypatch.setattr(Trainer, "_evaluate", evaluated)
    monkeypatch.setattr(halving, "standard_error", lambda score, num_rows: 0.0)  # ten rows tell nothing apart


# --- what is tried, and what wins ---


def test_the_better_half_goes_on_and_the_best_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # rungs end after steps 2, 4 and 8
    set_scores(
        monkeypatch,
        {
            "linear-probe": 70.0,
            "prompt-tuning": [50.0, 60.0, 65.0, 64.0],
            "p-tuning-v2": [40.0, 99.0, 99.0, 99.0],
            "vip-c": [55.0, 58.0, 80.0, 75.0],
            "compacter": 45.0,
        },
    )
    cue = run(tmp_path / "cue")
    assert cue.selection is not None
    rungs = {entry.method: [(rung.step, rung.score) for rung in entry.rungs] for entry in cue.selection.tried}
    assert rungs == {
        "linear-probe": [(5, 70.0)],
        "prompt-tuning": [(2, 50.0), (4, 60.0), (8, 65.0)],
        "p-tuning-v2": [(2, 40.0)],
        "vip-c": [(2, 55.0), (4, 58.0), (8, 80.0)],
        "compacter": [(2, 45.0)],
    }
    outcomes = {entry.method: cue.selection.outcome(entry) for entry in cue.selection.tried}
    assert outcomes == {
        "linear-probe": "finished",
        "prompt-tuning": "finished",
        "p-tuning-v2": "dropped after rung 1",
        "vip-c": "won",
        "compacter": "dropped after rung 1",
    }
    assert cue.selection.winner == cue.cue_file.method["name"] == "vip-c"


def test_of_equal_scores_the_first_named_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_scores(monkeypatch, dict.fromkeys(METHODS.split(","), 100.0))
    cue = run(tmp_path / "cue", overrides={"selection.methods": "vip-c,p-tuning-v2,prompt-tuning,compacter"})
    assert cue.selection is not None and cue.selection.winner == "vip-c"


def test_what_few_rows_cannot_tell_apart_is_decided_by_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standard_error = halving.standard_error
    set_scores(monkeypatch, {"vip-c": 60.0, "p-tuning-v2": 55.0, "prompt-tuning": 65.0, "compacter": 10.0})
    monkeypatch.setattr(halving, "standard_error", standard_error)
    cue = run(tmp_path / "cue", overrides={"selection.methods": "compacter,vip-c,p-tuning-v2,prompt-tuning"})
    assert cue.selection is not None and cue.selection.num_rows < 60  # one standard error is more than 6 points
    outcomes = {entry.method: cue.selection.outcome(entry) for entry in cue.selection.tried}
    assert outcomes["vip-c"] == "won"
    assert outcomes["compacter"] == outcomes["prompt-tuning"] == "dropped after rung 1"


def test_a_dropped_method_does_not_win_afterwards() -> None:
    tried = [
        TriedMethod(method="first", rungs=[RungScore(step=2, score=70.0)], dropped_after=1),
        TriedMethod(method="second", rungs=[RungScore(step=8, score=71.0)], is_finished=True),
    ]
    record = SelectionRecord(run="", metric="accuracy", rows="", num_rows=50, tried=tried)
    assert record.winner == "second"
    tried[1].reason = "broke down"
    assert record.winner == "first"


def test_early_stopping_counts_as_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_scores(monkeypatch, {"vip-c": [60.0, 50.0], "prompt-tuning": [50.0, 55.0, 60.0, 65.0], "compacter": 40.0})
    methods = {"selection.methods": "vip-c,prompt-tuning,compacter", "training.patience": 1}
    cue = run(tmp_path / "cue", overrides=methods)
    assert cue.selection is not None
    by_name = {entry.method: entry for entry in cue.selection.tried}
    assert [rung.step for rung in by_name["vip-c"].rungs] == [2, 4]
    assert by_name["vip-c"].is_finished
    assert cue.selection.winner == "prompt-tuning"


# --- the cue ---


@pytest.mark.parametrize("num_folds", [1, 2])
@pytest.mark.parametrize("winner", ["linear-probe", "vip-c"])
def test_the_cue_is_that_of_a_run_of_the_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, winner: str, num_folds: int
) -> None:
    with monkeypatch.context() as patched:
        set_scores(patched, {**dict.fromkeys(METHODS.split(","), 50.0), winner: 60.0})
        chosen = run(tmp_path / "chosen", overrides={"selection.folds": num_folds})
        settings = yaml.safe_load((tmp_path / "chosen/config.yaml").read_text())
        direct = run(tmp_path / "direct", method=winner, config=settings, overrides={"selection.folds": num_folds})
    assert settings["method"]["name"] == winner
    assert "selection" not in settings
    assert cue_bytes(tmp_path / "chosen") == cue_bytes(tmp_path / "direct")
    assert chosen.predict("the invoice is wrong") == direct.predict("the invoice is wrong")
    files = ["README.md", "config.yaml", "cue.json", "cue.safetensors", "metrics.json", "metrics.jsonl"]
    assert sorted(os.listdir(tmp_path / "chosen")) == sorted(os.listdir(tmp_path / "direct")) == files
    curves = [softcue.load(tmp_path / name, tiny("bert")).training_curve for name in ("chosen", "direct")]
    assert curves[0] == curves[1]
    assert direct.selection is None


def test_metrics_and_model_card_tell_what_was_tried(tmp_path: Path) -> None:
    cue = run(tmp_path / "cue")
    selection = json.loads((tmp_path / "cue/metrics.json").read_text())["selection"]
    assert selection["winner"] == cue.cue_file.method["name"]
    assert [entry["method"] for entry in selection["tried"]] == METHODS.split(",")
    assert all(entry["cpu_seconds"] > 0 and entry["outcome"] for entry in selection["tried"])
    card = (tmp_path / "cue/README.md").read_text()
    assert "## Methods tried" in card
    for name in METHODS.split(","):
        assert f"| {name} | " in card
    assert f"accuracy of {len(VALIDATION)} validation rows" in card
    loaded = softcue.load(tmp_path / "cue", tiny("bert"))
    assert loaded.selection == cue.selection is not None
    assert set(loaded.scores) == {"validation", "test"}


def test_test_rows_are_scored_for_the_winner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import softcue.run

    evaluate, scored = softcue.run.evaluate_examples, []

    def counted(backbone: Any, model: Any, *arguments: Any) -> Any:
        scored.append(model.method.config.name)
        return evaluate(backbone, model, *arguments)

    monkeypatch.setattr(softcue.run, "evaluate_examples", counted)
    cue = run(tmp_path / "cue")
    assert scored == [cue.cue_file.method["name"]]


@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_methods_are_tried_on_backbones_that_write_text(tmp_path: Path, family: str) -> None:
    cue = run(tmp_path / "cue", family=family, overrides={"selection.methods": None})
    assert cue.selection is not None
    assert [entry.method for entry in cue.selection.tried][:2] == ["prompt-tuning", "p-tuning-v2"]
    assert all(entry.rungs for entry in cue.selection.tried)
    assert cue.predict("the invoice is wrong")[0].label in WORDS


def test_few_shot_rows_are_drawn_once_for_all_methods(tmp_path: Path) -> None:
    rows = {"train": ROWS, "validation": None, "test": None, "few_shot": 8}
    cue = run(tmp_path / "cue", overrides={"selection.folds": 3, "task.validation_rows": 24}, **rows)
    assert cue.selection is not None
    assert cue.cue_file.rows["train"] == 8
    assert cue.selection.rows == "32 training and validation rows in 3 folds"


def test_scores_of_folds_are_their_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {"vip-c-fold-1": 90.0, "vip-c-fold-2": 60.0, "vip-c-fold-3": 30.0, "compacter-fold-1": 30.0}
    evaluate = Trainer._evaluate

    def evaluated(self: Trainer, evaluations: list[Any] | None = None) -> None:
        assert self.checkpoints is not None
        score = scores.get(self.checkpoints.folder.parent.name, 0.0)
        evaluate(self, [replace(part, main=score) for part in evaluations or self._score_validation()])

    monkeypatch.setattr(Trainer, "_evaluate", evaluated)
    cue = run(tmp_path / "cue", overrides={"selection.methods": "vip-c,compacter", "selection.folds": 3})
    assert cue.selection is not None
    assert [entry.rungs[0].score for entry in cue.selection.tried] == [60.0, 10.0]
    assert cue.selection.rows == "48 training and validation rows in 3 folds"


def test_on_folds_the_comparison_ends_half_way_and_the_winner_is_trained_to_its_end(tmp_path: Path) -> None:
    cue = run(tmp_path / "cue", overrides={"selection.methods": "vip-c,compacter", "selection.folds": 3})
    assert cue.selection is not None
    assert [[rung.step for rung in entry.rungs] for entry in cue.selection.tried] == [[2, 4], [2, 4]]
    assert sorted(map(cue.selection.outcome, cue.selection.tried)) == ["not chosen", "won"]
    steps = [json.loads(line) for line in (tmp_path / "cue" / "metrics.jsonl").read_text().splitlines()]
    assert max(entry["step"] for entry in steps if "step" in entry) == 8


# --- what is left out ---


def test_a_method_that_does_not_work_is_left_out_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cue = run(tmp_path / "cue", overrides={"selection.methods": "manual-prompt,prompt-tuning"}, progress=True)
    assert cue.selection is not None
    first, second = cue.selection.tried
    assert first.reason.startswith("left out: method.name manual-prompt, expected a method that works on")
    assert not first.rungs
    assert cue.selection.outcome(second) == "won"
    assert f"manual-prompt: {first.reason}" in capsys.readouterr().err


def test_a_method_that_does_not_fit_the_kind_of_task_is_left_out(tmp_path: Path) -> None:
    methods = {"selection.methods": "linear-probe,prompt-tuning", "task.kind": "generation"}
    cue = run(tmp_path / "cue", family="t5", overrides=methods)
    assert cue.selection is not None
    assert "left out: readout.name classifier" in cue.selection.tried[0].reason


def test_it_is_an_error_if_all_methods_are_left_out(tmp_path: Path) -> None:
    methods = {"selection.methods": "manual-prompt,vip", "readout.name": "label-words"}
    with pytest.raises(ConfigurationError, match=r"selection.methods: .*works on tiny-bert.*manual-prompt left out"):
        run(tmp_path / "cue", overrides=methods)
    assert not (tmp_path / "cue").exists()


def test_a_reason_that_all_methods_share_is_the_error(tmp_path: Path) -> None:
    with pytest.raises(softcue.errors.CueError, match="nowhere"):
        run(tmp_path / "cue", init_from=tmp_path / "nowhere")


def test_a_method_whose_training_breaks_down_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Trainer._step

    def breaking(self: Trainer) -> None:
        if self.model.method.config.name == "vip-c" and self.state.step == 3:
            raise TrainingError(setting="loss at step 4", got=float("nan"), expected="a finite number", fix="-")
        step(self)

    set_scores(monkeypatch, {"prompt-tuning": 50.0, "vip-c": 60.0})
    monkeypatch.setattr(Trainer, "_step", breaking)
    cue = run(tmp_path / "cue", overrides={"selection.methods": "prompt-tuning,vip-c"})
    assert cue.selection is not None
    assert cue.selection.winner == "prompt-tuning"
    assert cue.selection.tried[1].reason == "broke down: loss at step 4 nan, expected a finite number"
    with pytest.raises(TrainingError, match="vip-c broke down"):
        run(tmp_path / "other", overrides={"selection.methods": "vip-c"})


# --- time ---


def test_when_the_time_is_over_the_best_so_far_is_trained_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_scores(monkeypatch, {"prompt-tuning": 60.0, "vip-c": 50.0, "compacter": 99.0})
    clock = itertools.count(step=10)
    monkeypatch.setattr("softcue.auto_run.time.monotonic", lambda: next(clock))  # each try takes at least 10 seconds
    methods = {"selection.methods": "prompt-tuning,vip-c,compacter", "selection.seconds": 15}
    cue = run(tmp_path / "cue", overrides=methods, progress=True)
    selection = cue.selection
    assert selection is not None
    assert selection.is_out_of_time
    outcomes = [selection.outcome(entry) for entry in selection.tried]
    assert "won" in outcomes
    assert "not tried: the time was over" in outcomes
    assert cue.cue_file.training["steps_done"] == 8
    assert "the time was over after" in (tmp_path / "cue/README.md").read_text()
    assert "the time of 15 seconds is over" in capsys.readouterr().err


def test_one_method_is_tried_however_short_the_time_is(tmp_path: Path) -> None:
    cue = run(tmp_path / "cue", overrides={"selection.seconds": 1e-6})
    assert cue.selection is not None
    assert [bool(entry.rungs) for entry in cue.selection.tried] == [True, False, False, False, False]
    assert cue.cue_file.method["name"] == "linear-probe"


def test_a_short_time_is_enough_for_a_probe_although_others_are_named_before_it(tmp_path: Path) -> None:
    methods = {"selection.methods": "prompt-tuning,vip-c,linear-probe", "selection.seconds": 1e-6}
    cue = run(tmp_path / "cue", overrides=methods)
    assert cue.selection is not None
    assert {entry.method: bool(entry.rungs) for entry in cue.selection.tried} == {
        "prompt-tuning": False,
        "vip-c": False,
        "linear-probe": True,
    }


# --- interruptions ---


INTERRUPTED = {"selection.methods": "linear-probe,prompt-tuning,vip-c,compacter"}
INTERRUPTED_SCORES: dict[str, float | list[float]] = {**dict.fromkeys(METHODS.split(","), 50.0), "vip-c": 60.0}


@pytest.fixture(scope="module")
def whole_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, softcue.Cue]:
    """By their number of folds, the runs that nothing interrupts."""
    with pytest.MonkeyPatch.context() as patch:
        set_scores(patch, INTERRUPTED_SCORES)
        return {
            num_folds: run(
                tmp_path_factory.mktemp("whole") / "cue", overrides=INTERRUPTED | {"selection.folds": num_folds}
            )
            for num_folds in (1, 2)
        }


# the numbers of checkpoints in the rungs are 3, 2 and 4; with two folds 6 and 4, and then 4 of the winner
@pytest.mark.parametrize(("num_folds", "dies_at"), [(1, 1), (1, 4), (1, 9), (2, 5), (2, 10), (2, 13)])
def test_a_run_that_dies_resumes_to_the_same_cue(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole_runs: dict[int, softcue.Cue],
    num_folds: int,
    dies_at: int,
) -> None:
    methods = INTERRUPTED | {"selection.folds": num_folds}
    set_scores(monkeypatch, INTERRUPTED_SCORES)
    whole = whole_runs[num_folds]
    assert whole.path is not None
    save, count = Checkpoints.save, itertools.count(1)

    def dying(self: Checkpoints, checkpoint: Any) -> None:
        save(self, checkpoint)
        if next(count) == dies_at:
            raise Crash

    monkeypatch.setattr(Checkpoints, "save", dying)
    with pytest.raises(Crash):
        run(tmp_path / "broken", overrides=methods)
    assert (tmp_path / "broken" / CANDIDATES).is_dir()
    monkeypatch.setattr(Checkpoints, "save", save)
    with pytest.raises(RunError, match="`resume=True`"):
        run(tmp_path / "broken", overrides=methods)
    with pytest.raises(RunError, match=r"method.name=auto"):
        run(tmp_path / "broken", overrides=methods, resume=True, seed=9)
    again = run(tmp_path / "broken", overrides=methods, resume=True)
    assert cue_bytes(tmp_path / "broken") == cue_bytes(whole.path)
    assert again.selection is not None and whole.selection is not None
    for entry, expected in zip(again.selection.tried, whole.selection.tried, strict=True):
        assert (entry.rungs, entry.dropped_after) == (expected.rungs, expected.dropped_after)
    assert sorted(os.listdir(tmp_path / "broken")) == sorted(os.listdir(whole.path))


@pytest.mark.parametrize(
    ("moment", "file"),
    [
        *(("before", file) for file in ("metrics.jsonl", "checkpoints", "cue.safetensors", "cue.json")),
        *(("after", file) for file in ("checkpoints", "cue.json")),
    ],
)
def test_a_run_that_dies_while_the_winner_takes_over_resumes_to_the_same_cue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, moment: str
) -> None:
    methods = {"selection.methods": "linear-probe,prompt-tuning"}
    set_scores(monkeypatch, {"linear-probe": 50.0, "prompt-tuning": 60.0})
    run(tmp_path / "whole", overrides=methods)
    move = os.replace

    def dying(source: Path, target: Path) -> None:
        is_here = Path(target) == tmp_path / "broken" / file
        if is_here and moment == "before":
            raise Crash
        move(source, target)
        if is_here:
            raise Crash

    monkeypatch.setattr(os, "replace", dying)
    with pytest.raises(Crash):
        run(tmp_path / "broken", overrides=methods)
    monkeypatch.setattr(os, "replace", move)
    cue = run(tmp_path / "broken", overrides=methods, resume=True)
    assert cue_bytes(tmp_path / "broken") == cue_bytes(tmp_path / "whole")
    assert cue.selection is not None
    assert not (tmp_path / "broken" / CANDIDATES).exists()
    assert cue.training_curve == softcue.load(tmp_path / "whole", tiny("bert")).training_curve


def test_a_budget_that_is_over_stays_over_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = {"selection.seconds": 1e-6}
    monkeypatch.setattr(AutoRun, "_hand_over", lambda self, candidate: (_ for _ in ()).throw(Crash))
    with pytest.raises(Crash):
        run(tmp_path / "cue", overrides=methods)
    monkeypatch.undo()
    cue = run(tmp_path / "cue", overrides=methods, resume=True)
    assert cue.selection is not None
    assert cue.selection.is_out_of_time
    assert sum(bool(entry.rungs) for entry in cue.selection.tried) == 1


def test_a_finished_run_is_loaded_or_overwritten_only_if_told(tmp_path: Path) -> None:
    run(tmp_path / "cue")
    before = cue_bytes(tmp_path / "cue")
    with pytest.raises(RunError, match="`overwrite=True`"):
        run(tmp_path / "cue")
    again = run(tmp_path / "cue", resume=True)
    assert again.selection is not None
    assert cue_bytes(tmp_path / "cue") == before
    with pytest.raises(RunError, match="its cue is finished, with others"):
        run(tmp_path / "cue", resume=True, overrides={"selection.methods": "vip-c,linear-probe"})
    assert cue_bytes(tmp_path / "cue") == before
    run(tmp_path / "cue", seed=5, overwrite=True)
    assert cue_bytes(tmp_path / "cue") != before


def test_checkpoints_of_a_run_with_a_named_method_are_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = Checkpoints.save

    def dying(self: Checkpoints, checkpoint: Any) -> None:
        save(self, checkpoint)
        raise Crash

    monkeypatch.setattr(Checkpoints, "save", dying)
    with pytest.raises(Crash):
        run(tmp_path / "cue", method="vip-c")
    monkeypatch.setattr(Checkpoints, "save", save)
    with pytest.raises(RunError, match=r"method.name=auto"):
        run(tmp_path / "cue", resume=True)
    assert list((tmp_path / "cue/checkpoints").iterdir())


# --- errors ---


def test_a_setting_of_one_method_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"method.prompt_length: got 5"):
        run(tmp_path / "cue", prompt_length=5)


def test_a_wrong_setting_is_an_error_and_not_a_reason_to_leave_all_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"training.batch_size: got 0"):
        run(tmp_path / "cue", overrides={"training.batch_size": 0})


def test_several_tasks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="methods are chosen for one task"):
        softcue.train(tmp_path / "cue", tasks=["tickets", "urgency"], method="auto", backbone=tiny("bert"))
    with pytest.raises(ConfigurationError, match="methods are chosen for one task"):
        run(tmp_path / "cue", overrides={"mixture.tasks": ["tickets", "urgency"]})


def test_several_processes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class TwoProcesses:
        world_size = 2

    monkeypatch.setattr("softcue.auto_run.Processes", TwoProcesses)
    with pytest.raises(RunError, match="one process"):
        run(tmp_path / "cue")


def test_settings_of_the_choice_beside_a_named_method_cause_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "cue", method="linear-probe")
    assert "selection.* has no effect on linear-probe" in capsys.readouterr().err
