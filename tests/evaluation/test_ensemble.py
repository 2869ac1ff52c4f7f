from __future__ import annotations

from itertools import permutations

import pytest

from softcue.errors import ConfigurationError
from softcue.evaluation import check_one_task, vote, votes
from softcue.tasks import Label, Task
from softcue.types import Prediction


def answer(**scores: float) -> Prediction:
    """The likeliest label, as a readout gives it."""
    return Prediction(max(scores, key=scores.__getitem__), scores=scores)


def test_majority_wins_against_a_surer_minority() -> None:
    joined = vote([answer(a=0.51, b=0.49), answer(a=0.51, b=0.49), answer(a=0.01, b=0.99)])
    assert joined.label == "a"
    assert joined.scores == pytest.approx({"a": 1.03 / 3, "b": 1.97 / 3})  # b is likelier and still loses


def test_most_votes_win_without_an_absolute_majority() -> None:
    ballots = [answer(a=0.9, b=0.06, c=0.04), answer(a=0.2, b=0.5, c=0.3), answer(a=0.3, b=0.1, c=0.6)]
    joined = vote([*ballots, answer(a=0.3, b=0.1, c=0.6)])
    assert joined.label == "c"
    assert votes(ballots) == {"a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize(
    ("ballots", "winner"),
    [
        # products of probabilities: a 0.9 * 0.4 = 0.36, b 0.1 * 0.6 = 0.06
        ([{"a": 0.9, "b": 0.1}, {"a": 0.4, "b": 0.6}], "a"),
        # a 0.6 * 0.1 = 0.06, b 0.4 * 0.9 = 0.36
        ([{"a": 0.6, "b": 0.4}, {"a": 0.1, "b": 0.9}], "b"),
        # logs, not means: a 0.98 * 0.01 = 0.0098 (mean 0.495), b 0.02 * 0.55 = 0.011 (mean 0.285), c 0 * 0.44
        ([{"a": 0.98, "b": 0.02, "c": 0.0}, {"a": 0.01, "b": 0.55, "c": 0.44}], "b"),
        # the third cue's vote for c decides between a and b: a 0.7 * 0.3 * 0.2, b 0.3 * 0.7 * 0.1
        ([{"a": 0.7, "b": 0.3, "c": 0.0}, {"a": 0.3, "b": 0.7, "c": 0.0}, {"a": 0.2, "b": 0.1, "c": 0.7}], "a"),
    ],
)
def test_tie_goes_to_the_label_that_is_likeliest_to_all_cues(ballots: list[dict[str, float]], winner: str) -> None:
    for order in permutations(ballots):
        assert vote([answer(**scores) for scores in order]).label == winner


def test_only_tied_labels_can_win_a_tie() -> None:
    # c is every cue's second choice and likeliest to all of them together, but got no vote
    ballots = [answer(a=0.5, b=0.02, c=0.48), answer(a=0.03, b=0.5, c=0.47)]
    joined = vote(ballots)
    assert joined.label == "a"  # 0.5 * 0.03 against 0.02 * 0.5
    assert joined.scores == pytest.approx({"a": 0.265, "b": 0.26, "c": 0.475})


def test_perfect_tie_goes_to_the_first_label_of_the_scores() -> None:
    first, second = {"z": 0.7, "a": 0.3}, {"z": 0.3, "a": 0.7}
    assert vote([answer(**first), answer(**second)]).label == "z"
    assert vote([answer(**second), answer(**first)]).label == "z"
    thirds = [{"z": 0.1 + shift, "a": 0.3, "m": 0.6 - shift} for shift in (0.0, 0.5)]
    assert vote([Prediction("m", scores=thirds[0]), Prediction("z", scores=thirds[1])]).label == "z"


def test_rounding_does_not_decide_a_perfect_tie() -> None:
    # a and b both have 0.6 * 0.35 * 0.3; added up one after another, some orders would favour b
    ballots = [answer(a=0.6, b=0.35, c=0.05), answer(a=0.35, b=0.6, c=0.05), answer(a=0.3, b=0.3, c=0.4)]
    assert {vote(order).label for order in permutations(ballots)} == {"a"}


def test_texts_without_scores_go_by_votes_and_then_by_the_first_seen() -> None:
    assert vote([Prediction("b"), Prediction("a"), Prediction("a")]) == Prediction("a")
    assert vote([Prediction("b"), Prediction("a")]) == Prediction("b")


def test_label_without_scores_counts_as_all_but_impossible() -> None:
    scored = answer(a=0.6, b=0.4)
    joined = vote([Prediction("c"), scored])
    assert joined.label == "a"  # 0.6 * tiny against tiny * tiny
    assert joined.scores is None  # one cue has no probabilities to average
    assert vote([Prediction("b"), scored]).label == "a"
    assert vote([Prediction("b"), scored, Prediction("b")]).label == "b"


def test_zero_probability_is_no_error() -> None:
    joined = vote([answer(a=1.0, b=0.0), answer(a=0.0, b=1.0)])
    assert joined == Prediction("a", scores={"a": 0.5, "b": 0.5})


def test_scores_are_means_by_label_whatever_their_order() -> None:
    joined = vote([answer(a=0.8, b=0.2), answer(b=0.6, a=0.4), answer(a=0.6, b=0.4)])
    assert joined.scores == pytest.approx({"a": 0.6, "b": 0.4})
    assert list(joined.scores or {}) == ["a", "b"]


def test_values_are_averaged() -> None:
    ballots = [Prediction(None, value=value) for value in (0.0, 1.0, 3.5)]
    assert vote(ballots) == Prediction(None, value=1.5)
    assert votes(ballots) == {}


def test_one_answer_is_its_own_vote_and_none_is_none() -> None:
    assert vote([answer(a=0.3, b=0.7)]) == answer(a=0.3, b=0.7)
    with pytest.raises(ValueError, match="at least one prediction"):
        vote([])


def test_votes_are_counted_most_first() -> None:
    assert list(votes([Prediction(label) for label in "abbcc"]).items()) == [("b", 2), ("c", 2), ("a", 1)]


# --- who may vote together ---


def task(labels: str = "ab", **settings: object) -> Task:
    names = {name: Label(words=name) for name in labels}
    return Task.model_validate({"name": "t", "labels": names} | settings)


def test_cues_of_one_task_may_vote() -> None:
    words = {"b": Label(words="bee", description="other words"), "a": Label(words="ay")}
    check_one_task({"one": task(), "two": Task(name="other name", labels=words), "three": task(metric="macro_f1")})
    check_one_task({"one": task()})
    check_one_task(
        {"one": task("", kind="regression", label="score"), "two": task("", kind="regression", label="score")}
    )


@pytest.mark.parametrize(
    ("first", "other", "message"),
    [
        (task(), task("abc"), "got 'two: answers a, b, c'; expected one: answers a, b, as all of them must"),
        (task(), task(text=("message",)), "got 'two: reads message'; expected one: reads text,"),
        (task(text=("a", "b")), task(text=("b", "a")), "got 'two: reads b, a'; expected one: reads a, b,"),
        (task(), task("", kind="regression"), "got 'two: is for regression'; expected one: is for classification,"),
        (
            task("", kind="regression", label="cost"),
            task("", kind="regression", label="joy"),
            "got 'two: answers column joy'; expected one: answers column cost,",
        ),
    ],
)
def test_cues_of_other_tasks_are_refused(first: Task, other: Task, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_one_task({"one": first, "same": first, "two": other})
    assert str(caught.value).startswith(f"cues: {message}")
    assert str(caught.value).endswith("; name cues of one task")
