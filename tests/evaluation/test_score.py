from __future__ import annotations

import math

import pytest

from softcue.errors import ConfigurationError
from softcue.evaluation import score, wrong_rows
from softcue.evaluation.metrics import matthews, pearson
from softcue.tasks import Label, Task, library_task
from softcue.types import Example, Prediction, Span


def labelled(*names: str, **settings: object) -> Task:
    return Task.model_validate({"name": "t", "labels": {name: Label(words=name) for name in names}, **settings})


def rows(*targets: str | float) -> list[Example]:
    return [Example(("x",), target) for target in targets]


def labels(*names: str | None) -> list[Prediction]:
    return [Prediction(name) for name in names]


# --- classes ---


def test_illegal_answers_are_counted_apart() -> None:
    evaluation = score(
        labelled("a", "b"), labels("a", "nonsense", None, "b"), rows("a", "b", "b", "b"), num_truncated=1
    )
    assert (evaluation.main, evaluation.num_illegal, evaluation.num_truncated, evaluation.num_rows) == (50.0, 2, 1, 4)
    assert evaluation.illegal_share == 0.5
    assert evaluation.predicted_labels == {"None": 1, "a": 1, "b": 1, "nonsense": 1}
    assert list(evaluation.scores) == ["accuracy", "macro_f1", "matthews"]


def test_illegal_answer_is_wrong_even_where_the_truth_says_the_same() -> None:
    assert score(labelled("a"), labels("a", "c"), rows("a", "c")).main == 50.0


def test_it_does_not_matter_what_illegal_answers_say() -> None:
    item = score(labelled("a", "b"), labels("a", "x", "y", "b"), rows("a", "a", "b", "b")).scores
    assert item == score(labelled("a", "b"), labels("a", "x", "x", "b"), rows("a", "a", "b", "b")).scores
    assert item["matthews"] == matthews(["a", None, None, "b"], ["a", "a", "b", "b"])


@pytest.mark.parametrize(("metric", "expected"), [("accuracy", 100 / 3), ("macro_f1", 25.0), ("matthews", -50.0)])
def test_main_score_is_the_task_s_metric(metric: str, expected: float) -> None:
    evaluation = score(labelled("a", "b", metric=metric), labels("a", "b", "a"), rows("a", "a", "b"))
    assert evaluation.main == evaluation.scores[metric] == pytest.approx(expected)


def test_main_score_is_the_mean_of_the_task_s_metrics() -> None:
    task = labelled("y", "n", positive="y", metric="accuracy+f1")  # as for MRPC
    evaluation = score(task, labels("y", "y", "n", "n", "y"), rows("y", "y", "y", "n", "n"))
    assert evaluation.scores["accuracy"] == 60.0
    assert evaluation.scores["f1"] == pytest.approx(100 * 2 / 3)
    assert evaluation.main == pytest.approx((60 + 200 / 3) / 2)
    assert list(evaluation.scores) == ["accuracy", "macro_f1", "f1", "matthews"]


def test_collapse_is_one_label_for_many_rows() -> None:
    task = labelled("a", "b")
    assert score(task, labels("a", "a"), rows("a", "b")).has_collapsed
    assert not score(task, labels("a", "b"), rows("a", "b")).has_collapsed
    assert not score(task, labels("a"), rows("a")).has_collapsed


def test_micro_f1_is_listed_where_it_is_not_accuracy() -> None:
    task = labelled("no_relation", "per:age", "org:founded")
    truth = rows("per:age", "no_relation", "no_relation", "no_relation")
    evaluation = score(task, labels("per:age", "no_relation", "no_relation", "per:age"), truth)
    assert evaluation.scores["micro_f1"] == pytest.approx(200 / 3)  # precision 1/2, recall 1
    assert evaluation.scores["accuracy"] == 75.0
    assert score(labelled("a", "b", metric="micro_f1"), labels("a", "a"), rows("a", "b")).main == 50.0


def test_semeval_score_is_listed_where_labels_have_directions() -> None:
    task = labelled("Cause-Effect(e1,e2)", "Cause-Effect(e2,e1)", "Other", metric="semeval_f1")
    evaluation = score(task, labels(*["Cause-Effect(e1,e2)"] * 2), rows("Cause-Effect(e1,e2)", "Cause-Effect(e2,e1)"))
    assert evaluation.main == 50.0
    assert "semeval_f1" not in score(Task(name="t"), labels("a"), rows("a")).scores  # labels unknown


def test_multirc_scores_are_listed_where_rows_have_groups() -> None:
    task = labelled("y", "n", positive="y", metric="multirc_em+multirc_f1a")
    grouped = [Example(("x",), target, group=group) for target, group in [("y", "1"), ("n", "1"), ("y", "2")]]
    evaluation = score(task, labels("y", "y", "y"), grouped)
    assert (evaluation.scores["multirc_em"], evaluation.scores["multirc_f1a"]) == (50.0, 80.0)
    assert evaluation.main == 65.0
    plain = score(labelled("y", "n", positive="y"), labels("y", "y", "y"), rows("y", "n", "y"))
    assert "multirc_em" not in plain.scores and "multirc_f1a" not in plain.scores
    without_positive = score(labelled("y", "n"), labels("y", "y", "y"), grouped)
    assert "multirc_em" in without_positive.scores and "multirc_f1a" not in without_positive.scores


