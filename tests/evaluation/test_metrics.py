from __future__ import annotations

import math
import random

import numpy
import pytest
from scipy import stats
from sklearn import metrics as sk

from softcue.errors import ConfigurationError
from softcue.evaluation.metrics import (
    accuracy,
    f1,
    macro_f1,
    mae,
    matthews,
    micro_f1,
    multirc_em,
    pearson,
    pearson_spearman,
    r2,
    rmse,
    semeval_f1,
    spearman,
)
from softcue.evaluation.scoring import METRICS, check_metric, metrics_of
from softcue.tasks import Label, Task
from softcue.tasks.task import USUAL_METRICS

TRUE = ["a", "a", "a", "b", "b", "c"]
GUESS = ["a", "a", "b", "b", "c", "c"]


# --- labels ---


def test_accuracy_is_the_share_of_hits() -> None:
    assert accuracy(GUESS, TRUE) == pytest.approx(100 * 4 / 6)


def test_macro_f1_is_the_mean_over_labels() -> None:
    # a: precision 1, recall 2/3; b: 1/2, 1/2; c: 1/2, 1
    assert macro_f1(GUESS, TRUE) == pytest.approx(100 * (0.8 + 0.5 + 2 / 3) / 3)
    assert macro_f1(["a", "c"], ["a", "b"]) == 50.0  # c is not in the truth


def test_micro_f1_is_accuracy_if_no_label_is_left_out() -> None:
    assert micro_f1(GUESS, TRUE) == accuracy(GUESS, TRUE)
    assert micro_f1([*GUESS, None], [*TRUE, "a"]) == accuracy([*GUESS, None], [*TRUE, "a"])


def test_micro_f1_leaves_labels_out_as_tacred_s_scorer_does() -> None:
    # of 6 rows: guessed 4 (a right, a for none, b for a, an illegal one), to be found 3, right 1
    true = ["a", "none", "a", "none", "b", "none"]
    guess = ["a", "a", "b", "none", "none", None]
    assert micro_f1(guess, true, without=("none",)) == pytest.approx(100 * 2 / 7)
    assert micro_f1(["none", "none"], ["none", "none"], without=("none",)) == 0.0


def test_f1_of_the_positive_label_by_hand() -> None:
    # 3 hits, 1 false, 2 missed: precision 3/4, recall 3/5
    true = ["y"] * 5 + ["n"] * 5
    guess = ["y"] * 3 + ["n"] * 2 + ["y"] + ["n"] * 4
    assert f1(guess, true, "y") == pytest.approx(100 * 2 / 3)
    assert f1(guess, true, "n") == pytest.approx(100 * 8 / 11)  # 4 hits, 2 false, 1 missed
    assert f1(["n"] * 10, true, "y") == 0.0


def test_illegal_answer_is_the_wrong_one_of_the_two_in_f1() -> None:
    # T5 sets an invalid prediction to the opposite of the target: missed for y, false for n
    true = ["y", "y", "n", "n"]
    assert f1(["y", None, "n", "n"], true, "y") == pytest.approx(200 / 3)
    assert f1(["y", "y", "n", None], true, "y") == pytest.approx(80.0)
    assert f1(["y", "y", "n", None], true, "y") == f1(["y", "y", "n", "y"], true, "y")


def test_matthews_of_two_labels_is_the_phi_coefficient() -> None:
    # true positives 3, false positives 1, false negatives 2, true negatives 4
    true = ["y"] * 5 + ["n"] * 5
    guess = ["y"] * 3 + ["n"] * 2 + ["y"] + ["n"] * 4
    assert matthews(guess, true) == pytest.approx(100 * (3 * 4 - 1 * 2) / math.sqrt(4 * 5 * 5 * 6))


@pytest.mark.parametrize("guess", [["a", "b"], ["b", "a"]])
def test_matthews_of_perfect_and_inverted_answers(guess: list[str]) -> None:
    assert matthews(guess, ["a", "b"]) == pytest.approx(100.0 if guess == ["a", "b"] else -100.0)


@pytest.mark.parametrize("seed", range(5))
def test_label_metrics_agree_with_sklearn(seed: int) -> None:
    draws = numpy.random.default_rng(seed)
    names = numpy.array(["a", "b", "c", "d"][: 2 + seed % 3])
    true, guess = draws.choice(names, 60).tolist(), draws.choice(names, 60).tolist()
    assert accuracy(guess, true) == pytest.approx(100 * sk.accuracy_score(true, guess))
    assert macro_f1(guess, true) == pytest.approx(100 * sk.f1_score(true, guess, average="macro"))
    kept = names[1:].tolist()
    assert micro_f1(guess, true, ["a"]) == pytest.approx(100 * sk.f1_score(true, guess, average="micro", labels=kept))
    assert f1(guess, true, "b") == pytest.approx(100 * sk.f1_score(true, guess, average=None, labels=["b"])[0])
    assert matthews(guess, true) == pytest.approx(100 * sk.matthews_corrcoef(true, guess))
    with_illegal = [None if row % 7 == 0 else label for row, label in enumerate(guess)]
    expected = sk.matthews_corrcoef(true, [label or "illegal" for label in with_illegal])
    assert matthews(with_illegal, true) == pytest.approx(100 * expected)


