from __future__ import annotations

import math

import numpy
import pytest
from scipy import stats
from sklearn import metrics as sk

from softcue.errors import ConfigurationError
from softcue.evaluation import score
from softcue.evaluation.metrics import (
    LABEL_METRICS,
    METRICS_OF,
    NUMBER_METRICS,
    accuracy,
    check_metric,
    exact_match,
    macro_f1,
    matthews,
    pearson,
    pearson_spearman,
    spearman,
    word_f1,
)
from softcue.tasks import Label, Task
from softcue.types import Example, Prediction

TRUE = ["a", "a", "a", "b", "b", "c"]
GUESS = ["a", "a", "b", "b", "c", "c"]


def test_accuracy_is_the_share_of_hits() -> None:
    assert accuracy(GUESS, TRUE) == pytest.approx(100 * 4 / 6)


def test_macro_f1_is_the_mean_over_labels() -> None:
    # a: precision 1, recall 2/3; b: 1/2, 1/2; c: 1/2, 1
    assert macro_f1(GUESS, TRUE) == pytest.approx(100 * (0.8 + 0.5 + 2 / 3) / 3)


def test_matthews_of_two_labels_is_the_phi_coefficient() -> None:
    # true positives 3, false positives 1, false negatives 2, true negatives 4
    true = ["y"] * 5 + ["n"] * 5
    guess = ["y"] * 3 + ["n"] * 2 + ["y"] + ["n"] * 4
    assert matthews(guess, true) == pytest.approx(100 * (3 * 4 - 1 * 2) / math.sqrt(4 * 5 * 5 * 6))


@pytest.mark.parametrize("guess", [["a", "b"], ["b", "a"]])
def test_matthews_of_perfect_and_inverted_answers(guess: list[str]) -> None:
    assert matthews(guess, ["a", "b"]) == pytest.approx(100.0 if guess == ["a", "b"] else -100.0)


def test_exact_match_ignores_case_punctuation_articles_and_spaces() -> None:
    assert exact_match(["The  Cat!", "a dog", "Another"], ["cat", "the hog", "other"]) == pytest.approx(100 / 3)


@pytest.mark.parametrize(
    ("guess", "true", "expected"),
    [
        ("the black cat", "a cat", 2 / 3),  # precision 1/2, recall 1
        ("cat cat dog", "cat", 0.5),  # a word counts as often as it is wanted
        ("dog", "cat", 0.0),
        ("", "cat", 0.0),
        ("the", "a", 1.0),  # both empty after normalising, as in SQuAD's script
        ("Cat.", "cat", 1.0),
    ],
)
def test_word_f1_of_one_answer(guess: str, true: str, expected: float) -> None:
    assert word_f1([guess], [true]) == pytest.approx(100 * expected)


def test_word_f1_is_the_mean_over_rows() -> None:
    assert word_f1(["cat", "dog"], ["cat", "cat"]) == 50.0


def test_pearson_by_hand() -> None:
    # deviations (-1, 0, 1) and (-4/3, -1/3, 5/3): 3 / sqrt(2 * 14/3)
    assert pearson([1, 2, 3], [1, 2, 4]) == pytest.approx(100 * 3 / math.sqrt(2 * 14 / 3))


def test_spearman_by_hand() -> None:
    # ranks 1 2 3 4 and 1 3 2 4: 1 - 6 * 2 / (4 * 15)
    assert spearman([1, 2, 3, 4], [1, 30, 20, 400]) == pytest.approx(80.0)


def test_spearman_gives_ties_their_mean_rank() -> None:
    # ranks 1, 2.5, 2.5 and 1 2 3: 1.5 / sqrt(1.5 * 2)
    assert spearman([1, 5, 5], [1, 2, 3]) == pytest.approx(100 * 1.5 / math.sqrt(3))


def test_correlations_are_averaged_as_in_glue() -> None:
    guess, true = [1.0, 2.0, 5.0, 3.0], [1.0, 2.0, 3.0, 4.0]
    assert pearson_spearman(guess, true) == pytest.approx((pearson(guess, true) + spearman(guess, true)) / 2)


@pytest.mark.parametrize("seed", range(5))
def test_label_metrics_agree_with_sklearn(seed: int) -> None:
    draws = numpy.random.default_rng(seed)
    names = numpy.array(["a", "b", "c", "d"][: 2 + seed % 3])
    true, guess = draws.choice(names, 60).tolist(), draws.choice(names, 60).tolist()
    assert accuracy(guess, true) == pytest.approx(100 * sk.accuracy_score(true, guess))
    assert macro_f1(guess, true) == pytest.approx(100 * sk.f1_score(true, guess, average="macro"))
    assert matthews(guess, true) == pytest.approx(100 * sk.matthews_corrcoef(true, guess))