def test_metric_the_task_has_no_use_for_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"task\.metric: got 'f1'"):
        score(labelled("y", "n", metric="f1"), labels("y"), rows("y"))


def test_referents_are_scored_by_accuracy() -> None:
    task = labelled("true", "false", kind="referent", positive="true", text=("text", "name"))
    evaluation = score(task, labels("true", "the cat", "false"), rows("true", "true", "true"))
    assert evaluation.scores == {"accuracy": pytest.approx(100 / 3)}
    assert evaluation.num_illegal == 1
    assert evaluation.predicted_labels == {"false": 1, "the cat": 1, "true": 1}


# --- numbers ---


def test_numbers_are_scored_by_correlations() -> None:
    answers = [Prediction(None, value=value) for value in (1.0, 2.0, 3.0)]
    evaluation = score(Task(name="t", kind="regression"), answers, rows(0.0, 1.0, 2.0))
    correlations = {"pearson": 100.0, "spearman": 100.0, "pearson_spearman": 100.0}
    assert evaluation.scores == pytest.approx({**correlations, "r2": -50.0, "mae": 1.0, "rmse": 1.0})
    assert (evaluation.num_illegal, evaluation.predicted_labels, evaluation.num_true_labels) == (0, {}, 0)


@pytest.mark.parametrize("illegal", [None, math.nan])
def test_answer_without_a_number_lies_below_the_scale(illegal: float | None) -> None:
    answers = [Prediction("x", value=value) for value in (2.0, illegal, 4.0)]
    scaled = score(Task(name="t", kind="regression", scale=(0.0, 5.0, 0.2)), answers, rows(1.0, 2.0, 5.0))
    assert scaled.scores["pearson"] == pytest.approx(pearson([2.0, -1.0, 4.0], [1.0, 2.0, 5.0]))
    assert (scaled.num_illegal, scaled.illegal_share) == (1, pytest.approx(1 / 3))
    plain = score(Task(name="t", kind="regression"), answers, rows(1.0, 2.0, 5.0))
    assert plain.scores["pearson"] == pytest.approx(pearson([2.0, 0.0, 4.0], [1.0, 2.0, 5.0]))
    assert plain.num_illegal == 1


@pytest.mark.parametrize(
    ("name", "official", "reported"),
    [
        ("tacred", "micro_f1", "micro_f1_all_labels"),
        ("semeval2010-8", "semeval_f1", "micro_f1_all_labels"),
        ("anli", "accuracy", "macro_f1"),
        ("anli-r1", "accuracy", "macro_f1"),
    ],
)
def test_metric_of_the_paper_is_reported_beside_the_official_one(name: str, official: str, reported: str) -> None:
    task = library_task(name)
    names = task.label_names[:2]
    evaluation = score(task, labels(names[0], names[0], names[1]), rows(names[0], names[1], names[1]))
    assert list(task.main_metrics) == [official]
    assert {official, reported} <= set(evaluation.scores)
    assert task.paper_metrics == {"VIP": reported}
    assert task.paper_notes == [f"VIP reports {reported} on {name}; the official metric is {official}"]


def test_micro_f1_of_all_labels_counts_the_label_for_no_relation() -> None:
    task = labelled("no_relation", "a", paper_metrics={"VIP": "micro_f1_all_labels"})
    guesses = labels("a", "no_relation", "a", "no_relation")
    evaluation = score(task, guesses, rows("a", "no_relation", "no_relation", "no_relation"))
    assert evaluation.scores["micro_f1_all_labels"] == 75.0
    assert evaluation.scores["micro_f1"] == pytest.approx(200 / 3)  # precision 1/2, recall 1


def test_metric_of_a_paper_must_fit_the_task() -> None:
    with pytest.raises(ConfigurationError, match="word_f1"):
        score(labelled("a", paper_metrics={"VIP": "word_f1"}), labels("a"), rows("a"))


# --- texts ---


@pytest.mark.parametrize("kind", ["generation", "span"])
def test_texts_are_scored_against_all_right_answers(kind: str) -> None:
    task = Task.model_validate({"name": "t", "kind": kind})
    answered = [Example(("x",), "cat", answers=("dog", "black hog")), Example(("x",), "cat"), Example(("x",))]
    evaluation = score(task, labels("hog", "A cat", "None"), answered)
    assert evaluation.scores == pytest.approx({"exact_match": 100 / 3, "word_f1": 100 * (2 / 3 + 1) / 3})
    assert (evaluation.num_illegal, evaluation.predicted_labels) == (0, {})