def test_constant_labels_give_finite_scores() -> None:
    true = ["a", "a", "b", "c"]
    assert accuracy(["a"] * 4, true) == 50.0
    assert macro_f1(["a"] * 4, true) == pytest.approx(100 * (2 / 3) / 3)
    assert matthews(["a"] * 4, true) == 0.0
    assert matthews(["a", "b"], ["a", "a"]) == 0.0
    assert matthews(["a", "a"], ["a", "a"]) == 0.0


def test_illegal_answers_count_as_wrong() -> None:
    true = ["a", "a", "b", "b"]
    guess = ["a", None, "b", None]
    assert accuracy(guess, true) == 50.0
    assert macro_f1(guess, true) == pytest.approx(100 * 2 / 3)  # precision 1, recall 1/2 for both
    # counts a 1, b 1, illegal 2: (2 * 4 - (2 + 2)) / sqrt((16 - 6) * (16 - 8))
    assert matthews(guess, true) == pytest.approx(100 * 4 / math.sqrt(80))


# --- SemEval-2010 Task 8 ---


def test_semeval_score_counts_a_wrong_direction_against_both_precision_and_recall() -> None:
    true = ["Cause-Effect(e1,e2)", "Cause-Effect(e1,e2)", "Cause-Effect(e2,e1)", "Entity-Origin(e2,e1)", "Other"]
    guess = ["Cause-Effect(e1,e2)", "Cause-Effect(e2,e1)", "Other", "Entity-Origin(e2,e1)", "Entity-Origin(e1,e2)"]
    # Cause-Effect: 1 right of 2 answers and 3 rows; Entity-Origin: 1 of 2 answers and 1 row; Other: left out
    assert semeval_f1(guess, true) == pytest.approx(100 * (2 / 5 + 2 / 3) / 2)


def test_semeval_score_takes_an_illegal_answer_for_no_relation() -> None:
    true = ["Cause-Effect(e1,e2)", "Cause-Effect(e1,e2)", "Other"]
    for illegal in (None, "Cause-Effect", "Cause-Effect(e1,e1)", "Cause-Effect(e1,e2) "):
        assert semeval_f1(["Cause-Effect(e1,e2)", illegal, illegal], true) == pytest.approx(200 / 3)  # 1 of 1, 1 of 2


def test_semeval_score_is_over_the_relations_of_the_truth() -> None:
    true = ["Cause-Effect(e1,e2)", "Cause-Effect(e1,e2)"]
    assert semeval_f1(["Cause-Effect(e1,e2)", "Entity-Origin(e1,e2)"], true) == pytest.approx(200 / 3)
    assert semeval_f1(["Entity-Origin(e1,e2)"], ["Other"]) == 0.0


def test_semeval_score_of_an_official_report() -> None:
    # Confusion matrix of a system (rows: truth) and answers in the wrong direction, as the official scorer v1.2
    # printed them with its score of 83.25.
    relations = (
        "Cause-Effect",
        "Component-Whole",
        "Content-Container",
        "Entity-Destination",
        "Entity-Origin",
        "Instrument-Agency",
        "Member-Collection",
        "Message-Topic",
        "Product-Producer",
    )
    matrix = [
        [300, 0, 0, 0, 4, 1, 0, 2, 2, 12],
        [1, 235, 5, 1, 1, 11, 11, 6, 3, 29],
        [0, 5, 160, 7, 2, 0, 1, 1, 1, 11],
        [0, 2, 7, 264, 0, 0, 0, 1, 1, 16],
        [3, 1, 1, 4, 226, 1, 0, 1, 3, 16],
        [0, 4, 1, 1, 1, 118, 0, 4, 5, 21],
        [0, 4, 0, 0, 2, 0, 206, 1, 0, 19],
        [1, 5, 0, 1, 2, 0, 2, 229, 1, 19],
        [5, 1, 2, 0, 4, 9, 0, 3, 177, 27],
        [16, 25, 18, 23, 27, 24, 29, 33, 26, 231],
    ]
    wrong_direction = [3, 8, 4, 1, 1, 0, 0, 1, 2, 0]
    draws = random.Random(0)
    directions = [(f"{name}(e1,e2)", f"{name}(e2,e1)") for name in relations] + [("Other", "Other")]
    true, guess = [], []
    for row, counts in enumerate(matrix):
        for column, count in enumerate(counts):
            for _ in range(count):
                way = draws.randrange(2)
                true.append(directions[row][way])
                guess.append(directions[column][way if row == column else draws.randrange(2)])
        for _ in range(wrong_direction[row]):
            way = draws.randrange(2)
            true.append(directions[row][way])
            guess.append(directions[row][1 - way])
    assert len(true) == 2706
    assert round(semeval_f1(guess, true), 2) == 83.25
    assert round(accuracy(guess, true), 2) == 79.31


