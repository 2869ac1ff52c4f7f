"""The baselines beside a cue's scores: what they predict, where there are none, and that they draw nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny

import softcue
from softcue.backbones import Backbone
from softcue.evaluation import (
    baselines,
    constant_prediction,
    describe_better_baselines,
    predict_baselines,
    score,
    why_no_zero_shot,
)
from softcue.tasks import Label, Task
from softcue.types import Example, Prediction

TASK = Task(name="t", labels={"a": Label(words="account"), "b": Label(words="bill")})
EXAMPLES = [Example((f"my order {number}",), "a" if number % 3 else "b") for number in range(9)]
ROWS = [{"text": example.texts[0], "label": example.target} for example in EXAMPLES]


def test_the_majority_class_is_that_of_the_training_rows() -> None:
    train = [Example(("x",), "b")] * 3 + [Example(("x",), "a")] * 2
    assert constant_prediction(TASK, train) == "b"
    assert constant_prediction(TASK, train[1:4]) == "b"
    assert constant_prediction(TASK, [train[0], train[-1]]) == "a"  # the first label of equally frequent ones
    predictions = predict_baselines(tiny("bert"), TASK, "b", EXAMPLES)["majority_class"]
    assert score(TASK, predictions, EXAMPLES).main == pytest.approx(100 / 3)


def test_regression_has_the_mean_target_and_no_zero_shot() -> None:
    task = Task(name="t", kind="regression")
    train = [Example(("x",), 1.0), Example(("x",), 4.0)]
    assert constant_prediction(task, train) == 2.5
    predicted = predict_baselines(tiny("bert"), task, 2.5, train)
    assert [prediction.value for prediction in predicted["mean_target"]] == [2.5, 2.5]
    assert set(predicted) == {"mean_target"}


@pytest.mark.parametrize("kind", ["generation", "span", "tags"])
@pytest.mark.parametrize("family", ["bert", "t5"])
def test_other_kinds_have_no_baseline_and_a_reason(kind: str, family: str) -> None:
    task = Task.model_validate({"name": "t", "kind": kind, "labels": {"PER": Label(words="person")}})
    backbone = tiny(family)
    assert constant_prediction(task, EXAMPLES) is None
    assert predict_baselines(backbone, task, None, EXAMPLES) == {}
    assert kind in why_no_zero_shot(backbone.kind, task)


@pytest.mark.parametrize("family", ["bert", "t5", "gpt2"])
def test_baselines_change_no_random_state(family: str) -> None:
    backbone = tiny(family)
    before = torch.random.get_rng_state()
    predicted = predict_baselines(backbone, TASK, "a", EXAMPLES)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert set(predicted) == {"majority_class", "zero_shot"}
    assert {prediction.label for prediction in predicted["zero_shot"]} <= {"a", "b"}


def test_many_labels_are_not_ranked_by_a_backbone_that_writes_text() -> None:
    names = [f"label {number}" for number in range(33)]
    task = Task(name="t", labels={name: Label(words=name) for name in names})
    assert "33 labels" in why_no_zero_shot("decoder", task)
    assert why_no_zero_shot("encoder", task) == ""


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_a_run_records_rows_and_baselines_of_every_scored_split(tmp_path: Path, family: str) -> None:
    few = {"training.steps": 1, "method.prompt_length": 2}
    cue = softcue.train(
        tmp_path / "cue",
        backbone=tiny(family),
        train=ROWS,
        validation=ROWS[:6],
        test=ROWS[:4],
        overrides=few,
        progress=False,
    )
    assert cue.cue_file.rows == {"train": 9, "validation": 6, "test": 4}
    assert cue.cue_file.baselines["validation"]["majority_class"]["accuracy"] == pytest.approx(100 * 4 / 6)
    assert set(cue.cue_file.baselines["test"]) == {"majority_class", "zero_shot"}
    assert cue.cue_file.constant_prediction == "a"
    loaded = softcue.load(tmp_path / "cue", tiny(family))
    assert loaded.cue_file.baselines == cue.cue_file.baselines


def test_a_zero_shot_pass_that_fails_costs_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **settings: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr("softcue.evaluation.baselines.zero_shot_predictions", fail)
    few = {"training.steps": 1, "method.prompt_length": 2}
    with pytest.warns(UserWarning, match="no zero-shot score: out of memory"):
        cue = softcue.train(
            tmp_path / "cue", backbone=tiny("bert"), train=ROWS, validation=ROWS, overrides=few, progress=False
        )
    assert set(cue.cue_file.baselines["validation"]) == {"majority_class"}
    assert (tmp_path / "cue" / "cue.json").is_file()


def count_passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each zero-shot pass from now on."""
    passes: list[int] = []
    compute = baselines.zero_shot_predictions

    def counted(backbone: Backbone, task: Task, examples: Sequence[Example], *options: Any) -> list[Prediction]:
        passes.append(len(examples))
        return compute(backbone, task, examples, *options)

    monkeypatch.setattr(baselines, "zero_shot_predictions", counted)
    return passes


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_zero_shot_is_computed_once_for_a_backbone_a_task_and_its_rows(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = count_passes(monkeypatch)
    backbone = Backbone(tiny(family).model, tiny(family).tokenizer, f"own-{family}")
    first = predict_baselines(backbone, TASK, "a", EXAMPLES)
    assert passes == [9]
    assert predict_baselines(backbone, TASK, "b", list(EXAMPLES))["zero_shot"] == first["zero_shot"]
    assert passes == [9]
    first["zero_shot"].clear()  # the list is the caller's
    assert len(predict_baselines(backbone, TASK, "a", EXAMPLES)["zero_shot"]) == 9
    predict_baselines(backbone, TASK, "a", EXAMPLES[1:])
    predict_baselines(
        backbone, TASK.model_copy(update={"labels": {"a": Label(words="no"), "b": Label(words="yes")}}), "a", EXAMPLES
    )
    predict_baselines(Backbone(backbone.model, backbone.tokenizer, "other"), TASK, "a", EXAMPLES)
    assert passes == [9, 8, 9, 9]


def test_only_so_many_zero_shot_predictions_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = count_passes(monkeypatch)
    monkeypatch.setattr(baselines, "KEPT_SPLITS", 2)
    backbone = Backbone(tiny("bert").model, tiny("bert").tokenizer, "own")
    for size in (1, 2, 1, 3, 1, 2):  # 2 is the one that was not used for the longest time
        predict_baselines(backbone, TASK, "a", EXAMPLES[:size])
    assert passes == [1, 2, 3, 2]


def test_a_score_below_a_baseline_is_described_with_both_numbers() -> None:
    evaluation = score(TASK, [Prediction("a")] * 9, EXAMPLES)  # 6 of 9
    better = {"majority_class": {"accuracy": evaluation.main}, "zero_shot": {"accuracy": 77.8}}
    assert describe_better_baselines(TASK, evaluation, better) == (
        "accuracy is 66.7 on 9 validation rows, below zero-shot (77.8), not above majority class (66.7): "
        "other settings or another method may do better"
    )
    equal = {"majority_class": {"accuracy": 60.0}, "zero_shot": {"accuracy": evaluation.main}}
    assert describe_better_baselines(TASK, evaluation, equal) == ""
    assert describe_better_baselines(TASK, evaluation, {"zero_shot": {}}) == ""  # not scored by the task's metric


def test_rows_of_one_label_say_nothing_about_the_majority_class() -> None:
    rows = [Example((f"order {number}",), "a") for number in range(3)]
    evaluation = score(TASK, [Prediction("a")] * 3, rows)
    assert describe_better_baselines(TASK, evaluation, {"majority_class": {"accuracy": 100.0}}) == ""


def test_a_run_warns_if_its_cue_is_not_better_than_the_majority_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    still = {"training.steps": 1, "training.learning_rate": 0.0, "training.network_learning_rate": 0.0}
    overrides = {**still, "method.prompt_length": 2, "readout.head_start": "random", "readout.refit": False}
    cue = softcue.train(
        tmp_path / "cue", backbone=tiny("bert"), train=ROWS, validation=ROWS, overrides=overrides, progress=False
    )
    majority = cue.cue_file.baselines["validation"]["majority_class"]["accuracy"]
    assert cue.scores["validation"]["accuracy"] <= majority  # a random head
    recorded = json.loads((tmp_path / "cue" / "metrics.json").read_text("utf-8"))["warnings"]
    [warning] = [text for text in recorded if "validation rows, " in text]
    assert f"majority class ({majority:.1f})" in warning
    assert f"warning: {warning}" in capsys.readouterr().err