def test_span_tasks_are_watched_by_the_mean_of_match_and_f1() -> None:
    evaluation = score(Task(name="t", kind="span"), labels("black cat"), rows("cat"))
    assert evaluation.main == pytest.approx((0 + 200 / 3) / 2)


def test_text_outside_the_options_is_illegal_and_scored_by_its_words() -> None:
    row = Example(("x",), answers=("Barack Obama",), options=("Barack Obama", "Ann Dunham"))
    guesses = labels("President Barack Obama", "barack obama", "Ann Dunham", "nobody", None)
    for kind in ("generation", "span"):
        evaluation = score(Task.model_validate({"name": "t", "kind": kind}), guesses, [row] * 5)
        # The official script of ReCoRD: precision 2/3 and recall 1 of the first, the second is equal.
        assert evaluation.scores == pytest.approx({"exact_match": 20.0, "word_f1": (80 + 100) / 5})
        assert (evaluation.num_illegal, evaluation.illegal_share) == (3, 0.6)
        assert "options" in evaluation.illegal_note
    assert "count as wrong" in score(labelled("a"), labels("b"), rows("a")).illegal_note


def test_answer_that_is_not_among_the_options_is_right_as_in_the_official_script() -> None:
    row = Example(("x",), answers=("Ada", "Ada Lovelace"), options=("Ada Lovelace", "Babbage"))
    evaluation = score(Task(name="t", kind="generation"), labels("Ada"), [row])
    assert (evaluation.scores, evaluation.num_illegal) == ({"exact_match": 100.0, "word_f1": 100.0}, 1)
    assert wrong_rows(Task(name="t", kind="generation"), labels("Ada"), [row]) == []
    (wrong,) = wrong_rows(Task(name="t", kind="generation"), labels("Countess Ada"), [row])
    assert wrong.predicted == "Countess Ada (illegal)"


# --- marks ---


def test_marks_are_scored_by_span_f1() -> None:
    task = labelled("PER", "LOC", kind="tags")
    wanted = [Example(("Ada saw Paris",), spans=(Span(0, 3, "PER"), Span(8, 13, "LOC"))), Example(("x",))]
    answers = [Prediction(None, spans=(Span(0, 3, "PER"), Span(4, 7, "LOC"))), Prediction(None, spans=())]
    evaluation = score(task, answers, wanted)
    assert evaluation.scores == {"span_f1": 50.0, "span_precision": 50.0, "span_recall": 50.0}
    assert (evaluation.main, evaluation.num_illegal, evaluation.predicted_labels, evaluation.has_collapsed) == (
        50.0,
        0,
        {},
        False,
    )


ADA = Span(0, 3, "PER")


@pytest.mark.parametrize(
    ("answer", "precision", "recall"),
    [
        (Prediction("Ada???"), 50.0, 50.0),  # nothing to be read: one false mark
        (Prediction("Rome ! location", spans=(), is_illegal=True), 50.0, 50.0),
        (Prediction("Ada ! person ; Rome ! location", spans=(ADA,), is_illegal=True), 200 / 3, 100.0),
        (Prediction(None, spans=(Span(0, 3, "CAT"),)), 50.0, 50.0),  # a label that is none
        (Prediction(None, spans=(ADA, Span(4, 5, "CAT"))), 200 / 3, 100.0),
    ],
)
def test_illegal_marks_are_counted_and_cost_precision(answer: Prediction, precision: float, recall: float) -> None:
    wanted = [Example(("Ada x",), spans=(ADA,))] * 2
    evaluation = score(labelled("PER", "LOC", kind="tags"), [answer, Prediction(None, spans=(ADA,))], wanted)
    assert (evaluation.num_illegal, evaluation.illegal_share) == (1, 0.5)
    assert evaluation.scores["span_precision"] == pytest.approx(precision)
    assert evaluation.scores["span_recall"] == pytest.approx(recall)


def test_mark_nobody_wants_is_wrong_but_legal() -> None:
    evaluation = score(labelled("PER", kind="tags"), [Prediction(None, spans=(ADA,))], [Example(("Ada",))])
    assert (evaluation.num_illegal, evaluation.main) == (0, 0.0)


# --- what the readout calls illegal ---


def test_answer_the_readout_calls_illegal_is_wrong() -> None:
    marked = [Prediction("a", value=1.0, is_illegal=True), Prediction("b", value=2.0)]
    for task, main in [(labelled("a", "b"), 50.0), (Task(name="t", kind="generation"), 50.0)]:
        evaluation = score(task, marked, rows("a", "b"))
        assert (evaluation.main, evaluation.num_illegal) == (main, 1)
    numbers = score(Task(name="t", kind="regression", scale=(5.0, 6.0, 0.2)), marked, rows(1.0, 2.0))
    assert (numbers.scores["pearson"], numbers.num_illegal) == (pytest.approx(-100.0), 1)  # 4 and 2