@pytest.mark.parametrize("seed", range(5))
def test_number_metrics_agree_with_scipy(seed: int) -> None:
    draws = numpy.random.default_rng(seed)
    true = draws.integers(0, 6, 40).astype(float)  # with ties
    guess = (true + draws.normal(size=40)).tolist()
    assert pearson(guess, true.tolist()) == pytest.approx(100 * stats.pearsonr(guess, true).statistic)
    assert spearman(guess, true.tolist()) == pytest.approx(100 * stats.spearmanr(guess, true).statistic)


def test_constant_labels_give_finite_scores() -> None:
    true = ["a", "a", "b", "c"]
    assert accuracy(["a"] * 4, true) == 50.0
    assert macro_f1(["a"] * 4, true) == pytest.approx(100 * (2 / 3) / 3)
    assert matthews(["a"] * 4, true) == 0.0
    assert matthews(["a", "b"], ["a", "a"]) == 0.0
    assert matthews(["a", "a"], ["a", "a"]) == 0.0


@pytest.mark.parametrize("metric", NUMBER_METRICS.values(), ids=list(NUMBER_METRICS))
def test_constant_numbers_correlate_with_nothing(metric: object) -> None:
    assert callable(metric)
    assert metric([2.0] * 3, [1.0, 2.0, 3.0]) == 0.0
    assert metric([1.0, 2.0, 3.0], [2.0] * 3) == 0.0
    assert metric([2.0], [2.0]) == 0.0


def test_illegal_answers_count_as_wrong() -> None:
    true = ["a", "a", "b", "b"]
    guess = ["a", "nonsense", "b", ""]
    assert accuracy(guess, true) == 50.0
    assert macro_f1(guess, true) == pytest.approx(100 * 2 / 3)  # precision 1, recall 1/2 for both
    assert 0 < matthews(guess, true) < 100


def test_illegal_answers_are_counted_apart() -> None:
    task = Task(name="t", labels={"a": Label(words="a"), "b": Label(words="b")})
    answers = [Prediction("a"), Prediction("nonsense")]
    found = score(task, answers, [Example(("x",), "a"), Example(("y",), "b")], num_truncated=1)
    assert (found.main, found.num_illegal, found.num_truncated, found.num_rows) == (50.0, 1, 1, 2)
    assert found.predicted_labels == {"a": 1, "nonsense": 1}
    assert set(found.scores) == set(LABEL_METRICS)


@pytest.mark.parametrize("metric", list(LABEL_METRICS))
def test_main_score_is_the_task_s_metric(metric: str) -> None:
    task = Task(name="t", labels={"a": Label(words="a"), "b": Label(words="b")}, metric=metric)
    rows = [Example(("x",), label) for label in "aab"]
    found = score(task, [Prediction(label) for label in "aba"], rows)
    assert found.main == LABEL_METRICS[metric](list("aba"), list("aab"))


def test_collapse_is_one_label_for_many_rows() -> None:
    task = Task(name="t", labels={"a": Label(words="a"), "b": Label(words="b")})
    rows = [Example(("x",), "a"), Example(("y",), "b")]
    assert score(task, [Prediction("a"), Prediction("a")], rows).has_collapsed
    assert not score(task, [Prediction("a"), Prediction("b")], rows).has_collapsed
    assert not score(task, [Prediction("a")], rows[:1]).has_collapsed


def test_numbers_and_texts_are_scored_by_their_own_metrics() -> None:
    numbers = Task(name="t", kind="regression")
    rows = [Example(("x",), value) for value in (0.0, 1.0, 2.0)]
    found = score(numbers, [Prediction(None, value=value) for value in (1.0, 2.0, 3.0)], rows)
    assert found.scores == pytest.approx({"pearson": 100.0, "spearman": 100.0, "pearson_spearman": 100.0})
    texts = score(Task(name="t", kind="generation"), [Prediction("A cat")], [Example(("x",), "cat")])
    assert texts.scores == {"exact_match": 100.0, "word_f1": 100.0}
    assert texts.predicted_labels == {}


@pytest.mark.parametrize("kind", list(METRICS_OF))
def test_metric_of_another_kind_is_refused(kind: str) -> None:
    for name in METRICS_OF[kind]:
        check_metric(name, kind)
    with pytest.raises(ConfigurationError, match=f"task.metric: got 'f1'; expected a metric for {kind}; .*known: "):
        check_metric("f1", kind)