# --- MultiRC ---


def test_multirc_question_is_right_if_all_its_answers_are() -> None:
    groups = ["q1", "q2", "q1", "q2", "q3", "q2"]
    true = ["y", "y", "n", "n", "n", "y"]
    guess = ["y", "y", "n", "y", "n", "y"]  # q2 has one answer wrong, between two right ones
    assert multirc_em(guess, true, groups) == pytest.approx(200 / 3)
    assert f1(guess, true, "y") == pytest.approx(100 * 6 / 7)  # 3 hits, 1 false, none missed


def test_multirc_rows_without_group_are_questions_of_their_own() -> None:
    assert multirc_em(["y", "n", "y"], ["y", "y", "y"], ["", "", ""]) == pytest.approx(200 / 3)


def test_illegal_answer_makes_a_multirc_question_wrong() -> None:
    assert multirc_em(["y", None], ["y", "n"], ["q", "q"]) == 0.0
    assert f1(["y", None], ["y", "n"], "y") == pytest.approx(200 / 3)


# --- numbers ---


def test_pearson_by_hand() -> None:
    # deviations (-1, 0, 1) and (-4/3, -1/3, 5/3): 3 / sqrt(2 * 14/3)
    assert pearson([1, 2, 3], [1, 2, 4]) == pytest.approx(100 * 3 / math.sqrt(2 * 14 / 3))


def test_spearman_by_hand() -> None:
    # ranks 1 2 3 4 and 1 3 2 4: 1 - 6 * 2 / (4 * 15)
    assert spearman([1, 2, 3, 4], [1, 30, 20, 400]) == pytest.approx(80.0)


def test_spearman_gives_ties_their_mean_rank() -> None:
    # ranks 1, 2.5, 2.5, 4 and 1 2 3 4: 4.5 / sqrt(4.5 * 5)
    assert spearman([1, 5, 5, 6], [1, 2, 3, 4]) == pytest.approx(100 * 4.5 / math.sqrt(22.5))
    assert spearman([1, 2, 3, 4], [1, 5, 5, 6]) == pytest.approx(100 * 4.5 / math.sqrt(22.5))


def test_correlations_are_averaged_as_in_glue() -> None:
    # Pearson: deviations (-7/4, -3/4, 9/4, 1/4) and (-1.5, -0.5, 0.5, 1.5): 4.5 / sqrt(8.75 * 5); Spearman 0.8
    expected = 100 * (4.5 / math.sqrt(8.75 * 5) + 0.8) / 2
    assert pearson_spearman([1.0, 2.0, 5.0, 3.0], [1.0, 2.0, 3.0, 4.0]) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(5))
def test_number_metrics_agree_with_scipy(seed: int) -> None:
    draws = numpy.random.default_rng(seed)
    true = draws.integers(0, 6, 40).astype(float)  # with ties
    guess = (true + draws.normal(size=40)).tolist()
    assert pearson(guess, true.tolist()) == pytest.approx(100 * stats.pearsonr(guess, true).statistic)
    assert spearman(guess, true.tolist()) == pytest.approx(100 * stats.spearmanr(guess, true).statistic)


@pytest.mark.parametrize("metric", [pearson, spearman, pearson_spearman])
def test_constant_numbers_correlate_with_nothing(metric: object) -> None:
    assert callable(metric)
    assert metric([2.0] * 3, [1.0, 2.0, 3.0]) == 0.0
    assert metric([1.0, 2.0, 3.0], [2.0] * 3) == 0.0
    assert metric([2.0], [2.0]) == 0.0


# --- what a task may name ---


def labelled(*names: str, **settings: object) -> Task:
    return Task.model_validate({"name": "t", "labels": {name: Label(words=name) for name in names}, **settings})


