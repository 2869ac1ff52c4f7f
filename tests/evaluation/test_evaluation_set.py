"""A cue on another task's rows: which labels match, in which direction, and which pairs are errors."""

from __future__ import annotations

import pytest

from softcue.errors import ConfigurationError
from softcue.evaluation import match_labels
from softcue.tasks import Label, Task, find_task
from softcue.types import Example, Prediction


@pytest.mark.parametrize(("ours", "theirs"), [("qqp", "mrpc"), ("mrpc", "qqp")])
def test_paraphrases_are_the_same_in_both_directions(ours: str, theirs: str) -> None:
    mapping = match_labels(find_task(ours), find_task(theirs))
    assert mapping.task.name == theirs
    named = {"qqp": ("duplicate", "not_duplicate"), "mrpc": ("equivalent", "not_equivalent")}
    assert dict(mapping.predicted) == dict(zip(named[ours], named[theirs], strict=True))


@pytest.mark.parametrize("ours", ["anli", "snli", "mnli"])
@pytest.mark.parametrize("theirs", ["rte", "superglue-rte", "axb", "axg"])
def test_three_nli_labels_become_two_by_turning_the_cues_answers(ours: str, theirs: str) -> None:
    mapping = match_labels(find_task(ours), find_task(theirs))
    assert mapping.task.name == theirs
    assert mapping.predicted == {
        "entailment": "entailment",
        "neutral": "not_entailment",
        "contradiction": "not_entailment",
    }
    examples = [
        Example(("a", "b"), target) for target in ("entailment", "not_entailment", "not_entailment", "entailment")
    ]
    answers = [Prediction(label) for label in ("entailment", "neutral", "contradiction", "neutral")]
    assert mapping.score(answers, examples).scores["accuracy"] == 75.0


def test_two_nli_labels_on_rows_with_three_are_scored_as_two() -> None:
    mapping = match_labels(find_task("rte"), find_task("cb"))
    assert mapping.task.name == "rte"
    examples = [Example(("a", "b"), target) for target in ("entailment", "neutral", "contradiction", "neutral")]
    answers = [Prediction(label) for label in ("entailment", "not_entailment", "not_entailment", "entailment")]
    assert mapping.score(answers, examples).scores["accuracy"] == 75.0


def test_equal_labels_stay_as_they_are_whatever_else_they_mean() -> None:
    mapping = match_labels(find_task("snli"), find_task("cb"))
    assert mapping.task.name == "cb"
    assert all(ours == theirs for ours, theirs in mapping.predicted.items())


def test_questions_of_one_kind_need_no_labels() -> None:
    mapping = match_labels(find_task("squad"), find_task("squadshifts-amazon"))
    examples = [Example(("q", "c"), "Oslo", answers=("Oslo", "in Oslo"))]
    assert mapping.score([Prediction("the Oslo")], examples).main == 100.0


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ("rte", "squad", "a task for classification, not span"),
        ("sst2", "rte", "a task that reads 1 texts"),
        ("sst2", "subj", "labels that stand for"),
        ("tickets", "urgency", "labels that stand for"),
    ],
)
def test_tasks_without_a_common_meaning_are_refused(ours: str, theirs: str, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected) as caught:
        match_labels(find_task(ours), find_task(theirs))
    assert f"the cue was trained for {ours}" in str(caught.value)


def test_labels_that_would_all_become_one_are_refused() -> None:
    ours = Task(name="ours", labels={"a": Label(words="a", means=("x",)), "b": Label(words="b", means=("x",))})
    theirs = Task(name="theirs", labels={"x": Label(words="x"), "y": Label(words="y")})
    with pytest.raises(ConfigurationError, match="labels that stand for a, b"):
        match_labels(ours, theirs)