@pytest.mark.parametrize("kind", list(USUAL_METRICS))
def test_metric_of_another_kind_is_refused(kind: str) -> None:
    settings = {"kind": kind, "positive": "A-B(e1,e2)"}  # labels with which no metric of the kind lacks anything
    check_metric(labelled("A-B(e1,e2)", "Other", **settings))
    check_metric(labelled("A-B(e1,e2)", "Other", **settings, metric="+".join(metrics_of(kind))))
    errors = {name for name, metric in METRICS.items() if metric.is_error and kind in metric.kinds}
    for name in {"f2", *METRICS} - set(metrics_of(kind)) - errors:
        message = f"task.metric: got '{name}'; expected a metric for {kind}; .*known: "
        with pytest.raises(ConfigurationError, match=message):
            check_metric(labelled("A-B(e1,e2)", "Other", **settings, metric=name))


@pytest.mark.parametrize("name", ["mae", "rmse"])
def test_an_error_cannot_be_the_metric_of_a_task_and_the_reason_is_said(name: str) -> None:
    for metric in (name, f"pearson+{name}"):
        with pytest.raises(ConfigurationError, match=f"got '{name}'; expected a metric where higher is better.*r2"):
            check_metric(Task(name="t", kind="regression", metric=metric))
    check_metric(Task(name="t", kind="regression", metric="r2"))


NUMBERS = [
    ([1.0, 2.0, 3.5], [1.5, 2.0, 3.0]),
    ([0.0, 0.0, 9.0], [1.0, 2.0, 3.0]),
    ([2.0, 2.0], [2.0, 2.0]),
    ([1.0, 2.0], [2.0, 2.0]),
    ([-4.0, 1e6, 3.0, 3.0], [7.0, 1e6 + 1, 3.0, -2.0]),
]


@pytest.mark.parametrize(("predicted", "true"), NUMBERS)
def test_errors_and_r2_are_those_of_scikit_learn(predicted: list[float], true: list[float]) -> None:
    from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

    assert mae(predicted, true) == pytest.approx(mean_absolute_error(true, predicted))
    assert rmse(predicted, true) == pytest.approx(root_mean_squared_error(true, predicted))
    assert r2(predicted, true) == pytest.approx(100 * r2_score(true, predicted))


def test_errors_of_one_row_and_of_huge_numbers_are_finite() -> None:
    assert (mae([3.0], [1.0]), rmse([3.0], [1.0]), r2([3.0], [1.0])) == (2.0, 2.0, 0.0)
    assert rmse([1e200, 0.0], [0.0, 0.0]) == pytest.approx(1e200 / 2**0.5)
    assert r2([1e200, 0.0], [1e200, 2e200]) == pytest.approx(-700.0)


def test_the_step_with_the_best_r2_has_the_lowest_rmse() -> None:
    true = [1.0, 2.0, 4.0, 3.0]
    steps = [[1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 3.0, 3.0], [5.0, 2.0, 4.0, 3.0]]
    assert max(steps, key=lambda step: r2(step, true)) == min(steps, key=lambda step: rmse(step, true))


def test_every_part_of_a_mean_is_checked() -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_metric(Task(name="t", metric="accuracy+macro_f2"))
    assert str(caught.value).startswith(
        "task.metric: got 'macro_f2'; expected a metric for classification; "
        "did you mean 'macro_f1'? known: accuracy, f1, macro_f1"
    )
    for empty in ("accuracy+", "+accuracy"):
        with pytest.raises(ConfigurationError, match=r"task\.metric: got ''; expected a metric for classification"):
            check_metric(Task(name="t", metric=empty))


@pytest.mark.parametrize("metric", ["f1", "multirc_f1a"])
def test_f1_needs_to_know_the_positive_label(metric: str) -> None:
    check_metric(labelled("y", "n", positive="y", metric=f"accuracy+{metric}"))
    with pytest.raises(
        ConfigurationError, match=f"got '{metric}'; expected a task that says which label is `positive`"
    ):
        check_metric(labelled("y", "n", metric=f"accuracy+{metric}"))


def test_semeval_score_needs_directions() -> None:
    check_metric(labelled("Cause-Effect(e1,e2)", "Other", metric="semeval_f1"))
    check_metric(Task(name="t", metric="semeval_f1"))  # its labels are not read yet
    with pytest.raises(ConfigurationError, match="expected a task with labels like"):
        check_metric(labelled("Cause-Effect", "Other", metric="semeval_f1"))


def test_task_of_each_kind_is_checked_by_its_own_kind() -> None:
    check_metric(Task(name="t", kind="tags"))
    with pytest.raises(ConfigurationError, match="got 'accuracy'; expected a metric for tags"):
        check_metric(Task(name="t", kind="tags", metric="span_f1+accuracy"))
